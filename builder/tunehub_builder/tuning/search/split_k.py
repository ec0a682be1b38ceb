"""The search among the tiles of :mod:`tunehub.kernels.cuda.gemm.split_k.sketch`: likely ones, then neighbours of the
best.

What is likely the client's costs say (:mod:`tunehub.kernels.cuda.gemm.split_k.cost`); what is fastest is measured.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.split_k import sketch as split_k
from tunehub.kernels.cuda.gemm.split_k.cost import seconds
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile
from tunehub.kernels.devices.known import device_of
from tunehub.tir.guard import check_statements
from tunehub_builder.tuning.search.tiles import TileSearch, likeliest_first

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

_KEPT = 1024  # of the likeliest tiles
_BLUR = 0.2  # of the model
_NEAR = 2


class SplitKSearch:
    """Makes schedules for one workload, a matmul with a long K."""

    def __init__(self, mod: IRModule, target: Target, matmul: Matmul, random: Random) -> None:
        """``matmul`` is what ``split_k.matmul_of(mod)`` gave."""
        self._random = random

        def apply(tile: SplitTile) -> Schedule:
            schedule = split_k.apply(mod, matmul, tile)
            check_statements(schedule.mod["main"], mod["main"], target)
            return schedule

        tiles = split_k.all_tiles(matmul)
        expected = seconds(matmul, tiles, device_of(target))
        order = likeliest_first(range(len(tiles)), lambda row: float(expected[row]), random, _BLUR)[:_KEPT]
        self._search = TileSearch(list(map(tiles.tile, order)), apply)

    @classmethod
    def of(cls, mod: IRModule, target: Target, random: Random) -> SplitKSearch | None:
        """The search for ``mod``; None when the sketch has no tiles for it."""
        matmul = split_k.matmul_of(mod)
        found = None if matmul is None else cls(mod, target, matmul, random)
        return found if found is not None and found._search.tiles else None

    def make(self, fastest: Sequence[SplitTile], known: Container[str], count: int) -> dict[str, Schedule]:
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


def distance(one: SplitTile, other: SplitTile) -> int:
    """In how many steps one tile becomes the other: a step doubles or halves a number, or pipelines loads."""
    numbers = ((each.groups, *each.threads, *each.sums, each.depth) for each in (one, other))
    moved = sum(math.ceil(abs(math.log2(a / b))) for a, b in zip(*numbers, strict=True))
    return moved + (one.pipelined != other.pipelined)
