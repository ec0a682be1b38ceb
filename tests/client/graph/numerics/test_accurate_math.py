"""What TVM's fast mathematics on CUDA gets wrong is gone from the code, and what replaces it computes the same."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.graph.numerics.accurate_math import accurate_math  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402

from ....unoptimised import UNOPTIMISED  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
WRONG = re.compile(r"\b(?:__)?(?:pow|sin|cos|tan|tanh)f\(|\bhpow\(")
ANGLES = np.array([0, 1, 100, 4096, 32767, 1e6, -1e5], "float32")
WIDE = np.array([-1e30, -88, -9.5, -2, -1e-3, -1e-30, 0, 1e-5, 0.5, 3, 20, 1e30, np.nan, np.inf], "float32")
BASES = np.array([-8, -3, -2.5, -2, 0, 0.5, 1, 2, 10], "float32")
EXPONENTS = np.array([3, 2, 3, -2, 2, -0.5, 100, 10, -3], "float32")
QUOTIENTS = np.arange(1, 4097, dtype="float32")
UNARY: dict[str, tuple[Any, Any, Array]] = {
    "sin": (op.sin, np.sin, ANGLES),
    "cos": (op.cos, np.cos, ANGLES),
    "tan": (op.tan, np.tan, ANGLES),
    "tanh": (op.tanh, np.tanh, WIDE),
    "gelu_tanh": (
        op.nn.gelu_tanh,
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        WIDE,
    ),
}
BINARY: dict[str, tuple[Any, Any, Array, Array]] = {
    "power": (op.power, np.power, BASES, EXPONENTS),
    "floor_divide": (op.floor_divide, np.floor_divide, QUOTIENTS, QUOTIENTS),
    "floor_mod": (op.floor_mod, np.mod, -QUOTIENTS, np.full_like(QUOTIENTS, 7)),
    "floor of a quotient": (lambda x, y: op.floor(op.divide(x, y)), lambda x, y: np.floor(x / y), QUOTIENTS, QUOTIENTS),
    "whole part of a quotient": (
        lambda x, y: op.astype(op.divide(x, y), "int32"),
        lambda x, y: (x / y).astype("int32"),
        QUOTIENTS,
        np.full_like(QUOTIENTS, 49),
    ),
}
CASES = {**UNARY, **BINARY}


def module(name: str) -> tuple[Any, list[Array]]:
    operator, _, *inputs = CASES[name]
    kind = tensor_class()
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", kind(array.shape, "float32")) for i, array in enumerate(inputs)]
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(operator(*variables)))
        builder.emit_func_output(output)
    return builder.get(), inputs


def source(mod: Any) -> str:
    """What tunehub's pipeline has TVM generate for a GPU."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    executable = tunehub.compile(mod, target)
    pending, found = list(executable.mod.imports), ""
    while pending:
        part = pending.pop()
        pending.extend(part.imports)
        found += str(part.inspect_source()) if part.kind == "cuda" else ""
    assert "__global__" in found
    return found


@pytest.mark.filterwarnings("ignore:.*no package serves")
@pytest.mark.parametrize("name", CASES)
def test_the_code_has_no_function_that_fast_mathematics_makes_wrong(name: str) -> None:
    code = source(module(name)[0])
    assert not WRONG.search(code)
    assert name in ("tanh", "gelu_tanh") or "double" in code


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(4)
def test_what_replaces_it_computes_the_same(name: str) -> None:
    mod, inputs = module(name)
    machine = relax.VirtualMachine(tvm.compile(accurate_math(mod), tvm.target.Target(UNOPTIMISED)), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    with np.errstate(all="ignore"):
        wanted = CASES[name][1](*(array.astype("float64") for array in inputs))
    assert found.dtype == (np.int32 if name.startswith("whole") else np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7 if name == "gelu_tanh" else 1e-30)


def test_a_power_that_is_wrong_nowhere_keeps_its_code() -> None:
    """The 0.75 of local response normalisation: published networks have it."""
    kind = tensor_class()
    builder = relax.BlockBuilder()
    x = relax.Var("x", kind((8,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(op.power(x, relax.const(np.float32(0.75))))
        builder.emit_func_output(output)
    mod = builder.get()
    assert accurate_math(mod).script(show_meta=True) == mod.script(show_meta=True)
