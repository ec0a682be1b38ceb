"""Attention of quantised models on CUDA as one kernel: integers of 8 bits in float16, which has all of them, so that
products, added up in float32, are exact. Scores, the softmax's weights and the result are rounded as the model says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx

from tunehub.graph.attention.cpu.integers import QuantisedProducts, quantised_products, scores_at_once
from tunehub.graph.attention.cpu.matching import broadcasts, fit, source_of
from tunehub.graph.attention.cuda.joined_layers import JoinedLayers
from tunehub.graph.kernel_calls import Kernels
from tunehub.graph.quantised_tensors import variable_of
from tunehub.kernels.cuda.attention.function import WeightRounding, attention
from tunehub.kernels.te.attention import Reordered, Rounding, Step
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import bound_value, operator_of, static_shape

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Index, Mutator, Number, PrimExpr, Tensor

_NARROW, _WIDE = "float16", "float32"
_MOST_KEYS, _MOST_DEPTH, _WIDTH = 256, 128, 16
_EXACT = 2**24  # integers that float32 has
_RESHAPE = "relax.reshape"
_HEADED = 4  # axes of a tensor with heads


@dataclass(frozen=True, kw_only=True, slots=True)
class _How:
    """What a kernel does: ``axes`` of queries, keys and values as the products have them; what their integers stand
    for, and how scores, weights and the result are rounded."""

    axes: tuple[tuple[int, ...], ...]
    query: Affine
    key: Affine
    value: Affine
    product: Rounding | None
    product_step: float
    steps: tuple[Step | Rounding, ...]
    weight: Rounding
    result: Rounding | None = None
    side_by_side: bool = False  # queries, keys and values are heads of one tensor


class IntegerAttentions:
    """The float variables that a rewriter has written for attention."""

    def __init__(self, graph: Mutator) -> None:
        self._graph, self._kernels, self._layers = graph, Kernels(graph.builder_), JoinedLayers(graph)
        self._known: dict[Expr, tuple[_How, tuple[Expr, ...]]] = {}

    def as_float(self, product: Expr) -> Expr | None:
        """The variable for ``product``, a matmul, where it is such attention: a kernel that has heads behind queries,
        as the layer that follows takes them, and these transposed."""
        found = quantised_products(self._graph, product)
        known = None if found is None else self._fitted(found)
        if known is None:
            return None
        variable = self._graph.builder_.emit(self._call(*known))
        self._known[variable] = known
        order = _order(known[1][0])
        return self._graph.builder_.emit(relax.op.permute_dims(variable, order))

    def quantised(self, source: Expr, affine: Affine, dtype: str) -> Expr | None:
        """The kernel of ``source``, what one of these variables transposes, that quantises its result, too."""
        known = self._known.get(variable_of(self._graph, source))
        if known is None:
            return None
        how, arguments = known
        return self._call(replace(how, result=Rounding(affine, dtype)), arguments)

    def _fitted(self, found: QuantisedProducts) -> tuple[_How, tuple[Expr, ...]] | None:
        """The kernel and its arguments; None for shapes that it is not for."""
        tensors = (found.query, found.key, found.value)
        sources = [source_of(self._graph, each) for each, _ in tensors]
        shapes = [tuple(each.shape) for each in sources]
        if not all(isinstance(extent, int) for shape in shapes for extent in shape) or not fit(*shapes):
            return None
        q, k, v = shapes
        if len(q) not in (3, 4) or k[-1] > _MOST_KEYS or any(n % _WIDTH or n > _MOST_DEPTH for n in (q[-1], v[-1])):
            return None
        if max(q[-1], k[-1]) * 255**2 > _EXACT or not all(
            broadcasts(t, (*q[:-1], k[-1])) for t in found.scores.operands
        ):
            return None
        product, step, steps = scores_at_once(found.scores.steps)
        how = _How(
            axes=tuple(tuple(each.axes) for each in sources),
            query=found.query[1],
            key=found.key[1],
            value=found.value[1],
            product=product,
            product_step=step,
            steps=steps,
            weight=Rounding(found.weight, found.weight_type),
        )
        whole = self._side_by_side([each.tensor for each in sources], [affine for _, affine in tensors])
        if whole is not None:
            return replace(how, side_by_side=True), (whole, whole, whole, *found.scores.operands)
        narrow = [self._narrow(each.tensor, affine) for each, (_, affine) in zip(sources, tensors, strict=True)]
        return how, (*narrow, *found.scores.operands)

    def _side_by_side(self, integers: Sequence[Expr], affines: Sequence[Affine]) -> Expr | None:
        """All less their zero points in float16 as heads of one tensor, where they are made by layers of the same rows;
        None otherwise."""
        values, shape = [bound_value(self._graph, each) for each in integers], static_shape(integers[0])
        if shape is None or len(shape) != _HEADED or any(static_shape(each) != shape for each in integers):
            return None
        rows = [value.args[0] for value in values if operator_of(value) == _RESHAPE]
        width = shape[-2] * shape[-1]
        if len(rows) < len(values) or any((static_shape(each) or (0,))[-1] != width for each in rows):
            return None
        whole = self._layers.narrowed(rows, affines, _NARROW)
        if whole is None:
            return None
        *lead, heads, depth = shape
        return self._graph.builder_.emit(relax.op.reshape(whole, (*lead, len(values) * heads, depth)))

    def _narrow(self, integers: Expr, affine: Affine) -> Expr:
        """``integers`` less their zero point in float16; in front of a reshape, in the kernel that makes them."""
        emit, value = self._graph.builder_.emit, bound_value(self._graph, integers)
        if operator_of(value) == _RESHAPE:
            return emit(relax.op.reshape(self._narrow(value.args[0], affine), static_shape(value)))
        narrow = emit(relax.op.astype(integers, _NARROW))
        zero = relax.const(np.full([1] * len(static_shape(integers) or ()), affine.zero, _NARROW))
        return emit(relax.op.subtract(narrow, zero)) if affine.zero else narrow

    def _call(self, how: _How, arguments: tuple[Expr, ...]) -> Expr:
        order = _order(arguments[0])
        return self._kernels.call(
            lambda q, k, v, numbers, *more: _attention(q, k, v, numbers, more, how, order),
            *(*arguments[:3], _numbers(how), *arguments[3:]),
            name="attention",
            how=_kind(how),
        )


def _order(query: Expr) -> list[int]:
    """Of the axes of a result whose heads are in front: with them behind queries, and the other way round."""
    rank = len(static_shape(query) or ())
    return [*range(rank)] if rank < 4 else [*range(rank - 3), rank - 2, rank - 3, rank - 1]


class _KernelNumbers:
    """The numbers of a kernel, each of which ``number`` makes an expression of, in one order."""

    def __init__(self, how: _How, number: Callable[[float], Number]) -> None:
        self._number = number
        self.product = number(_factor(how.query, how.key, 1.0 if how.product is None else how.product_step))
        self.rounded_product = None if how.product is None else self._rounding(how.product)
        self.steps = [self._step(step) for step in how.steps]
        weight = how.weight.affine
        self.weight = number(float(np.float32(1) / np.float32(weight.scale))), *self._limits(how.weight)
        step = 1.0 if how.result is None else how.result.affine.scale
        self.result = number(_factor(weight, how.value, step))
        self.rounded_result = None if how.result is None else self._limits(how.result)
        self.zero = number(0 if how.result is None else how.result.affine.zero)

    def _step(self, step: Step | Rounding) -> Any:
        if isinstance(step, Step):
            return None if step.number is None else self._number(step.number)
        return self._number(float(np.float32(1) / np.float32(step.affine.scale))), *self._rounding(step)

    def _rounding(self, rounding: Rounding) -> tuple[Any, ...]:
        return self._number(rounding.affine.scale), *self._limits(rounding)

    def _limits(self, rounding: Rounding) -> tuple[Any, ...]:
        """The least and the largest number of steps."""
        return tuple(self._number(limit - rounding.affine.zero) for limit in LIMITS[rounding.dtype])


def _numbers(how: _How) -> Expr:
    """Those of a kernel as a constant: layers share the kernel."""
    values: list[float] = []
    _KernelNumbers(how, values.append)
    return relax.const(np.asarray(values, _WIDE))


def _kind(how: _How) -> tuple[Hashable, ...]:
    """All that a kernel does but its numbers."""
    steps = tuple(
        (s.name, s.number is None, s.operand, s.swapped) if isinstance(s, Step) else s.dtype for s in how.steps
    )
    result = None if how.result is None else how.result.dtype
    return how.axes, how.product is None, steps, how.weight.dtype, result, how.side_by_side


class _HeadsOfTensor(NamedTuple):
    """The ``number``-th of so many ``parts`` of the heads of a tensor of tensor expressions, ``whole``."""

    whole: Reordered
    parts: int
    number: int

    @property
    def shape(self) -> list[int]:
        """The extents."""
        own, heads = [int(self.whole.tensor.shape[axis]) for axis in self.whole.axes], self._heads
        return [extent // self.parts if at == heads else extent for at, extent in enumerate(own)]

    @property
    def _heads(self) -> int:
        return self.whole.axes.index(len(self.whole.axes) - 2)

    def at(self, *place: Index) -> PrimExpr:
        """The element at a place."""
        own, heads = list(place), self._heads
        if self.parts > 1:
            own[heads] = own[heads] + self.number * self.shape[heads]
        return self.whole.at(*own)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, given: Tensor, operands: Sequence[Tensor], how: _How, order: list[int]
) -> Tensor:
    parts = len(how.axes) if how.side_by_side else 1
    query, key, value = (
        _HeadsOfTensor(Reordered(tensor, axes), parts, number)
        for number, (tensor, axes) in enumerate(zip((q, k, v), how.axes, strict=True))
    )
    places = iter(range(int(given.shape[0])))
    own = _KernelNumbers(how, lambda _: given[next(places)])

    def masked(*place_and_score: PrimExpr) -> PrimExpr:
        *place, score = place_and_score
        score = score * own.product
        score = score if own.rounded_product is None else _rounded(score, *own.rounded_product)
        for step, number in zip(how.steps, own.steps, strict=True):
            if isinstance(step, Rounding):
                score = _rounded(score * number[0], *number[1:])
            else:
                other = number if step.operand is None else _broadcast(operands[step.operand], place)
                score = step.of(score, other)
        return score

    def weight(power: PrimExpr, total: PrimExpr) -> PrimExpr:
        steps, *limits = own.weight
        return _whole(power * (steps / total), *limits)

    def result(total: PrimExpr) -> PrimExpr:
        if own.rounded_result is None or how.result is None:
            return total * own.result
        return (_whole(total * own.result, *own.rounded_result) + own.zero).astype(how.result.dtype)

    (*rows, depth), (*_, keys), (*_, outputs) = (each.shape for each in (query, key, value))
    dtype = _WIDE if how.result is None else how.result.dtype
    sources = (query.at, lambda *i: key.at(*i[:-2], i[-1], i[-2]), value.at)
    rounding = WeightRounding(steps=weight, result=result)
    return attention((*rows, keys, depth, outputs), *sources, masked, order, dtype, rounding=rounding)


def _whole(x: PrimExpr, least: PrimExpr, most: PrimExpr) -> PrimExpr:
    """The nearest whole number to ``x`` between the others."""
    return te.max(te.min(tirx.nearbyint(x), most), least)


def _rounded(steps: PrimExpr, scale: PrimExpr, least: PrimExpr, most: PrimExpr) -> PrimExpr:
    return _whole(steps, least, most) * scale


def _factor(first: Affine, second: Affine, step: float) -> float:
    """What one of the products of integers stands for, in units of ``step``: one factor, as in onnxruntime."""
    return float(np.float32(first.scale) * np.float32(second.scale) / np.float32(step))


def _broadcast(tensor: Tensor, place: Sequence[PrimExpr]) -> PrimExpr:
    own = place[len(place) - len(tensor.shape) :]
    return tensor[tuple(0 if int(extent) == 1 else at for extent, at in zip(tensor.shape, own, strict=True))]
