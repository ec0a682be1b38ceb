"""The search among the tiles of :mod:`tunehub_builder.tuning.space.tensor_core`: a small space, the likely ones first.

What is likely is said by a model of a matmul on a GPU: how many rounds of blocks there are, and how long each step of
K takes to load and to multiply. It only orders; what is fastest is measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from tunehub.relax.schedule.guard import check_function
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.search.tiles import TileSearch, likeliest_first
from tunehub_builder.tuning.space import tensor_core
from tunehub_builder.tuning.space.matmul import Matmul
from tunehub_builder.tuning.space.tensor_core import TensorTile

_FIRST = 16  # candidates of a workload that nothing is known of
_PARENTS = 6  # the fastest trials, whose neighbours are tried
_BLUR = 0.3  # of the model
_PROCESSORS, _STEP_S, _LAUNCH_S = 132, 6e-7, 2e-6  # of a large GPU; what a load and its barriers take
_PLACING = 6.0  # times as long takes a load whose threads compute where each element of a window lies
_BYTES_PER_S, _PRODUCTS_PER_S = 2.5e10, 2e12  # of one processor: from the second-level cache; by tensor cores


class TensorCoreSearch:
    """Proposes for one workload, a matmul on tensor cores; each tile once."""

    def __init__(self, mod: Any, target: Any, matmul: Matmul, *, seed: int) -> None:
        """``matmul`` is what ``tensor_core.matmul_of(mod)`` gave."""
        load_cuda_intrinsics()
        self._random = Random(seed)

        def apply(tile: TensorTile) -> Any:
            schedule = tensor_core.apply(mod, matmul, tile)
            check_function(schedule.mod["main"], mod["main"], target)
            return schedule

        tiles = likeliest_first(tensor_core.tiles(matmul), partial(seconds, matmul), self._random, _BLUR)
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


def seconds(matmul: Matmul, tile: TensorTile) -> float:
    """What ``tile`` may take on a large GPU, by a rough model."""
    batch, *extents = matmul.extents
    rows, columns, depth = (math.ceil(e / size) for e, size in zip(extents, tile.block, strict=True))
    blocks = batch * rows * columns
    block_rows, block_columns, block_depth = tile.block
    placed = _PLACING if matmul.window > 1 and not tile.whole_windows else 1.0
    loading = 2 * block_depth * (placed * block_rows + block_columns) / _BYTES_PER_S
    multiplying = 2 * block_rows * block_columns * block_depth / _PRODUCTS_PER_S
    step = max(loading, multiplying) + _STEP_S * (0.6 if tile.pipelined else 1.0)
    few_warps = 1.0 + 1.0 / tile.all_warps  # too few to hide what loads take
    return _LAUNCH_S + math.ceil(blocks / _PROCESSORS) * depth * step * few_warps


def distance(one: TensorTile, other: TensorTile) -> int:
    """In how many steps one tile becomes the other: a step doubles or halves a number, or changes how is loaded."""
    numbers = (
        (*one.warps, *one.fragments, one.k_fragments, one.groups),
        (*other.warps, *other.fragments, other.k_fragments, other.groups),
    )
    doubled = sum(abs(a.bit_length() - b.bit_length()) for a, b in zip(*numbers, strict=True))
    return doubled + (one.pipelined != other.pipelined) + (one.whole_windows != other.whole_windows)
