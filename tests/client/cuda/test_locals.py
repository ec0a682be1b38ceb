"""Local memory of CUDA kernels: what passes elements between threads is found, what does not is let be."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi
from tvm.s_tir import Schedule, dlight

from tunehub.cuda.default import checked
from tunehub.cuda.locals import foreign_read
from tunehub.relax.schedule.guard import GuardError, check_function

pytestmark = pytest.mark.slow

TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
RULES = (dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.Fallback())


def _convolution(groups: int) -> Any:
    """A convolution with a bias and a ReLU behind."""
    data = te.placeholder((1, 24, 7, 7), name="data")
    weight = te.placeholder((24, 24 // groups, 1, 1), name="weight")
    bias = te.placeholder((1, 24, 1, 1), name="bias")
    if groups == 1:
        sums = topi.nn.conv2d(data, weight, 1, 0, 1)
    else:
        sums = topi.nn.group_conv2d_nchw(data, weight, 1, 0, 1, groups)
    function = te.create_prim_func([data, weight, bias, topi.nn.relu(topi.add(sums, bias))])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _by_dlight(mod: Any) -> Any:
    with TARGET:
        return dlight.ApplyDefaultSchedule(*RULES)(tvm.IRModule(dict(mod.functions.items())))


def test_dlights_grouped_convolution_is_found_and_replaced() -> None:
    mod = _convolution(4)
    wrong = _by_dlight(mod)["main"]
    assert "which is local" in str(foreign_read(wrong))
    with pytest.raises(GuardError, match="another one has written"):
        check_function(wrong, mod["main"], TARGET)
    with TARGET:
        right = checked(dlight.ApplyDefaultSchedule(*RULES))(mod)["main"]
    assert foreign_read(right) is None
    check_function(right, mod["main"], TARGET)


def test_what_is_right_stays() -> None:
    mod = _convolution(1)
    with TARGET:
        scheduled = checked(dlight.ApplyDefaultSchedule(*RULES))(mod)
    tvm.ir.assert_structural_equal(scheduled["main"], _by_dlight(mod)["main"])


def _through_local(readers: int) -> Any:
    """Eight threads fill a local buffer, and ``readers`` threads read it."""
    data = te.placeholder((8, 8), name="data")
    twice = te.compute((8, 8), lambda i, j: data[i, j] * 2.0, name="twice")
    result = te.compute((8, 8), lambda i, j: twice[i, j] + 1.0, name="result")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([data, result])}))
    block = schedule.get_sblock("twice")
    rows, columns = schedule.get_loops(schedule.get_sblock("result"))
    schedule.bind(rows, "blockIdx.x")
    schedule.compute_at(block, rows, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    schedule.bind(schedule.get_loops(block)[-1], "threadIdx.x")
    outer, _ = schedule.split(columns, [readers, None])
    schedule.bind(outer, "threadIdx.x")
    return schedule.mod["main"]


@pytest.mark.parametrize("readers", [1, 2, 4, 8])
def test_each_thread_must_read_its_own(readers: int) -> None:
    function = _through_local(readers)
    assert (foreign_read(function) is None) == (readers == 8)
