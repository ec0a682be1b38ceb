from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.ladder_record import (
    MAX_LINE_BYTES,
    BadLine,
    LadderRecord,
    LadderStep,
    TimesAt,
    encode_ladder_record,
    parse_ladder_record,
    read_ladder_records,
)

pytestmark = pytest.mark.fast


def times(*at: int, run_s: float = 1e-3, default_s: float = 4e-3) -> TimesAt:
    return TimesAt(at=at, run_s=run_s, default_s=default_s)


KNOBS: dict[str, Any] = {"template": "dense", "version": 1, "knobs": {"columns": 6, "order": "rows"}}
RECORD = LadderRecord(
    exact="0" * 32,
    anchor="1" * 32,
    op="fused_dense_add",
    networks=("bert",),
    source="template",
    symbols=2,
    ladder=(
        LadderStep(up_to=16, times=(times(1, 1), times(4, 3)), **KNOBS),
        LadderStep(up_to=64, trace=([], []), times=(times(2, 16, default_s=16e-3),)),
        LadderStep(own="rule", times=(times(8, 61, run_s=4e-3),)),
    ),
)


def document(**changes: Any) -> dict[str, Any]:
    return {**json.loads(encode_ladder_record(RECORD)), **changes}


def steps(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    found = document()["ladder"]
    return [{**step, **change} for step, change in zip(found, [*changes, {}, {}], strict=False)]


def test_round_trip_is_canonical() -> None:
    line = encode_ladder_record(RECORD)
    assert line.count(b"\n") == 1
    assert parse_ladder_record(line[:-1], "r:1") == RECORD
    assert encode_ladder_record(parse_ladder_record(line[:-1], "r:1")) == line


def test_a_record_is_ranked_by_what_it_takes_and_gains_at_all_sizes_alike() -> None:
    assert RECORD.gain == pytest.approx((4 * 4 * 16 * 1) ** 0.25)
    assert RECORD.mean_s == pytest.approx(math.sqrt(2) * 1e-3)


@pytest.mark.parametrize(("size", "place"), [(1, 0), (16, 0), (17, 1), (64, 1), (65, 2), (2**40, 2)])
def test_each_size_has_the_step_up_to_whose_bound_it_is(size: int, place: int) -> None:
    assert RECORD.step_for(size) is RECORD.ladder[place]


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("exact", "xyz", "$.exact"),
        ("anchor", "0" * 31, "$.anchor"),
        ("extents", [0], "$.extents[0]"),
        ("source", "", "$.source"),
        ("symbols", 0, "$.symbols"),
        ("symbols", 9, "$.symbols"),
        ("symbols", 1, "$.ladder"),
        ("symbols", 3, "$.ladder"),
        ("ladder", [], "$.ladder"),
        ("ladder", {}, "$.ladder"),
        ("ladder", steps({}, {}, {"up_to": 99}), "$.ladder"),
        ("ladder", steps({"up_to": None}), "$.ladder"),
        ("ladder", steps({"up_to": 64}), "$.ladder"),
        ("ladder", steps({"up_to": 65}), "$.ladder"),
        ("ladder", steps({"up_to": 11}), "$.ladder"),
        ("ladder", steps({"up_to": 32}), "$.ladder"),
        ("ladder", steps({"up_to": 0}), "$.ladder[0].up_to"),
        ("ladder", steps({"up_to": 2**63}), "$.ladder[0].up_to"),
        ("ladder", steps({"up_to": "16"}), "$.ladder[0].up_to"),
        ("ladder", steps({"template": None}), "$.ladder[0].template"),
        ("ladder", steps({"template": "os.path"}), "$.ladder[0].template"),
        ("ladder", steps({"version": None}), "$.ladder[0].template"),
        ("ladder", steps({"knobs": None}), "$.ladder[0].template"),
        ("ladder", steps({"knobs": {"columns": 1.5}}), "$.ladder[0].knobs[...]"),
        ("ladder", steps({"trace": [[], []]}), "$.ladder[0].own"),
        ("ladder", steps({"own": "rule"}), "$.ladder[0].own"),
        ("ladder", steps({"own": "fastest"}), "$.ladder[0].own"),
        ("ladder", steps({}, {"trace": None}), "$.ladder[1].own"),
        ("ladder", steps({}, {"trace": [[]]}), "$.ladder[1].trace"),
        ("ladder", steps({"times": []}), "$.ladder[0].times"),
        ("ladder", steps({"times": [{"at": [], "run_s": 1, "default_s": 1}]}), "$.ladder[0].times[0].at"),
        ("ladder", steps({"times": [{"at": [0, 1], "run_s": 1, "default_s": 1}]}), "$.ladder[0].times[0].at[0]"),
        ("ladder", steps({"times": [{"at": [1, 1], "run_s": 0, "default_s": 1}]}), "$.ladder[0].times[0].run_s"),
        ("ladder", steps({"times": [{"at": [1, 1], "run_s": 1}]}), "$.ladder[0].times[0]"),
        ("ladder", [{"own": "default"}], "$.ladder"),
    ],
)
def test_errors_carry_the_path(field: str, value: Any, where: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_ladder_record(json.dumps(document(**{field: value})).encode(), "r.jsonl:7")
    assert (caught.value.path, caught.value.source) == (where, "r.jsonl:7")


def test_names_of_knobs_are_words() -> None:
    with pytest.raises(FormatError, match="knobs"):
        parse_ladder_record(json.dumps(document(ladder=steps({"knobs": {"__class__": 1}}))).encode(), "r.jsonl:7")


@pytest.mark.parametrize("field", ["exact", "op", "source", "symbols", "ladder"])
def test_no_field_may_be_missing(field: str) -> None:
    left = {name: value for name, value in document().items() if name != field}
    with pytest.raises(FormatError, match=field):
        parse_ladder_record(json.dumps(left).encode(), "r.jsonl:1")


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -math.inf])
def test_times_are_numbers(seconds: float) -> None:
    with pytest.raises(FieldError, match="finite"):
        times(1, run_s=seconds)


