"""Additions of dequantised tensors as one step: what dequantises would else be of the kernel before, which then wrote
32 bits where 8 would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised_tensors import has_type
from tunehub.kernels.te.scales import LIMITS
from tunehub.tir.nodes import bound_value, constant_array, is_constant, operator_of, same_shape, shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Index, IRModule, PrimExpr, Tensor

_ADD = "relax.add"


class _Term(NamedTuple):
    """``(tensor - zero) * factor`` in float32, in this order."""

    tensor: Tensor
    zero: float = 0.0
    factor: float = 1.0

    def at(self, tensor: Tensor, place: tuple[Index, ...]) -> PrimExpr:
        """An element; ``tensor``: the one that this is of, in a kernel."""
        value = tensor(*place).astype("float32")
        value = value - tirx.const(self.zero, "float32") if self.zero else value
        return value if self.factor == 1.0 else value * tirx.const(self.factor, "float32")


def residuals_in_one_step(mod: IRModule) -> IRModule:
    """``mod`` with additions of tensors of 8 bits, dequantised by constants of one element, as one kernel each."""
    return relax.transform.DeadCodeElimination()(rewritten(_Residuals(mod), mod))


@mutator
class _Residuals(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if operator_of(call) != _ADD or not same_shape(*call.args) or shape_of(call) is None:
            return call
        terms = [self._dequantised(each) for each in call.args]
        if all(term is None for term in terms) or not all(has_type(each, "float32") for each in call.args):
            return call
        whole = [_Term(each) if term is None else term for each, term in zip(call.args, terms, strict=True)]

        def compute(*tensors: Tensor) -> Tensor:
            def element(*place: Index) -> PrimExpr:
                first, second = (term.at(tensor, place) for term, tensor in zip(whole, tensors, strict=True))
                return first + second

            return te.compute(tensors[0].shape, element, name="residual")

        how = tuple((term.zero, term.factor) for term in whole)
        return self._kernels.call(compute, *(term.tensor for term in whole), name="residual", how=how)

    def _dequantised(self, expression: Expr) -> _Term | None:
        """What ``expression`` is of integers of 8 bits; None of others."""
        value, zero, factor = bound_value(self, expression), 0.0, 1.0
        if operator_of(value) == "relax.multiply" and (number := _number(value.args[1])) is not None:
            value, factor = bound_value(self, value.args[0]), number
        if operator_of(value) == "relax.subtract" and (number := _number(value.args[1])) is not None:
            value, zero = bound_value(self, value.args[0]), number
        is_cast = operator_of(value) == "relax.astype" and has_type(value.args[0], *LIMITS)
        return _Term(value.args[0], zero, factor) if is_cast else None


def _number(operand: Expr) -> float | None:
    is_number = is_constant(operand) and constant_array(operand).shape == ()
    return float(constant_array(operand)) if is_number else None
