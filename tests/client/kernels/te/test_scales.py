"""The arithmetic of quantised models, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tunehub.kernels.te.scales import (
    Affine,
    NotIntegerError,
    ScaledSums,
    clipped_anyway,
    sums_of,
    symmetric,
    with_bias,
)

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(0)


def test_sums_with_their_addend_and_scale_are_the_product_of_what_the_integers_stand_for() -> None:
    data, affine = RNG.integers(0, 256, (5, 12)), Affine(scale=0.02, zero=117)
    weight, scales = RNG.integers(-128, 128, (12, 7)).astype("int8"), RNG.uniform(0.01, 0.1, 7)
    sums = sums_of(affine, weight, scales, 1)
    found = sums.scale * (data @ weight.astype("int64") + sums.addend)
    expected = affine.scale * (data - affine.zero) @ (weight * scales)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_bias_of_integers_goes_into_the_addend_and_any_other_is_the_offset() -> None:
    sums = sums_of(Affine(scale=0.5, zero=0), np.ones((3, 2), "int8"), np.array([0.25, 0.5]), 1)
    added = with_bias(sums, np.array([0.125 * 9, -0.25 * 4]))
    assert added.addend.tolist() == [9, -4] and added.offset is None
    for bias in ([0.125 * 9.5, 0.0], [1e12, 0.0]):
        other = with_bias(sums, np.array(bias))
        assert other.addend.tolist() == [0, 0] and other.offset is not None
        np.testing.assert_allclose(other.offset, bias)


def test_sums_in_other_units_stand_for_the_same() -> None:
    sums = ScaledSums(scale=np.float32([0.5, 0.25]), addend=np.int32([3, -4]), offset=np.float32([0.3, -7]))
    steps = sums.in_units(0.02)
    assert steps.offset is not None and sums.offset is not None
    found = steps.scale * (10 + steps.addend) + steps.offset
    np.testing.assert_allclose(0.02 * found, sums.scale * (10 + sums.addend) + sums.offset, rtol=1e-6)
    assert not sums.are_integers and ScaledSums(scale=np.ones(2), addend=sums.addend).are_integers


def test_weights_with_a_zero_point_are_shifted_where_8_bits_hold_them() -> None:
    weight = np.array([[100, 228], [130, 3]], "uint8")
    assert symmetric(weight[:, :1], np.array(128, "uint8"), 1).tolist() == [[-28], [2]]
    assert symmetric(weight, np.array([100, 101], "uint8"), 1).tolist() == [[0, 127], [30, -98]]
    with pytest.raises(NotIntegerError, match="more than 8 bits"):
        symmetric(weight, np.array(0, "uint8"), 1)


def test_sums_that_may_leave_32_bits_are_refused() -> None:
    deep = np.full((70_000, 1), -128, "int8")
    with pytest.raises(NotIntegerError, match="32 bits"):
        sums_of(Affine(scale=1.0, zero=0), deep, np.ones(1), 1)
    assert sums_of(Affine(scale=1.0, zero=0), deep[:60_000], np.ones(1), 1).addend.tolist() == [0]


@pytest.mark.parametrize(
    ("bounds", "zero", "expected"),
    [((0.0, float("inf")), 0, True), ((0.0, float("inf")), 3, False), ((0.0, 6.0), 0, True), ((0.0, 5.9), 0, False)],
)
def test_clipping_is_repeated_only_by_the_limits_of_the_type(
    bounds: tuple[float, float], zero: int, expected: bool
) -> None:
    assert clipped_anyway(Affine(scale=6 / 255, zero=zero), "uint8", bounds) is expected


def test_numbers_beyond_the_limits_have_the_nearest_integer() -> None:
    affine = Affine(scale=0.5, zero=-3)
    assert [affine.nearest(each, "int8") for each in (0.0, 1.3, -1e9, float("inf"))] == [-3, 0, -128, 127]
