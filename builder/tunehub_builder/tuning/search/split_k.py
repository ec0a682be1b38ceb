"""The search among the tiles of :mod:`tunehub.cuda.split_k`: likely ones, then neighbours of the best.

What is likely is said by a model of a GPU's multiprocessor: how many blocks it has at a time, what its units have to do
in each step, and how long a load is waited for. It only orders; what is fastest is measured.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from tunehub.cuda import split_k
from tunehub.cuda.matmul import Matmul
from tunehub.cuda.split_k import SplitTile, sides
from tunehub.relax.schedule.guard import check_statements
from tunehub.target.gpu_architectures import MOST_BLOCKS, MOST_WARPS, REGISTERS, RESERVED_BYTES, SHARED_BYTES, WARP
from tunehub_builder.tuning.search.tiles import TileSearch, likeliest_first

_KEPT = 1024  # of the likeliest tiles
_BLUR = 0.2  # of the model
_NEAR = 2

# Of a large GPU; a multiprocessor's in its clock's ticks.
_PROCESSORS, _TICK_S, _LAUNCH_S = 132, 5.7e-10, 2.5e-6
_PRODUCTS, _BYTES = 128, 24.0  # in a tick: made, and loaded from the second-level cache
_READ = {4: 2.0, 2: 1.5, 1: 1.0}  # ticks of a warp's read of shared memory, by elements of a thread
# Ticks of a thread's load for its index: of a vector, of an element of a window, of an element by itself.
_VECTOR, _WINDOW, _PLACED = 0.1, 0.05, 0.25
_WAIT, _PIPELINED_WAIT, _BARRIERS, _END = 900, 400, 150, 800  # for a load, at the end of a step, of a block
_APART = 0.3  # of the shorter of two things that units of their own do
_FLOAT = 4


class SplitKSearch:
    """Makes schedules for one workload, a matmul with a long K."""

    def __init__(self, mod: Any, target: Any, matmul: Matmul, random: Random) -> None:
        """``matmul`` is what ``split_k.matmul_of(mod)`` gave."""
        self._random = random

        def apply(tile: SplitTile) -> Any:
            schedule = split_k.apply(mod, matmul, tile)
            check_statements(schedule.mod["main"], mod["main"], target)
            return schedule

        tiles = likeliest_first(split_k.tiles(matmul), partial(seconds, matmul), random, _BLUR)[:_KEPT]
        self._search = TileSearch(tiles, apply)

    @classmethod
    def of(cls, mod: Any, target: Any, random: Random) -> SplitKSearch | None:
        """The search for ``mod``; None when the sketch has no tiles for it."""
        matmul = split_k.matmul_of(mod)
        found = None if matmul is None else cls(mod, target, matmul, random)
        return found if found is not None and found._search.tiles else None

    def make(self, fastest: Sequence[SplitTile], known: Container[str], count: int) -> dict[str, Any]:
        """At most ``count`` schedules by the text of their traces, none of which is ``known``; ``fastest``: of the
        tiles measured so far those whose neighbours are worth a try."""
        tiles = self._search.order(self._neighbours(fastest), self._random)
        return dict(islice(self._search.schedules(tiles, known), count))

    def _neighbours(self, fastest: Sequence[SplitTile]) -> Iterator[SplitTile]:
        """Tiles that are like the fastest ones, each of these in turn."""
        near = [[tile for tile in self._search.left() if distance(tile, parent) <= _NEAR] for parent in fastest]
        for each in near:
            self._random.shuffle(each)
        while any(near):
            for each in near:
                if each:
                    yield each.pop()


def seconds(matmul: Matmul, tile: SplitTile) -> float:
    """What ``tile`` may take on a large GPU, by a rough model."""
    batch, *_, k = matmul.extents
    slow, fast = (math.ceil(side.extent / size) for side, size in zip(sides(matmul), tile.block[:2], strict=True))
    own = math.ceil(batch * slow * fast / _PROCESSORS)
    there = min(own, _resident(matmul, tile))
    few_warps = 1.0 + 4.0 * WARP / (there * tile.block_threads)  # too few to keep the units busy
    busy, loading = _busy(matmul, tile) * few_warps, _loading(tile)
    both = max(busy, loading) + _APART * min(busy, loading)  # at the same time, for the most part
    alone = max(both, loading + _PIPELINED_WAIT) if tile.pipelined else busy + loading + _WAIT
    step = max(there * both, alone) + _BARRIERS
    ticks = math.ceil(own / there) * (math.ceil(k / tile.block[2]) * step + _END)
    return _LAUNCH_S + ticks * _TICK_S


def distance(one: SplitTile, other: SplitTile) -> int:
    """In how many steps one tile becomes the other: a step doubles or halves a number, or pipelines loads."""
    numbers = ((each.groups, *each.threads, *each.sums, each.depth) for each in (one, other))
    moved = sum(math.ceil(abs(math.log2(a / b))) for a, b in zip(*numbers, strict=True))
    return moved + (one.pipelined != other.pipelined)


def _resident(matmul: Matmul, tile: SplitTile) -> int:
    """How many blocks fit on a multiprocessor at a time."""
    threads = tile.block_threads
    limits = (
        MOST_BLOCKS,
        MOST_WARPS * WARP // threads,
        SHARED_BYTES // (split_k.shared_memory(matmul, tile) + RESERVED_BYTES),
        REGISTERS // (threads * split_k.registers(matmul, tile)),
    )
    return max(1, int(min(limits)))


def _busy(matmul: Matmul, tile: SplitTile) -> float:
    """Ticks in which a step of a block keeps a multiprocessor's arithmetic, or its shared memory, busy."""
    slow, fast, k = tile.block
    products = slow * fast * k / _PRODUCTS
    reads = 0.0
    for side, own in zip(sides(matmul), tile.sums, strict=True):
        length = math.gcd(4, tile.depth if side.along else own)
        reads += own * tile.depth / length * _READ[length]
    reads *= tile.block_threads / WARP
    return max(products, reads) + _APART * min(products, reads)


def _loading(tile: SplitTile) -> float:
    """Ticks that loading the operands of a step of a block takes."""
    slow, fast, k = tile.block
    found = 0.0
    for vector, size, count in zip(tile.vectors, (slow, fast), split_k.waiting(tile), strict=True):
        index = _WINDOW if vector > 4 else _VECTOR / vector if vector > 1 else _PLACED
        found += _FLOAT * size * k / _BYTES + index * count * tile.block_threads
    return found
