"""Kernels of TMA loads for products with an open number of rows: run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.gemm.hopper import rule
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.open_bulk import most_length, over_all_rows
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.pieces import NotPiecesError
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda import nvrtc
from tunehub.tir.guard import check_function

from ...scheduled import H200
from ...symbolic.open_functions import open_linear
from .bulk_emulator import run_bulk

pytestmark = pytest.mark.slow

TILES = {
    "alone": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3),
    "both in common": BulkTile(groups=(1, 1), rows=64, columns=32, stages=3, shared=(2, 2)),
    "more registers": BulkTile(groups=(2, 1), rows=128, columns=192, stages=3),
    "K divided": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3, cluster=4),
    "K divided, both in common": BulkTile(groups=(1, 1), rows=64, columns=32, stages=3, cluster=2, shared=(2, 2)),
}
COLUMNS, DEPTH = 136, 328


def _whole(columns: int = COLUMNS, depth: int = DEPTH, lead: tuple[int, ...] = ()) -> OpenFunction:
    whole = open_function(open_linear(columns, depth, lead=lead)["main"])
    assert whole is not None
    return whole


def _few(tile: BulkTile, clusters: int, _device: GpuDevice) -> int:
    """Two clusters, which compute several tiles each."""
    return clusters if tile.cluster > 1 else min(clusters, 2)


@pytest.mark.no_cover  # what writes kernels is covered by the test that compiles them
@pytest.mark.parametrize("rows", [1, 128, 300])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(3)
def test_all_rows_are_computed_and_none_behind_them(tile: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BulkTile, "started", _few)
    monkeypatch.setattr(BulkTile, "most_in_band", 2)
    rng = np.random.default_rng(rows)
    shapes = ((1, rows, DEPTH), (COLUMNS, DEPTH), (COLUMNS,))
    x, w, bias = (rng.standard_normal(size).astype("float16") for size in shapes)
    out = np.full((1, rows, COLUMNS), np.nan, "float16")
    run_bulk(over_all_rows(_whole(lead=(1,)), TILES[tile], default_device()), x, w, bias, out, seed=rows)
    wide = x.astype("float32") @ w.T.astype("float32") + bias.astype("float32")
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


def _built(whole: OpenFunction, tile: BulkTile) -> Any:
    function = over_all_rows(whole, tile, default_device())
    check_function(function, whole.function, H200)
    return tvm.tirx.build(tvm.IRModule({"main": rule.for_own_target(function, H200)}), target=H200)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(2)
def test_the_copy_engine_is_told_of_the_rows_at_each_launch(tile: str) -> None:
    library = _built(_whole(), TILES[tile])
    assert nvrtc.source_of(library).count("const __grid_constant__ CUtensorMap") == 4  # declared and defined
    assert "runtime.cuTensorMapEncodeTiled" in library.inspect_source()


def test_places_in_large_buffers_are_left_to_others() -> None:
    assert most_length(_whole(28672, 4096)) == 74898


def test_a_product_of_another_kind_has_no_such_kernel() -> None:
    x = te.placeholder((tirx.Var("n", "int64"), 8), "float32", name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")
    whole = open_function(te.create_prim_func([x, y], index_dtype_override="int64"))
    assert whole is not None
    with pytest.raises(NotPiecesError, match="not the rows of a product"):
        over_all_rows(whole, TILES["alone"], default_device())
