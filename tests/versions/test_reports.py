"""Functions of misses, and times of a run's calls, on every supported TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tunehub.compiler.profile import time_calls  # noqa: E402
from tunehub.exceptions import WorkloadTextError  # noqa: E402
from tunehub.tir.keys import workload_key  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402
from tunehub.tir.workload import workload_of, workload_text  # noqa: E402


def functions() -> dict[str, Any]:
    from tvm import te, topi

    x = te.placeholder((1, 8, 6, 6), name="x")
    w = te.placeholder((4, 8, 3, 3), name="w")
    a = te.placeholder((4, 10), name="a")
    made = {
        "conv": [x, w, topi.nn.relu(topi.nn.conv2d(x, w, 1, 1, 1))],
        "softmax": [a, topi.nn.softmax(topi.tanh(a))],
        "integers": [a, topi.cast(topi.cast(a, "int32") * topi.cast(a, "int32"), "float16")],
        "index": [a, topi.argmax(a, axis=1)],
        "choice": [a, topi.where(topi.greater(a, a * 2), a, topi.power(a, a))],
        "resize": [x, topi.image.resize2d(x, [0.0] * 4, [12, 12], layout="NCHW", method="linear")],
    }
    return {name: te.create_prim_func(tensors) for name, tensors in made.items()}


@pytest.mark.parametrize(("name", "function"), functions().items())
def test_a_missed_function_is_read_back(name: str, function: Any) -> None:
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    assert workload_key(workload_of(workload_text(function))) == workload_key(mod), name


def test_a_circle_never_reaches_tvm() -> None:
    """The loader of every release follows it until the process ends."""
    text = workload_text(functions()["softmax"])
    start = text.index('"ffi.Array","data":[') + len('"ffi.Array","data":[')
    while text[start] == "]":
        start = text.index('"ffi.Array","data":[', start) + len('"ffi.Array","data":[')
    end = min(text.index(mark, start) for mark in ",]")
    with pytest.raises(WorkloadTextError, match="does not come before it"):
        workload_of(text[:start] + "100000" + text[end:])


def test_calls_are_timed() -> None:
    from tvm import relax

    kind = tensor_class()
    builder = relax.BlockBuilder()
    x = relax.Var("x", kind((4, 10), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.softmax(x)))
        builder.emit_func_output(y)
    executable = tvm.compile(builder.get(), tvm.target.Target("llvm"))
    times = time_calls(executable, {"x": np.zeros((4, 10), "float32")}, "llvm", 2)
    assert [time.calls for name, time in times.calls.items() if "softmax" in name] == [1]
    assert times.run_s > 0
