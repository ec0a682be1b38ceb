"""The search among the tiles of :mod:`tunehub.kernels.cuda.gemm.tensor_core.sketch`: a small space, the likely ones
first.

What is likely the client's costs say (:mod:`tunehub.kernels.cuda.gemm.tensor_core.cost`); what is fastest is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile
from tunehub.kernels.devices.known import device_of
from tunehub.tir.guard import check_function
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.search.tiles import TileSearch, likeliest_first

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

_FIRST = 16  # candidates of a workload that nothing is known of
_PARENTS = 6  # the fastest trials, whose neighbours are tried
_BLUR = 0.3  # of the model


class TensorCoreSearch:
    """Proposes for one workload, a matmul on tensor cores; each tile once."""

    def __init__(self, mod: IRModule, target: Target, matmul: Matmul, *, seed: int) -> None:
        """``matmul`` is what ``tensor_core.matmul_of(mod)`` gave."""
        load_cuda_intrinsics()
        self._random = Random(seed)

        def apply(tile: TensorTile) -> Schedule:
            schedule = tensor_core.apply(mod, matmul, tile)
            check_function(schedule.mod["main"], mod["main"], target)
            return schedule

        tiles = likeliest_first(
            tensor_core.tiles(matmul), partial(seconds, matmul, device=device_of(target)), self._random, _BLUR
        )
        self._search = TileSearch(tiles, apply)

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """At most ``limit`` candidates that are not among ``trials``; none are left: an empty list."""
        tried = [(trial, tile) for trial in trials if (tile := tensor_core.tile_of(trial.trace)) is not None]
        self._search.out.update(tile for _, tile in tried)
        measured = sorted((trial.mean_s, tile) for trial, tile in tried if trial.run_s)
        limit = limit if trials else min(limit, _FIRST)
        made = self._search.schedules(self._once([tile for _, tile in measured[:_PARENTS]]))
        return [json.loads(text) for text, _ in islice(made, limit)]

    def _once(self, parents: Sequence[TensorTile]) -> Iterator[TensorTile]:
        for tile in self._search.order(self._neighbours(parents), self._random):
            self._search.out.add(tile)
            yield tile

    def _neighbours(self, parents: Sequence[TensorTile]) -> Iterator[TensorTile | None]:
        """Of one of the fastest any neighbour; None where none has any."""
        while True:
            by_chance = self._random.sample(parents, len(parents))
            near = next(filter(None, map(self._near, by_chance)), None)
            yield None if near is None else self._random.choice(near)

    def _near(self, parent: TensorTile) -> list[TensorTile]:
        return [tile for tile in self._search.left() if distance(tile, parent) == 1]


def distance(one: TensorTile, other: TensorTile) -> int:
    """In how many steps one tile becomes the other: a step doubles or halves a number, or changes how is loaded."""
    numbers = (
        (*one.warps, *one.fragments, one.k_fragments, one.groups),
        (*other.warps, *other.fragments, other.k_fragments, other.groups),
    )
    doubled = sum(abs(a.bit_length() - b.bit_length()) for a, b in zip(*numbers, strict=True))
    return doubled + (one.pipelined != other.pipelined) + (one.whole_windows != other.whole_windows)
