"""Attention of quantised models as a tensor expression: both products in integers, all between them for a few queries.

Scores, the softmax's weights and the result are quantised as the model says; the softmax between is that of float32.
An instruction multiplies unsigned by signed bytes: keys and values stay as they are, queries and weights lose 128.
Zero points come off the sums, ``sum (a - x)(b - y) = sum (a - 128) b + (128 - x) sum b - y sum (a - x)``. The sums of
``b`` are the products of one more row, of ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from tvm import te, tirx

from tunehub.kernels.te.attention import (
    KEYS,
    MASKED,
    MOST,
    RESULT,
    ROUNDED,
    ROUNDED_WEIGHTS,
    SIDE,
    TOTAL,
    VALUES,
    WEIGHTED,
    WEIGHTS,
    AttentionSizes,
    Reordered,
    Rounding,
    Scores,
    Step,
    along_groups,
    element_at,
    joined_sides,
    masked_score,
    reduced,
)
from tunehub.kernels.te.fast_math import exp
from tunehub.kernels.te.grouped import ATTENTION_WORDS, WIDE, WORDS, position
from tunehub.kernels.te.rounding import quantised
from tunehub.kernels.te.scales import Affine

if TYPE_CHECKING:
    from tunehub.tir.types import Index, PrimExpr, Tensor

QUERY_SUMS, WEIGHT_SUMS = "tunehub_attention_query_sums", "tunehub_attention_weight_sums"
INVERSE = "tunehub_attention_inverse"
INSIDE = (WEIGHT_SUMS, WEIGHT_SUMS + SIDE, ROUNDED_WEIGHTS, INVERSE)  # blocks behind the softmax, from the last on
BEFORE = (QUERY_SUMS, QUERY_SUMS + SIDE, ROUNDED)  # those before the scores
LANES = 16  # numbers of a query that are summed up side by side
_WIDEST = 64.0  # between scores: exp(-64) is 1e-28, and the least of float32 1e-38
_HALF = 128  # that signed bytes have less than unsigned ones
_BY = WORDS[4]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantisedAttention:
    """``query``, ``key``, ``weight`` and ``value``: what their bytes, uint8, stand for. ``product``: what the integers
    of scores stand for that are quantised at once, if they are, in steps of ``product_step``. ``result``: how the
    result is quantised. The rest as for :func:`tunehub.kernels.te.attention.attention`."""

    query: Affine
    key: Affine
    weight: Affine
    value: Affine
    product: Rounding | None
    product_step: float
    result: Rounding | None
    steps: tuple[Step | Rounding, ...]
    axes: tuple[tuple[int, ...], ...]
    scores: Scores


def quantised_attention(
    query: Tensor, keys: Tensor, values: Tensor, operands: Sequence[Tensor], how: QuantisedAttention
) -> Tensor:
    """The tensor ``[..., S, N]`` of queries ``[..., S, D]``, keys ``[..., D, T]`` and values ``[..., T, N]`` of uint8;
    float32 unless the result is quantised. 16 divides D and N."""
    sizes = AttentionSizes.of((query, keys, values), how.axes, how.scores)
    q, k, v = (Reordered(tensor, each) for tensor, each in zip((query, keys, values), how.axes, strict=True))
    score = masked_score(sizes, _products(sizes, q, k, how), how.steps, operands)
    weights = _bytes(sizes, _powers(sizes, score, how), how.weight)
    sums = _weighted(sizes, weights, v)
    rows = (*sizes.lead, sizes.tasks, sizes.rows)
    totals = along_groups(rows, sizes.tile[-2:], lambda *i: _wide(weights[i]), te.sum, WEIGHT_SUMS)
    number = _Number(how.weight, how.value, 1.0 if how.result is None else how.result.affine.scale)

    def result(*i: PrimExpr) -> PrimExpr:
        *outer, row, output = i
        task, row = row // sizes.rows, row % sizes.rows
        total = element_at(totals, *outer, task, row) + _i32(number.left) * tirx.Cast("int32", sizes.keys)
        of_ones = element_at(sums, *outer, task, sizes.rows, output)
        found = number.of(element_at(sums, *outer, task, row, output), of_ones, total)
        if how.result is None:
            return found
        return quantised(found, replace(how.result.affine, scale=1.0), how.result.dtype)

    return te.compute((*sizes.lead, sizes.length, sizes.outputs), result, name=RESULT)


class _Number:
    """How many steps sums of products of bytes stand for: those of ``first``, 128 less, with ``second``."""

    def __init__(self, first: Affine, second: Affine, step: float) -> None:
        self.left, self._zero = _HALF - first.zero, second.zero
        self._scale = np.float32(first.scale) * np.float32(second.scale) / np.float32(step)

    def of(self, total: PrimExpr, of_ones: PrimExpr, of_first: PrimExpr) -> PrimExpr:
        """``total``: of the products, ``of_ones``: of the second's bytes; ``of_first``: of the first's less their zero
        point. One factor, as in onnxruntime."""
        if self.left:
            total = total + _i32(self.left) * of_ones
        if self._zero:
            total = total - _i32(self._zero) * of_first
        return total.astype(WIDE) * _f32(self._scale)


def _products(
    sizes: AttentionSizes, query: Reordered, keys: Reordered, how: QuantisedAttention
) -> Callable[..., PrimExpr]:
    """A function that returns a score, of queries copied for a task and keys copied in groups."""
    queries = _narrow_queries(sizes, query)
    sums = _summed_products(sizes, queries, _grouped_keys(sizes, keys))
    rows, vectors = (*sizes.lead, sizes.tasks, sizes.rows), (sizes.depth // LANES, LANES)

    def of_query(*i: Index) -> PrimExpr:
        *row, part, lane = i
        return _wide(element_at(queries, *row, part * LANES + lane))

    totals = along_groups(rows, vectors, of_query, te.sum, QUERY_SUMS)
    number = _Number(how.query, how.key, 1.0 if how.product is None else how.product_step)

    def score(*i: PrimExpr) -> PrimExpr:
        *row, group, place = i
        total = totals[tuple(row)] + _i32(number.left * sizes.depth)
        found = number.of(sums[i], element_at(sums, *row[:-1], sizes.rows, group, place), total)
        return found if how.product is None else how.product.number(found)

    return score


def _narrow_queries(sizes: AttentionSizes, query: Reordered) -> Tensor:
    """The queries of each task in signed bytes, and a row of ones."""

    def narrow(*i: PrimExpr) -> PrimExpr:
        *outer, task, row, step = i
        return tirx.Select(row < sizes.rows, _signed(query.at(*outer, sizes.row(task, row), step)), _i8(1))

    return te.compute((*sizes.lead, sizes.tasks, sizes.rows + 1, sizes.depth), narrow, name=ROUNDED)


def _grouped_keys(sizes: AttentionSizes, keys: Reordered) -> Tensor:
    """The keys in groups, the last one filled up with its last key."""

    def packed(*i: PrimExpr) -> PrimExpr:
        *outer, group, step, place, item = i
        key = tirx.min(group * sizes.width + place, sizes.keys - 1)
        return keys.at(*outer, step * _BY.size + item, key)

    shape = (*sizes.lead, sizes.groups, *_BY.split(sizes.depth), sizes.width, _BY.size)
    return te.compute(shape, packed, name=KEYS)


def _summed_products(sizes: AttentionSizes, queries: Tensor, groups: Tensor) -> Tensor:
    """The sums of products of each query, and of the row of ones, with each key."""
    split = _BY.split(sizes.depth)
    step, item = reduced((*split, _BY.size))

    def product(*i: PrimExpr) -> PrimExpr:
        *outer, task, row, group, place = i
        element = element_at(queries, *outer, task, row, position((step, item), (*split, _BY.size)))
        return te.sum(_wide(element) * _wide(element_at(groups, *outer, group, step, place, item)), axis=[step, item])

    *tile, count, width = sizes.tile
    return te.compute((*tile[:-1], sizes.rows + 1, count, width), product, name=ATTENTION_WORDS)


def _powers(sizes: AttentionSizes, score: Callable[..., PrimExpr], how: QuantisedAttention) -> Tensor:
    """The powers of scores less a maximum: the largest number that they can be where they are rounded and none comes
    near to what float32 has not."""
    last = how.steps[-1] if how.steps else how.product
    least, most = last.reach if isinstance(last, Rounding) else (-math.inf, math.inf)
    if most - least < _WIDEST:
        return te.compute(sizes.tile, lambda *i: exp(score(*i) - _f32(most)), name=MASKED)
    masked = te.compute(sizes.tile, score, name=MASKED)
    largest = joined_sides(sizes, masked, te.max, MOST)
    return te.compute(sizes.tile, lambda *i: exp(masked[i] - largest[i[:-2]]), name=WEIGHTS)


def _bytes(sizes: AttentionSizes, powers: Tensor, affine: Affine) -> Tensor:
    """The softmax's weights as signed bytes, zero behind the last key, and a row of ones."""
    total = joined_sides(sizes, powers, te.sum, TOTAL)
    rows = (*sizes.lead, sizes.tasks, sizes.rows)
    steps = np.float32(1) / np.float32(affine.scale)
    inverse = te.compute(rows, lambda *i: _f32(steps) / total[i], name=INVERSE)

    def narrow(*i: PrimExpr) -> PrimExpr:
        *outer, row, group, place = i
        scaled = powers[i] * element_at(inverse, *outer, row)
        weight = _signed(quantised(scaled, Affine(scale=1.0, zero=affine.zero), "uint8"))
        own = tirx.if_then_else(row < sizes.rows, weight, _i8(1))  # nothing is read of a row behind the last
        return tirx.Select(group * sizes.width + place < sizes.keys, own, _i8(0))

    *tile, count, width = sizes.tile
    return te.compute((*tile[:-1], sizes.rows + 1, count, width), narrow, name=ROUNDED_WEIGHTS)


