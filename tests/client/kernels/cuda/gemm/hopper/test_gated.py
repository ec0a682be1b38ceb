"""Kernels for SiLU(gate) · up: run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm

from tunehub.kernels.cuda.gemm.hopper import rule
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.gated import over_gated_rows, suits
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import default_device
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


def test_halves_are_loaded_in_whole_patterns() -> None:
    assert all(map(suits, TILES.values()))
    assert not suits(BulkTile(groups=(1, 1), rows=64, columns=112, stages=3, shared=(2, 1)))
    assert not suits(BulkTile(groups=(1, 1), rows=64, columns=96, stages=3, cluster=2))
