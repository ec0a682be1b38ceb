"""Kernels for SiLU(gate) · up: run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.gemm.hopper import eight_bits, rule
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile, PromotedTile
from tunehub.kernels.cuda.gemm.hopper.gated import over_gated_rows, suits
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import default_device
from tunehub.kernels.te.products import gated_scaled_product
from tunehub.tir.cuda import nvrtc
from tunehub.tir.guard import check_function

from ...gated_products import gated_operands, open_gated
from ...scheduled import H200
from .bulk_emulator import run_bulk

pytestmark = pytest.mark.slow

TILES = {
    "alone": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3),
    "in common": BulkTile(groups=(1, 1), rows=64, columns=96, stages=3, shared=(2, 1)),
    "both in common": BulkTile(groups=(1, 1), rows=64, columns=32, stages=3, shared=(2, 2)),
    "more registers": BulkTile(groups=(2, 1), rows=128, columns=176, stages=3, shared=(1, 2)),
}
HALF, DEPTH = 72, 328


def _whole(half: int = HALF, depth: int = DEPTH) -> OpenFunction:
    whole = open_function(open_gated(half, depth)["main"])
    assert whole is not None
    return whole


def _few(_tile: BulkTile, clusters: int, _device: GpuDevice) -> int:
    """Two clusters, which compute several tiles each."""
    return min(clusters, 2)


@pytest.mark.no_cover  # what writes kernels is covered by the test that compiles them
@pytest.mark.parametrize("rows", [1, 128, 300])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(2)
def test_all_rows_are_computed_and_none_behind_them(tile: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BulkTile, "started", _few)
    monkeypatch.setattr(BulkTile, "most_in_band", 2)
    x, w, wide = gated_operands(rows, HALF, DEPTH, seed=rows)
    out = np.full((1, rows, HALF), np.nan, "float16")
    run_bulk(over_gated_rows(_whole(), TILES[tile], default_device()), x, w, out, seed=rows)
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(1)
def test_it_is_right_by_what_is_known_of_a_kernel_and_compiled(tile: str) -> None:
    whole = _whole()
    function = over_gated_rows(whole, TILES[tile], default_device())
    check_function(function, whole.function, H200)
    library = tvm.tirx.build(tvm.IRModule({"main": rule.for_own_target(function, H200)}), target=H200)
    assert nvrtc.source_of(library).count("const __grid_constant__ CUtensorMap") == 4  # declared and defined


def _open_scaled(half: int, depth: int) -> OpenFunction:
    n, dtype = tirx.Var("n", "int64"), "float8_e4m3fn"
    shapes = (((1, n, depth), dtype), ((2 * half, depth), dtype), ((1, n, 1), "float32"), ((2 * half,), "float32"))
    own = [te.placeholder(*each) for each in shapes]
    made = gated_scaled_product(*own, dtype="float16")
    whole = open_function(te.create_prim_func([*own, made], index_dtype_override="int64"))
    assert whole is not None
    return whole


@pytest.mark.no_cover
@pytest.mark.parametrize("rows", [1, 150])
@pytest.mark.few(1)
def test_scales_of_floats_of_8_bits_are_part_of_it(rows: int) -> None:
    tile, rng = PromotedTile(groups=(1, 1), rows=64, columns=96, stages=3, shared=(2, 1)), np.random.default_rng(rows)
    x, w = (rng.standard_normal(each).astype("float8_e4m3fn") for each in ((1, rows, DEPTH + 8), (2 * HALF, DEPTH + 8)))
    of_rows, of_columns = (rng.uniform(0.01, 0.2, each).astype("float32") for each in ((1, rows, 1), (2 * HALF,)))
    out = np.full((1, rows, HALF), np.nan, "float16")
    whole = _open_scaled(HALF, DEPTH + 8)
    kernel = over_gated_rows(whole, tile, default_device(), eight_bits.matmul_in)
    run_bulk(kernel, x, w, of_rows, of_columns, out, seed=rows)
    gate, up = np.split(x.astype("float32") @ w.astype("float32").T * of_rows * of_columns, 2, -1)
    wide = gate / (1 + np.exp(-gate)) * up
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


def test_halves_are_loaded_in_whole_patterns() -> None:
    assert all(map(suits, TILES.values()))
    assert not suits(BulkTile(groups=(1, 1), rows=64, columns=112, stages=3, shared=(2, 1)))
    assert not suits(BulkTile(groups=(1, 1), rows=64, columns=96, stages=3, cluster=2))
