"""How far outputs are apart: no NaN, no infinity and no missing number gets lost, in whichever output it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.comparison.difference import difference, difference_reason, tolerance

pytestmark = pytest.mark.fast

GOOD = np.array([1.0, -4.0], dtype="float32")


def with_value(value: float) -> Any:
    return np.array([1.0, value], dtype="float32")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("output", [0, 1, 2])
@pytest.mark.parametrize("expected_too", [False, True])
def test_a_number_that_is_not_finite_in_any_output_is_infinitely_far(
    value: float, output: int, expected_too: bool
) -> None:
    found = [with_value(value) if number == output else GOOD for number in range(3)]
    assert difference(found, found if expected_too else [GOOD] * 3) == math.inf
    assert difference([GOOD] * 3, found) == math.inf


def test_a_nan_in_the_second_output_is_not_lost_behind_a_small_difference_in_the_first() -> None:
    near = GOOD * np.float32(1.001)
    assert max(0.001, math.nan) == 0.001, "what Python's max makes of it"
    assert difference([near, with_value(math.nan)], [GOOD, GOOD]) == math.inf


def test_another_shape_or_number_of_outputs_is_infinitely_far() -> None:
    assert difference([GOOD, GOOD[:1]], [GOOD, GOOD]) == math.inf
    assert difference([GOOD[None]], [GOOD]) == math.inf, "not even where numpy would broadcast"
    assert difference([GOOD], [GOOD, GOOD]) == math.inf
    assert difference([GOOD, GOOD], [GOOD]) == math.inf
    assert difference([], []) == 0.0


def test_the_largest_of_all_outputs_relative_to_the_largest_value_of_each() -> None:
    large, small = np.array([100.0, 0.0]), np.array([0.1, 0.0])
    assert difference([large + 1, small + 0.01], [large, small]) == pytest.approx(0.1)
    assert difference([small], [np.zeros(2)]) == pytest.approx(0.1), "absolute where nothing but zeros is expected"
    assert difference([np.array([True, False])], [np.array([True, True])]) == 1.0
    assert difference([np.zeros((0, 3))], [np.zeros((0, 3))]) == 0.0


def test_an_output_of_two_steps_may_be_one_of_ten_apart() -> None:
    steps = np.array([0.0, 1.0, 2.0]) * 0.25
    off = steps + np.array([0.0, 0.25, 0.0])
    assert difference([off], [steps]) == 0.5
    assert difference([off, off], [steps, steps], least=[0.25 * 10]) == 0.5, "the second has none"
    assert difference([off], [steps], least=[0.25 * 10]) == pytest.approx(0.1)
    assert difference([off + 100], [steps + 100], least=[2.5]) == pytest.approx(0.25 / 100.5), "its own is larger"


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_nothing_differs_from_itself(values: list[float]) -> None:
    array = np.array(values, dtype="float32")
    assert difference([array], [array]) == 0.0


def test_tolerances_by_the_least_precise_type_and_by_algorithm() -> None:
    assert (tolerance(), tolerance(["float32", "int64"]), tolerance([])) == (1e-4, 1e-4, 1e-4)
    assert tolerance(["float32"], "winograd") == 1e-3
    assert tolerance(["float32", "float16"]) == 2e-3
    assert tolerance(["float16"], "narrow sums") == 1e-2
    assert tolerance(["float16", "bfloat16"], "narrow sums") == 5e-2
    assert difference_reason(1e-4, tolerance()) is None
    assert "differs from the default's by 0.001" in str(difference_reason(1e-3, tolerance()))
    assert difference_reason(float(np.float32(0.1)), 0.1) is None  # one step of ten
    assert difference_reason(math.inf, tolerance(["bfloat16"], "narrow sums")) is not None


def test_longer_sums_in_a_narrow_type_may_differ_more() -> None:
    assert tolerance(["float32"], "narrow sums", terms=25_088) == tolerance(["float32"], "narrow sums")
    assert tolerance(["float16"], "narrow sums", terms=100) == tolerance(["float16"], "narrow sums") == 1e-2
    assert tolerance(["float16"], "narrow sums", terms=7_840) == pytest.approx(0.0432, rel=1e-2)
    assert tolerance(iter(["float32", "float16"]), terms=7_840) == 2e-3


def test_arrays_of_any_size_are_compared_to_their_ends() -> None:
    large = np.ones(200_001, "float32")
    for at in (0, 65_535, 65_536, 200_000):
        off = large.copy()
        off[at] += 0.25
        assert difference([off], [large]) == pytest.approx(0.25)
        off[at] = math.nan
        assert difference([off], [large]) == difference([large], [off]) == difference([off], [off]) == math.inf


def test_numbers_of_8_bits_are_right_within_one_step_and_sums_of_integers_exactly() -> None:
    for dtype in ("uint8", "int8"):
        few = np.array([3, 7], dtype)  # far from the ends of their range
        one, two = (difference([few + np.array([step, 0], dtype)], [few]) for step in (1, 2))
        assert one <= tolerance([dtype]) < two
        assert one <= tolerance([dtype, "float32"], "narrow sums") < two
    assert tolerance(["int32"]) == 0.0
    assert tolerance(["int32", "float32"]) == tolerance()
    assert tolerance(["bfloat16", "float32"]) == 2e-2
