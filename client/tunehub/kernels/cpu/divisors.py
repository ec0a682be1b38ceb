"""Sizes that divide an extent without remainder."""

from __future__ import annotations

import functools
import math


@functools.lru_cache(maxsize=1024)
def divisors(extent: int, most: int | None = None) -> tuple[int, ...]:
    """The divisors of ``extent``, ascending; with ``most`` only those up to it. ``extent`` is 1 or more."""
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    found = sorted({*small, *(extent // d for d in small)})
    return tuple(found if most is None else (d for d in found if d <= most))
