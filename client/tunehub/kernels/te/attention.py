"""Attention as a tensor expression: both products and the softmax between, for a few queries at a time.

Their scores stay in cache: they are padded to whole vectors, so that no vector has a remainder, and keys and values are
copied once, so that vectors lie in one piece. What is divided by the sum of the exponentials is the result, not the
weights (Dao et al. 2022, arXiv 2205.14135, without its online softmax: all scores of a few queries fit into the second
cache).

Narrow ones have operands in bfloat16 and sums in float32: queries and keys in groups along their depth, weights and
values in groups of keys. The softmax is that of float32; what its weights are divided by is the sum of those before
they are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import te, tirx

from tunehub.kernels.te.fast_math import exp
from tunehub.kernels.te.grouped import (
    ATTENTION_PAIRS,
    ATTENTION_TILES,
    NARROW,
    PAIRS,
    TILES,
    WIDE,
    Groups,
    position,
)
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import integer, plain_extent, shape_of

if TYPE_CHECKING:
    from tunehub.tir.types import Index, IterVar, Number, PrimExpr, Tensor

KEYS, VALUES = "tunehub_attention_keys", "tunehub_attention_values"
SCORES, MASKED = "tunehub_attention_scores", "tunehub_attention_masked"
MOST, WEIGHTS, TOTAL = "tunehub_attention_most", "tunehub_attention_weights", "tunehub_attention_total"
WEIGHTED, RESULT = "tunehub_attention_weighted", "tunehub_attention"
OPERAND = "tunehub_attention_operand"
ROUNDED, ROUNDED_WEIGHTS = "tunehub_attention_queries_bf16", "tunehub_attention_weights_bf16"
NARROW_SCORES = {PAIRS: ATTENTION_PAIRS, TILES: ATTENTION_TILES}
SIDE = "_side"  # of the names of the blocks that keep several maxima or sums side by side
OPERATIONS: Mapping[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {  # between the first product and the softmax
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
}
_LOWEST, _LEAST = -3.4028234663852886e38, 1.1754943508222875e-38  # of float32, the second above 0


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on each score: with a number, or with the tensor at ``operand`` among the kernel's arguments."""

    name: str
    number: float | None
    operand: int | None
    swapped: bool

    def of(self, score: PrimExpr, other: Number) -> PrimExpr:
        """What becomes of ``score``: TVM's expressions, or arrays of numpy."""
        return OPERATIONS[self.name](*((other, score) if self.swapped else (score, other)))


