"""SiLU(gate) · up of an open number of rows: which kernels it has, and that of few rows run on a CPU. No GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm

from tunehub.kernels.cuda.low_batch import gated as low_batch_gated
from tunehub.kernels.cuda.low_batch.gated import gated_kernel
from tunehub.kernels.cuda.low_batch.product import find_product
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic import packed
from tunehub.kernels.cuda.symbolic.gated import open_sizes
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import first_probes, probes

from ..gated_products import (
    gated_operands,
    open_gated,
    open_gated_in_e4m3,
    open_gated_in_groups,
    operands_in_e4m3,
    operands_in_groups,
)
from ..low_batch.on_cpu import run
from ..scheduled import H200
from .open_functions import TARGET, open_linear

pytestmark = pytest.mark.slow


def test_few_rows_and_ranges_of_more_have_kernels_that_tvm_compiles() -> None:
    mod = open_gated(1024, 2048)
    found = open_sizes(mod, H200)
    assert found is not None
    assert {(8,), (9,)} <= set(probes(found.mod["main"]))
    source = source_of(tvm.tirx.build(found.mod, target=H200))
    assert "tunehub_skinny_" in source and "cp.async.bulk.tensor" in source


def test_no_kernel_is_for_sizes_alone_that_take_too_long_to_run() -> None:
    """Every kernel is run at the first size that leads to it before it serves."""
    found = open_sizes(open_gated(14336, 4096), H200)
    assert found is not None
    assert max(first_probes(found.mod["main"])) < (4096,)


def test_other_products_gpus_and_sizes_have_none() -> None:
    assert open_sizes(open_linear(1024, 2048), H200) is None
    assert open_sizes(open_gated(1024, 2048), TARGET) is None
    with pytest.raises(ValueError, match="too small"):
        open_sizes(open_gated(64, 256), H200)


@pytest.mark.few(2)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "tile", [DirectTile(tiles=1, warps=(1, 8), unroll=2, depth=2), DirectTile(tiles=1, warps=(2, 4), unroll=1, depth=1)]
)
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_no_row_beyond_the_end_is_read_or_written(rows: int, tile: DirectTile, tmp_path: Path) -> None:
    half, depth = 48, 72
    whole = open_function(open_gated(half, depth)["main"])
    assert whole is not None
    piece = whole.piece(8)
    product = find_product(piece)
    assert product is not None
    function = whole.over(gated_kernel(piece["main"], product, tile), 8)
    source = source_of(tvm.tirx.build(main_module(function), target=H200))
    x, w, wide = gated_operands(rows, half, depth, seed=rows)
    guarded, out = np.full((1, 16, depth), np.nan, np.float16), np.full((1, 16, half), 7, np.float16)
    guarded[:, :rows] = x
    run(source, {"x": guarded, "w": w, "gated": out, "n": rows}, (1, 2 * half // tile.columns), tmp_path)
    assert np.abs(out[:, :rows] - wide).max() <= 2e-3 * np.abs(wide).max()
    assert (out[:, rows:] == 7).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "tile",
    [
        DirectTile(tiles=1, warps=(2, 4), unroll=1, depth=1),
        StagedTile(tiles=1, warps=(2, 2), stages=2, depth=64),
        WgmmaTile(groups=1, cluster=1, stages=3, depth=128),
    ],
    ids=lambda tile: type(tile).__name__,
)
@pytest.mark.few(4)
@pytest.mark.parametrize("rows", [1, 13])
@pytest.mark.parametrize(
    ("made", "operands"), [(open_gated_in_e4m3, operands_in_e4m3), (open_gated_in_groups, operands_in_groups)]
)
def test_few_rows_of_packed_weights_are_right(
    made: Callable[..., Any], operands: Callable[..., Any], rows: int, tile: AnyTile, tmp_path: Path
) -> None:
    half, depth = 64, 288
    mod = made(half, depth, rows=rows)
    product = find_product(mod)
    assert product is not None
    function = gated_kernel(mod["main"], product, tile)
    source = source_of(tvm.tirx.build(main_module(function), target=H200))
    x, w, scales, wide = operands(rows, half, depth, seed=rows)
    out = np.full((1, rows, half), np.nan, np.float16)
    run(source, {"x": x, "w": w, "s": scales, "gated": out}, (2 * half // tile.columns, 1), tmp_path)
    assert np.abs(out - wide).max() <= 2e-3 * np.abs(wide).max()


@pytest.mark.parametrize(("made", "few"), [(open_gated_in_e4m3, 16), (open_gated_in_groups, 32)])
def test_packed_weights_have_kernels_for_all_rows(made: Callable[..., Any], few: int) -> None:
    found = packed.open_sizes(made(1024, 2048), H200)
    assert found is not None
    assert {(8,), (9,), (few + 1,)} <= set(probes(found.mod["main"]))
    source = source_of(tvm.tirx.build(found.mod, target=H200))
    assert "GATED = 1" in source and "cp.async.bulk.tensor" in source


@pytest.mark.parametrize("made", [open_gated_in_e4m3, open_gated_in_groups, open_gated])
def test_one_row_has_a_kernel_of_its_own(made: Callable[..., Any]) -> None:
    mod = made(1024, 2048, rows=1)
    workload = low_batch_gated.match(mod, H200)
    assert workload is not None
    (candidate,) = low_batch_gated.candidates(workload, device_of(H200))
    check_function(low_batch_gated.build(workload, candidate.tile).mod["main"], mod["main"], H200)
    assert low_batch_gated.match(open_gated(1024, 2048), H200) is None
