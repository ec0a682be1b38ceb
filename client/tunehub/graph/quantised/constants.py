"""Constants that are dequantised, as the numbers in float32 that they stand for: products and convolutions that stay in
float32 have constant weights then, which are packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.quantised_tensors import DEQUANTIZE
from tunehub.tir.nodes import bound_value, calls_in, constant_array, is_constant, operator_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext


@tvm.transform.module_pass(opt_level=0, name="tunehub.constants_in_float")  # type: ignore[untyped-decorator]
def constants_in_float(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: ``dequantize`` of integers that are constants, by constants, is the constant that it gives."""
    if not any(operator_of(call) == DEQUANTIZE for call in calls_in(mod)):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_ConstantsInFloat(mod), mod))


@mutator
class _ConstantsInFloat(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if operator_of(call) != DEQUANTIZE or str(tensor_type(call).dtype) != "float32":
            return call
        operands = [bound_value(self, argument) for argument in call.args]
        if not all(map(is_constant, operands)):
            return call
        values, scale, zero = map(constant_array, operands)
        if not {values.dtype.kind, zero.dtype.kind} <= {*"iu"}:  # floats of 8 bits, say, which are TVM's to read
            return call
        return relax.const(_dequantised(values, scale, zero, int(call.attrs.axis)))


def _dequantised(values: Any, scale: Any, zero: Any, axis: int) -> Any:
    """``(values - zero) * scale`` in float32, with one scale and zero point or one for each place along ``axis``."""
    along = [-1 if at == axis % max(values.ndim, 1) else 1 for at in range(values.ndim)]
    scale, zero = (each.reshape(along if each.size > 1 else ()) for each in (scale, zero))
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be what they like: it is the model's
        return (values.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale.astype(np.float32)
