"""What a tile of a kernel for warps costs: what tensor cores, shared memory and the L2 cache take of a step, by the
rates of the device."""

from __future__ import annotations

import math

from tunehub.kernels.cuda.gemm.ampere.tiles import WarpTile
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import RESERVED_BYTES, WARP
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES

_FASTER = 2.0  # 8 bits than 16
_BY_WARPS = {"sm_90": 0.62}  # of what tensor cores reach by warpgroups
_BANK_BYTES = 128  # of shared memory in a cycle
_STEP_S, _ROUND_S, _LAUNCH_S = 2.0e-7, 1.0e-6, 2.0e-6  # of a chain of copies, of a block's begin and end, of a kernel
_OTHER_REGISTERS = 48


def seconds(matmul: Matmul, tile: WarpTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    batch, rows, columns, k = matmul.extents
    height, width = tile.block
    grid = batch * math.ceil(rows / height) * math.ceil(columns / width)
    blocks = math.ceil(grid / device.multiprocessors)
    together = min(blocks, resident(tile, device))
    rounds = math.ceil(blocks / together)
    steps = math.ceil(k / ROW_BYTES)
    busy = blocks * steps * step_s(tile, device)
    waited = rounds * (steps * _STEP_S / (tile.stages - 1) + _ROUND_S)
    results = blocks * height * width * 6 / _BANK_BYTES / device.clock
    moved = batch * (rows * k / max(matmul.window, 1) + columns * k + rows * columns) / device.bandwidth
    return _LAUNCH_S + max(busy, waited, moved) + 0.25 * waited + results


def step_s(tile: WarpTile, device: GpuDevice) -> float:
    """What a multiprocessor takes for 128 of K of a block: its tensor cores, its shared memory, its loads."""
    height, width = tile.block
    rate = _FASTER * _BY_WARPS.get(device.architecture, 1.0) * device.tensor_flops / 2 / device.multiprocessors
    products = height * width * ROW_BYTES / rate
    read = math.prod(tile.warps) * (tile.rows + tile.columns) * ROW_BYTES
    shared = (read + tile.stage_bytes) / _BANK_BYTES / device.clock
    loaded = tile.stage_bytes * device.multiprocessors / device.l2_bandwidth
    return max(products, shared, loaded) + 0.2 * min(products, shared)


def resident(tile: WarpTile, device: GpuDevice) -> int:
    """How many blocks fit on a multiprocessor at a time."""
    registers = min(255, tile.rows * tile.columns // WARP + (tile.rows + tile.columns) // 4 + _OTHER_REGISTERS)
    limits = (
        device.shared_memory // (tile.shared_bytes + RESERVED_BYTES),
        device.registers // (registers * tile.threads),
        device.warps * WARP // tile.threads,
    )
    return max(1, min(device.blocks, *limits))
