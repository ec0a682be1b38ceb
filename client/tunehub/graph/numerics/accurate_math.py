"""Functions that TVM's code for CUDA computes wrongly, written so that it computes them rightly.

TVM compiles every kernel with ``--use_fast_math`` (``tvm/support/nvcc.py``). Then, in float32,

* ``powf(x, y)`` is ``exp2(y * log2(x))``: NaN for a negative base, whatever the exponent;
* ``sinf``, ``cosf`` and ``tanf`` have absolute errors that grow with the angle (4096 is a position in a text);
* ``tanhf`` is an instruction with relative errors of 5e-4 (NVRTC 13.5; 9e-6 with 13.0);
* a division is a product with the reciprocal, so that ``floor(33 / 33)`` is 0.

``exp``, ``log``, ``sqrt`` and other divisions lose a few bits, which networks do not feel, and stay. Source: NVIDIA,
CUDA C++ Programming Guide, "Intrinsic Functions".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.kernels.te.fast_math import tanh_within
from tunehub.tir.nodes import bound_value, constant_array, is_constant, operator_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, Tensor

_IN_DOUBLE = ("relax.sin", "relax.cos", "relax.tan", "relax.power", "relax.floor_divide", "relax.floor_mod")
_ROUNDING = ("relax.floor", "relax.ceil", "relax.round", "relax.trunc", "relax.astype")
_NARROW = ("float16", "bfloat16", "float32")
_TANH_RANGE = 9.0  # beyond, tanh is 1 in float32


@tvm.transform.module_pass(opt_level=0, name="tunehub.accurate_math")  # type: ignore[untyped-decorator]
def accurate_math(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA: powers, angles' functions and divisions that are rounded to whole numbers in float64, tanh
    as a rational function, gelu's tanh form by a sigmoid. Powers with constant exponents that are no whole numbers
    stay: they are NaN for negative bases everywhere."""
    return rewritten(_AccurateMathRewriter(mod), mod)


def tanh(x: PrimExpr) -> PrimExpr:
    """The hyperbolic tangent of the float32 expression ``x``; NaN gives NaN, which CUDA's ``max`` and ``min`` lose."""
    limit = tirx.const(_TANH_RANGE, "float32")
    return tanh_within(tirx.Select(x > limit, limit, tirx.Select(x < -limit, -limit, x)))


@mutator
class _AccurateMathRewriter(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", ""))
        if name in _ROUNDING:
            return self._rounded_division(call)
        if name not in (*_IN_DOUBLE, "relax.tanh", "relax.nn.gelu_tanh"):
            return call
        dtype = str(tensor_type(call.args[0]).dtype)
        if name in _IN_DOUBLE:
            return self._in_double(call, dtype) if dtype in _NARROW and not self._fractional(name, call) else call
        if dtype != "float32":
            return call
        return self._tanh(call.args[0]) if name == "relax.tanh" else self._gelu_tanh(call.args[0])

    def _rounded_division(self, call: Call) -> Expr:
        """Rounding of a quotient: with the quotient that IEEE 754 asks for, which a division in float64 gives, too."""
        quotient = bound_value(self, call.args[0])
        if operator_of(quotient) != "relax.divide":
            return call
        whole = str(tensor_type(call).dtype).startswith(("int", "uint"))
        dtype = str(tensor_type(quotient).dtype)
        if dtype not in _NARROW or (call.op.name == "relax.astype" and not whole):
            return call
        exact = self.builder_.emit(self._in_double(quotient, dtype))
        return relax.Call(call.op, [exact, *call.args[1:]], call.attrs)

    def _fractional(self, name: str, call: Call) -> bool:
        """Whether ``call`` is a power whose exponents are constants, none of them a whole number."""
        exponent = bound_value(self, call.args[1]) if name == "relax.power" else None
        return is_constant(exponent) and bool(np.all(constant_array(exponent).astype("float64") % 1 != 0))

    def _in_double(self, call: Call, dtype: str) -> Expr:
        wide = [self._wide(argument, operator_of(call)) for argument in call.args]
        return relax.op.astype(self.builder_.emit(relax.Call(call.op, wide, call.attrs)), dtype)

    def _wide(self, argument: Expr, operator: str) -> Expr:
        """``argument`` in float64; a divisor without axes is a number in the code."""
        if operator == "relax.divide" and is_constant(argument) and not constant_array(argument).shape:
            return relax.const(float(constant_array(argument)), "float64")
        return self.builder_.emit(relax.op.astype(argument, "float64"))

    def _tanh(self, data: Expr) -> Expr:
        def compute(x: Tensor) -> Tensor:
            return te.compute(x.shape, lambda *i: tanh(x[i]), name="T_tanh")

        return self._kernels.call(compute, data, name="tanh")

    def _gelu_tanh(self, data: Expr) -> Expr:
        """``(1 + tanh u) / 2`` is the sigmoid of ``2 u``."""
        emit, multiply, add = self.builder_.emit, relax.op.multiply, relax.op.add
        square = emit(multiply(data, data))
        cubic = emit(add(emit(multiply(square, _f32(0.044715))), _f32(1)))
        twice = emit(multiply(emit(multiply(data, _f32(math.sqrt(8 / math.pi)))), cubic))
        return multiply(data, emit(relax.op.sigmoid(twice)))


def _f32(value: float) -> Expr:
    return relax.const(np.float32(value))
