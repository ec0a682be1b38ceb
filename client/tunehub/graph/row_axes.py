"""Rows of products in one place: [n, 1, K] is computed as [1, n, K].

A language model has a function for a batch of single tokens and one for a sequence of tokens. Their kernels are the
same but for the axis that is open; with one form they are the same functions, which are scheduled, checked and compiled
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import bound_value, integers, operator_of, same_extents, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext

_RANK = 3
_RESHAPE = "relax.reshape"
_BINARY = tuple(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"))
_UNARY = ("relax.astype", "relax.sigmoid", "relax.tanh", *(f"relax.nn.{name}" for name in ("silu", "gelu", "relu")))


@tvm.transform.module_pass(opt_level=0, name="tunehub.rows_in_one_axis")  # type: ignore[untyped-decorator]
def rows_in_one_axis(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: products and what is around them, element by element or row by row, on rows [1, n, K] in place of
    [n, 1, K], where n is open."""
    written = rewritten(_RowWriter(mod), mod)
    return relax.transform.CanonicalizeBindings()(relax.transform.DeadCodeElimination()(written))


@mutator
class _RowWriter(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = operator_of(call)
        if name == _RESHAPE:
            return self._reshaped_once(call)
        if not _is_tokens(call) or not self._keeps_rows(name, call):
            return call
        arguments = [self._in_one_axis(each) if _is_tokens(each) else each for each in call.args]
        result = self.builder_.emit(relax.Call(call.op, arguments, call.attrs))
        return relax.op.reshape(result, tensor_type(call).shape)

    def _keeps_rows(self, name: str, call: Call) -> bool:
        """Whether ``call`` computes each row of its result of the same row of its operands."""
        if name == "relax.matmul":
            return _is_tokens(call.args[0]) and len(shape_of(call.args[1]) or ()) == 2
        if name == "relax.nn.rms_norm":
            return _is_tokens(call.args[0]) and [int(axis) % _RANK for axis in call.attrs.axes] == [_RANK - 1]
        if name == "relax.strided_slice":
            return integers(call.args[1], lambda value: bound_value(self, value)) in ([_RANK - 1], [-1])
        if name in _BINARY:
            return all(_is_tokens(each) or len(shape_of(each) or (0, 0)) < 2 for each in call.args)
        return name in _UNARY and _is_tokens(call.args[0])

    def _in_one_axis(self, tokens: Expr) -> Expr:
        """``tokens`` [n, 1, K] as [1, n, K]: what it was before it was reshaped, if that is it."""
        rows, one, depth = tensor_type(tokens).shape.values
        source = self._source(tokens)
        if same_extents(shape_of(source) or (), (one, rows, depth)):
            return source
        return self.builder_.emit(relax.op.reshape(source, relax.ShapeExpr([one, rows, depth])))

    def _reshaped_once(self, call: Call) -> Expr:
        source = self._source(call.args[0])
        return call if source.same_as(call.args[0]) else relax.op.reshape(source, call.args[1])

    def _source(self, tensor: Expr) -> Expr:
        """What ``tensor`` is a reshape of, else itself."""
        value: Expr = tensor
        while isinstance(value, relax.Var):
            bound = self.lookup_binding(value)
            if not isinstance(bound, relax.Var):
                return self._source(bound.args[0]) if operator_of(bound) == _RESHAPE else value
            value = bound
        return value


def _is_tokens(tensor: Expr) -> bool:
    """Whether a tensor is [n, 1, K], n open."""
    shape = shape_of(tensor)
    if shape is None or len(shape) != _RANK:
        return False
    return not isinstance(shape[0], int) and shape[1] == 1 and isinstance(shape[2], int)
