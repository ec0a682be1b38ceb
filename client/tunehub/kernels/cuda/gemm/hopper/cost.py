"""What a tile of a kernel for warpgroups costs: a sum of counted things, as :mod:`tunehub.kernels.cuda.gemm.cost` has
it.

The costs were fitted to 800 tiles of 51 workloads on an H200, those of TF32 to 369 of 43.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.tiles import AHEAD, DEPTH, HALF, SHARED_BYTES, WarpgroupTile
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import REGISTERS, RESERVED_BYTES
from tunehub.tir.cuda.ptx.wgmma import ROWS

_LOADS_AHEAD = 0.97  # times what costs say, which were fitted before: with more registers for their epilogue
_ALONE = (
    1.12  # times what costs of integers say, where no other block computes while one waits: 64 x 256 beside 64 x 128
)
_FEW_ROWS = 1.15  # times what costs of 64 rows say, beside others: with 32 rows two of four products took longer


def seconds(matmul: Matmul, tile: WarpgroupTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    return _sum(device.costs.warpgroups, counts(matmul, tile, device))


def tf32_seconds(matmul: Matmul, tile: WarpgroupTile, device: GpuDevice) -> float:
    """As :func:`seconds`, of operands of two halves each, which are rounded in shared memory."""
    return _sum(device.costs.warpgroups_tf32, counts(matmul, tile, device))


def integer_seconds(matmul: Matmul, tile: WarpgroupTile, device: GpuDevice) -> float:
    """As :func:`seconds`, of integers of 8 bits; ``matmul``: half as much of K in half precision."""
    found = counts(matmul, tile, device)
    steps = math.ceil(math.ceil(matmul.extents[3] / DEPTH) / tile.cluster)
    blocks = math.ceil(_grid(matmul, tile) / device.found_by(tile.cluster))
    together = resident(tile, steps)
    rounds = math.ceil(blocks / together)
    found |= {"rounds": rounds, "steps": rounds * steps, "waits": rounds * steps / (tile.stages - AHEAD)}
    alone = _ALONE if together == 1 and blocks > 1 else 1.0
    return alone * _sum(device.costs.warpgroups_integers, found)


def integer_bulk_seconds(matmul: Matmul, tile: BulkTile, device: GpuDevice) -> float:
    """As :func:`bulk_seconds`, of what :func:`integer_seconds` is of."""
    found = {"launch": 1.0, **bulk_counts(matmul, tile, device)}
    return bulk_seconds(matmul, tile, device) + _sum(device.costs.warpgroups_bulk_integers, found)


def bulk_seconds(matmul: Matmul, tile: BulkTile, device: GpuDevice) -> float:
    """As :func:`seconds`, of a kernel whose operands the copy engine brings: what the busiest multiprocessor takes, or
    the L2 cache to serve all of them."""
    more = (_FEW_ROWS if matmul.extents[1] < ROWS else 1.0) * (_LOADS_AHEAD if tile.loads_ahead else 1.0)
    busiest = _sum(device.costs.warpgroups_bulk, bulk_counts(matmul, tile, device))
    return more * max(busiest, _sum(device.costs.warpgroups_l2, l2_counts(matmul, tile, device)))


def _sum(costs: Mapping[str, float], found: Mapping[str, float]) -> float:
    return math.fsum(costs[name] * found[name] for name in costs)


def counts(matmul: Matmul, tile: WarpgroupTile, device: GpuDevice) -> dict[str, float]:
    """How much of everything in ``costs.warpgroups`` there is on the busiest multiprocessor.

    ``products``, ``loads`` (bytes into shared memory), ``gathered`` (accumulators read from a cluster's blocks) and
    ``results`` keep it busy. ``steps`` (of 64 elements of K), ``waits`` (steps whose copies started late), ``rounds``
    of blocks that are there together, and where these are ``joined`` in clusters, are waited for. ``bytes``:
    of operands and results.
    """
    batch, rows, columns, k = matmul.extents
    block_rows, block_columns = tile.block
    grid = _grid(matmul, tile)
    steps = math.ceil(math.ceil(k / DEPTH) / tile.cluster)
    blocks = math.ceil(grid / device.found_by(tile.cluster))
    rounds = math.ceil(blocks / resident(tile))
    return {
        "launch": 1.0,
        "products": blocks * steps * block_rows * block_columns * DEPTH,
        "loads": blocks * steps * tile.stage_bytes,
        "steps": rounds * steps,
        "waits": rounds * steps / (tile.stages - AHEAD),
        "rounds": rounds,
        "joined": rounds if tile.cluster > 1 else 0.0,
        "gathered": blocks * block_rows * block_columns if tile.cluster > 1 else 0.0,
        "results": blocks * block_rows * block_columns / tile.cluster,
        "bytes": HALF * batch * (rows * k + columns * k + rows * columns),
    }


def bulk_counts(matmul: Matmul, tile: BulkTile, device: GpuDevice) -> dict[str, float]:
    """As :func:`counts`, of everything in ``costs.warpgroups_bulk``: ``loads`` of what blocks of a cluster share each
    has a part of, ``instructions`` are those of all warpgroups for 64 elements of K, and ``rounds`` of clusters."""
    _, rows, columns, k = matmul.extents
    height, width = tile.block
    rounds = math.ceil(math.prod(tile.over(rows, columns)) / tile.resident(device))
    steps = rounds * math.ceil(math.ceil(k / DEPTH) / tile.cluster)
    divided = tile.cluster > 1
    return {
        "products": steps * height * width * DEPTH,
        "loads": steps * (height / tile.shared[1] + width / tile.shared[0]) * DEPTH * HALF,
        "instructions": steps * math.prod(tile.groups) * tile.rows // ROWS,
        "rounds": rounds,
        "joined": float(divided),
        "gathered": float(divided * height * width),
        "results": rounds * height * width / tile.cluster,
        "bytes": HALF * (rows * k + columns * k + rows * columns),
    }


def l2_counts(matmul: Matmul, tile: BulkTile, device: GpuDevice) -> dict[str, float]:
    """How much of everything in ``costs.warpgroups_l2`` there is."""
    _, rows, columns, k = matmul.extents
    (height, width), (along_rows, along_columns) = tile.block, tile.shared
    blocks = math.prod(tile.over(rows, columns)) * tile.blocks
    steps = math.ceil(math.ceil(k / DEPTH) / tile.cluster)
    found = {"loads": 0.0, "multicast": 0.0}
    for extent, among in ((height, along_columns), (width, along_rows)):
        found["multicast" if among > 1 else "loads"] += blocks * steps * extent / among * DEPTH * HALF
    return {"launch": 1.0, **{name: count / device.multiprocessors for name, count in found.items()}}


def _grid(matmul: Matmul, tile: WarpgroupTile) -> int:
    """Blocks of a kernel."""
    batch, rows, columns, _ = matmul.extents
    return batch * math.ceil(rows / tile.block[0]) * math.ceil(columns / tile.block[1]) * tile.cluster


def resident(tile: WarpgroupTile, steps: int | None = None) -> int:
    """How many blocks fit on a multiprocessor at a time; ``steps``: which have memory for no more stages than these."""
    tile = tile if steps is None else replace(tile, stages=min(tile.stages, steps))
    registers = tile.rows * tile.columns // 128 + 48
    limits = (
        (SHARED_BYTES + RESERVED_BYTES) // (tile.shared_bytes + RESERVED_BYTES),
        REGISTERS // (registers * tile.threads),
    )
    return max(1, min(limits))
