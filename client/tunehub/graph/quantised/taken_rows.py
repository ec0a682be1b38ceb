"""Rows that are taken of quantised tables, as a language model's embedding: made of the rows that are read.

TVM fuses nothing with ``take``: all of the table would be made at each step, 1.7 ms of an 8B on an H200.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised.dequantisation import dequantised_from
from tunehub.kernels.cpu.vectors import vector_types
from tunehub.kernels.cuda.low_batch.weights import WORD_BITS, Format, weight_at
from tunehub.tir.nodes import calls_in, operator_of

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, Tensor

_TAKE = "relax.take"


@tvm.transform.module_pass(opt_level=0, name="tunehub.quantised_rows")  # type: ignore[untyped-decorator]
def quantised_rows(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: rows of quantised tables are dequantised where they are taken."""
    if not any(operator_of(call) == _TAKE for call in calls_in(mod)):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_TakenRows(mod), mod))


@mutator
class _TakenRows(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if operator_of(call) != _TAKE or call.attrs.axis is None or int(call.attrs.axis) != 0:
            return call
        table, places = call.args
        if not isinstance(table, relax.Var) or self.lookup_binding(table) is None:
            return call
        found = dequantised_from(table, self.lookup_binding, self._mod, vector_types())
        if found is None:
            return call
        how, name = (found.format,), "take_dequantized"
        return self._kernels.call(
            partial(_taken, form=found.format), places, found.weights, found.scales, name=name, how=how
        )


def _taken(places: Tensor, weights: Tensor, scales: Tensor, *, form: Format) -> Tensor:
    shape = (*places.shape, weights.shape[1] * (WORD_BITS // form.bits))

    def element(*at: PrimExpr) -> PrimExpr:
        return weight_at(weights, scales, form, places(*at[:-1]), at[-1])

    return te.compute(shape, element, name="take_dequantized")
