from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FormatError, NewerFormatWarning, UnsupportedFormatError
from tunehub_registry.tuning_curves import MAX_CURVES_BYTES, TuningCurve, encode_curves, parse_curves

pytestmark = pytest.mark.fast
CURVE = TuningCurve(exact="a" * 32, tuner="template", trials=9, steps=((1, 2e-3), (7, 1.5e-3)))


@st.composite
def curves(draw: st.DrawFn, key: str) -> TuningCurve:
    at = sorted(draw(st.sets(st.integers(1, 2**53), min_size=1, max_size=64)))
    times = st.floats(min_value=1e-12, max_value=1e9)
    seconds = sorted(draw(st.sets(times, min_size=len(at), max_size=len(at))), reverse=True)
    trials = at[-1] + draw(st.integers(0, 2**53 - at[-1]))
    return TuningCurve(exact=key * 32, tuner="template", trials=trials, steps=tuple(zip(at, seconds, strict=True)))


@given(st.lists(st.sampled_from("0123456789abcdef"), unique=True).flatmap(lambda keys: st.tuples(*map(curves, keys))))
def test_what_is_written_is_read_again_whatever_the_order(found: tuple[TuningCurve, ...]) -> None:
    data = encode_curves(found)
    assert parse_curves(data, "x") == tuple(sorted(found, key=lambda curve: curve.exact))
    assert encode_curves(reversed(found)) == data


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"exact": "A" * 32}, "exact"), ({"exact": "a" * 31}, "exact"), ({"tuner": "no tuner"}, "tuner"),
        ({"trials": 0}, "trials"), ({"trials": 6}, "steps"), ({"steps": []}, "steps"), ({"steps": [[1]]}, "steps"),
        ({"steps": [[0, 1.0]]}, "steps"), ({"steps": [[1, 0.0]]}, "steps"), ({"steps": [[1, "1"]]}, "steps"),
        ({"steps": [[1, 1.0], [1, 0.5]]}, "steps"), ({"steps": [[1, 1.0], [2, 1.0]]}, "steps"),
        ({"steps": [[k, 1.0 / k] for k in range(1, 66)], "trials": 99}, "steps"),
    ],
)  # fmt: skip
def test_a_curve_that_cannot_be_is_refused(changes: dict[str, Any], place: str) -> None:
    curve = {**msgspec.to_builtins(CURVE), **changes}
    with pytest.raises(FormatError, match=place):
        parse_curves(json.dumps({"format_version": "1.0", "curves": [curve]}).encode(), "tuning_curves.json")


def test_a_record_has_one_curve_in_a_set() -> None:
    other = msgspec.structs.replace(CURVE, tuner="meta_schedule")
    assert parse_curves(encode_curves([CURVE, other]), "x") == (other, CURVE)
    with pytest.raises(FormatError, match="same record"):
        parse_curves(json.dumps({"format_version": "1.0", "curves": [msgspec.to_builtins(CURVE)] * 2}).encode(), "x")


def test_versions() -> None:
    with pytest.raises(UnsupportedFormatError):
        parse_curves(b'{"format_version": "2.0", "curves": []}', "x")
    with pytest.warns(NewerFormatWarning):
        assert parse_curves(b'{"format_version": "1.1", "curves": [], "more": 1}', "x") == ()


def test_a_file_may_not_be_large() -> None:
    with pytest.raises(FormatError, match="the limit is"):
        parse_curves(b" " * (MAX_CURVES_BYTES + 1), "x")


@given(st.binary(max_size=200) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(
    lambda value: json.dumps({"format_version": "1.0", "curves": value}).encode()
))  # fmt: skip
def test_any_bytes_are_curves_or_refused(data: bytes) -> None:
    try:
        found = parse_curves(data, "x")
    except FormatError:
        return
    assert found == ()
