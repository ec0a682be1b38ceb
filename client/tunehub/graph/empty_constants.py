"""Constants without elements, which TVM writes into a library and does not read again (0.25 to 0.27: "Invalid DLTensor
file format"): they become tensors that are allocated when the model runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import constants_in, is_constant, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import IRModule


def without_empty_constants(mod: IRModule) -> IRModule:
    """``mod`` with constants of no elements allocated; to be called when all other constants are what they stay."""
    return rewritten(_Allocator(mod), mod) if any(map(_is_empty, constants_in(mod))) else mod


def _is_empty(expression: Expr) -> bool:
    return is_constant(expression) and 0 in map(int, shape_of(expression) or ())


@mutator
class _Allocator(PyExprMutator):  # type: ignore[misc]
    def visit_generic_const_(self, constant: Expr) -> Expr:
        if not _is_empty(constant):
            return constant
        shape, dtype = relax.ShapeExpr(shape_of(constant)), str(tensor_type(constant).dtype)
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, dtype, 0))

    visit_constant_ = visit_generic_const_  # its name before 0.27