def test_one_bad_line_never_loses_the_file() -> None:
    good = encode_ladder_record(RECORD)
    twice = good.replace(b'"symbols":2', b'"symbols":2,"symbols":1')
    lines = [good, b"\n", twice, b'"' + b"x" * (3 * MAX_LINE_BYTES) + b'"\n', good.replace(b"0.004", b"NaN"), good]
    result = list(read_ladder_records(io.BytesIO(b"".join(lines)), "r.jsonl"))
    assert [type(entry) is LadderRecord for entry in result] == [True, *[False] * 4, True]
    bad = {entry.line: entry.reason for entry in result if isinstance(entry, BadLine)}
    assert "occurs twice" in bad[3]
    assert "longer than" in bad[4]
    assert "NaN" in bad[5]


SECONDS = st.floats(min_value=1e-12, max_value=1e6)
OWN = st.sampled_from([{"own": "rule"}, {"own": "default"}, KNOBS, {"trace": ([], [])}])


@st.composite
def ladders(draw: st.DrawFn) -> LadderRecord:
    bounds = sorted(draw(st.sets(st.integers(1, 2**31), max_size=7)))
    made = []
    for below, up_to in zip([0, *bounds], [*bounds, None], strict=True):
        at = draw(st.integers(below + 1, 2**31 if up_to is None else up_to)) if below < 2**31 else None
        measured = () if at is None else (times(at, run_s=draw(SECONDS), default_s=draw(SECONDS)),)
        made.append(LadderStep(up_to=up_to, times=measured, **(draw(OWN) if measured else {"own": "default"})))
    return LadderRecord(exact="0" * 32, op=draw(st.text(max_size=9)), source="s", symbols=1, ladder=tuple(made))


@given(ladders())
def test_every_valid_record_round_trips(record: LadderRecord) -> None:
    assert list(read_ladder_records(io.BytesIO(encode_ladder_record(record)), "r.jsonl")) == [record]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_give_bad_lines_only(lines: list[bytes]) -> None:
    assert all(isinstance(e, BadLine) for e in read_ladder_records(io.BytesIO(b"\n".join(lines)), "r.jsonl"))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["rule", "default"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["up_to", "own", "times", "at", "knobs", "trace", "Ä"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_any_ladder_is_read_or_refused(ladder: list[Any]) -> None:
    try:
        record = parse_ladder_record(json.dumps(document(ladder=ladder)).encode(), "r.jsonl")
    except FormatError:
        return
    assert record.ladder[-1].up_to is None
