"""The search among the tiles of :mod:`tunehub_builder.tuning.space.tensor_core`: a small space, the likely ones first.

What is likely is said by a model of a product on a GPU: how many rounds of blocks there are, and how long each step
takes to load and to multiply. It only orders; what is fastest is measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

from tunehub.relax.schedule.guard import GuardError, check_function
from tunehub.relax.traces import export_trace
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.runner.cuda_worker import load_cuda_intrinsics
from tunehub_builder.tuning.space import tensor_core as tensor_sketch
from tunehub_builder.tuning.space.matmul import Product
from tunehub_builder.tuning.space.tensor_core import TensorTile

_FIRST = 16  # candidates of a workload that nothing is known of
_PARENTS = 6  # the fastest trials, whose neighbours are tried
_BY_MODEL = 0.3  # of later candidates
_BLUR = 0.3  # of the model's logarithm: it is not to choose one corner of the space
_PROCESSORS, _STEP_S, _LAUNCH_S = 132, 6e-7, 2e-6  # of a large GPU; what a load and its barriers take
_PLACING = 6.0  # times as long takes a load whose threads compute where each element of a window lies
_BYTES_PER_S, _PRODUCTS_PER_S = 2.5e10, 2e12  # of one processor: from the second-level cache; by tensor cores


class TensorSearch:
    """Proposes for one workload, a product on tensor cores."""

    def __init__(self, mod: Any, target: Any, product: Product, *, seed: int) -> None:
        """``product`` is what ``tensor_sketch.product_of(mod)`` gave."""
        load_cuda_intrinsics()
        self._mod, self._target, self._product, self._random = mod, target, product, Random(seed)
        blurred = {tile: math.log(seconds(product, tile)) for tile in tensor_sketch.tiles(product)}
        for tile in blurred:
            blurred[tile] += self._random.gauss(0.0, _BLUR)
        self._left = sorted(blurred, key=blurred.__getitem__)
        self._known: set[TensorTile] = set()

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """At most ``limit`` candidates that are not among ``trials``; none are left: an empty list."""
        tried = [(trial, tensor_sketch.tile_of(trial.trace)) for trial in trials]
        self._known.update(tile for _, tile in tried if tile is not None)
        measured = sorted((trial.mean_s, tile) for trial, tile in tried if trial.run_s and tile is not None)
        limit = limit if trials else min(limit, _FIRST)
        parents = [tile for _, tile in measured[:_PARENTS]]
        found: list[Any] = []
        while len(found) < limit and (tile := self._next(parents)) is not None:
            self._known.add(tile)
            trace = self._trace(tile)
            if trace is not None:
                found.append(trace)
        return found

    def _next(self, parents: Sequence[TensorTile]) -> TensorTile | None:
        """An untried neighbour of one of the fastest, or the likeliest of all that are left."""
        self._left = [tile for tile in self._left if tile not in self._known]
        if self._random.random() >= _BY_MODEL:
            for parent in self._random.sample(parents, len(parents)):
                near = [tile for tile in self._left if distance(tile, parent) == 1]
                if near:
                    return self._random.choice(near)
        return self._left[0] if self._left else None

    def _trace(self, tile: TensorTile) -> Any:
        """The candidate as a portable trace; None when TVM or the client refuses it."""
        try:
            schedule = tensor_sketch.apply(self._mod, self._product, tile)
            check_function(schedule.mod["main"], self._mod["main"], self._target)
        except (GuardError, RuntimeError, ValueError, TypeError):  # of a primitive that does not take its place
            return None
        return json.loads(json.dumps(export_trace(schedule.trace)))


def seconds(product: Product, tile: TensorTile) -> float:
    """What ``tile`` may take on a large GPU, by a rough model."""
    batch, *extents = product.extents
    rows, columns, depth = (math.ceil(e / size) for e, size in zip(extents, tile.block, strict=True))
    blocks = batch * rows * columns
    block_rows, block_columns, block_depth = tile.block
    placed = _PLACING if product.window > 1 and not tile.gathered else 1.0
    loading = 2 * block_depth * (placed * block_rows + block_columns) / _BYTES_PER_S
    multiplying = 2 * block_rows * block_columns * block_depth / _PRODUCTS_PER_S
    step = max(loading, multiplying) + _STEP_S * (0.6 if tile.staged else 1.0)
    few_warps = 1.0 + 1.0 / tile.all_warps  # too few to hide what loads take
    return _LAUNCH_S + math.ceil(blocks / _PROCESSORS) * depth * step * few_warps


def distance(one: TensorTile, other: TensorTile) -> int:
    """In how many steps one tile becomes the other: a step doubles or halves a number, stages loads or gathers."""
    numbers = (
        (*one.warps, *one.fragments, one.steps, one.groups),
        (*other.warps, *other.fragments, other.steps, other.groups),
    )
    doubled = sum(abs(a.bit_length() - b.bit_length()) for a, b in zip(*numbers, strict=True))
    return doubled + (one.staged != other.staged) + (one.gathered != other.gathered)
