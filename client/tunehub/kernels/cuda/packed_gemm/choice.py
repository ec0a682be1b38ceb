"""Which tile of the kernel for packed weights should take least. Pure.

Clocks were fitted to 60 pairs of a tile and a product of Llama-3-8B with 128 to 1,024 rows on an H200
(`benchmarks/results/tiles-of-many-rows-h200-2026-11-28.txt`), 12 % apart at most for most of them: dequantisation is
hidden by no product of its own multiprocessor, and takes half as long where threads that multiply have more
registers."""

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

_GROUPS, _ROWS = (1, 2, 3), (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192)
_SHARED = ((1, 1), (1, 2), (2, 1))  # blocks that load weights, and x, in common
_CLUSTERS = (1, 2)
_WIDE = 128 * ROWS  # accumulators of a warpgroup with two instructions beside each other, or of three
_STAGES = (8, 6, 5, 4, 3)
_HALF_STEP = 64  # of K
# Of that, and of 64 columns, clocks that tensor cores take for a row, and that dequantisation takes beside: of one
# warpgroup alone (a guess), of several, of several with more registers and so many rows, with two instructions.
_OF_ROW, _OF_ONE, _OF_SEVERAL, _OF_MORE_REGISTERS, _ROWS_OF_THESE, _OF_TWO = 2.0, 450.0, 170.0, 90.0, 128, 112.0
_OF_TILE = 5000.0  # clocks before the first product, and after the last
_JOINED = 3e-6  # seconds, where a cluster divides K
_SUSTAINED = 0.96  # of a device's clock
_EXPOSED = 0.1  # of the time in which the L2 cache serves all blocks


def tiles(bits: int) -> Iterator[PackedTile]:
    """Every tile that may serve, with as many stages as there is room for."""
    for groups, rows, parts, shared, cluster in product(_GROUPS, _ROWS, (1, 2), _SHARED, _CLUSTERS):
        own = PackedTile(
            groups=(1, groups), rows=rows, columns=ROWS * parts, stages=1, bits=bits, shared=shared, cluster=cluster
        )
        fitting = (replace(own, stages=stages) for stages in _STAGES)
        found = next((tile for tile in fitting if tile.shared_bytes <= SHARED_BYTES), None)
        if found is not None and _suits(found):
            yield found


def _suits(tile: PackedTile) -> bool:
    """Whether there are registers: where K is divided accumulators must not outlive the part of the kernel that has
    more of them."""
    if tile.cluster > 1 and (tile.registers is not None or math.prod(tile.shared) > 1):
        return False
    three, two_beside = math.prod(tile.groups) == max(_GROUPS), tile.columns > ROWS
    return not (three and two_beside) and (tile.rows * ROWS <= _WIDE or not (three or two_beside))


def seconds(extents: LowBatchExtents, tile: PackedTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    clusters = math.prod(tile.over(extents.rows, extents.columns))
    if not tile.is_at_once(clusters, device):
        return math.inf
    rounds = math.ceil(clusters / tile.resident(device))
    steps = math.ceil(math.ceil(extents.depth / DEPTH) / tile.cluster) * (DEPTH // _HALF_STEP)
    of_step = math.prod(tile.groups) * (tile.columns // ROWS) * (_OF_ROW * tile.rows + _dequantised(tile))
    weights = extents.columns * extents.depth * extents.weights.bytes_of_weight
    moved = (weights + HALF * extents.rows * (extents.depth + extents.columns)) / device.bandwidth
    busiest = rounds * (steps * of_step + _OF_TILE) / (_SUSTAINED * device.clock)
    loads = clusters * tile.blocks * steps * _loads(tile) / device.multiprocessors
    waits = _EXPOSED * device.costs.warpgroups_l2["loads"] * loads
    return max(busiest, moved) + waits + (_JOINED if tile.cluster > 1 else 0.0)


def _loads(tile: PackedTile) -> float:
    """Bytes of a block in half a step."""
    (height, width), (along_rows, along_columns) = tile.block, tile.shared
    return (height / along_columns * HALF + width / along_rows * tile.bits / 8) * _HALF_STEP


def _dequantised(tile: PackedTile) -> float:
    if math.prod(tile.groups) == 1:
        return _OF_ONE
    if tile.registers is None:
        return _OF_SEVERAL
    if tile.columns > ROWS:
        return _OF_TWO
    return _OF_MORE_REGISTERS + max(0, _ROWS_OF_THESE - tile.rows) / 2
