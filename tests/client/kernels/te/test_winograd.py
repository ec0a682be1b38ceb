"""The matrices of Winograd's algorithm, in fractions: exact for any points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tirx = pytest.importorskip("tvm.tirx", reason="needs TVM 0.25 or newer")

from tunehub.kernels.te.winograd import (  # noqa: E402
    KERNEL,
    POINTS,
    of_image,
    of_products,
    weight_factors,
)

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
Points = Sequence[Fraction]
SIXTEENTHS = st.integers(1, 63).map(lambda count: Fraction(count, 16))  # small sums of products are exact in float64


def matrix(transform: Callable[[Sequence[Any], Points], list[Any]], points: Points) -> Array:
    """What ``transform`` computes, column by column; TVM computes with constants at once."""
    extent = 2 * len(points) + KERNEL - 1
    columns = [
        [
            Fraction(row.value)
            for row in transform([tirx.const(float(at == own), "float64") for at in range(extent)], points)
        ]
        for own in range(extent)
    ]
    found: Array = np.array(columns, dtype=object).T
    return found


@given(
    points=st.lists(SIXTEENTHS, min_size=1, max_size=3, unique=True),
    data=st.lists(st.fractions(), min_size=8, max_size=8),
    weight=st.lists(st.fractions(), min_size=KERNEL, max_size=KERNEL),
)
@settings(max_examples=50, deadline=None)
def test_results_are_those_of_the_direct_convolution(
    points: Points, data: list[Fraction], weight: list[Fraction]
) -> None:
    tile = 2 * len(points)
    d, g = np.array(data[: tile + KERNEL - 1], dtype=object), np.array(weight, dtype=object)
    products = (np.array(weight_factors(points), dtype=object) @ g) * (matrix(of_image, points) @ d)
    expected = [sum(d[at + tap] * g[tap] for tap in range(KERNEL)) for at in range(tile)]
    assert list(matrix(of_products, points) @ products) == expected


@pytest.mark.parametrize("tile", list(POINTS))
def test_factors_of_images_and_products_are_exact_in_float32(tile: int) -> None:
    for transform in (of_image, of_products):
        factors = matrix(transform, POINTS[tile]).astype("float64")
        np.testing.assert_array_equal(factors.astype("float32"), factors)
