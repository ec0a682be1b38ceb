"""Schedules for CUDA that TVM lets through: each kind of wrong one is found, and what is right is let be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule, dlight

from tunehub.kernels.cuda.default import checked
from tunehub.report.ladder import StepRejected
from tunehub.tir.cuda.check import fault, structural_fault
from tunehub.tir.cuda.fault import Fault, NotSimulated, NotSimulatedError
from tunehub.tir.cuda.simulation.kernel import Launch
from tunehub.tir.cuda.simulation.walk import Budget, Walk
from tunehub.tir.guard import GuardError, check_function, check_statements
from tunehub.tir.index_expressions import combined, variable
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics

pytestmark = pytest.mark.slow

TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
RULES = (dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.Fallback())


def rule_of(function: Any) -> str | None:
    """Which rule a scheduled function breaks."""
    found = fault(function, TARGET)
    assert not isinstance(found, NotSimulated), found
    return None if found is None else found.rule


def _module(*tensors: Any) -> Any:
    function = te.create_prim_func(list(tensors))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _convolution(groups: int, channels: int = 24, *, relu: bool = True) -> Any:
    """A convolution with a bias and, if asked for, a ReLU behind."""
    data = te.placeholder((1, channels, 7, 7), name="data")
    weight = te.placeholder((channels, channels // groups, 1, 1), name="weight")
    bias = te.placeholder((1, channels, 1, 1), name="bias")
    if groups == 1:
        sums = topi.nn.conv2d(data, weight, 1, 0, 1)
    else:
        sums = topi.nn.group_conv2d_nchw(data, weight, 1, 0, 1, groups)
    biased = topi.add(sums, bias)
    return _module(data, weight, bias, topi.nn.relu(biased) if relu else biased)


def _by_dlight(mod: Any) -> Any:
    with TARGET:
        return dlight.ApplyDefaultSchedule(*RULES)(tvm.IRModule(dict(mod.functions.items())))


def test_dlights_grouped_convolution_is_found_and_replaced() -> None:
    mod = _convolution(4)
    wrong = _by_dlight(mod)["main"]
    assert rule_of(wrong) is not None
    with pytest.raises(GuardError):
        check_function(wrong, mod["main"], TARGET)
    told: dict[str, StepRejected] = {}
    with TARGET:
        right = checked(dlight.ApplyDefaultSchedule(*RULES), TARGET, told.__setitem__)(mod)["main"]
    assert rule_of(right) is None
    refusal = told["main"].refusal
    assert (told["main"].step, refusal.check if refusal else None) == ("dlight", "static")
    check_function(right, mod["main"], TARGET)


def test_what_is_right_stays() -> None:
    mod = _convolution(1)
    told: dict[str, StepRejected] = {}
    with TARGET:
        scheduled = checked(dlight.ApplyDefaultSchedule(*RULES), TARGET, told.__setitem__)(mod)
    assert not told
    tvm.ir.assert_structural_equal(scheduled["main"], _by_dlight(mod)["main"])


@pytest.mark.parametrize("relu", [True, False])
def test_an_epilogue_inside_a_reduction_is_found(relu: bool) -> None:
    """dlight puts the bias and the ReLU of a depthwise 1×1 convolution into its reduction; a bias alone, which it adds
    twice, looks like one more value to add up."""
    mod = _convolution(24, relu=relu)
    found = fault(_by_dlight(mod)["main"], TARGET)
    assert isinstance(found, Fault)
    assert found.rule == "reduction"
    with pytest.raises(GuardError, match="does more than to combine"):
        check_statements(_by_dlight(mod)["main"], mod["main"], TARGET)


@pytest.mark.parametrize("operator", [topi.sum, topi.max, topi.min, topi.prod, topi.argmax, topi.argmin])
def test_reductions_that_only_combine_are_right(operator: Callable[..., Any]) -> None:
    data = te.placeholder((64, 48), name="data")
    assert rule_of(_by_dlight(_module(data, operator(data, axis=1)))["main"]) is None


def _through(scope: str, readers: int) -> Schedule:
    """Eight threads fill a buffer of ``scope``, and ``readers`` threads read it."""
    data = te.placeholder((8, 8), name="data")
    twice = te.compute((8, 8), lambda i, j: data[i, j] * 2.0, name="twice")
    schedule = Schedule(_module(data, te.compute((8, 8), lambda i, j: twice[i, j] + 1.0, name="result")))
    block = schedule.get_sblock("twice")
    rows, columns = schedule.get_loops(schedule.get_sblock("result"))
    schedule.bind(rows, "blockIdx.x")
    schedule.compute_at(block, rows, preserve_unit_loops=True)
    schedule.set_scope(block, 0, scope)
    schedule.bind(schedule.get_loops(block)[-1], "threadIdx.x")
    outer, _ = schedule.split(columns, [readers, None])
    schedule.bind(outer, "threadIdx.x")
    return schedule


@pytest.mark.parametrize("scope", ["local", "shared"])
@pytest.mark.parametrize("readers", [1, 2, 4, 8])
def test_loops_of_one_thread_tag_have_one_length(scope: str, readers: int) -> None:
    assert rule_of(_through(scope, readers).mod["main"]) == (None if readers == 8 else "thread_extents")


def _reversed(scope: str) -> Any:
    """Each of eight threads reads what the thread opposite has written."""
    data = te.placeholder((8, 8), name="data")
    twice = te.compute((8, 8), lambda i, j: data[i, j] * 2.0, name="twice")
    schedule = Schedule(_module(data, te.compute((8, 8), lambda i, j: twice[i, 7 - j] + 1.0, name="result")))
    rows, columns = schedule.get_loops(schedule.get_sblock("result"))
    schedule.bind(rows, "blockIdx.x")
    schedule.bind(columns, "threadIdx.x")
    block = schedule.get_sblock("twice")
    schedule.compute_at(block, rows, preserve_unit_loops=True)
    schedule.set_scope(block, 0, scope)
    schedule.bind(schedule.get_loops(block)[-1], "threadIdx.x")
    return schedule.mod["main"]


def test_a_thread_reads_no_other_threads_local_memory() -> None:
    assert rule_of(_reversed("local")) == "unwritten_read"
    assert rule_of(_reversed("shared")) is None


_TILE = """
# from tvm.script import tirx as T
@T.prim_func(private=True, s_tir=True)
def main(data: T.Buffer((6,), "float32"), result: T.Buffer(({results},), "float32")):
    with T.sblock("root"):
        staged = T.sblock_alloc_buffer((8,), scope="shared")
        own = T.sblock_alloc_buffer((8,), scope="{scope}")
        for b in T.thread_binding(1, thread="blockIdx.x"):
            for t in T.thread_binding(8, thread="threadIdx.x"):
                with T.sblock("staged"):
                    v = T.axis.spatial(8, t)
                    T.where(t < 6)
                    staged[v] = data[v]
            for t in T.thread_binding(8, thread="threadIdx.x"):
                with T.sblock("own"):
                    v = T.axis.spatial(8, t)
                    own[v] = staged[v] * T.float32(2)
            for t in T.thread_binding(8, thread="threadIdx.x"):
                with T.sblock("result"):
                    v = T.axis.spatial(8, t)
                    T.where(t < {results})
                    result[v] = own[v] + T.float32(1)
