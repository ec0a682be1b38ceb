"""Attention in a graph as one function each, with heads as they are wanted behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.attention.cuda.merging import with_one_product
from tunehub.graph.attention.cuda.rows import layer_behind, with_rows_in_place
from tunehub.graph.attention.recognition import FoundAttention, found_attention
from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.kernels.cuda.attention.function import attention
from tunehub.tir.expressions import replaced
from tunehub.tir.nodes import bound_value, buffer_kind, operator_of, plain_extent, same_extents, shape_of, symbolic
from tunehub.tir.symbols import variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.tir.types import Buffer, Index, IRModule, PassContext, PrimExpr, Tensor

_TYPES = ("float16", "bfloat16", "float32")
_LARGEST = 256  # depth: what a warp keeps in registers
_WIDTH = 16  # of which depths are multiples: elements of a product of tensor cores


@tvm.transform.module_pass(opt_level=0, name="tunehub.join_attention")  # type: ignore[untyped-decorator]
def join_attention(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA: attention whose kernel :mod:`tunehub.kernels.cuda.attention` can make as one function."""
    joiner = _Joiner(mod)
    written = rewritten(joiner, mod)
    if not joiner.found:
        return mod
    named = relax.transform.CanonicalizeBindings()(written)  # no name for a name: fusion would stop there
    return relax.transform.DeadCodeElimination()(named)


@mutator
class _Joiner(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)
        self.found: list[tuple[Call, FoundAttention, list[int]]] = []  # calls, and the order of their results' axes

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = operator_of(call)
        if name == "relax.permute_dims":
            return self._transposed(call)
        if name == "relax.reshape":
            return self._with_heads(call)
        if name == "relax.astype":
            return self._cast(call)
        found = found_attention(self, call)
        if found is None or not _serves(found):
            return call
        rank = len(found.lead) + 2
        operator = name != "relax.matmul"  # of Relax, whose heads come behind the queries
        found = with_one_product(self, with_rows_in_place(self, found))
        return self._called(found, [0, 2, 1, 3] if operator else list(range(rank)))

    def _called(self, found: FoundAttention, order: list[int]) -> Expr:
        def compute(*tensors: Tensor) -> Tensor:
            return _function(found, tensors, order)

        how = (*found.identity, tuple(order), found.dtype)
        call = self._kernels.call(compute, *found.tensors, name="attention", how=how)
        self.found.append((call, found, order))
        return call

    def _of(self, expression: Expr) -> tuple[FoundAttention, list[int]] | None:
        value = bound_value(self, expression)
        return next(((found, order) for call, found, order in self.found if call.same_as(value)), None)

    def _with_heads(self, call: Call) -> Expr:
        """Batch and heads that were one axis."""
        of, shape = self._of(call.args[0]), shape_of(call)
        if of is None or shape is None or len(of[0].lead) != 1 or of[1] != [0, 1, 2] or len(shape) < 4:
            return call
        found, (*lead, queries, outputs) = of[0], shape
        if not same_extents((queries, outputs), (found.queries, found.outputs)):
            return call
        return self._called(_split(found, lead), list(range(len(shape))))

    def _cast(self, call: Call) -> Expr:
        """Results that are narrowed: they are computed in float32, and rounded once."""
        of, dtype = self._of(call.args[0]), str(call.attrs.dtype)
        if of is None or of[0].dtype != "float32" or dtype not in _TYPES:
            return call
        found, order = of
        return self._called(replace(found, dtype=dtype), order)

    def _transposed(self, call: Call) -> Expr:
        """Heads behind queries, as the layer that follows takes them, or the rows of that layer's results."""
        axes = None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
        if axes is None or axes[-1] != len(axes) - 1:
            return call
        of = self._of(call.args[0])
        if of is None:
            return self._with_rows(call) if axes == [1, 0, 2] else call
        found, order = of
        return self._called(found, [order[axis] for axis in axes])

    def _with_rows(self, call: Call) -> Expr:
        """Rows of a linear layer behind attention that are transposed: those of attention are instead."""
        layer = layer_behind(self, call.args[0], lambda value: self._of(value) is not None)
        of = None if layer is None else self._of(layer.source)
        if layer is None or of is None or len(of[1]) != 4:
            return call
        found, (first, second, *rest) = of[0], of[1]
        return layer.over(self.builder_.emit, self._called(found, [second, first, *rest]))


