"""Attention as a tensor expression: what it computes, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import te, tirx

from tunehub.kernels.cuda.attention.spec import MASKED, MOST, RESULT, ROUNDED, SCORES, TOTAL, WEIGHTED, WEIGHTS

if TYPE_CHECKING:
    from tunehub.tir.types import Index, PrimExpr, Tensor

_F32 = "float32"
Source = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRounding:
    """How weights of the softmax are rounded to whole ``steps``, of a power and the sum of all of a query, and what is
    the ``result``, of sums of values by these."""

    steps: Callable[[PrimExpr, PrimExpr], PrimExpr]
    result: Callable[[PrimExpr], PrimExpr]


def attention(
    shape: Sequence[Index],
    query: Source,
    key: Source,
    value: Source,
    mask: Callable[..., PrimExpr],
    order: Sequence[int],
    dtype: str,
    safe: bool = False,
    rounding: WeightRounding | None = None,
) -> Tensor:
    """``shape``: extents of batch and heads, numbers of queries and keys, of numbers in a query and in a value.

    ``query``, ``key`` and ``value`` give an element for its place: along batch and heads, the query or key, within it.
    ``mask`` gives what the softmax takes, of a place and the score there. ``order``: which of the axes batch, heads,
    query and output each axis of the result is. ``safe``: results are 0 for a query that has no key.
    ``rounding``: of weights.
    """
    *lead, queries, keys, depth, outputs = shape
    rank, rows, whole = len(lead), (*lead, queries), (*lead, queries, outputs)
    k, *along = (te.reduce_axis((0, extent), name=name) for extent, name in ((depth, "k"), *[(keys, "j")] * 3))

    def product(*i: PrimExpr) -> PrimExpr:
        first, second = query(*i[: rank + 1], k), key(*i[:rank], i[rank + 1], k)
        return te.sum(first.astype(_F32) * second.astype(_F32), axis=k)

    def of(tensor: Tensor, *place: Index) -> PrimExpr:
        return tensor[place]

    scores = te.compute((*rows, keys), product, name=SCORES)
    masked = te.compute(scores.shape, lambda *i: mask(*i, scores[i]), name=MASKED)
    most = te.compute(rows, lambda *i: te.max(of(masked, *i, along[0]), axis=along[0]), name=MOST)
    weights = te.compute(scores.shape, lambda *i: tirx.exp(masked[i] - most[i[:-1]]), name=WEIGHTS)
    total = te.compute(rows, lambda *i: te.sum(of(weights, *i, along[1]), axis=along[1]), name=TOTAL)

    given = weights
    if rounding is not None:
        steps = rounding.steps
        given = te.compute(scores.shape, lambda *i: steps(weights[i], total[i[:-1]]), name=ROUNDED)

    def sums(*i: PrimExpr) -> PrimExpr:
        element = value(*i[:rank], along[2], i[-1])
        return te.sum(of(given, *i[:-1], along[2]) * element.astype(_F32), axis=along[2])

    weighted = te.compute(whole, sums, name=WEIGHTED)

    def result(*i: PrimExpr) -> PrimExpr:
        place = tuple(i[order.index(axis)] for axis in range(len(whole)))
        if rounding is not None:
            return rounding.result(weighted[place])
        quotient = weighted[place] / total[place[:-1]]
        return (tirx.Select(total[place[:-1]] > 0, quotient, tirx.const(0, _F32)) if safe else quotient).astype(dtype)

    return te.compute([whole[axis] for axis in order], result, name=RESULT)