@dataclass(frozen=True, slots=True)
class Rounding:
    """A step that makes an integer of ``dtype`` of each score, and a number again: of a quantised model."""

    affine: Affine
    dtype: str

    def rounded(self, score: PrimExpr) -> PrimExpr:
        """The number that the integer stands for."""
        return self.number(score / tirx.const(self.affine.scale, WIDE))

    def number(self, steps: PrimExpr) -> PrimExpr:
        """The same of so many steps. In floating point, which has all integers of 8 bits, it is fewer instructions."""
        least, most = (tirx.const(each - self.affine.zero, WIDE) for each in LIMITS[self.dtype])
        nearest = tirx.call_llvm_pure_intrin(WIDE, "llvm.rint", steps)
        return te.max(te.min(nearest, most), least) * tirx.const(self.affine.scale, WIDE)

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the largest number."""
        return self.affine.reals(self.dtype)


@dataclass(frozen=True, slots=True)
class Reordered:
    """A tensor whose axes are those of another in the order ``axes``."""

    tensor: Any
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[Index, ...]:
        """The extents in that order; none where nothing is known of them."""
        own = shape_of(self.tensor)
        return () if own is None else tuple(own[axis] for axis in self.axes)

    def at(self, *place: Index) -> PrimExpr:
        """The element at a place along the axes in that order, of a tensor of tensor expressions."""
        own = dict(zip(self.axes, place, strict=True))
        return self.tensor[tuple(own[axis] for axis in range(len(self.axes)))]


@dataclass(frozen=True, slots=True)
class Scores:
    """Those that a task computes together: of ``queries`` and ``keys``. ``groups``: how an instruction multiplies
    operands in bfloat16; None for float32."""

    queries: int
    keys: int
    groups: Groups | None = None


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    operands: Sequence[Tensor],
    *,
    steps: Sequence[Step],
    axes: Sequence[Sequence[int]],
    scores: Scores,
    safe: bool = False,
) -> Tensor:
    """The tensor ``[..., S, N]`` of queries ``[..., S, D]``, keys ``[..., D, T]`` and values ``[..., T, N]``.

    ``axes``: for these three, which axis of the tensor as it is given each of theirs is. ``steps``: what is done with
    each score before the softmax, ``operands``: tensors that broadcast to scores. ``scores``: of a task; their groups
    divide D and the keys. ``safe``: a query whose scores are all minus infinity gets zeros.
    """
    sizes = AttentionSizes.of((query, keys, values), axes, scores)
    q, k, v = (Reordered(tensor, tuple(each)) for tensor, each in zip((query, keys, values), axes, strict=True))
    by = scores.groups
    products = _scores(sizes, q, k) if by is None else _narrow_scores(sizes, q, k, by)
    masked = te.compute(sizes.tile, masked_score(sizes, lambda *i: products[i], steps, operands), name=MASKED)
    most = joined_sides(sizes, masked, te.max, MOST)

    def power(*i: PrimExpr) -> PrimExpr:
        largest = most[i[:-2]]
        return exp(masked[i] - (tirx.max(largest, tirx.const(_LOWEST, WIDE)) if safe else largest))

    powers = te.compute(sizes.tile, power, name=WEIGHTS)
    total = joined_sides(sizes, powers, te.sum, TOTAL)
    sums = _weighted(sizes, powers, v) if by is None else _narrow_weighted(sizes, powers, v, by)

    def result(*i: PrimExpr) -> PrimExpr:
        *outer, row, output = i
        place = (*outer, row // sizes.rows, row % sizes.rows)
        whole = total[place]
        if integer(sizes.keys) is None:  # the total of no keys is 0
            whole = tirx.max(whole, tirx.const(_LEAST, WIDE))
        quotient = element_at(sums, *place, output) / whole
        return tirx.Select(total[place] > 0, quotient, tirx.const(0, WIDE)) if safe else quotient

    return te.compute((*sizes.lead, sizes.length, sizes.outputs), result, name=RESULT)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSizes:
    """Extents: of axes for batch and heads, queries, their depth, keys, outputs; queries of a task, and keys of one
    group."""

    lead: tuple[Index, ...]
    length: Index
    depth: int
    keys: Index
    outputs: int
    rows: int
    width: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor], axes: Sequence[Sequence[int]], scores: Scores) -> AttentionSizes:
        """Of queries, keys and values, with the axes of tensors that theirs are."""
        (*lead, length, depth), (*_, keys), (*_, outputs) = map(ordered, tensors, axes)
        return cls(
            lead=tuple(lead),
            length=length,
            depth=depth,
            keys=keys,
            outputs=outputs,
            rows=scores.queries,
            width=scores.keys,
        )

    @property
    def groups(self) -> Index:
        """Groups of keys; the last one is filled up."""
        return (self.keys + self.width - 1) // self.width

    @property
    def tasks(self) -> Index:
        """Tasks of a head. TVM finds this form, and no other, equal to what it derives from the loops."""
        return (self.length - 1) // self.rows + 1

    @property
    def tile(self) -> tuple[Index, ...]:
        """The shape of all scores."""
        return (*self.lead, self.tasks, self.rows, self.groups, self.width)

    def row(self, task: PrimExpr, row: PrimExpr) -> PrimExpr:
        """The query of a row of a task; behind the end, the last one."""
        return tirx.min(task * self.rows + row, self.length - 1)


def _scores(sizes: AttentionSizes, query: Reordered, keys: Reordered) -> Tensor:
    """The products of queries and keys, which are copied into groups."""

    def packed(*i: PrimExpr) -> PrimExpr:
        *outer, group, step, place = i
        key = group * sizes.width + place
        return tirx.if_then_else(key < sizes.keys, keys.at(*outer, step, key), tirx.const(0, WIDE))

    groups = te.compute((*sizes.lead, sizes.groups, sizes.depth, sizes.width), packed, name=KEYS)
    k = te.reduce_axis((0, sizes.depth), "k")

    def product(*i: PrimExpr) -> PrimExpr:
        *outer, task, row, group, place = i
        return te.sum(query.at(*outer, sizes.row(task, row), k) * element_at(groups, *outer, group, k, place), axis=k)

    return te.compute(sizes.tile, product, name=SCORES)


def _narrow_scores(sizes: AttentionSizes, query: Reordered, keys: Reordered, by: Groups) -> Tensor:
    """The same in bfloat16."""
    split = by.split(sizes.depth)

    def rounded(*i: Index) -> PrimExpr:
        *outer, task, row, step = i
        return query.at(*outer, sizes.row(task, row), step).astype(NARROW)

    def packed(*i: Index) -> PrimExpr:
        *outer, group = i[: len(sizes.lead) + 1]
        *steps, place, item = i[len(sizes.lead) + 1 :]
        key, step = group * sizes.width + place, position((*steps, item), (*split, by.size))
        return tirx.if_then_else(key < sizes.keys, keys.at(*outer, step, key), tirx.const(0, WIDE)).astype(NARROW)

    queries = te.compute((*sizes.lead, sizes.tasks, sizes.rows, sizes.depth), rounded, name=ROUNDED)
    groups = te.compute((*sizes.lead, sizes.groups, *split, sizes.width, by.size), packed, name=KEYS)
    axes = reduced((*split, by.size))

    def product(*i: Index) -> PrimExpr:
        *outer, task, row, group, place = i
        element = element_at(queries, *outer, task, row, position(axes, (*split, by.size)))
        factor = element_at(groups, *outer, group, *axes[:-1], place, axes[-1])
        return te.sum(element.astype(WIDE) * factor.astype(WIDE), axis=axes)

    return te.compute(sizes.tile, product, name=NARROW_SCORES[by])


def masked_score(
    sizes: AttentionSizes,
    score_at: Callable[..., PrimExpr],
    steps: Sequence[Step | Rounding],
    operands: Sequence[Tensor],
) -> Callable[..., PrimExpr]:
    """A function that returns a score as the softmax takes it; those behind the last key count nothing."""
    whole = [_padded(operand, sizes, at) for at, operand in enumerate(operands)]

    def masked(*i: PrimExpr) -> PrimExpr:
        *outer, task, row, group, place = i
        key, score = group * sizes.width + place, score_at(*i)
        for step in steps:
            if isinstance(step, Rounding):
                score = step.rounded(score)
                continue
            if step.operand is None:
                other = tirx.const(step.number, WIDE)
            else:
                other = _broadcast(whole[step.operand], (*outer, sizes.row(task, row), key))
            score = step.of(score, other)
        return tirx.Select(key < sizes.keys, score, tirx.const(-math.inf, WIDE))

    return masked


def joined_sides(sizes: AttentionSizes, scores: Tensor, reducer: Callable[..., PrimExpr], name: str) -> Tensor:
    """A maximum or sum over all keys of ``scores``."""
    return along_groups((*sizes.lead, sizes.tasks, sizes.rows), sizes.tile[-2:], lambda *i: scores[i], reducer, name)


def along_groups(
    rows: Sequence[Index],
    extents: Sequence[Index],
    value: Callable[..., PrimExpr],
    reducer: Callable[..., PrimExpr],
    name: str,
) -> Tensor:
    """A maximum or sum for each of ``rows``, over groups and their places: of each place, and then of these."""
    group, lane = te.reduce_axis((0, extents[0]), "group"), te.reduce_axis((0, extents[1]), "lane")

    def along(*i: PrimExpr) -> PrimExpr:
        return reducer(value(*i[:-1], group, i[-1]), axis=group)

    side = te.compute((*rows, extents[1]), along, name=name + SIDE)
    return te.compute(rows, lambda *i: reducer(element_at(side, *i, lane), axis=lane), name=name)


def _weighted(sizes: AttentionSizes, powers: Tensor, values: Reordered) -> Tensor:
    """The sums of values, which are copied in the order of the keys' groups, zeros behind the last."""

    def filled(*i: PrimExpr) -> PrimExpr:
        *outer, group, place, output = i
        key = group * sizes.width + place
        return tirx.if_then_else(key < sizes.keys, values.at(*outer, key, output), tirx.const(0, WIDE))

    groups = te.compute((*sizes.lead, sizes.groups, sizes.width, sizes.outputs), filled, name=VALUES)
    part, lane = te.reduce_axis((0, sizes.groups), "part"), te.reduce_axis((0, sizes.width), "lane")

    def weighted(*i: PrimExpr) -> PrimExpr:
        *outer, task, row, output = i
        weight = element_at(powers, *outer, task, row, part, lane)
        return te.sum(weight * element_at(groups, *outer, part, lane, output), axis=[part, lane])

    return te.compute((*sizes.lead, sizes.tasks, sizes.rows, sizes.outputs), weighted, name=WEIGHTED)


