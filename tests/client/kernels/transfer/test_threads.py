"""Designs with loops that all threads of a block share, on other shapes: one extent for each tag, right results."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi

from tunehub.compiler.schedule.apply import apply_transfer
from tunehub.kernels.cuda.gemm.split_k import sketch as split_k
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile
from tunehub.kernels.transfer.threads import ThreadExtents, TransferError
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import children

from ....sweeps import covering
from ...compiler.outputs import difference, one_after_the_other

TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
TILES = (
    SplitTile(groups=4, threads=(8, 8), sums=(4, 4), depth=8, vectors=(4, 4)),
    SplitTile(groups=8, threads=(4, 8), sums=(4, 4), depth=4, vectors=(4, 4), pipelined=True),
)
SHAPES = ((49, 96, 128), (49, 48, 192), (56, 72, 160), (7, 24, 256), (96, 48, 256))
UNDIVIDED = (168, 270, 447, 527)  # K that the groups times their depth do not divide


def _product(rows: int, columns: int, inner: int, *, relu: bool = False) -> Any:
    first, second = te.placeholder((rows, inner), name="first"), te.placeholder((inner, columns), name="second")
    result = topi.add(topi.nn.matmul(first, second), te.placeholder((columns,), name="bias"))
    bias = result.op.input_tensors[1]
    function = te.create_prim_func(
        [first, second, bias, topi.nn.relu(result) if relu else result], index_dtype_override="int64"
    )
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _trace(tile: SplitTile) -> Any:
    mod = _product(64, 96, 128)
    matmul = split_k.matmul_of(mod)
    assert matmul is not None
    return split_k.apply(mod, matmul, tile).trace


def _loops(node: Any) -> Iterator[Any]:
    if type(node).__name__ == "For":
        yield node
    for child in children(node):
        yield from _loops(child)


def _extents(function: Any) -> list[tuple[str, int]]:
    """The pairs of thread tag and extent of a function with one kernel, each once."""
    bound = [loop for loop in _loops(function.body) if loop.thread_binding is not None]
    return sorted({(str(loop.thread_binding.thread_tag), int(loop.extent)) for loop in bound})


@pytest.mark.slow
@pytest.mark.parametrize(("tile", "anchored"), covering(TILES, [False, True]))
@pytest.mark.few(1)
def test_loads_follow_the_threads_of_the_product(tile: SplitTile, anchored: bool) -> None:
    trace, served = _trace(tile), 0
    for rows, columns, inner in SHAPES:
        mod = _product(rows, columns, inner, relu=anchored)
        try:
            scheduled = apply_transfer(mod, trace, TARGET, anchored=anchored).mod
            check_function(scheduled["main"], mod["main"], TARGET)
        except Exception:  # a guard, or one of TVM's many kinds
            continue
        served += 1
        tags = [tag for tag, _ in _extents(scheduled["main"])]
        assert tags == sorted(set(tags)), (rows, columns, inner, _extents(scheduled["main"]))
        assert difference(one_after_the_other(scheduled), mod) < 1e-4, (rows, columns, inner)
    assert served >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("anchored", "inner"), covering([False, True], UNDIVIDED))
def test_the_end_of_k_is_not_lost(inner: int, anchored: bool) -> None:
    mod = _product(64, 96, inner, relu=anchored)
    try:
        scheduled = apply_transfer(mod, _trace(TILES[0]), TARGET, anchored=anchored).mod
    except Exception as error:  # TVM refuses what other numbers of groups make of the results
        assert "about 4 groups" in str(error) or "Not a reduction block" in str(error)
        assert inner % 4
    else:
        assert difference(one_after_the_other(scheduled), mod) < 1e-4


@pytest.mark.slow
def test_a_pipeline_needs_a_second_load() -> None:
    with pytest.raises(TransferError, match="no next load"):
        apply_transfer(_product(64, 96, 32), _trace(TILES[1]), TARGET)


def _step(kind: str, inputs: list[Any], outputs: tuple[str, ...] = (), tag: str = "") -> Any:
    return SimpleNamespace(kind=SimpleNamespace(name=kind), inputs=inputs, outputs=outputs, attrs=[tag])


DESIGN = [
    _step("Split", ["k", None, 8, 16], ("outer", "group", "inner")),
    _step("RFactor", ["group"]),
    _step("Split", ["load", None, 8, 32], ("rounds", "share y", "share x")),
    _step("Bind", ["share y"], tag="threadIdx.y"),
    _step("Bind", ["share x"], tag="threadIdx.x"),
    _step("Bind", ["tile x"], tag="threadIdx.x"),
    _step("Bind", ["other x"], tag="threadIdx.x"),
]


@pytest.mark.fast
def test_shares_take_the_extent_of_the_tile_and_may_leave_a_remainder() -> None:
    threads = ThreadExtents(DESIGN)
    assert threads.fitted(2, 1000, (None, 8, 32)) == (None, 8, 1)  # no tile is known yet
    assert [threads.is_tile(position) for position in range(7)] == [False] * 5 + [True] * 2
    threads.bound(5, 42)
    assert threads.misfit(5, DESIGN) == (2, (None, 8, 42))
    assert threads.fitted(2, 1000, (None, 8, 32)) == (None, 8, 42)
    assert threads.fitted(2, 1000, (None, 8, 42)) is None
    threads.bound(6, 42)
    with pytest.raises(TransferError, match=r"threadIdx\.x would have 42 and 24 values"):
        threads.bound(6, 24)


@pytest.mark.fast
@pytest.mark.parametrize(("extent", "fitted"), [(1024, None), (768, None), (336, (None, 8, 14)), (90, (None, 5, 18))])
def test_a_reduction_is_divided_without_remainder(extent: int, fitted: Any) -> None:
    assert ThreadExtents(DESIGN).fitted(0, extent, (None, 8, 16)) == fitted


@pytest.mark.fast
@pytest.mark.parametrize("extent", [447, 527, 31])
def test_a_reduction_without_a_divisor_near_is_refused(extent: int) -> None:
    with pytest.raises(TransferError, match="about 8 groups of threads"):
        ThreadExtents(DESIGN).fitted(0, extent, (None, 8, 16))