def _weighted(sizes: AttentionSizes, weights: Tensor, values: Reordered) -> Tensor:
    """The sums of values, which are copied in the order of the keys' groups."""
    split = _BY.split(sizes.width)

    def packed(*i: PrimExpr) -> PrimExpr:
        *outer, group, step, output, item = i
        key = tirx.min(group * sizes.width + step * _BY.size + item, sizes.keys - 1)
        return values.at(*outer, key, output)

    groups = te.compute((*sizes.lead, sizes.groups, *split, sizes.outputs, _BY.size), packed, name=VALUES)
    part, step, item = reduced((sizes.groups, *split, _BY.size))

    def weighted(*i: PrimExpr) -> PrimExpr:
        *outer, task, row, output = i
        weight = element_at(weights, *outer, task, row, part, position((step, item), (*split, _BY.size)))
        value = element_at(groups, *outer, part, step, output, item)
        return te.sum(_wide(weight) * _wide(value), axis=[part, step, item])

    return te.compute((*sizes.lead, sizes.tasks, sizes.rows + 1, sizes.outputs), weighted, name=WEIGHTED)


def _signed(byte: PrimExpr) -> PrimExpr:
    """A byte of uint8 less 128."""
    return (byte ^ tirx.const(_HALF, "uint8")).astype("int8")


def _wide(byte: PrimExpr) -> PrimExpr:
    return byte.astype("int32")


def _i8(value: int) -> PrimExpr:
    return tirx.const(value, "int8")


def _i32(value: int) -> PrimExpr:
    return tirx.const(value, "int32")


def _f32(value: float) -> PrimExpr:
    return tirx.const(float(value), WIDE)