def _narrow_weighted(sizes: AttentionSizes, powers: Tensor, values: Reordered, by: Groups) -> Tensor:
    """The same in bfloat16."""
    split = by.split(sizes.width)

    def filled(*i: Index) -> PrimExpr:
        *outer, group = i[: len(sizes.lead) + 1]
        *steps, output, item = i[len(sizes.lead) + 1 :]
        key = group * sizes.width + position((*steps, item), (*split, by.size))
        value = tirx.if_then_else(key < sizes.keys, values.at(*outer, key, output), tirx.const(0, WIDE))
        return value.astype(NARROW)

    rounded = te.compute(sizes.tile, lambda *i: powers[i].astype(NARROW), name=ROUNDED_WEIGHTS)
    groups = te.compute((*sizes.lead, sizes.groups, *split, sizes.outputs, by.size), filled, name=VALUES)
    part, *axes = reduced((sizes.groups, *split, by.size))

    def weighted(*i: Index) -> PrimExpr:
        *outer, task, row, output = i
        weight = element_at(rounded, *outer, task, row, part, position(axes, (*split, by.size)))
        value = element_at(groups, *outer, part, *axes[:-1], output, axes[-1])
        return te.sum(weight.astype(WIDE) * value.astype(WIDE), axis=[part, *axes])

    return te.compute((*sizes.lead, sizes.tasks, sizes.rows, sizes.outputs), weighted, name=WEIGHTED)


