"""Sums whose loops are left to NVRTC: unrolled by TVM after all, they are the kernel that TVM makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm.s_tir.dlight import gpu
from tvm.tirx.compilation_pipeline import PIPELINE_MAP
from tvm.tirx.transform import StmtSimplify, UnrollLoop

from tunehub.compiler.cuda.side_by_side import SideBySide
from tunehub.kernels.cuda.gemm import rule, tiles
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile, apply, matmul_of
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.kept_loops import with_kept_loops
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE, without_cleaning

from ...kernels.cuda.gemm.split_k.products import TARGET, conv, dense, uneven

pytestmark = pytest.mark.slow

Scheduled = Callable[[], Any]


def _divided(make: Callable[[], Any], **tile: Any) -> Any:
    found = SplitTile(**{"groups": 4, "threads": (8, 8), "sums": (4, 4), "depth": 8, "vectors": (4, 4), **tile})
    return apply(make(), matmul_of(make()), found).mod["main"]


def _tiled() -> Any:
    reducing = tiles.reduction_block_of(conv(64, 14, 64))
    assert reducing is not None and reducing.problem is not None
    (tile,) = rule.ranked(reducing.problem, device_of(TARGET), shared_memory=49152, threads=1024, count=1)
    return tiles.checked_tiles(conv(64, 14, 64), reducing, tile).mod["main"]


CASES: dict[str, Scheduled] = {
    "divided": lambda: _divided(dense),
    "pipelined": lambda: _divided(dense, pipelined=True),
    "beyond the end": lambda: _divided(uneven, vectors=(1, 4)),
    "windows": lambda: _divided(conv, sums=(4, 7), threads=(4, 7), depth=9, groups=4, vectors=(1, 36), pipelined=True),
    "plain tile": _tiled,
}


def _lowered(function: Any, lowering: Any = PIPELINE_MAP[PIPELINE]) -> Any:
    target = tvm.target.Target(TARGET, host="llvm")
    mod = tvm.IRModule({"main": function.with_attr(IS_SCHEDULED, True)})
    with target:
        return without_cleaning(lowering)()[0](tvm.tirx.transform.BindTarget(target)(mod))["main_kernel"]


def _unrolled(kernel: Any) -> Any:
    passes = tvm.transform.Sequential([UnrollLoop(), StmtSimplify()])
    return passes(tvm.IRModule({"main": kernel}))["main"]


@pytest.mark.parametrize("case", CASES)
def test_unrolled_by_tvm_the_kernel_is_as_without(case: str) -> None:
    function = CASES[case]()
    usual, kept = _lowered(function), _lowered(with_kept_loops(function))
    assert len(str(kept)) < len(str(usual)) / 2
    tvm.ir.assert_structural_equal(_unrolled(kept), _unrolled(usual), map_free_vars=True)


def test_a_compile_keeps_them() -> None:
    compiler, function = SideBySide(2), CASES["divided"]()
    found = _lowered(function, compiler.lowering(PIPELINE_MAP[PIPELINE]))
    tvm.ir.assert_structural_equal(found, _lowered(with_kept_loops(function)), map_free_vars=True)


def test_a_function_without_tiles_stays_as_it_is() -> None:
    mod = dense()
    with tvm.target.Target(TARGET):
        default = tvm.s_tir.dlight.ApplyDefaultSchedule(gpu.Fallback())(mod)["main"]
    tvm.ir.assert_structural_equal(_unrolled(_lowered(with_kept_loops(default))), _unrolled(_lowered(default)))
