"""Numbers in operators on elements as parts of their code: a tensor with one element would be a parameter of a kernel,
read by each thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import bound_value, constant_array, is_constant, operator_of, shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule

_OPERATORS = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum", "relax.minimum")


def numbers_without_axes(mod: IRModule) -> IRModule:
    """``mod`` with constants of one element, in operators on elements of tensors with as many axes, without axes."""
    return rewritten(_Numbers(mod), mod)


@mutator
class _Numbers(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if operator_of(call) not in _OPERATORS:
            return call
        numbers, rank = [self._number(each) for each in call.args], len(shape_of(call) or ())
        for at, number in enumerate(numbers):
            if number is not None and numbers[1 - at] is None and len(shape_of(call.args[1 - at]) or ()) == rank:
                args = [number if other == at else each for other, each in enumerate(call.args)]
                return relax.Call(call.op, args, call.attrs)
        return call

    def _number(self, operand: Expr) -> Expr | None:
        """Without axes where it is a constant of one element, whatever order its axes have."""
        value = bound_value(self, operand)
        value = value.args[0] if operator_of(value) == "relax.permute_dims" else value
        if not is_constant(value) or constant_array(value).size != 1:
            return None
        return relax.const(constant_array(value).reshape(()))
