"""Quantising and dequantising on GPUs: operators on elements, which TVM brings into other orders of axes and fuses with
kernels before and behind. Each reader of dequantised numbers has operators of its own: it reads 8 bits then, not 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.quantised_tensors import DEQUANTIZE, QUANTIZE, affine_of, has_type, variable_of
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import bound_value, calls_in, operator_of, permuted_axes, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr
    from tunehub.tir.types import IRModule

_PERMUTE = "relax.permute_dims"


def quantise_by_element(mod: IRModule) -> IRModule:
    """``mod`` with quantising to 8 bits and dequantising, with one constant scale for a tensor, in this way."""
    if not any(operator_of(call) in (QUANTIZE, DEQUANTIZE) for call in calls_in(mod)):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_Elements(mod), mod))


@mutator
class _Elements(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._dequantised: dict[Any, tuple[Any, Affine]] = {}  # variables, and what they are of

    def visit_var_binding_(self, binding: Binding) -> None:
        super().visit_var_binding_(binding)
        value = binding.value
        if operator_of(value) == DEQUANTIZE and (affine := self._affine(value, value.args[0], value)) is not None:
            self._dequantised[self.visit_expr(binding.var)] = self.visit_expr(value.args[0]), affine

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if operator_of(call) == _PERMUTE:
            return self._transposed_once(call)
        if operator_of(call) == QUANTIZE and (affine := self._affine(call, call, call.args[0])) is not None:
            return self._quantised(self._own(call.args[0]), affine, str(tensor_type(call).dtype))
        own = [self._own(each) for each in call.args]
        same = all(one.same_as(other) for one, other in zip(own, call.args, strict=True))
        return call if same else relax.Call(call.op, own, call.attrs)

    def _transposed_once(self, call: Call) -> Expr:
        """Of what was transposed before: nothing where both together change nothing."""
        inner = bound_value(self, call.args[0])
        axes, before = permuted_axes(call), permuted_axes(inner)
        same = axes is not None and before is not None and [before[axis] for axis in axes] == [*range(len(axes))]
        return inner.args[0] if same else call

    def _affine(self, call: Call, integers: Expr, reals: Expr) -> Affine | None:
        return affine_of(self, call) if has_type(integers, *LIMITS) and has_type(reals, "float32") else None

    def _own(self, argument: Expr) -> Expr:
        """``argument``, dequantised for the one who asks."""
        found = self._dequantised.get(variable_of(self, argument)) if isinstance(argument, relax.Var) else None
        if found is None:
            return argument
        source, affine = found
        steps = self._emit(relax.op.astype(source, "float32"))
        if affine.zero:
            steps = self._by(relax.op.subtract, steps, affine.zero)
        return steps if affine.scale == 1 else self._by(relax.op.multiply, steps, affine.scale)

    def _quantised(self, x: Expr, affine: Affine, dtype: str) -> Expr:
        steps = x if affine.scale == 1 else self._by(relax.op.divide, x, affine.scale)
        steps = self._emit(relax.op.round(steps))  # ties to even
        if affine.zero:
            steps = self._by(relax.op.add, steps, affine.zero)
        low, high = LIMITS[dtype]
        clipped = self._by(relax.op.minimum, self._by(relax.op.maximum, steps, low), high)
        return relax.op.astype(clipped, dtype)

    def _by(self, operator: Callable[[Expr, Expr], Expr], x: Expr, number: float) -> Expr:
        """With a number of as many axes: of another one TVM knows no layout."""
        return self._emit(operator(x, relax.const(np.full([1] * len(shape_of(x) or ()), number, np.float32))))

    def _emit(self, expression: Expr) -> Expr:
        return self.builder_.emit(expression)
