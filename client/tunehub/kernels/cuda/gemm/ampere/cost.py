"""What a tile of a kernel for warps costs: a sum of counted things, as :mod:`tunehub.kernels.cuda.gemm.cost` has it."""

from __future__ import annotations

import math
from dataclasses import replace

from tunehub.kernels.cuda.gemm.ampere.tiles import WarpTile
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import RESERVED_BYTES, WARP
from tunehub.tir.cuda.ptx.cp_async import COPIED_BYTES
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES

_OTHER_REGISTERS = 48


def seconds(matmul: Matmul, tile: WarpTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    found, costs = counts(matmul, tile, device), device.costs.warps
    return math.fsum(costs[name] * found[name] for name in costs)


def counts(matmul: Matmul, tile: WarpTile, device: GpuDevice) -> dict[str, float]:
    """How much of everything in ``costs.warps`` there is on the busiest multiprocessor.

    ``products``, ``fragments`` (bytes that warps read from shared memory) and ``results`` keep it busy. ``copies`` that
    a thread starts, those whose place in a window is computed (``placed``), ``waits`` (steps whose copies started late)
    and ``rounds`` of blocks that are there together are waited for.
    """
    batch, rows, columns, k = matmul.extents
    height, width = tile.block
    grid = batch * math.ceil(rows / height) * math.ceil(columns / width)
    blocks, steps = math.ceil(grid / device.multiprocessors), math.ceil(k / ROW_BYTES)
    rounds = math.ceil(blocks / resident(tile, steps, device))
    copies = rounds * steps * tile.stage_bytes / COPIED_BYTES / tile.threads
    return {
        "launch": 1.0,
        "products": blocks * steps * height * width * ROW_BYTES,
        "fragments": blocks * steps * math.prod(tile.warps) * (tile.rows + tile.columns) * ROW_BYTES,
        "copies": copies,
        "placed": copies if matmul.runs[0] < k else 0.0,
        "waits": rounds * steps / (tile.stages - 1),
        "rounds": rounds,
        "results": blocks * height * width,
    }


def resident(tile: WarpTile, steps: int, device: GpuDevice) -> int:
    """How many blocks fit on a multiprocessor at a time, which have memory for no more stages than ``steps``."""
    shared = replace(tile, stages=min(tile.stages, steps)).shared_bytes
    registers = min(255, tile.rows * tile.columns // WARP + (tile.rows + tile.columns) // 4 + _OTHER_REGISTERS)
    limits = (
        device.shared_memory // (shared + RESERVED_BYTES),
        device.registers // (registers * tile.threads),
        device.warps * WARP // tile.threads,
    )
    return max(1, min(device.blocks, *limits))
