"""Tile sizes for another extent: as near as possible to those that were fast, and dividing it without remainder.

A loop that tiles do not divide would need conditions in its innermost statement, which costs more than a tile that is
a little smaller or larger. Pure arithmetic: nothing here knows TVM.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from tunehub.kernels.cpu.divisors import divisors

_WIDEST = 16  # lanes: powers of two up to here make whole vectors
_KEPT = 16  # partial choices that are followed up: enough for the best of any extent with up to 6 prime factors
_INNERMOST, _OUTERMOST, _VECTOR = 2.0, 0.25, 2.0  # weights of a factor of two in size, and of half a vector
_THREADS = {5: 2}  # tiles of five parts are those of GPUs: the third is the threads of a block


@functools.lru_cache(maxsize=4096)
def perfect_tile(extent: int, wanted: tuple[int, ...], innermost: int) -> tuple[int, ...]:
    """Factors of ``extent``, as many as ``wanted`` has and near to them, the last at most ``innermost``.

    The first takes up what the extents differ by. Vectors matter most: a last factor that makes whole vectors stays
    such a one if a divisor near it does. The factors that were wanted come back as they are when they fit.
    """
    if math.prod(wanted) == extent and wanted[-1] <= innermost:
        return wanted
    found: list[tuple[float, int, tuple[int, ...]]] = [(0.0, extent, ())]
    for position in range(len(wanted) - 1, 0, -1):
        most = innermost if position == len(wanted) - 1 else extent
        found = sorted(
            (cost + _cost(factor, wanted, position), rest // factor, (factor, *inner))
            for cost, rest, inner in found
            for factor in divisors(rest)
            if factor <= most
        )[:_KEPT]
    outer = max(1.0, wanted[0] * extent / math.prod(wanted))
    _, rest, inner = min((cost + _OUTERMOST * abs(math.log2(rest / outer)), rest, inner) for cost, rest, inner in found)
    return rest, *inner


def refitted_split(extent: int, factors: Sequence[int | None]) -> tuple[int | None, ...] | None:
    """``factors`` of a split for a loop of ``extent``, or None when they fit as they are.

    One factor may be None: it takes what the others leave. Without one, the first takes up the difference.
    """
    open_at = factors.index(None) if None in factors else 0
    known = [factor or 1 for factor in factors]
    product = math.prod(known)
    if extent % product == 0 if None in factors else extent == product:
        return None
    order = [open_at, *(i for i in range(len(factors)) if i != open_at)]
    tile = perfect_tile(extent, tuple(known[i] for i in order), extent)
    result: list[int | None] = [None] * len(factors)
    for i, factor in zip(order, tile, strict=True):
        result[i] = None if factors[i] is None else factor
    return tuple(result)


def keeps_vectors(wanted: int, found: int) -> bool:
    """Whether an innermost loop of ``found`` steps makes vectors at least half as wide as one of ``wanted`` does."""
    return 2 * _whole(found) >= _whole(wanted)


def _cost(factor: int, wanted: tuple[int, ...], position: int) -> float:
    last = position == len(wanted) - 1
    weight = _INNERMOST if last or position == _THREADS.get(len(wanted)) else 1.0
    lost = max(0.0, math.log2(_whole(wanted[position]) / _whole(factor))) if last else 0.0
    return weight * abs(math.log2(factor / wanted[position])) + _VECTOR * lost


def _whole(size: int) -> int:
    """The largest power of two that divides ``size``, at most the widest vector."""
    return math.gcd(size, _WIDEST)
