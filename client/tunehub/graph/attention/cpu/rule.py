"""Which attention is one kernel on CPUs, and how many scores a task of it computes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.te.attention import Scores
from tunehub.kernels.te.grouped import TILES, WORDS, Groups
from tunehub.kernels.te.integer_attention import LANES
from tunehub.tir.nodes import integer

if TYPE_CHECKING:
    from tunehub.graph.layout.narrowing import Narrowing
    from tunehub.tir.types import Index

_QUERIES = 6  # of one task: with two vectors of keys, twelve sums in registers
MANY_KEYS = 256  # from which one kernel in float32 takes less than several, all extents known
_FEWEST_QUERIES = 4 * _QUERIES  # for which it does
_OPEN = (12, 1)  # queries and vectors of keys by pairs, where their numbers are not known
_MOST_ACCUMULATORS = 15  # vectors, so that operands find registers, too
_LATENCY = 6  # sums of pairs that start while one waits for that before
_FEWEST_USED = 0.5  # of the scores in integers; by float32 they take four times as long
_MOST_SUMMED = 2**15  # products of two bytes, whose sums fit 32 bits
_ROWS = range(16, 33, 2)  # of two tiles, or one that is full


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Of queries and keys, None where they are not known; of a query, and of a result."""

    queries: int | None
    keys: int | None
    depth: int
    outputs: int

    @classmethod
    def of(cls, q: Sequence[Index], k: Sequence[Index], v: Sequence[Index]) -> Lengths:
        """Of the shapes of queries ``[..., S, D]``, keys ``[..., D, T]`` and values ``[..., T, N]``."""
        return cls(queries=integer(q[-2]), keys=integer(k[-1]), depth=int(q[-1]), outputs=int(v[-1]))


def chosen(lengths: Lengths, vector: int, narrowing: Narrowing | None) -> Scores | None:
    """The scores of a task; None where several kernels take less. ``vector``: float32 elements. ``narrowing``: which
    products have operands in bfloat16."""
    queries, keys = lengths.queries, lengths.keys
    by = None if narrowing is None else narrowing.attention(lengths.depth, lengths.outputs)
    if narrowing is not None and by is not None:
        narrow = _narrow(queries, keys, vector, by)
        if narrowing.worth(_used(queries, keys, narrow), by):
            return narrow
    if queries is not None and keys is not None and (queries < _FEWEST_QUERIES or keys < MANY_KEYS):
        return None  # few static scores have schedules of their own
    return Scores(_QUERIES, 2 * vector)


def chosen_in_integers(lengths: Lengths) -> Scores | None:
    """The scores of a task of a quantised model, with a row of ones beside its queries; None where most of what is
    computed would be for nothing, where vectors do not divide a query or a result, or sums leave 32 bits."""
    if lengths.depth % LANES or lengths.outputs % LANES or max(lengths.depth, lengths.keys or 1) > _MOST_SUMMED:
        return None
    if lengths.queries is None or lengths.keys is None:
        return Scores(_OPEN[0], _OPEN[1] * LANES, WORDS[4])
    sizes = [
        (rows, count * LANES) for count in (1, 2) for rows in range(_LATENCY // count, _MOST_ACCUMULATORS // count)
    ]
    found = [(Scores(*size, WORDS[4]), _used(lengths.queries, lengths.keys, Scores(*size))) for size in sizes]
    scores, used = max(found, key=lambda each: each[1] * each[0].queries / (each[0].queries + 1))
    return scores if used >= _FEWEST_USED else None


def _narrow(queries: int | None, keys: int | None, vector: int, by: Groups) -> Scores:
    """Those of which the fewest are computed for nothing."""
    if queries is None or keys is None:
        if by == TILES:
            return Scores(min(_ROWS[0], queries or _ROWS[0]), TILES.depth, by)
        return Scores(_OPEN[0], _OPEN[1] * vector, by)
    sizes = [(rows, TILES.depth) for rows in _ROWS]
    if by != TILES:
        sizes = [
            (rows, count * vector)
            for count in (1, 2)
            for rows in range(_LATENCY // count, _MOST_ACCUMULATORS // count + 1)
        ]
    found = [Scores(*size, by) for size in sizes]
    return max(found, key=lambda each: (_used(queries, keys, each), each.queries * each.keys))


def _used(queries: int | None, keys: int | None, scores: Scores) -> float:
    """The share of the scores computed that there are."""
    if queries is None or keys is None:
        return 1.0
    rows, columns = -(-queries // scores.queries) * scores.queries, -(-keys // scores.keys) * scores.keys
    return queries * keys / (rows * columns)
