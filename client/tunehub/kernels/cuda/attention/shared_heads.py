"""One query of each head by keys that several heads have in common: these heads are taken as queries of one head, so
that keys are read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.attention.spec import Attention
from tunehub.tir.nodes import symbolic

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr

_MOST = 16  # queries that a warp has


def with_heads_as_queries(attention: Attention, count: int) -> Attention:
    """``attention`` of one query, with ``count`` heads at a time as queries of one."""

    def of(function: Callable[..., PrimExpr], behind: int) -> Callable[..., PrimExpr]:
        """Places end with the head, the query, and ``behind`` more."""

        def at(*place: PrimExpr, **more: PrimExpr | None) -> PrimExpr | Sequence[PrimExpr]:
            head, query = place[-behind - 2], place[-behind - 1]
            return function(*place[: -behind - 2], head * count + query, 0, *place[len(place) - behind :], **more)

        return at

    def of_keys(function: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
        return lambda *place: function(*place[:-3], place[-3] * count, *place[-2:])

    assert isinstance(attention.keys, int)
    seen = attention.keys if attention.causal is None else min(attention.keys, attention.causal + 1)
    return replace(
        attention,
        lead=(*attention.lead[:-1], attention.lead[-1] // count),
        queries=count,
        keys=seen,
        causal=None,
        query=of(attention.query, 1),
        key=of_keys(attention.key),
        value=of_keys(attention.value),
        masked=of(attention.masked, 2),
        written=of(attention.written, 1),
        finished=of(attention.finished, 3),
    )


def heads_of_a_key(attention: Attention) -> int:
    """How many heads have each key, as far as they fit a warp; 1 where that is not known."""
    heads = attention.lead[-1] if attention.lead else 1
    known = (attention.keys, attention.queries, heads)
    if not all(isinstance(each, int) for each in known) or attention.queries != 1 or (attention.causal or 0) < 0:
        return 1
    counts = (n for n in range(min(heads, _MOST), 1, -1) if heads % n == 0)
    return next((n for n in counts if _have_the_same(attention, n)), 1)


def _have_the_same(attention: Attention, count: int) -> bool:
    import tvm
    from tvm import tirx

    analyzer = symbolic().Analyzer()
    *lead, head, key, column = (tirx.Var(f"i{at}", "int64") for at in range(len(attention.lead) + 2))
    own = tirx.Var("own", "int64")
    analyzer.bind(own, tvm.ir.Range(0, count))
    for variable, extent in zip((*lead, head), (*attention.lead[:-1], attention.lead[-1] // count), strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, extent))

    def same(function: Callable[..., PrimExpr]) -> bool:
        each, first = (function(*lead, head * count + n, key, column).indices for n in (own, 0))
        return all(analyzer.can_prove_equal(one, other) for one, other in zip(each, first, strict=True))

    return same(attention.key) and same(attention.value)