"""


@pytest.mark.parametrize(
    ("results", "scope", "rule"), [(6, "local", None), (8, "local", "unwritten_read"), (6, "shared", "unwritten_read")]
)
def test_what_nobody_wrote_may_be_read_by_who_drops_it(results: int, scope: str, rule: str | None) -> None:
    """Threads 6 and 7 are outside of the tile; those that pass it on are not followed any further."""
    function = tvm.script.from_source(_TILE.format(results=results, scope=scope))
    assert rule_of(function) == rule


def test_a_split_reduction_that_loses_its_end_is_found() -> None:
    """``rfactor`` can drop the condition that stops at the end of a reduction that was split with a remainder."""
    data = te.placeholder((16, 120), name="data")
    schedule = Schedule(_module(data, topi.sum(data, axis=1)))
    block = schedule.get_sblock("data_red")
    staged = schedule.cache_read(block, 0, "shared")
    sums = schedule.get_loops(block)[-1]
    partial = schedule.rfactor(schedule.split(sums, [None, 32])[1], 1)
    for each in (staged, partial, block):
        first, *others = schedule.get_loops(each)
        schedule.bind(first, "blockIdx.x")
        schedule.bind(others[-1], "threadIdx.x")
    source = schedule.mod.script(show_meta=False)
    end = next(line for line in source.splitlines() if "T.where" in line)
    lost = tvm.script.from_source(source.replace(end, ""))["main"]
    found = fault(lost, TARGET)
    assert isinstance(found, Fault)
    assert (found.rule, found.place) == ("beyond_end", "data_shared")
    assert structural_fault(schedule.mod["main"]) is None


def test_what_tvm_cannot_lower_is_a_fault() -> None:
    schedule = _through("shared", 8)
    (first, *_) = schedule.get_loops(schedule.get_sblock("result"))
    schedule.annotate(first, "software_pipeline_stage", [0, 0, 0, 0, 0])
    schedule.annotate(first, "software_pipeline_order", [0, 1])
    assert rule_of(schedule.mod["main"]) == "lowering"


@pytest.mark.parametrize("unrolled", [False, True])
def test_kernels_in_a_loop_are_a_fault(unrolled: bool) -> None:
    data = te.placeholder((64,), name="data")
    schedule = Schedule(_module(data, te.compute((64,), lambda i: data[i] + 1.0, name="result")))
    outer, inner = schedule.split(schedule.get_loops(schedule.get_sblock("result"))[0], [4, 16])
    schedule.bind(inner, "threadIdx.x")
    if unrolled:
        schedule.unroll(outer)
    assert fault(schedule.mod["main"], TARGET) == Fault("lowering", "kernels are launched in a loop")


@pytest.mark.parametrize(
    ("dtype", "lanes", "says"),
    [
        ("float32", 8, None),
        ("int32", 12, "12 numbers of 32 bits"),
        ("int8", 16, None),
        ("float16", 3, "3 numbers of 16 bits"),
    ],
)
def test_vectors_that_cuda_lacks_are_a_fault(dtype: str, lanes: int, says: str | None) -> None:
    data = te.placeholder((lanes * 4,), dtype, name="data")
    schedule = Schedule(_module(data, te.compute(data.shape, lambda i: data[i] + data[i], name="result")))
    outer, inner = schedule.split(schedule.get_loops(schedule.get_sblock("result"))[0], [4, lanes])
    schedule.bind(outer, "threadIdx.x")
    schedule.vectorize(inner)
    assert fault(schedule.mod["main"], TARGET) == (says and Fault("lowering", f"CUDA has no vector of {says}"))


def test_fragments_of_tensor_cores_that_no_instruction_fills_are_a_fault() -> None:
    found = fault(_through("wmma.accumulator", 8).mod["main"], TARGET)
    assert found == Fault("lowering", "twice_wmma.accumulator is for tensor cores, and accessed without them")


def test_global_memory_that_a_kernel_allocates_is_a_fault() -> None:
    schedule = _through("global", 8)
    found = fault(schedule.mod["main"], TARGET)
    assert found == Fault("lowering", "a kernel allocates global memory, twice")


def test_more_than_a_gpu_launches_is_a_fault() -> None:
    small = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 4})
    found = fault(_through("shared", 8).mod["main"], small)
    assert isinstance(found, Fault)
    assert (found.rule, str(found)) == ("threads", "a kernel cannot be launched (a block has more than 4 threads)")


def test_a_function_of_unknown_shape_is_simulated_at_some_sizes() -> None:
    rows = tirx.Var("n", "int64")
    data = te.placeholder((rows, 8), name="data")
    mod = _module(data, te.compute((rows, 8), lambda i, j: data[i, j] + 1.0))
    scheduled = _by_dlight(mod)["main"]
    assert fault(scheduled, TARGET) is None
    check_function(scheduled, mod["main"], TARGET)


def test_what_would_take_too_long_is_not_simulated() -> None:
    data = te.placeholder((1 << 14, 1 << 12), name="data")
    mod = _module(data, te.compute((1 << 14, 1 << 12), lambda i, j: data[i, j] + 1.0))
    found = fault(_by_dlight(mod)["main"], TARGET)
    assert str(found) == "not simulated: it has too many accesses"


def test_indices_that_are_loaded_may_be_read_at() -> None:
    data = te.placeholder((100, 64), name="data")
    rows = te.placeholder((32,), "int64", name="rows")
    assert rule_of(_by_dlight(_module(data, rows, topi.take(data, rows, axis=0)))["main"]) is None


def test_tvms_own_matmul_in_half_precision_stays() -> None:
    """It takes more shared memory than a block gets without asking, and asks the device for it."""
    load_cuda_intrinsics()
    left, right = (te.placeholder((256, 256), "float16", name=name) for name in ("left", "right"))
    mod = _module(left, right, topi.nn.matmul(left, right))
    own = _by_dlight(mod)["main"]
    assert not isinstance(fault(own, TARGET), Fault)
    told: dict[str, StepRejected] = {}
    with TARGET:
        scheduled = checked(dlight.ApplyDefaultSchedule(*RULES), TARGET, told.__setitem__)(mod)
    assert not told
    tvm.ir.assert_structural_equal(scheduled["main"], own)


def test_a_block_with_too_many_indices_is_not_known_to_be_right_or_wrong() -> None:
    """Whoever asks for the cheap part alone, as searches do, gets the same answer, no exception."""
    data = te.placeholder((4096, 4096), name="data")
    staged = te.compute((4096, 4096), lambda i, j: data[i, j] + 1.0, name="staged")
    result = te.compute((4096, 4096), lambda i, j: staged[(i * 3 + j * 5) % 4099, j] * 2.0, name="result")
    function = te.create_prim_func([data, result])
    assert isinstance(structural_fault(function), NotSimulated)


def test_what_has_too_many_accesses_is_not_put_into_memory() -> None:
    """The index of one access alone would be terabytes: a product of an open number of rows is checked at large ones,
    too."""
    everywhere = variable(1)
    walk = Walk(Launch(grid={}, block={}, tags={}, body=()), Budget(1 << 20))
    walk.values = {1: np.broadcast_to(np.int32(0), (1 << 40,))}
    with pytest.raises(NotSimulatedError, match="too many accesses"):
        walk.value(combined(np.add, everywhere, everywhere))
