"""Attention in a graph of Relax, however it is written: both products, what is done with scores, the softmax between.

What importers put around is taken in: transposed and reshaped heads, parts of one product, repeated heads of keys and
values, scales on either side, masks. Each tensor is read where it lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import tirx

from tunehub.graph.attention.pattern import OPERATORS, is_softmax, operator_scale, replaces_nan
from tunehub.graph.tensor_views import INDEX, TensorViews, broadcast, wide
from tunehub.kernels.te.attention import OPERATIONS
from tunehub.tir.expressions import has_variable, replaced
from tunehub.tir.nodes import (
    constant_array,
    element_type,
    has_floats,
    integer,
    is_constant,
    operator_of,
    same_extent,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Buffer, Index, Mutator, PrimExpr

_LOGIC = {"relax.logical_and": tirx.And, "relax.logical_or": tirx.Or}
_SCALES = ("relax.multiply", "relax.divide")
_FLOATS = ("float16", "bfloat16", "float32")
_MOST_STEPS = 12  # operations between a product and its softmax, and in masks; views of a tensor
_HIDDEN = -3e4  # what is this low leaves nothing of a weight: the lowest number of float16 is meant
_VECTOR = 8  # elements that are read at once begin at a multiple
_F32 = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundAttention:
    """``lead`` are extents of batch and heads. Expressions are of the variables ``axes``: one for each of these, the
    query, the key, a number within a query or key, and one within a value. ``tensors`` are read as the buffers
    ``memory``: an element of the ``query``, of the ``key``, of the ``value``. ``masked`` is what the softmax takes, of
    ``score``. ``operand`` is the type of queries, keys and values, ``dtype`` that of results. ``safe``: a query that
    has no key gives zeros.
    """

    lead: tuple[Index, ...]
    queries: Index
    keys: Index
    depth: int
    outputs: int
    operand: str
    dtype: str
    axes: tuple[PrimExpr, ...]
    tensors: tuple[Expr, ...]
    memory: tuple[Buffer, ...]
    query: PrimExpr
    key: PrimExpr
    value: PrimExpr
    score: PrimExpr
    masked: PrimExpr
    safe: bool

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells two apart that have tensors of the same types."""
        names = {hash(axis): tirx.Var(f"i{at}", INDEX) for at, axis in enumerate(self.axes)}
        texts = (replaced(each, names) for each in (self.query, self.key, self.value, self.masked))
        return (*map(str, texts), str(self.safe))


class NotAttentionError(ValueError):
    """The text says why."""


def found_attention(mutator: Mutator, call: Call) -> FoundAttention | None:
    """The attention whose last product is ``call``, a matmul of the graph that ``mutator`` (a PyExprMutator) rewrites,
    or which is Relax's own operator; None when it is none."""
    try:
        if operator_of(call) in OPERATORS:
            return _AttentionSearch(TensorViews(mutator)).operator(call)
        return _AttentionSearch(TensorViews(mutator)).product(call) if operator_of(call) == "relax.matmul" else None
    except ValueError:  # of shapes that are not those of attention, too
        return None


@dataclass(slots=True)
class _Scaled:
    """Scores times a number."""

    factor: float = 1.0


