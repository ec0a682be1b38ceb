"""Which attention is one kernel on CPUs, and how many scores a task of it has in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.relax.layout.attention.kernel import Scores

if TYPE_CHECKING:
    from tunehub.relax.layout.narrowing import Narrowing

_QUERIES = 6  # of one task: with two vectors of keys, twelve sums in registers
MANY_KEYS = 256  # from which one kernel in float32 takes less than several, all extents known
_FEWEST_QUERIES = 4 * _QUERIES  # for which it does
_OPEN = (12, 1)  # queries and vectors of keys of narrow scores, of lengths that are not known
_MOST_SUMS = 15  # vectors of them: of less than 1 KiB TVM makes registers
_LATENCY = 6  # sums of pairs that start while one waits for that before


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Of queries and keys, None where they are not known; of a query, and of a result."""

    queries: int | None
    keys: int | None
    depth: int
    outputs: int


def chosen(lengths: Lengths, vector: int, narrowing: Narrowing | None) -> Scores | None:
    """The scores of a task; None where several kernels take less. ``vector``: float32 elements. ``narrowing``: which
    products have operands in bfloat16."""
    if narrowing is not None and narrowing.attention(lengths.depth, lengths.outputs):
        narrow = _narrow(lengths, vector)
        if narrowing.worth(_used(lengths, narrow)):
            return narrow
    queries, keys = lengths.queries, lengths.keys
    if queries is not None and keys is not None and (queries < _FEWEST_QUERIES or keys < MANY_KEYS):
        return None  # few static scores have schedules of their own
    return Scores(_QUERIES, 2 * vector)


def _narrow(lengths: Lengths, vector: int) -> Scores:
    """Those of which the fewest are computed for nothing."""
    queries, vectors = _OPEN
    if lengths.queries is None or lengths.keys is None:
        return Scores(queries, vectors * vector, narrow=True)
    found = [
        Scores(rows, count * vector, narrow=True)
        for count in (1, 2)
        for rows in range(_LATENCY // count, _MOST_SUMS // count + 1)
    ]
    return max(found, key=lambda each: (_used(lengths, each), each.queries * each.keys))


def _used(lengths: Lengths, scores: Scores) -> float:
    """The share of the scores computed that there are."""
    if lengths.queries is None or lengths.keys is None:
        return 1.0
    queries = -(-lengths.queries // scores.queries) * scores.queries
    keys = -(-lengths.keys // scores.keys) * scores.keys
    return lengths.queries * lengths.keys / (queries * keys)
