"""Which tile of the kernel for packed weights should take least: what kernels with TMA loads cost otherwise, with fewer
bytes of weights, and dequantisation where products do not hide it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tunehub.kernels.cuda.gemm.hopper.tiles import HALF, SHARED_BYTES
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.packed_gemm.tile import DEPTH, PackedTile
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.ptx.wgmma import ROWS

_GROUPS, _ROWS = (1, 2), (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192)
_SHARED = ((1, 1), (1, 2))  # blocks that load weights, and x, in common
_WIDE = 128 * ROWS  # accumulators of a warpgroup with two instructions beside each other
_STAGES = (8, 6, 5, 4, 3)
# Cycles in which one warpgroup, or two side by side, dequantise 64 rows of 64 of K: some 115 instructions of each warp.
_DEQUANTISED = {1: 300.0, 2: 240.0}
_HALF_STEP = 64  # of K


def tiles(bits: int) -> Iterator[PackedTile]:
    """Every tile that may serve without K divided, with as many stages as there is room for."""
    for groups, rows, parts, shared in product(_GROUPS, _ROWS, (1, 2), _SHARED):
        columns = ROWS * parts
        if parts > 1 and rows * ROWS > _WIDE:
            continue
        own = PackedTile(groups=(1, groups), rows=rows, columns=columns, stages=1, bits=bits, shared=shared)
        fitting = (replace(own, stages=stages) for stages in _STAGES)
        found = next((tile for tile in fitting if tile.shared_bytes <= SHARED_BYTES), None)
        if found is not None:
            yield found


def seconds(extents: LowBatchExtents, tile: PackedTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    costs = device.costs.warpgroups_bulk
    return math.fsum(costs.get(name, 1.0) * count for name, count in _counts(extents, tile, device).items())


def _counts(extents: LowBatchExtents, tile: PackedTile, device: GpuDevice) -> dict[str, float]:
    """As :func:`tunehub.kernels.cuda.gemm.hopper.cost.bulk_counts`; ``waits`` are seconds."""
    (height, width), (along_rows, along_columns) = tile.block, tile.shared
    rounds = math.ceil(math.prod(tile.over(extents.rows, extents.columns)) / tile.resident(device))
    steps = rounds * math.ceil(extents.depth / DEPTH) * (DEPTH // _HALF_STEP)
    instructions = width // ROWS
    products = height * width * _HALF_STEP * device.costs.warpgroups_bulk["products"]
    dequantised = _DEQUANTISED[tile.groups[1]] / device.clock * (tile.columns // ROWS)
    weights = extents.columns * extents.depth * extents.weights.bytes_of_weight
    return {
        "products": steps * height * width * _HALF_STEP,
        "loads": steps * (height / along_columns * HALF + width / along_rows * tile.bits / 8) * _HALF_STEP,
        "instructions": steps * instructions,
        "waits": steps * max(0.0, dequantised - products),
        "rounds": rounds,
        "results": rounds * height * width,
        "bytes": weights + HALF * extents.rows * (extents.depth + extents.columns),
    }
