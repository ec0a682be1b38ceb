from __future__ import annotations

import contextlib
import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry import exceptions
from tunehub_registry.compat import (
    Compat,
    NetworkSample,
    RecordReplay,
    ReleaseReplay,
    encode_compat,
    parse_compat,
    release_of,
)  # fmt: skip

pytestmark = pytest.mark.fast


def result(number: int = 1, outcome: Any = "ok", **changes: Any) -> RecordReplay:
    reason = "" if outcome in ("ok", "differs") else "TVM says no"
    return RecordReplay(
        **{"tuner": "template", "key": f"{number:032x}", "outcome": outcome, "reason": reason, **changes}
    )


SAMPLE = NetworkSample(network="squeezenet", outcome="ok", workloads=28, by_record=27, ran=True)


def compat(*releases: ReleaseReplay) -> Compat:
    return Compat(
        name="llvm-znver5", version="0.4.0", package="a" * 64, created_by="test", created="2026-11-23T12:00:00Z",
        releases=releases,
    )  # fmt: skip


def test_what_failed_is_masked_on_that_release_alone() -> None:
    outcomes = ("ok", "differs", "failed", "not_run")
    found = compat(
        ReleaseReplay(tvm="0.27.0.post1", records=(result(3),)),
        ReleaseReplay(tvm="0.26.0", records=tuple(result(at, outcome) for at, outcome in enumerate(outcomes))),
    )
    assert found.masked("0.26.0") == found.masked("0.26.1.dev3") == {("template", f"{2:032x}"): "TVM says no"}
    assert found.masked("0.27.0") == found.masked("0.25.0") == found.masked("source") == {}


def test_releases_are_two_numbers() -> None:
    assert release_of("0.27.0.post1") == release_of("0.27") == release_of("0.27rc1") == (0, 27)
    assert release_of("0") is None
    assert release_of("0.27!") is None


def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        encode_compat(compat(ReleaseReplay(tvm="0.27.0", records=(result(), result(2)), sample=SAMPLE)))
    )
    return value


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("package",), "A" * 64, "$.package"),
        (("name",), "../x", "$.name"),
        (("created",), "soon", "$.created"),
        (("releases", 0, "tvm"), "newest", "$.releases[0].tvm"),
        (("releases", 0, "records", 0, "outcome"), "fine", "$.releases[0].records[0].outcome"),
        (("releases", 0, "records", 0, "outcome"), "failed", "$.releases[0].records[0].reason"),
        (("releases", 0, "records", 0, "key"), "0" * 31, "$.releases[0].records[0].key"),
        (("releases", 0, "records", 0, "key"), f"{2:032x}", "$.releases[0].records"),
        (("releases", 0, "records", 0, "reason"), "x" * 301, "$.releases[0].records[0].reason"),
        (("releases", 0, "sample", "network"), "", "$.releases[0].sample.network"),
        (("releases", 0, "sample", "outcome"), "failed", "$.releases[0].sample.reason"),
        (("releases", 0, "sample", "by_record"), 29, "$.releases[0].sample.by_record"),
    ],
)
def test_errors_carry_the_path(path: tuple[Any, ...], value: Any, where: str) -> None:
    changed = document()
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(exceptions.FormatError) as caught:
        parse_compat(json.dumps(changed).encode(), "c.json")
    assert caught.value.path == where


def test_a_release_is_there_once() -> None:
    with pytest.raises(exceptions.FieldError, match="once"):
        compat(ReleaseReplay(tvm="0.27.0"), ReleaseReplay(tvm="0.27.1"))


def test_versions_of_the_format() -> None:
    data = encode_compat(compat())
    with pytest.warns(exceptions.NewerFormatWarning, match=r"1\.7"):
        parse_compat(data.replace(b'"1.0"', b'"1.7"'), "c")
    with pytest.raises(exceptions.UnsupportedFormatError):
        parse_compat(data.replace(b'"1.0"', b'"2.0"'), "c")


keys = st.integers(0, 50).map(lambda number: f"{number:032x}")
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
records = st.builds(
    result,
    key=keys,
    outcome=st.sampled_from(["ok", "differs", "failed", "not_run"]),
    reason=texts,
    text=keys | st.just(""),
)
tables = st.lists(records, unique_by=lambda item: (item.tuner, item.key)).map(tuple)


@given(st.lists(st.tuples(st.integers(0, 99), tables), unique_by=lambda pair: pair[0]), st.sampled_from([None, SAMPLE]))
def test_whatever_can_be_made_can_be_read_again(
    releases: list[tuple[int, tuple[RecordReplay, ...]]], sample: NetworkSample | None
) -> None:
    made = compat(*(ReleaseReplay(tvm=f"0.{minor}.0", records=table, sample=sample) for minor, table in releases[:64]))
    assert parse_compat(encode_compat(made), "c") == made


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(exceptions.FormatError):
        parse_compat(data, "c")


@given(st.data())
def test_damage_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(json.dumps(document()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(exceptions.FormatError), warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.NewerFormatWarning)
        assert isinstance(parse_compat(bytes(content), "c").masked("0.27.0"), dict)
