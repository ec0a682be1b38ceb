"""Which tile of the kernel for packed weights should take least, by what the busiest multiprocessor does. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tunehub.kernels.cuda.gemm.hopper.tiles import SHARED_BYTES
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.packed_gemm.tile import DEPTH, PackedTile
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.ptx.wgmma import ROWS

_GROUPS, _ROWS = (1, 2), (64, 80, 96, 112, 128, 160, 176, 192)
_STAGES = (8, 6, 5, 4, 3)
_HALF_STEPS = 2  # of 64 of K, in a stage
# Cycles: of a row of x in instructions of 64 of K; of a warp that dequantises as many weights; of a stage, of a tile.
_OF_ROW, _DEQUANTISED, _STAGE, _TILE = 2.2, 190.0, 60.0, 2500.0
_LAUNCH_S = 2.5e-6


def tiles(bits: int) -> Iterator[PackedTile]:
    """Every tile, with as many stages as there is room for."""
    for groups, rows in product(_GROUPS, _ROWS):
        own = PackedTile(groups=(1, groups), rows=rows, columns=ROWS, stages=1, bits=bits)
        fitting = (replace(own, stages=stages) for stages in _STAGES)
        found = next((tile for tile in fitting if tile.shared_bytes <= SHARED_BYTES), None)
        if found is not None:
            yield found


def seconds(extents: LowBatchExtents, tile: PackedTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    rounds = math.ceil(math.prod(tile.over(extents.rows, extents.columns)) / tile.resident(device))
    groups = math.prod(tile.groups) * (tile.columns // ROWS)
    half_step = max(_OF_ROW * tile.rows * groups, _DEQUANTISED * max(1.0, groups / 2))
    stages = math.ceil(extents.depth / DEPTH) * (_HALF_STEPS * half_step + _STAGE)
    weights = extents.columns * extents.depth * extents.weights.bytes_of_weight
    return _LAUNCH_S + max(rounds * (stages + _TILE) / device.clock, weights / device.bandwidth)
