"""What an attention function computes, read from its blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cuda.attention.epilogue import Stored, stored_by
from tunehub.tir.cuda.ptx.registers import minus_infinity
from tunehub.tir.expressions import replaced
from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, integer, symbolic
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferLoad, Index, IterVar, PrimExpr, PrimFunc, SBlock

SCORES, MASKED, MOST, WEIGHTS, TOTAL, ROUNDED, WEIGHTED, RESULT = (
    f"tunehub_attention_{name}"
    for name in ("scores", "masked", "most", "weights", "total", "rounded", "weighted", "result")
)
_INNER = frozenset((SCORES, MASKED, MOST, WEIGHTS, TOTAL, ROUNDED, WEIGHTED))
Place = Callable[..., list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Attention of ``queries`` by ``keys`` with heads of the shape ``lead``, of ``depth``, with ``outputs`` numbers for
    a query. ``dtype`` is the type of queries, keys and values.

    The functions give an element for its place: along ``lead``, then the query or key, then within it. ``masked`` gives
    what the softmax takes of a score that ``causal`` leaves, ``finished`` what is stored at ``written`` of ``result``.
    """

    function: PrimFunc
    lead: tuple[Index, ...]
    queries: Index
    keys: Index
    depth: int
    outputs: int
    dtype: str
    query: Callable[..., PrimExpr]
    key: Callable[..., PrimExpr]
    value: Callable[..., PrimExpr]
    masked: Callable[..., PrimExpr]
    result: Buffer
    written: Place
    finished: Callable[..., PrimExpr]  # of the place, the weighted sum there and the total of its weights
    scale: float | None  # masked is a product with it, if not None
    causal: int | None  # of a query, how many keys more than those up to its own place it has; None: all
    rounded: Callable[[PrimExpr, PrimExpr], PrimExpr] | None = None  # a weight, of its power and the sum of all


def attention_of(function: PrimFunc) -> Attention | None:
    """What a PrimFunc computes that :func:`tunehub.kernels.cuda.attention.function.attention` made, alone or with what
    fusion put behind it; None for others. Raises GuardError where that is not elementwise."""
    blocks = {str(block.name_hint): block for block in blocks_in(function.body) if len(block.iter_vars)}
    if not {SCORES, MASKED, WEIGHTED, RESULT} <= set(blocks):
        return None
    scores, masked, weighted = (blocks[name] for name in (SCORES, MASKED, WEIGHTED))
    stored = stored_by(function, [block for name, block in blocks.items() if name not in _INNER], weighted)
    *lead, queries, keys, depth = [integer(axis.dom.extent) or axis.dom.extent for axis in scores.iter_vars]
    outputs = integer(weighted.iter_vars[len(lead) + 1].dom.extent)
    causal = _causal(masked)
    shown = masked.body.value if causal is None else masked.body.value.true_value
    first, second = _factors(scores)
    _, third = _factors(weighted)
    return Attention(
        function=function,
        lead=tuple(lead),
        queries=queries,
        keys=keys,
        depth=int(depth),
        outputs=int(outputs or 0),
        dtype=str(buffer_kind(buffer_of(first)).dtype),
        query=_element(first, [*_axes(scores, 0, len(lead) + 1), scores.iter_vars[-1]]),
        key=_element(second, [*_axes(scores, 0, len(lead)), *_axes(scores, len(lead) + 1)]),
        value=_element(third, [*_axes(weighted, 0, len(lead)), weighted.iter_vars[-1], weighted.iter_vars[-2]]),
        masked=_masked(masked, shown, buffer_of(scores.writes[0])),
        result=stored.buffer,
        written=_written(stored),
        finished=_finished(stored, buffer_of(weighted.writes[0]), buffer_of(blocks[TOTAL].writes[0])),
        scale=_scale(shown),
        causal=causal,
        rounded=_rounded(blocks) if ROUNDED in blocks else None,
    )


def _axes(block: SBlock, first: int, last: int | None = None) -> list[IterVar]:
    return list(block.iter_vars)[first:last]


