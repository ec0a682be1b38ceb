"""Plain schedules for CUDA: outputs by running all threads one after the other, and what is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.s_tir import dlight

from tunehub.compiler.preparing import prepare
from tunehub.graph.steps.appending import appended_in_vectors
from tunehub.kernels.cuda.default import checked
from tunehub.kernels.cuda.plain import plain_schedule
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import buffer_shapes, is_static, main_module, statements_in, tensor_class

from ...compiler.outputs import difference, one_after_the_other

pytestmark = pytest.mark.slow

TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
IMAGE = (2, 6, 7, 5)
_Tensor = tensor_class()


def _functions(build: Callable[..., Any], *inputs: Any) -> list[Any]:
    """The PrimFuncs that Relax makes of ``build`` for CUDA; ``inputs``: shapes, or pairs of shape and type."""
    variables = []
    for number, each in enumerate(inputs):
        shape, dtype = each if each and isinstance(each[-1], str) else (each, "float32")
        variables.append(relax.Var(f"v{number}", _Tensor(shape, dtype)))
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(result)
    found = prepare(builder.get(), TARGET).functions.values()
    return [function for function in found if isinstance(function, tirx.PrimFunc)]


def _conv(groups: int, kernel: int) -> tuple[Any, ...]:
    """A convolution with a bias and a ReLU."""

    def build(data: Any, weight: Any, bias: Any) -> Any:
        return op.nn.relu(op.add(op.nn.conv2d(data, weight, padding=kernel // 2, groups=groups), bias))

    return build, IMAGE, (6, 6 // groups, kernel, kernel), (1, 6, 1, 1)


CASES: dict[str, tuple[Any, ...]] = {
    "elementwise": (op.nn.gelu, IMAGE),
    "convolution": _conv(1, 3),
    "grouped": _conv(2, 1),
    "depthwise 1x1": _conv(6, 1),
    "transposed": (lambda x, w: op.nn.conv2d_transpose(x, w, strides=2, padding=1), IMAGE, (6, 4, 3, 3)),
    "matmul of batches": (op.matmul, (2, 1, 3, 4), (5, 4, 7)),
    "dot product": (op.matmul, (300,), (300,)),
    "more than a block of threads": (lambda x: op.permute_dims(op.nn.relu(x), [1, 0]), (331, 7)),
    "reduction first": (lambda x: op.sum(x, [0, 2]), IMAGE),
    "reduction to one element": (lambda x: op.variance(x), IMAGE),
    "two values at once": (lambda x: op.argmax(x, 1), IMAGE),
    "two sums at once": (lambda x, g, b: op.nn.group_norm(x, g, b, 3, 1, [2, 3]), IMAGE, (6,), (6,)),
    "softmax": (lambda x: op.nn.softmax(x, 1), IMAGE),
    "several outputs": (lambda x: op.split(op.nn.relu(x), [1, 3], axis=1), IMAGE),
    "no dimensions": (lambda x, y: op.nn.relu(op.add(x, y)), (), ()),
    "loops in a block": (lambda x: op.nn.adaptive_avg_pool2d(x, 3), IMAGE),
    "padding": (lambda x: op.nn.max_pool2d(x, pool_size=3, strides=2, padding=1), IMAGE),
    "indices that are loaded": (lambda x, i: op.gather_nd(x, i), IMAGE, ((3, 2), "int64")),
    "resize": (lambda x: op.image.resize2d(x, (13, 10), layout="NCHW", method="linear"), IMAGE),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(5)
def test_plain_schedules_compute_what_the_function_does(name: str) -> None:
    functions = _functions(*CASES[name])
    assert functions
    for function in functions:
        before = function.script()
        scheduled = plain_schedule(function)
        assert function.script() == before
        assert scheduled.attrs.get("global_symbol") == function.attrs.get("global_symbol")
        check_function(scheduled, function, TARGET)
        assert difference(one_after_the_other(main_module(scheduled)), main_module(function)) < 1e-5


@pytest.mark.parametrize("vectors", [False, True])
def test_what_appends_to_the_pages_of_a_cache_has_threads_for_all_elements(vectors: bool) -> None:
    append = kv_cache._kv_cache_transpose_append(2, 8, "float32", 16)
    scheduled = plain_schedule(appended_in_vectors(append) if vectors else append)
    assert scheduled.script().count("thread_binding") == 2
    assert ("T.vectorized(8)" in scheduled.script()) == vectors
    _, threads, *_ = (each for each in statements_in(scheduled.body) if type(each).__name__ == "For")
    assert int(threads.extent) == (2 if vectors else 16)  # of a token: none is beyond the last one
    library = tvm.compile(one_after_the_other(main_module(scheduled)), target="llvm")
    rng, places = np.random.default_rng(1), np.array([17, -1, 3, 40], "int32")
    pages = np.zeros((3, 2, 2, 16, 8), "float32")
    key, value = rng.random((4, 2, 8), "float32"), rng.random((4, 2, 8), "float32")
    written = tvm.runtime.tensor(pages)
    library["main"](written, *map(tvm.runtime.tensor, (key, value, places)))
    for number, place in enumerate(places):
        if place >= 0:
            pages[place // 16, :, :, place % 16] = key[number], value[number]
    np.testing.assert_array_equal(written.numpy(), pages)


def test_nothing_is_inlined_or_shared() -> None:
    (function,) = _functions(*_conv(1, 3))
    scheduled = plain_schedule(function).script()
    assert function.script().count("T.sblock(") + 1 == scheduled.count("T.sblock(")  # the start of the sums
    assert scheduled.count('thread="blockIdx.x"') == 4
    assert "shared" not in scheduled and "local" not in scheduled


def test_code_is_generated_for_symbolic_extents() -> None:
    rows = tirx.Var("rows", "int64")
    (function,) = _functions(op.nn.softmax, (rows, 100))
    assert not is_static(function)
    module = main_module(plain_schedule(function))
    assert tvm.compile(module, target=tvm.target.Target(TARGET, host="llvm")) is not None


@pytest.mark.parametrize("build", [lambda x: op.sort(x, -1), lambda x: op.cumsum(x, 0), lambda x: op.topk(x, 5, -1)])
def test_what_launches_threads_itself_stays(build: Callable[..., Any]) -> None:
    functions = [function for function in _functions(build, (4, 100)) if is_static(function)]
    assert functions
    for function in functions:
        launches = function.script().count("launch_thread")
        assert launches
        scheduled = plain_schedule(function)
        assert scheduled.script().count("launch_thread") == launches
        assert buffer_shapes(scheduled) == buffer_shapes(function)
        assert tvm.compile(main_module(scheduled), target=tvm.target.Target(TARGET, host="llvm")) is not None


def test_what_is_in_no_block_stays() -> None:
    reached = (1, 2, *IMAGE[2:])
    indices = (reached, "int64")
    (function,) = _functions(lambda x, i, u: op.scatter_elements(x, i, u, axis=1), IMAGE, indices, reached)
    tvm.ir.assert_structural_equal(plain_schedule(function), function)
    without_root = function.with_body(tirx.Evaluate(0))
    assert plain_schedule(without_root).same_as(without_root)


def test_an_epilogue_that_dlight_applies_in_every_step_is_replaced() -> None:
    (function,) = _functions(*_conv(6, 1))
    mod = main_module(function)
    rules = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())
    with TARGET:
        wrong = rules(tvm.IRModule({"main": mod["main"]}))
        right = checked(rules, TARGET, {}.__setitem__)(mod)
    assert difference(one_after_the_other(wrong), mod) > 0.01
    assert difference(one_after_the_other(right), mod) < 1e-5
