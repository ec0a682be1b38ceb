"""What a trace that was tuned for another shape promises on a CUDA GPU, by the costs of tiles (docs/adr/0018).

A record says how fast its schedule was on its own shape. With other extents its tile fills the multiprocessors in
another way, which the record's speed knows nothing about; the costs count it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.cost import Problem, as_tiles, seconds
from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
from tunehub.kernels.devices.device import GpuDevice

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, Trace

_SPATIAL, _REDUCTION = 5, 3  # parts of MetaSchedule's tiles
TileRow = tuple[list[int], list[int], list[int], list[int]]


def adapted_s(mod: IRModule, trace: Trace, device: GpuDevice) -> float | None:
    """Seconds that ``mod``, an IRModule with one PrimFunc ``main``, should take on ``device`` by ``trace`` (a
    ``tvm.s_tir.Trace`` with its extents); None for what the costs do not know: a function that does not add up
    products, a trace without MetaSchedule's tiles."""
    reducing = reduction_block_of(mod)
    if reducing is None or reducing.problem is None:
        return None
    decided = dict(trace.decisions)
    parts = [decided[each] for each in trace.insts if each.kind.name == "SamplePerfectTile" and each in decided]
    row = tile_row([[int(part) for part in tile] for tile in parts], reducing.problem)
    return None if row is None else float(seconds(reducing.problem, as_tiles([row]), device)[0])


def tile_row(tiles: Sequence[Sequence[int]], problem: Problem) -> TileRow | None:
    """(virtual, threads, inner, step) of MetaSchedule's ``tiles``, one for each loop of ``problem``; None when they are
    not those of its loops."""
    if list(map(math.prod, tiles)) != [*problem.spatial, *problem.reduction]:
        return None
    spatial, steps = tiles[: len(problem.spatial)], tiles[len(problem.spatial) :]
    if any(len(tile) != _SPATIAL for tile in spatial) or any(len(tile) != _REDUCTION for tile in steps):
        return None
    virtual, threads = [tile[1] for tile in spatial], [tile[2] for tile in spatial]
    return virtual, threads, [tile[3] * tile[4] for tile in spatial], [tile[1] * tile[2] for tile in steps]