def reduced(extents: Sequence[Index]) -> list[IterVar]:
    return [te.reduce_axis((0, extent), f"k{at}") for at, extent in enumerate(extents)]


def element_at(tensor: Tensor, *place: Index) -> PrimExpr:
    return tensor[place]


def _padded(operand: Tensor, sizes: AttentionSizes, at: int) -> Tensor:
    """A tensor that scores are combined with, zeros behind its last axis; itself where that is 1."""
    shape = [plain_extent(extent) for extent in operand.shape]
    if integer(shape[-1]) == 1:
        return operand

    def compute(*i: PrimExpr) -> PrimExpr:
        return tirx.if_then_else(i[-1] < sizes.keys, operand[i], tirx.const(0, WIDE))

    return te.compute((*shape[:-1], sizes.groups * sizes.width), compute, name=f"{OPERAND}{at}")


def _broadcast(tensor: Tensor, place: Sequence[PrimExpr]) -> PrimExpr:
    shape = [plain_extent(extent) for extent in tensor.shape]
    own = place[len(place) - len(shape) :]
    return tensor[tuple(0 if integer(extent) == 1 else at for at, extent in zip(own, shape, strict=True))]


def ordered(tensor: Tensor, axes: Sequence[int]) -> list[Index]:
    return [plain_extent(tensor.shape[axis]) for axis in axes]