@dataclass(slots=True)
class _AttentionSearch:
    views: TensorViews
    tensors: list[Expr] = field(default_factory=list)
    memory: list[Buffer] = field(default_factory=list)
    score: PrimExpr = field(default_factory=lambda: tirx.Var("score", _F32))
    scores: tuple[Expr, list[PrimExpr]] | None = None  # the product of queries and keys, and the place of a score in it
    steps: int = 0

    def product(self, call: Call) -> FoundAttention:
        *lead, queries, outputs = _shape(call)
        keys = _shape(call.args[1])[-2]
        axes = [self.views.axis(f"i{at}", extent) for at, extent in enumerate((*lead, queries, keys))]
        softmax, safe, place = self.softmax(call.args[0], broadcast(_shape(call.args[0]), axes))
        masked = self.element(softmax.args[0], place)
        if self.scores is None:
            raise NotAttentionError("no product of queries and keys")
        (q, k), place = self.scores[0].args, self.scores[1]
        if not (place[-2].same_as(axes[-2]) and place[-1].same_as(axes[-1])):
            raise NotAttentionError("scores in another order")
        d, n = self.views.axis("d", _known(_shape(q)[-1])), self.views.axis("n", _known(outputs))
        sources = (
            (q, [*place[:-1], d], d),
            (k, [*place[:-2], d, place[-1]], d),
            (call.args[1], [*axes[:-2], axes[-1], n], n),
        )
        return self.found((*lead, queries, keys), (*axes, d, n), sources, masked, safe, call)

    def operator(self, call: Call) -> FoundAttention:
        """Relax's own operator, of tensors ``[batch, length, heads, depth]``."""
        q, k, v, *bias = call.args
        attrs = call.attrs
        (batch, queries, heads, depth), (_, keys, groups, _), (*_, outputs) = map(_shape, (q, k, v))
        if attrs.window_size is not None:
            raise NotAttentionError("a window")
        extents = (batch, heads, queries, keys)
        b, h, i, j = axes = [self.views.axis(f"i{at}", extent) for at, extent in enumerate(extents)]
        d, n = self.views.axis("d", _known(depth)), self.views.axis("n", _known(outputs))
        group = h if same_extent(heads, groups) else h // (_known(heads) // _known(groups))
        masked: Any = _Scaled(operator_scale(call, depth))
        if bias:
            masked = self.combined("relax.add", masked, self.element(bias[0], broadcast(_shape(bias[0]), axes)))
        if attrs.causal_mask is not None:
            offset = keys - queries if str(attrs.causal_mask) == "BottomRight" else 0
            masked = tirx.Select(j <= i + offset, self.plain(masked), _constant(-math.inf))
        sources = ((q, [b, i, h, d], d), (k, [b, j, group, d], d), (v, [b, j, group, n], n))
        return self.found(extents, (*axes, d, n), sources, masked, False, call)

    def found(
        self,
        extents: Sequence[Index],
        axes: Sequence[PrimExpr],
        sources: Sequence[tuple[Expr, list[PrimExpr], Expr]],
        masked: _Scaled | PrimExpr,
        safe: bool,
        call: Call,
    ) -> FoundAttention:
        """``sources``: queries, keys and values, for each the place of an element and the axis of its neighbours."""
        (query, first), (key, second), (value, third) = (self.source(*each) for each in sources)
        dtypes = {element_type(each) for each in (query, key, value)}
        if len(dtypes) != 1 or not dtypes <= {*_FLOATS} or third != 1:
            raise NotAttentionError("other types, or values times a number")
        return FoundAttention(
            lead=tuple(extents[:-2]),
            queries=extents[-2],
            keys=extents[-1],
            depth=_known(_shape(sources[0][0])[-1]),
            outputs=_known(_shape(call)[-1]),
            operand=dtypes.pop(),
            dtype=str(tensor_type(call).dtype),
            axes=tuple(axes),
            tensors=tuple(self.tensors),
            memory=tuple(self.memory),
            query=query,
            key=key,
            value=value,
            score=self.score,
            masked=self.finished(masked, first * second),
            safe=safe,
        )

    # -- from the last product to the first

    def softmax(self, weights: Expr, at: Sequence[PrimExpr]) -> tuple[Call, bool, list[PrimExpr]]:
        """The softmax that weights are, whether a query without keys gets zeros behind it, and the place in it."""
        value, safe, place = self.views.value(weights), False, list(at)
        while operator_of(value) != "relax.nn.softmax":
            inner = self.views.inside(value, place)
            if inner is not None:
                source, place = inner
            elif operator_of(value) == "relax.astype" and str(tensor_type(value).dtype) in _FLOATS:
                source = value.args[0]
            elif operator_of(value) == "relax.where" and self.is_safe(value):
                source, safe = value.args[2], True
            else:
                raise NotAttentionError("no softmax")
            value = self.views.value(source)
        if not is_softmax(value):
            raise NotAttentionError("a softmax along another axis")
        return value, safe, place

    def is_safe(self, where: PrimExpr) -> bool:
        """Whether weights become zero where a query has no key: they are NaN, or all scores minus infinity."""
        if replaces_nan(where, self.views.value, self.views.number):
            return True
        condition, weights = self.views.value(where.args[0]), self.views.value(where.args[2])
        if self.views.number(where.args[1]) != 0:
            return False
        names = []
        while operator_of(condition) in ("relax.logical_not", "relax.astype", "relax.max"):
            names.append(operator_of(condition).rpartition(".")[2])
            condition = self.views.value(condition.args[0])
        expected = ["logical_not", "astype", "max", "astype", "logical_not"]
        if names != expected or operator_of(condition) != "relax.equal":
            return False
        scores, least = condition.args
        same = self.views.value(scores).same_as(self.views.value(weights.args[0]))
        return bool(same) and self.views.number(least) == -math.inf

    def element(self, expression: Expr, at: Sequence[PrimExpr]) -> _Scaled | PrimExpr:
        """What an expression has at a place: scores times a number, or an expression of TIR."""
        self.steps += 1
        value = self.views.value(expression)
        name, number = operator_of(value), self.views.number(value)
        if number is not None:
            return _constant(number)
        triangle = _triangle(value, at)
        if triangle is not None or self.steps > _MOST_STEPS:
            return self.read(expression, at) if triangle is None else triangle
        if name == "relax.matmul" and self.scores is None:
            self.scores = value, list(at)
            return _Scaled()
        if name in OPERATIONS or name in _LOGIC:
            return self.combined(name, *(self.element(each, broadcast(_shape(each), at)) for each in value.args))
        if name == "relax.where":
            return self.selected(*(self.element(each, broadcast(_shape(each), at)) for each in value.args))
        if name == "relax.astype" and str(tensor_type(value).dtype) in _FLOATS:
            return _widened(self.element(value.args[0], at))
        inner = self.views.inside(value, at)
        return self.read(expression, at) if inner is None else self.element(*inner)

    def selected(self, condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
        if isinstance(condition, _Scaled):
            raise NotAttentionError("a condition on scores")
        if _hides(no) and not _loads(condition):
            no = _constant(-math.inf)
        return tirx.Select(condition.astype("bool"), *(_widened(self.plain(case)) for case in (yes, no)))

    def combined(self, name: str, first: Any, second: PrimExpr) -> Any:
        if name in _LOGIC:
            return _logical(name, first, second)
        if name in _SCALES and isinstance(first, _Scaled) and type(second).__name__ == "FloatImm":
            number = float(second.value)
            return _Scaled(first.factor * number if name == "relax.multiply" else first.factor / number)
        if name == "relax.multiply" and isinstance(second, _Scaled):
            return self.combined(name, second, first)
        if name == "relax.add":
            for mask, other in ((first, second), (second, first)):
                if _is_mask(mask):
                    return tirx.Select(mask.condition, _widened(self.plain(other)), _constant(-math.inf))
        return OPERATIONS[name](*(_widened(self.plain(each)) for each in (first, second)))

    def plain(self, value: _Scaled | PrimExpr) -> PrimExpr:
        """A value as an expression; the factors of queries and keys come later."""
        return self.score * tirx.const(value.factor, _F32) if isinstance(value, _Scaled) else value

    def finished(self, masked: _Scaled | PrimExpr, factor: float) -> PrimExpr:
        """What the softmax takes of a score, with the factor of queries and keys."""
        if isinstance(masked, _Scaled):
            return self.plain(_Scaled(masked.factor * factor))
        return masked if factor == 1 else replaced(masked, {hash(self.score): self.plain(_Scaled(factor))})

    # -- tensors

    def read(self, expression: Expr, at: Sequence[PrimExpr]) -> PrimExpr:
        """An element of a tensor."""
        shape = _shape(expression)
        known = next((n for n, each in enumerate(self.tensors) if each.same_as(expression)), len(self.tensors))
        if known == len(self.tensors):
            dtype = str(tensor_type(expression).dtype)
            self.tensors.append(expression)
            self.memory.append(tirx.decl_buffer([wide(extent) for extent in shape], dtype, f"t{known}"))
        return tirx.BufferLoad(self.memory[known], broadcast(shape, at))

    def source(self, expression: Expr, at: Sequence[PrimExpr], last: PrimExpr) -> tuple[PrimExpr, float]:
        """An element of queries, keys or values where it lies in memory with its neighbours along ``last``, and the
        factor on the way there. Raises NotAttentionError when it lies nowhere so."""
        best, factor, value = None, 1.0, expression
        place = broadcast(_shape(expression), at)
        for _ in range(_MOST_STEPS):
            if self.begins(place[-1], last) and not any(has_variable(index, last) for index in place[:-1]):
                best = (value, place, factor)
            bound = self.views.value(value)
            inner = self.views.inside(bound, place)
            if inner is None and operator_of(bound) in _SCALES:
                inner, own = self.scaled(bound, place)
                factor *= own
            if inner is None:
                break
            value, place = inner
        if best is None:
            raise NotAttentionError("no tensor with neighbours side by side")
        return self.read(best[0], best[1]), best[2]

    def begins(self, index: PrimExpr, last: PrimExpr) -> bool:
        """Whether an index is ``last`` plus what is the same for all, and a multiple of what is read at once."""
        rest = self.views.analyzer.simplify(index - last)
        return not has_variable(rest, last) and bool(self.views.analyzer.can_prove(tirx.floormod(rest, _VECTOR) == 0))

    def scaled(self, value: Expr, at: Sequence[PrimExpr]) -> tuple[tuple[Expr, list[PrimExpr]] | None, float]:
        """The tensor that is multiplied by a number, the place in it, and the number."""
        first, second = map(self.views.number, value.args)
        if second is not None:
            return (value.args[0], list(at)), second if operator_of(value) == "relax.multiply" else 1 / second
        if first is not None and operator_of(value) == "relax.multiply":
            return (value.args[1], list(at)), first
        return None, 1.0


def _triangle(value: Expr, at: Sequence[PrimExpr]) -> PrimExpr | None:
    """A constant that says which keys a query has: those in front of it."""
    shape = shape_of(value) if is_constant(value) else None
    if shape is None or len(shape) < 2 or any(extent != 1 for extent in shape[:-2]) or 1 in shape[-2:]:
        return None
    rows, columns = shape[-2:]
    array, has = constant_array(value).reshape(rows, columns), np.tri(rows, columns, columns - rows, dtype=bool)
    inside = at[-1] <= at[-2] + tirx.const(columns - rows, INDEX)
    if array.dtype == bool:
        return inside if (array == has).all() else None
    if not has_floats(array) or (array[has] != 0).any() or not (array[~has] == array[0, -1]).all():
        return None
    return tirx.Select(inside, tirx.const(0, _F32), _constant(float(array[0, -1])))


def _logical(name: str, first: PrimExpr, second: PrimExpr) -> PrimExpr:
    if isinstance(first, _Scaled) or isinstance(second, _Scaled):
        raise NotAttentionError("logic on scores")
    for one, other in ((first, second), (second, first)):
        if type(one).__name__ == "FloatImm" and (float(one.value) != 0) == (name == "relax.logical_and"):
            return other
    return _LOGIC[name](first.astype("bool"), second.astype("bool"))


def _is_mask(value: PrimExpr) -> bool:
    """Whether a value is zero where places alone say so, and leaves nothing elsewhere."""
    if type(value).__name__ != "Select" or not _hides(value.false_value) or _loads(value.condition):
        return False
    return type(value.true_value).__name__ == "FloatImm" and float(value.true_value.value) == 0


def _hides(value: PrimExpr) -> bool:
    return type(value).__name__ == "FloatImm" and float(value.value) <= _HIDDEN


def _loads(expression: PrimExpr) -> bool:
    found: list[Index] = []
    replaced(expression, {}, lambda buffer, _: found.append(buffer))
    return bool(found)


def _widened(value: PrimExpr) -> PrimExpr:
    return value if isinstance(value, _Scaled) or element_type(value) == _F32 else value.astype(_F32)


def _constant(number: float) -> PrimExpr:
    return tirx.const(number, _F32)


def _shape(expression: Expr) -> tuple[Index, ...]:
    shape = shape_of(expression)
    if shape is None:
        raise NotAttentionError("a tensor of unknown shape")
    return shape


def _known(extent: Index) -> int:
    found = integer(extent)
    if found is None:
        raise NotAttentionError("an open depth")
    return found
