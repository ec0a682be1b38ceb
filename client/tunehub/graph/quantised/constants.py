"""Constants that are dequantised, as the numbers in float32 that they stand for: products and convolutions that stay in
float32 have constant weights then, which are packed. And scales of 0, which TVM does not divide by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.quantised_tensors import DEQUANTIZE, QUANTIZE
from tunehub.tir.nodes import bound_value, calls_in, constant_array, is_constant, operator_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Array, IRModule, PassContext


@tvm.transform.module_pass(opt_level=0, name="tunehub.constants_in_float")  # type: ignore[untyped-decorator]
def constants_in_float(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: ``dequantize`` of integers that are constants, by constants, is the constant that it gives;
    ``quantize`` by a constant of 0 divides by the least number."""
    if not any(operator_of(call) in (DEQUANTIZE, QUANTIZE) for call in calls_in(mod)):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_ConstantsInFloat(mod), mod))


@mutator
class _ConstantsInFloat(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if operator_of(call) == QUANTIZE:
            return self._by_more_than_zero(call)
        if operator_of(call) != DEQUANTIZE or str(tensor_type(call).dtype) != "float32":
            return call
        operands = [bound_value(self, argument) for argument in call.args]
        if not all(map(is_constant, operands)):
            return call
        values, scale, zero = map(constant_array, operands)
        if not {values.dtype.kind, zero.dtype.kind} <= {*"iu"}:  # floats of 8 bits, say, which are TVM's to read
            return call
        return relax.const(_dequantised(values, scale, zero, int(call.attrs.axis)))

    def _by_more_than_zero(self, call: Call) -> Call:
        data, scale, zero = call.args
        found = bound_value(self, scale)
        if not is_constant(found) or constant_array(found).all():
            return call
        values = constant_array(found)
        least = np.where(values == 0, np.finfo(values.dtype).tiny, values).astype(values.dtype)
        return relax.Call(call.op, [data, relax.const(least), zero], call.attrs)


def _dequantised(values: Array, scale: Array, zero: Array, axis: int) -> Array:
    """``(values - zero) * scale`` in float32, with one scale and zero point or one for each place along ``axis``."""
    along = [-1 if at == axis % max(values.ndim, 1) else 1 for at in range(values.ndim)]
    scale, zero = (each.reshape(along if each.size > 1 else ()) for each in (scale, zero))
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be what they like: it is the model's
        return (values.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale.astype(np.float32)
