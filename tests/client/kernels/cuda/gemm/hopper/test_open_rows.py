"""Kernels for warpgroups of products with an open number of rows: by a GPU of NumPy, and by the static check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

from tvm import te, tirx, topi

from tunehub.kernels.cuda.gemm.hopper.open_rows import over_rows
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.pieces import NotPiecesError
from tunehub.tir.guard import check_function

from ...scheduled import H200
from .emulator import run

pytestmark = pytest.mark.slow

TILES = {
    "one warpgroup": WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=4),
    "two": WarpgroupTile(groups=(2, 1), rows=64, columns=64, stages=3),
    "K divided": WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=4, cluster=2),
}
COLUMNS, DEPTH = 72, 136


def _whole(*lead: Any, turned: bool = False) -> OpenFunction:
    """An open number of rows, times weights, plus a bias and as much again."""
    rows = tirx.Var("n", "int64")
    shape = (*lead, rows)
    x = te.placeholder((*shape, DEPTH), "float16", name="x")
    w = te.placeholder((DEPTH, COLUMNS) if turned else (COLUMNS, DEPTH), "float16", name="w")
    rest = te.placeholder((*shape, COLUMNS), "float16", name="rest")
    k = te.reduce_axis((0, DEPTH), name="k")

    def product(*at: Any) -> Any:
        weight = w[k, at[-1]] if turned else w[at[-1], k]
        return te.sum(x[(*at[:-1], k)].astype("float32") * weight.astype("float32"), axis=k)

    y = te.compute((*shape, COLUMNS), product, name="product")
    z = te.compute(y.shape, lambda *at: (y(*at) + rest(*at).astype("float32")).astype("float16"), name="out")
    whole = open_function(te.create_prim_func([x, w, rest, z], index_dtype_override="int64"))
    assert whole is not None
    return whole


def _assert_right(whole: OpenFunction, tile: WarpgroupTile, shape: tuple[int, ...], *, turned: bool = False) -> None:
    rng = np.random.default_rng(0)
    x, w, rest = (
        rng.standard_normal(size).astype("float16")
        for size in ((*shape, DEPTH), (DEPTH, COLUMNS) if turned else (COLUMNS, DEPTH), (*shape, COLUMNS))
    )
    out = np.full((*shape, COLUMNS), np.nan, "float16")
    run(over_rows(whole, tile), x, w, rest, out)
    wide = x.astype("float32") @ (w if turned else w.T).astype("float32") + rest.astype("float32")
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


@pytest.mark.no_cover  # what writes kernels is covered by the check's test
@pytest.mark.parametrize("rows", [1, 64, 200])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(3)
def test_all_rows_are_computed_and_none_behind_them(tile: str, rows: int) -> None:
    _assert_right(_whole(), TILES[tile], (rows,))


@pytest.mark.no_cover
def test_weights_that_are_turned_and_two_open_axes_are_right() -> None:
    _assert_right(_whole(turned=True), TILES["two"], (130,), turned=True)
    _assert_right(_whole(tirx.Var("b", "int64")), TILES["K divided"], (3, 50))


def _images() -> OpenFunction:
    """A convolution of 5 x 5 images with channels last, with padding and as much again."""
    batch, shape, kernel = tirx.Var("n", "int64"), (5, 5, 24), (72, 3, 3, 24)
    x, w = te.placeholder((batch, *shape), "float16", name="x"), te.placeholder(kernel, "float16", name="w")
    rest = te.placeholder((batch, 5, 5, COLUMNS), "float16", name="rest")
    padded = topi.nn.pad(x, [0, 1, 1, 0], [0, 1, 1, 0])
    i, j, k = (te.reduce_axis((0, extent), name=name) for extent, name in ((3, "i"), (3, "j"), (24, "k")))

    def product(n: Any, row: Any, column: Any, out: Any) -> Any:
        place = padded[n, row + i, column + j, k].astype("float32")
        return te.sum(place * w[out, i, j, k].astype("float32"), axis=[i, j, k])

    y = te.compute((batch, 5, 5, COLUMNS), product, name="product")
    z = te.compute(y.shape, lambda *at: (y(*at) + rest(*at).astype("float32")).astype("float16"), name="out")
    whole = open_function(te.create_prim_func([x, w, rest, z], index_dtype_override="int64"))
    assert whole is not None
    return whole


@pytest.mark.no_cover
@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(3)
def test_all_images_are_computed_whose_pixels_no_tile_divides(tile: str, batch: int) -> None:
    rng = np.random.default_rng(0)
    x, w, rest = (
        rng.standard_normal(size).astype("float16")
        for size in ((batch, 5, 5, 24), (COLUMNS, 3, 3, 24), (batch, 5, 5, COLUMNS))
    )
    out = np.full(rest.shape, np.nan, "float16")
    run(over_rows(_images(), TILES[tile]), x, w, rest, out)
    padded = np.pad(x.astype("float32"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    wide = np.einsum("nhwcij,oijc->nhwo", windows, w.astype("float32"), optimize=True) + rest.astype("float32")
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(1)
def test_nothing_is_wrong_with_a_kernel_of_images_at_any_number_of_them(tile: str) -> None:
    whole = _images()
    assert check_function(over_rows(whole, TILES[tile]), whole.function, H200) is None


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(1)
def test_nothing_is_wrong_with_a_kernel_at_any_number_of_rows(tile: str) -> None:
    whole = _whole()
    assert check_function(over_rows(whole, TILES[tile]), whole.function, H200) is None


def test_a_product_of_another_kind_has_no_such_kernel() -> None:
    x = te.placeholder((tirx.Var("n", "int64"), 8), "float32", name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")
    whole = open_function(te.create_prim_func([x, y], index_dtype_override="int64"))
    assert whole is not None
    with pytest.raises(NotPiecesError, match="not the rows of a product"):
        over_rows(whole, TILES["two"])
