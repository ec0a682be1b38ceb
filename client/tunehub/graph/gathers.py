"""Gathers in TVM's mode "fast", as the PrimFuncs that TVM makes of them (0.25 to 0.27), without the warning that TVM
prints for each: that indices are not checked there. Of inputs :mod:`tunehub.graph.checked_indices` does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import calls_in, operator_of, shape_of, tensor_class, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, Tensor


@tvm.transform.module_pass(opt_level=0, name="tunehub.quiet_gathers")  # type: ignore[untyped-decorator]
def quiet_gathers(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: gathers as TVM's LegalizeOps writes them."""
    return rewritten(_Gathers(mod), mod) if any(map(_is_unchecked, calls_in(mod))) else mod


@mutator
class _Gathers(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if not _is_unchecked(call):
            return call
        data, index = call.args
        axis = None if call.attrs.axis is None else int(call.attrs.axis) % len(shape_of(data) or ())
        return self.builder_.call_te(partial(_taken, axis=axis), data, index, primfunc_name_hint="take")


def _is_unchecked(call: Call) -> bool:
    if operator_of(call) != "relax.take" or str(call.attrs.mode) != "fast":
        return False
    data, index = call.args
    is_tensor = isinstance(tensor_type(index), tensor_class())
    return bool(shape_of(data)) and (shape_of(index) is not None or not is_tensor)


def _taken(data: Tensor, index: Tensor | PrimExpr, *, axis: int | None) -> Tensor:
    """What ``topi.take`` computes, with its names: keys of records contain them. Without an axis data has one alone."""
    extents = tuple(index.shape) if isinstance(index, te.Tensor) else ()
    first = axis or 0
    behind = first + len(extents)
    shape = (*data.shape[:first], *extents, *data.shape[first + 1 :])

    def element(*at: PrimExpr) -> PrimExpr:
        place = index(*at[first:behind]) if isinstance(index, te.Tensor) else index
        return data(*at[:first], tirx.indexmod(place, data.shape[0]) if axis is None else place, *at[behind:])

    names = [f"ax{number}" for number in range(len(shape))]
    return te.compute(shape, element, name="T_take", tag="injective", varargs_names=names)
