"""What a GPU can launch, and what asks for more."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tunehub.target.gpu_architectures import SM_80, LaunchLimits
from tunehub.tir.cuda.limits import excess_shared_memory, excess_threads, limits_of
from tunehub.tir.cuda.lowering import lowered
from tunehub.tir.guard import GuardError, check_function

pytestmark = pytest.mark.slow

CUDA = {"kind": "cuda", "arch": "sm_90"}


@pytest.mark.parametrize(
    ("threads", "reason"),
    [
        ({}, None),
        ({"threadIdx.x": 1024}, None),
        ({"threadIdx.x": 1025}, "threadIdx.x has 1025 values, more than 1024"),
        ({"threadIdx.z": 65}, "threadIdx.z has 65 values, more than 64"),
        ({"threadIdx.x": 512, "threadIdx.y": 3}, "a block has more than 1024 threads"),
        ({"threadIdx.x": 512, "vthread.x": 9, "blockIdx.x": 1 << 30}, None),
        ({"blockIdx.y": 1 << 16}, "blockIdx.y has 65536 values, more than 65535"),
    ],
)
def test_threads(threads: dict[str, int], reason: str | None) -> None:
    assert excess_threads(threads, SM_80) == reason


def test_a_target_can_only_tighten_the_limits() -> None:
    large = tvm.target.Target({**CUDA, "max_threads_per_block": 2048, "max_shared_memory_per_block": 232448})
    small = tvm.target.Target({**CUDA, "max_threads_per_block": 256, "max_shared_memory_per_block": 16384})
    assert limits_of(large) == replace(SM_80, asked_shared_memory=227 << 10)  # every GPU of sm_90 has as much
    asked = limits_of(large).asked_shared_memory
    assert limits_of(small) == LaunchLimits(threads=256, shared_memory=16384, asked_shared_memory=asked)


def _staged(rows: int, scope: str = "shared") -> tuple[Any, Any]:
    """A row of blocks, each with ``rows`` × 1024 floats in shared memory."""
    data = te.placeholder((4 * rows, 1024), name="data")
    mod = tvm.IRModule(
        {"main": te.create_prim_func([data, te.compute((4 * rows, 1024), lambda i, j: data[i, j] + 1.0)])}
    )
    schedule = Schedule(mod)
    block = schedule.get_sblock("compute")
    outer, inner, columns = *schedule.split(schedule.get_loops(block)[0], [4, rows]), schedule.get_loops(block)[-1]
    staged = schedule.cache_read(block, 0, scope)
    schedule.compute_at(staged, outer)
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(columns, "threadIdx.x")
    schedule.bind(schedule.get_loops(staged)[-1], "threadIdx.x")
    assert schedule.get(inner).extent == rows
    return schedule.mod["main"], mod["main"]


def test_shared_memory_is_what_a_block_uses() -> None:
    fits, original = _staged(12)  # 48 KiB: the buffer is four times as large
    target = tvm.target.Target(CUDA)
    assert excess_shared_memory(lowered(fits, target), SM_80) is None
    check_function(fits, original, target)
    large, original = _staged(13)
    assert "more than 49152 bytes of shared memory" in str(excess_shared_memory(lowered(large, target), SM_80))
    with pytest.raises(GuardError, match="shared memory"):
        check_function(large, original, target)


def test_dynamic_shared_memory_may_be_more_where_tvm_asks_for_it() -> None:
    target = tvm.target.Target(CUDA)
    large, original = _staged(24, "shared.dyn")  # 96 KiB
    assert excess_shared_memory(lowered(large, target), SM_80) is None
    check_function(large, original, target)
    larger, _ = _staged(25, "shared.dyn")
    assert "more than 101376 bytes" in str(excess_shared_memory(lowered(larger, target), SM_80))


def test_loops_bound_to_one_tag_in_one_another_are_not_multiplied() -> None:
    """Cooperative loads are such; counted twice they looked like work that no schedule may add."""
    data = te.placeholder((1024, 1024), name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, te.compute((1024, 1024), lambda i, j: data[i, j] + 1.0)])})
    schedule = Schedule(mod)
    block = schedule.get_sblock("compute")
    rows, columns = schedule.get_loops(block)
    staged = schedule.cache_read(block, 0, "shared")
    schedule.bind(rows, "blockIdx.x")
    schedule.bind(columns, "threadIdx.x")
    schedule.compute_at(staged, columns)
    schedule.bind(schedule.fuse(*schedule.get_loops(staged)[2:]), "threadIdx.x")
    check_function(schedule.mod["main"], mod["main"], tvm.target.Target(CUDA))


@pytest.mark.parametrize(("factor", "fits"), [(32, True), (4096, False)])
def test_memory_of_a_thread_is_counted_as_it_lies(factor: int, fits: bool) -> None:
    """Eight rows of four numbers each; 4,096 apart they take 128 KiB of each thread that a GPU can run."""
    data = te.placeholder((4096, 8, 4), name="data")
    staged = te.compute(data.shape, lambda *at: data(*at) + 1.0, "staged")
    result = te.compute(data.shape, lambda i, j, k: staged[i, j, k] + staged[i, j, 3 - k], "result")
    mod = tvm.IRModule({"main": te.create_prim_func([data, result])})
    schedule = Schedule(mod)
    blocks, threads = schedule.split(schedule.get_loops(schedule.get_sblock("result"))[0], [None, 64])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    own = schedule.get_sblock("staged")
    schedule.compute_at(own, threads)
    schedule.set_scope(own, 0, "local")
    schedule.storage_align(own, 0, 1, factor, 0)
    with nullcontext() if fits else pytest.raises(GuardError, match="16384 bytes of its own"):
        check_function(schedule.mod["main"], mod["main"], tvm.target.Target(CUDA))
