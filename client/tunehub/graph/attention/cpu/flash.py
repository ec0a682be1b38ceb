"""Attention of a graph by :mod:`tunehub.kernels.cpu.flash_attention`: masks are any expression of places and tensors
that is added to scores, heads may share keys, and every tensor is read where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tvm
from tvm import relax, te, tirx

from tunehub.graph.attention.recognition import FoundAttention
from tunehub.graph.kernel_calls import open_extents
from tunehub.kernels.cpu.flash_attention import flash_attention
from tunehub.kernels.cpu.paged_attention.cached import LANES
from tunehub.kernels.cpu.pairs import ROUNDS
from tunehub.kernels.cpu.whole_attention import HIDDEN, FlashAttention
from tunehub.tir.expressions import has_variable, replaced
from tunehub.tir.nodes import element_type, integer, parameters, same_extent, symbolic, tensor_class, tensor_type
from tunehub.tir.statements import f32, load
from tunehub.tir.symbols import variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Call, Var
    from tunehub.tir.types import Buffer, GlobalVar, Index, PrimExpr, PrimFunc

_NAME, _OPAQUE = "flash_attention", 8  # TVM's OpPatternKind
_DEEPEST = 256
FEWEST_ROWS = 2  # of a tile, heads that share keys or queries: one leaves most of it unused


class FlashCalls:
    """The calls that a rewriter writes; attention of the same form has one function."""

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._made: dict[Hashable, GlobalVar | None] = {}

    def call(self, found: FoundAttention, fewest: int, *, tiles: bool = False) -> Call | None:
        """The call in place of ``found``; None where the kernel is not for it, or a tile has not so many rows.
        ``tiles``: many queries are multiplied in bfloat16 by AMX."""
        kinds = [str(tensor_type(each)) for each in found.tensors]
        symbols = (hash(each) for memory in found.memory for each in variables_in(memory.shape))
        sizes = map(str, (*found.lead, found.queries, found.keys))
        key = (fewest, tiles, found.identity, *sizes, *kinds, *symbols)
        if key not in self._made:
            function = _function(found, fewest, tiles=tiles)
            self._made[key] = None if function is None else self._builder.add_func(function, _NAME)
        made = self._made[key]
        if made is None:
            return None
        extents = [*found.lead, found.queries, found.outputs]
        return relax.call_tir(made, relax.Tuple(found.tensors), tensor_class()(extents, found.dtype))


def is_causal(found: FoundAttention) -> bool:
    """Whether queries see different keys, as far as a mask can say that."""
    masked = _mask(found)
    return masked is not None and has_variable(masked, found.axes[len(found.lead)])


def _function(found: FoundAttention, fewest: int, *, tiles: bool) -> PrimFunc | None:
    group, scale = _shared_heads(found), _slope(found.masked, found.score)
    if not _serves(found, group, fewest) or scale is None:
        return None
    shapes = [open_extents(each) for each in found.tensors]
    tensors = [
        te.placeholder(shape, str(tensor_type(each).dtype), name=f"t{at}")
        for at, (shape, each) in enumerate(zip(shapes, found.tensors, strict=True))
    ]
    known = [
        pair for memory, own in zip(found.memory, shapes, strict=True) for pair in zip(memory.shape, own, strict=True)
    ]
    extents = [_own_extent(each, known) for each in (*found.lead, found.queries, found.keys)]
    if any(each is None for each in extents) or _has_others(found, known):
        return None
    *lead, heads, queries, keys = extents
    result = te.compute((*lead, heads, queries, found.outputs), lambda *_: f32(0), name="result")
    function = te.create_prim_func([*tensors, result])  # for its parameters and root: the body is another
    *buffers, output = parameters(function)
    symbols = {hash(outer): own for outer, own in known if type(outer).__name__ in ("Var", "SizeVar")}
    attention = _described(found, buffers, (*map(_narrow, lead), heads, group), (queries, keys), scale, symbols)
    body = flash_attention(replace(attention, tiles=tiles), output, function.body)
    function = function.with_body(body).without_attr("global_symbol")
    rounds = {ROUNDS: True} if tiles else {}
    return function.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": _OPAQUE, **rounds})


def _serves(found: FoundAttention, group: int, fewest: int) -> bool:
    queries, depth = integer(found.queries), found.depth
    rows = group if queries is None else group * queries
    return (
        {found.operand, found.dtype} == {"float32"}
        and depth == found.outputs
        and depth % LANES == 0
        and depth <= _DEEPEST
        and rows >= fewest
        and bool(found.lead)
        and integer(found.lead[-1]) is not None
    )


def _described(
    found: FoundAttention,
    buffers: Sequence[Buffer],
    heads: tuple[Index, ...],
    lengths: tuple[Index, Index],
    scale: float,
    symbols: Mapping[int, Var],
) -> FlashAttention:
    """``heads``: extents along batches, heads, and how many of these share keys."""
    own = {hash(memory): buffer for memory, buffer in zip(found.memory, buffers, strict=True)}
    *lead, query, key, depth, output = found.axes
    masked = _mask(found)

    def at(expression: PrimExpr, axes: Sequence[PrimExpr], place: Sequence[PrimExpr], *, vector: bool) -> PrimExpr:
        def element(buffer: Buffer, indices: list[PrimExpr]) -> PrimExpr:
            short = [each.astype("int32") for each in indices]
            last = tirx.Ramp(short[-1], tirx.const(1, "int32"), LANES) if vector else short[-1]
            return load(own[hash(buffer)], *short[:-1], last)

        wide = {hash(axis): each.astype("int64") for axis, each in zip(axes, place, strict=True)}
        return replaced(expression, {**symbols, **wide}, element)

    def rows_of(expression: PrimExpr, axes: Sequence[PrimExpr]) -> Callable[..., PrimExpr]:
        return lambda *place: at(expression, axes, place, vector=True)

    *outer, count, group = heads
    return FlashAttention(
        lead=tuple(outer),
        heads=count,
        group=group,
        queries=_narrow(lengths[0]),
        keys=_narrow(lengths[1]),
        depth=found.depth,
        scale=scale,
        query=rows_of(found.query, (*lead, query, depth)),
        key=rows_of(found.key, (*lead, key, depth)),
        value=rows_of(found.value, (*lead, key, output)),
        mask=None if masked is None else lambda *place: at(masked, (*lead, query, key), place, vector=False),
        masked=tuple(masked is not None and has_variable(masked, axis) for axis in lead),
        safe=found.safe,
    )


def _mask(found: FoundAttention) -> PrimExpr | None:
    """What is added to a score; None where nothing is."""
    added = symbolic().Analyzer().simplify(replaced(found.masked, {hash(found.score): f32(0)}))
    return None if type(added).__name__ == "FloatImm" and float(added.value) == 0 else added


def _slope(expression: PrimExpr, score: PrimExpr) -> float | None:
    """What a score is multiplied with in ``expression``, which adds anything else to it, or hides it; None for another
    expression."""
    kind = type(expression).__name__
    if expression.same_as(score):
        return 1.0
    if kind == "Cast" and element_type(expression) == "float32":
        return _slope(expression.value, score)
    if kind == "Select":
        cases = (expression.true_value, expression.false_value)
        inside = [each for each in cases if has_variable(each, score)]
        hidden = all(_number(each, most=HIDDEN) is not None for each in cases if not has_variable(each, score))
        alone = len(inside) == 1 and hidden and not has_variable(expression.condition, score)
        return _slope(inside[0], score) if alone else None
    if kind not in ("Add", "Sub", "Mul", "Div"):
        return None
    first, second = (has_variable(each, score) for each in (expression.a, expression.b))
    if first == second or (second and kind == "Div"):
        return None
    factor = 1.0 if kind in ("Add", "Sub") else _number(expression.b if first else expression.a)
    slope = _slope(expression.a if first else expression.b, score)
    if factor is None or slope is None or (kind == "Div" and factor == 0):
        return None
    return slope / factor if kind == "Div" else -slope if kind == "Sub" and second else slope * factor


def _number(expression: PrimExpr, most: float = float("inf")) -> float | None:
    found = float(expression.value) if type(expression).__name__ == "FloatImm" else None
    return found if found is not None and found <= most else None


def _shared_heads(found: FoundAttention) -> int:
    """How many heads, one after the other, have the same keys and values."""
    heads = integer(found.lead[-1]) if found.lead else None
    if heads is None:
        return 1
    counts = (count for count in range(heads, 1, -1) if heads % count == 0)
    return next((count for count in counts if _have_the_same(found, heads, count)), 1)


def _have_the_same(found: FoundAttention, heads: int, count: int) -> bool:
    analyzer = symbolic().Analyzer()
    head, own = (tirx.Var(name, "int64") for name in ("head", "own"))
    for variable, extent in ((head, heads // count), (own, count)):
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    for axis, extent in zip(found.axes, (*found.lead, found.queries, found.keys), strict=False):
        analyzer.bind(axis, tvm.ir.Range(tirx.const(0, "int64"), extent))
    axis = found.axes[len(found.lead) - 1]

    def indices(expression: PrimExpr, of: PrimExpr) -> list[PrimExpr]:
        return [replaced(each, {hash(axis): head * count + of}) for each in expression.indices]

    return all(
        analyzer.can_prove_equal(one, other)
        for expression in (found.key, found.value)
        for one, other in zip(indices(expression, own), indices(expression, tirx.const(0, "int64")), strict=True)
    )


def _own_extent(extent: Index, known: Sequence[tuple[Index, Index]]) -> Index | None:
    """An extent by those of the function's parameters."""
    number = integer(extent)
    return number if number is not None else next((own for outer, own in known if same_extent(extent, outer)), None)


def _has_others(found: FoundAttention, known: Sequence[tuple[Index, Index]]) -> bool:
    """Whether an expression has symbols that are no parameter's extent."""
    places = {hash(each) for each in found.axes}
    places |= {hash(outer) for outer, _ in known if type(outer).__name__ in ("Var", "SizeVar")}
    return any(
        hash(each) not in places
        for expression in (found.query, found.key, found.value, found.masked)
        for each in tirx.analysis.undefined_vars(expression)
        if element_type(each) in ("int32", "int64")
    )


def _narrow(extent: Index) -> PrimExpr:
    return tirx.const(extent, "int32") if isinstance(extent, int) else extent.astype("int32")