def _serves(found: FoundAttention) -> bool:
    """Whether the kernel can be made."""
    sizes = (found.depth, found.outputs)
    return (
        _has_symbols(found)
        and found.operand in _TYPES
        and all(size % _WIDTH == 0 and size <= _LARGEST for size in sizes)
    )


def _split(found: FoundAttention, lead: Sequence[Index]) -> FoundAttention:
    """With several axes for batch and heads in place of one."""
    analyzer = symbolic().Analyzer()
    axes = [tirx.Var(f"h{at}", "int64") for at, _ in enumerate(lead)]
    for axis, extent in zip(
        (*axes, *found.axes[1:]), (*lead, found.queries, found.keys, found.depth, found.outputs), strict=True
    ):
        analyzer.bind(axis, tvm.ir.Range(0, extent))
    whole: PrimExpr = tirx.const(0, "int64")
    for axis, extent in zip(axes, lead, strict=True):
        whole = whole * extent + axis

    def simplified(expression: PrimExpr) -> PrimExpr:
        def element(buffer: Buffer, indices: Sequence[PrimExpr]) -> PrimExpr:
            return tirx.BufferLoad(buffer, [analyzer.simplify(index) for index in indices])

        return replaced(expression, {hash(found.axes[0]): whole}, element)

    return replace(
        found,
        lead=tuple(map(plain_extent, lead)),
        axes=(*axes, *found.axes[1:]),
        query=simplified(found.query),
        key=simplified(found.key),
        value=simplified(found.value),
        masked=simplified(found.masked),
    )


def _function(found: FoundAttention, tensors: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    known = {hash(memory): tensor for memory, tensor in zip(found.memory, tensors, strict=True)}
    *lead, queries, keys, depth, outputs = found.axes
    symbols = _symbols(found, tensors)

    def at(
        expression: PrimExpr, axes: Sequence[PrimExpr], place: Sequence[Index], score: PrimExpr | None = None
    ) -> PrimExpr:
        wide = [index.astype("int64") for index in place]  # TVM's tensor expressions have 32 bits
        names = {hash(axis): index for axis, index in zip(axes, wide, strict=True)}
        names |= symbols if score is None else {**symbols, hash(found.score): score}
        return replaced(expression, names, lambda buffer, indices: known[hash(buffer)][tuple(indices)])

    extents = [each if isinstance(each, int) else replaced(each, symbols) for each in _extents(found)]
    return attention(
        (*extents, found.depth, found.outputs),
        lambda *i: at(found.query, (*lead, queries, depth), i),
        lambda *i: at(found.key, (*lead, keys, depth), i),
        lambda *i: at(found.value, (*lead, keys, outputs), i),
        lambda *i: at(found.masked, (*lead, queries, keys), i[:-1], i[-1]),
        order,
        found.dtype,
        found.safe,
    )


def _extents(found: FoundAttention) -> tuple[Index, ...]:
    return (*found.lead, found.queries, found.keys)


def _symbols(found: FoundAttention, tensors: Sequence[Tensor]) -> dict[int, Var]:
    """What the symbols of the graph are called in tensor expressions: TVM gives these names of their own."""
    pairs = [
        pair
        for memory, tensor in zip(found.memory, tensors, strict=True)
        for pair in zip(buffer_kind(memory).shape, tensor.shape, strict=True)
    ]
    return {hash(outer): inner for outer, inner in pairs if type(outer).__name__ in ("Var", "SizeVar")}


def _has_symbols(found: FoundAttention) -> bool:
    """Whether each symbol is the extent of a tensor."""
    named = {hash(extent) for memory in found.memory for extent in buffer_kind(memory).shape}
    used = variables_in([each for each in _extents(found) if not isinstance(each, int)])
    return all(hash(each) in named for each in used)
