"""What a tile of a kernel for warpgroups costs: a sum of counted things, as :mod:`tunehub.cuda.cost` has it.

The costs were fitted to 480 tiles of 53 workloads on an H200.
"""

from __future__ import annotations

import math

from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.cuda.hopper.tiles import AHEAD, DEPTH, HALF, SHARED_BYTES, WarpgroupTile
from tunehub.cuda.matmul import Matmul
from tunehub.target.gpu_architectures import REGISTERS, RESERVED_BYTES

# Seconds for one of each; see `counts`.
COSTS = {
    "launch": 2.54e-06,
    "products": 2.63e-13,
    "loads": 2.06e-12,
    "steps": 4.16e-08,
    "waits": 2.05e-07,
    "rounds": 7.42e-07,
    "results": 2.98e-11,
    "bytes": 7.31e-14,
}


def seconds(matmul: Matmul, tile: WarpgroupTile) -> float:
    """What ``tile`` should take on a large GPU."""
    found = counts(matmul, tile)
    return math.fsum(COSTS[name] * found[name] for name in COSTS)


def counts(matmul: Matmul, tile: WarpgroupTile) -> dict[str, float]:
    """How much of everything in :data:`COSTS` there is on the busiest multiprocessor."""
    batch, rows, columns, k = matmul.extents
    block_rows, block_columns = tile.block
    grid = batch * math.ceil(rows / block_rows) * math.ceil(columns / block_columns) * tile.cluster
    steps = math.ceil(math.ceil(k / DEPTH) / tile.cluster)
    blocks = math.ceil(grid / MULTIPROCESSORS)
    rounds = math.ceil(blocks / resident(tile))
    return {
        "launch": 1.0,
        "products": blocks * steps * block_rows * block_columns * DEPTH,
        "loads": blocks * steps * tile.stage_bytes,
        "steps": rounds * steps,
        "waits": rounds * steps / (tile.stages - AHEAD),
        "rounds": rounds,
        "results": blocks * block_rows * block_columns / tile.cluster,
        "bytes": HALF * batch * (rows * k + columns * k + rows * columns),
    }


def resident(tile: WarpgroupTile) -> int:
    """How many blocks fit on a multiprocessor at a time."""
    registers = tile.rows * tile.columns // 128 + 48
    limits = (
        (SHARED_BYTES + RESERVED_BYTES) // (tile.shared_bytes + RESERVED_BYTES),
        REGISTERS // (registers * tile.threads),
    )
    return max(1, min(limits))