def _factors(block: SBlock) -> tuple[BufferLoad, BufferLoad]:
    """The two elements that a sum of products multiplies."""
    value = block.body.value
    product = value.b if type(value.b).__name__ == "Mul" else value.a
    first, second = (_uncast(each) for each in (product.a, product.b))
    return first, second


def _uncast(expression: PrimExpr) -> BufferLoad:
    while type(expression).__name__ == "Cast":
        expression = expression.value
    return expression


def _element(load: BufferLoad, axes: list[IterVar]) -> Callable[..., PrimExpr]:
    def element(*place: PrimExpr) -> PrimExpr:
        return replaced(load, {hash(axis.var): _wide(at) for axis, at in zip(axes, place, strict=True)})

    return element


def _wide(index: PrimExpr) -> PrimExpr:
    from tvm import tirx

    return tirx.const(index, "int64") if isinstance(index, int) else tirx.Cast("int64", index)


def _masked(block: SBlock, shown: PrimExpr, scores: Buffer) -> Callable[..., PrimExpr]:
    def masked(*place_and_score: Index) -> PrimExpr:
        *place, score = place_and_score
        names = {hash(axis.var): _wide(at) for axis, at in zip(block.iter_vars, place, strict=True)}
        return replaced(shown, names, lambda buffer, _: score if buffer.same_as(scores) else None, finite)

    return masked


def finite(number: PrimExpr) -> PrimExpr:
    """TVM needs a header to write minus infinity."""
    return minus_infinity()(result="float32") if float(number.value) == -math.inf else number


def _scale(value: PrimExpr) -> float | None:
    if type(value).__name__ in LOADS:
        return 1.0
    if type(value).__name__ == "Mul" and type(value.b).__name__ == "FloatImm" and type(value.a).__name__ in LOADS:
        return float(value.b.value)
    return None


def _causal(masked: SBlock) -> int | None:
    """How far a query sees, where the others are left out by a condition on places alone."""
    value = masked.body.value
    query, key = (axis.var for axis in list(masked.iter_vars)[-2:])
    if type(value).__name__ != "Select" or type(value.condition).__name__ != "LE":
        return None
    hidden, condition = value.false_value, value.condition
    if type(hidden).__name__ != "FloatImm" or float(hidden.value) != -math.inf or not condition.a.same_as(key):
        return None
    return integer(symbolic().Analyzer().simplify(condition.b - query))


def _rounded(blocks: Mapping[str, SBlock]) -> Callable[[PrimExpr, PrimExpr], PrimExpr]:
    power, total = (buffer_of(blocks[name].writes[0]) for name in (WEIGHTS, TOTAL))

    def rounded(weight: PrimExpr, sum_of_row: PrimExpr) -> PrimExpr:
        parts = {hash(power): weight, hash(total): sum_of_row}
        return replaced(blocks[ROUNDED].body.value, {}, lambda buffer, _: parts.get(hash(buffer)))

    return rounded


def _written(stored: Stored) -> Place:
    def written(*place: Index) -> list[PrimExpr]:
        found = _names(stored, place)
        return [replaced(index, found) for index in stored.indices]

    return written


def _finished(stored: Stored, weighted: SBlock, total: SBlock) -> Callable[..., PrimExpr]:
    def finished(*place_and_parts: PrimExpr, inverse: PrimExpr | None = None) -> PrimExpr:
        *place, total_of_values, total_of_weights = place_and_parts
        parts = {hash(weighted): total_of_values, hash(total): total_of_weights}

        def quotient(first: PrimExpr, second: PrimExpr) -> PrimExpr:
            by_total = inverse is not None and second.same_as(total_of_weights)
            return first * inverse if by_total else first / second

        names = _names(stored, place)
        return replaced(stored.value, names, lambda buffer, _: parts.get(hash(buffer)), finite, quotient=quotient)

    return finished


def _names(stored: Stored, place: Sequence[Index]) -> dict[int, PrimExpr]:
    return {hash(axis): _wide(at) for axis, at in zip(stored.place, place, strict=True)}
