"""How fast this machine's memory is read."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 1 << 29
_RUNS = 5


def read_bandwidth(threads: int, size: int = _BYTES) -> float:
    """Bytes a second that so many threads read of an array of ``size`` bytes, at best."""
    parts, best = np.array_split(np.ones(size // 8), threads), float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_RUNS):
            began = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - began)
    return size / best
