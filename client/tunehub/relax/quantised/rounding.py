"""Quantising and dequantising as code that becomes vectors.

TVM writes ``quantize`` with ``round`` and a cast, which LLVM does not make vectors of. Adding 1.5·2^23 to a number
below 2^22 leaves it rounded to the nearest integer, ties to even, in the low bits of the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.relax.kernels import Kernels, rewritten
from tunehub.relax.nodes import bound_value, constant_array, is_constant, shape_of, tensor_type
from tunehub.relax.quantised.scales import LIMITS, Affine

_MAGIC, _MAGIC_BITS = 12582912.0, 0x4B400000
_OPERATORS = ("relax.quantize", "relax.dequantize")


@tvm.transform.module_pass(opt_level=0, name="tunehub.quantise_in_vectors")  # type: ignore[untyped-decorator]
def quantise_in_vectors(mod: Any, _context: Any) -> Any:
    """Module pass: write quantising and dequantising of 8 bits with one scale for a tensor in this way."""
    return rewritten(_Rounding(mod), mod)


def quantised(x: Any, affine: Affine, dtype: str) -> Any:
    """The integer of ``dtype`` that stands for the float32 expression ``x``; NaN becomes one of the limits."""
    low, high = (_f32(limit - affine.zero) for limit in LIMITS[dtype])
    steps = x if affine.scale == 1 else x * _f32(float(np.float32(1) / np.float32(affine.scale)))
    clipped = te.max(te.min(steps, high), low)
    bits = tirx.reinterpret("int32", clipped + _f32(_MAGIC))
    return (bits - tirx.const(_MAGIC_BITS - affine.zero, "int32")).astype(dtype)


def dequantised(q: Any, affine: Affine) -> Any:
    """The float32 number that the integer ``q`` stands for."""
    steps = q.astype("int32")
    if affine.zero:
        steps = steps - tirx.const(affine.zero, "int32")
    return steps.astype("float32") * _f32(affine.scale)


@mutator
class _Rounding(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name = str(getattr(call.op, "name", ""))
        if name not in _OPERATORS or shape_of(call) is None:
            return call
        source, result = (str(tensor_type(each).dtype) for each in (call.args[0], call))
        affine = affine_of(self, call)
        if affine is None or "float32" not in (source, result) or not {source, result} & set(LIMITS):
            return call
        how = (affine.scale, affine.zero, result)
        if name == "relax.quantize":
            return self._kernels.call(
                lambda x: te.compute(x.shape, lambda *i: quantised(x[i], affine, result), name="quantize"),
                call.args[0],
                name="quantize",
                how=how,
            )
        return self._kernels.call(
            lambda q: te.compute(q.shape, lambda *i: dequantised(q[i], affine), name="dequantize"),
            call.args[0],
            name="dequantize",
            how=how,
        )


def affine_of(mutator: Any, call: Any) -> Affine | None:
    """The scale and zero point of a call of ``quantize`` or ``dequantize`` where they are constants for the whole
    tensor."""
    scale, zero = (bound_value(mutator, argument) for argument in call.args[1:3])
    if not is_constant(scale) or not is_constant(zero):
        return None
    scales, zeros = constant_array(scale), constant_array(zero)
    if scales.size != 1 or zeros.size != 1 or not np.isfinite(scales).all() or float(scales.reshape(())) <= 0:
        return None
    return Affine(scale=float(scales.reshape(())), zero=int(zeros.reshape(())))


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")
