"""The search among the tiles of :mod:`tunehub_builder.tuning.space.split_k`: likely ones, then neighbours of the best.

What is likely is said by a model of a GPU's multiprocessor: how many blocks it has at a time, what its units have to do
in each step, and how long a load is waited for. It only orders; what is fastest is measured.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from random import Random
from typing import Any

from tunehub.relax.schedule.guard import GuardError, check_statements
from tunehub.relax.traces import export_trace
from tunehub.target.gpu_architectures import MOST_BLOCKS, MOST_WARPS, REGISTERS, RESERVED_BYTES, SHARED_BYTES, WARP
from tunehub_builder.tuning.search.candidates import trace_id
from tunehub_builder.tuning.space import split_k as split_sketch
from tunehub_builder.tuning.space.matmul import Product
from tunehub_builder.tuning.space.split_k import SplitTile, sides

_KEPT = 1024  # of the likeliest tiles
_BY_MODEL = 0.3  # of candidates where there are fast ones to be varied
_BLUR = 0.2  # of the model's logarithm: it is not to choose one corner of the space
_NEAR = 2

# Of a large GPU; a multiprocessor's in its clock's ticks.
_PROCESSORS, _TICK_S, _LAUNCH_S = 132, 5.7e-10, 2.5e-6
_PRODUCTS, _BYTES = 128, 24.0  # in a tick: made, and loaded from the second-level cache
_READ = {4: 2.0, 2: 1.5, 1: 1.0}  # ticks of a warp's read of shared memory, by elements of a thread
# Ticks of a thread's load for its index: of a vector, of an element of a window, of an element by itself.
_VECTOR, _WINDOW, _PLACED = 0.1, 0.05, 0.25
_WAIT, _STAGED_WAIT, _BARRIERS, _END = 900, 400, 150, 800  # for a load, at the end of a step, of a block
_APART = 0.3  # of the shorter of two things that units of their own do
_FLOAT = 4


class SplitSearch:
    """Makes schedules for one workload, a product with long sums."""

    def __init__(self, mod: Any, target: Any, product: Product, random: Random) -> None:
        """``product`` is what ``split_sketch.product_of(mod)`` gave."""
        self._mod, self._target, self._product, self._random = mod, target, product, random
        blurred = {
            tile: math.log(seconds(product, tile)) + random.gauss(0.0, _BLUR) for tile in split_sketch.tiles(product)
        }
        self._left = sorted(blurred, key=blurred.__getitem__)[:_KEPT]
        self._texts: dict[SplitTile, str] = {}

    @classmethod
    def of(cls, mod: Any, target: Any, random: Random) -> SplitSearch | None:
        """The search for ``mod``; None when the sketch has no tiles for it."""
        product = split_sketch.product_of(mod)
        found = None if product is None else cls(mod, target, product, random)
        return found if found is not None and found._left else None

    def make(self, fastest: Sequence[SplitTile], known: Container[str], count: int) -> dict[str, Any]:
        """At most ``count`` schedules by the text of their traces, none of which is ``known``; ``fastest``: of the
        tiles measured so far those whose neighbours are worth a try."""
        made: dict[str, Any] = {}
        likely = iter(list(self._left))
        near = self._neighbours(fastest)
        while len(made) < count:
            tile = next(likely if self._random.random() < _BY_MODEL else near, None) or next(likely, None)
            if tile is None:
                break
            if self._texts.get(tile) in made or self._texts.get(tile, "") in known:
                continue
            schedule = self._schedule(tile)
            if schedule is None:
                self._left.remove(tile)
                continue
            self._texts[tile] = trace_id(export_trace(schedule.trace))
            if self._texts[tile] not in known:
                made[self._texts[tile]] = schedule
        return made

    def _neighbours(self, fastest: Sequence[SplitTile]) -> Iterator[SplitTile]:
        """Tiles that are like the fastest ones, each of these in turn."""
        near = [[tile for tile in self._left if distance(tile, parent) <= _NEAR] for parent in fastest]
        for each in near:
            self._random.shuffle(each)
        while any(near):
            for each in near:
                if each:
                    yield each.pop()

    def _schedule(self, tile: SplitTile) -> Any:
        """The workload by ``tile``; None when TVM or the client refuses it."""
        try:
            schedule = split_sketch.apply(self._mod, self._product, tile)
            check_statements(schedule.mod["main"], self._mod["main"], self._target)
        except (GuardError, RuntimeError, ValueError, TypeError):  # of a primitive that does not take its place
            return None
        return schedule


def seconds(product: Product, tile: SplitTile) -> float:
    """What ``tile`` may take on a large GPU, by a rough model."""
    batch, *_, steps = product.extents
    slow, fast = (math.ceil(side.extent / size) for side, size in zip(sides(product), tile.block[:2], strict=True))
    own = math.ceil(batch * slow * fast / _PROCESSORS)
    there = min(own, _resident(product, tile))
    few_warps = 1.0 + 4.0 * WARP / (there * tile.block_threads)  # too few to keep the units busy
    busy, loading = _busy(product, tile) * few_warps, _loading(tile)
    both = max(busy, loading) + _APART * min(busy, loading)  # at the same time, for the most part
    alone = max(both, loading + _STAGED_WAIT) if tile.staged else busy + loading + _WAIT
    step = max(there * both, alone) + _BARRIERS
    ticks = math.ceil(own / there) * (math.ceil(steps / tile.block[2]) * step + _END)
    return _LAUNCH_S + ticks * _TICK_S


def distance(one: SplitTile, other: SplitTile) -> int:
    """In how many steps one tile becomes the other: a step doubles or halves a number, or stages loads."""
    numbers = ((each.groups, *each.threads, *each.sums, each.depth) for each in (one, other))
    moved = sum(math.ceil(abs(math.log2(a / b))) for a, b in zip(*numbers, strict=True))
    return moved + (one.staged != other.staged)


def _resident(product: Product, tile: SplitTile) -> int:
    """How many blocks fit on a multiprocessor at a time."""
    threads = tile.block_threads
    limits = (
        MOST_BLOCKS,
        MOST_WARPS * WARP // threads,
        SHARED_BYTES // (split_sketch.shared_memory(product, tile) + RESERVED_BYTES),
        REGISTERS // (threads * split_sketch.registers(product, tile)),
    )
    return max(1, min(limits))


def _busy(product: Product, tile: SplitTile) -> float:
    """Ticks in which a step of a block keeps a multiprocessor's arithmetic, or its shared memory, busy."""
    slow, fast, steps = tile.block
    products = slow * fast * steps / _PRODUCTS
    reads = 0.0
    for side, own in zip(sides(product), tile.sums, strict=True):
        length = math.gcd(4, tile.depth if side.along else own)
        reads += own * tile.depth / length * _READ[length]
    reads *= tile.block_threads / WARP
    return max(products, reads) + _APART * min(products, reads)


def _loading(tile: SplitTile) -> float:
    """Ticks that loading the operands of a step of a block takes."""
    slow, fast, steps = tile.block
    found = 0.0
    for vector, size, count in zip(tile.vectors, (slow, fast), split_sketch.waiting(tile), strict=True):
        index = _WINDOW if vector > 4 else _VECTOR / vector if vector > 1 else _PLACED
        found += _FLOAT * size * steps / _BYTES + index * count * tile.block_threads
    return found
