"""The matrices of Winograd's algorithm for values that are rounded: exact, scaled, and with little rounding."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.cuda.winograd.points import matrices

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)


def off_by(tile: int) -> float:
    """What roundings at each place come to in the results of a tile, in roundings of a number."""
    own = matrices(tile)
    places = (own.image**2).sum(1) * (own.weight**2).sum(1)
    return float(np.mean(own.result**2 @ places)) / 3


@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_are_convolutions(tile: int) -> None:
    own, image, weight = matrices(tile), RNG.standard_normal((tile + 2, tile + 2)), RNG.standard_normal((3, 3))
    found = own.result @ ((own.image @ image @ own.image.T) * (own.weight @ weight @ own.weight.T)) @ own.result.T
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
    np.testing.assert_allclose(found, np.einsum("ijkl,kl->ij", windows, weight), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_are_no_larger_than_the_image(tile: int) -> None:
    assert (np.abs(matrices(tile).image).sum(1) <= 1).all()


def test_points_are_those_that_round_least() -> None:
    assert off_by(2) == pytest.approx(5 / 3)
    assert off_by(4) < 4.8  # 10.8 with 0, ±1, ±2
