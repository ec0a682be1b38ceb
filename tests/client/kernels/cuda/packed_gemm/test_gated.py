"""SiLU(gate) · up of many rows and packed weights: the kernel is run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm

from tunehub.kernels.cuda.gemm.hopper import rule
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.low_batch.weights import QUANTISED
from tunehub.kernels.cuda.packed_gemm.gated import GatedPackedWriter, gated_tiles
from tunehub.kernels.cuda.packed_gemm.tile import PackedTile
from tunehub.tir.cuda import nvrtc
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module

from ..gated_products import open_gated_in_e4m3, open_gated_in_groups, operands_in_e4m3, operands_in_groups
from ..gemm.hopper.bulk_emulator import run_bulk
from ..scheduled import H200
from .made import over_all_rows, two_clusters

pytestmark = pytest.mark.slow


def _tile(groups: int, rows: int, shared: tuple[int, int] = (1, 1), bits: int = 8) -> PackedTile:
    return PackedTile(groups=(1, groups), rows=rows, columns=128, stages=3, shared=shared, bits=bits)


TILES = {
    "alone": _tile(1, 16),
    "two warpgroups": _tile(2, 64),
    "x in common": _tile(1, 32, (1, 2)),
    "weights in common": _tile(1, 48, (2, 1)),
    "weights of two in common": _tile(2, 32, (2, 1)),
}


IN_GROUPS = {
    "alone": (_tile(1, 16, bits=4), QUANTISED[0]),
    "weights of two in common": (_tile(2, 32, (2, 1), bits=4), QUANTISED[0]),
    "8 bits, x in common": (_tile(1, 32, (1, 2)), QUANTISED[1]),
}


def _made(tile: PackedTile, half: int, depth: int) -> tuple[Any, Any]:
    """The kernel, and what it computes."""
    return over_all_rows(open_gated_in_e4m3(half, depth), tile, GatedPackedWriter)


@pytest.mark.few(3)
@pytest.mark.no_cover  # what writes kernels is covered by the test that compiles them
@pytest.mark.parametrize(("rows", "half", "depth"), [(1, 72, 128), (67, 136, 288), (150, 200, 384)])
@pytest.mark.parametrize("tile", TILES)
def test_all_rows_are_computed_and_none_behind_them(
    tile: str, rows: int, half: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkTile, "started", two_clusters)
    monkeypatch.setattr(BulkTile, "most_in_band", 2)
    x, w, scales, wide = operands_in_e4m3(rows, half, depth, seed=rows)
    out = np.full((1, rows, half), np.nan, "float16")
    run_bulk(_made(TILES[tile], half, depth)[0], x, w, scales, out, seed=rows)
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


@pytest.mark.few(2)
@pytest.mark.no_cover
@pytest.mark.parametrize(("rows", "half", "depth"), [(67, 136, 544), (33, 200, 384)])
@pytest.mark.parametrize("name", IN_GROUPS)
def test_weights_in_groups_are_made_of_both_halves(
    name: str, rows: int, half: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkTile, "started", two_clusters)
    tile, form = IN_GROUPS[name]
    function, original = over_all_rows(open_gated_in_groups(half, depth, form=form), tile, GatedPackedWriter)
    check_function(function, original, H200)
    x, words, scales, wide = operands_in_groups(rows, half, depth, seed=rows, bits=form.bits)
    out = np.full((1, rows, half), np.nan, "float16")
    run_bulk(function, x, words, scales, out, seed=rows)
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


@pytest.mark.few(1)
@pytest.mark.parametrize("tile", TILES)
def test_it_is_checked_and_compiled(tile: str) -> None:
    function, original = _made(TILES[tile], 136, 544)
    check_function(function, original, H200)
    library = tvm.tirx.build(main_module(rule.for_own_target(function, H200)), target=H200)
    assert "constexpr int GATED = 1;" in nvrtc.source_of(library)


def test_warpgroups_have_rows_of_both_halves() -> None:
    assert {(each.columns, each.cluster) for each in gated_tiles(8)} == {(128, 1)}
