"""What a tile of a product on tensor cores costs: sums of things that are counted, as
:mod:`tunehub.kernels.cuda.gemm.cost` has it for products without tensor cores. The costs were fitted to 893 tiles of 50
workloads on an H200 (``benchmarks/gpu_fit``)."""

from __future__ import annotations

import math
from itertools import compress

from tunehub.kernels.cuda.gemm.half_default import HALF, matrix_bytes
from tunehub.kernels.cuda.gemm.matmul import AT_ONCE, Matmul
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, runs_of, shared_memory
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import RESERVED_BYTES, WARP

_SECTOR = 32  # bytes that are loaded at once
_OF_ACCUMULATORS, _OF_OPERAND, _OTHER_REGISTERS = 8, 8, 48  # registers of a thread: for a fragment, and addresses


def seconds(matmul: Matmul, tile: TensorTile, device: GpuDevice) -> float:
    """What ``tile`` should take on ``device``."""
    found = counts(matmul, tile, device)
    costs = device.costs.tensor_cores
    return math.fsum(costs[name] * found[name] for name in costs)


def counts(matmul: Matmul, tile: TensorTile, device: GpuDevice) -> dict[str, float]:
    """How much of everything in ``costs.tensor_cores`` there is on the busiest multiprocessor.

    ``products``, ``fragments`` (read from shared memory by a warp), ``loads`` (of a warp), ``sectors``, ``results`` and
    ``apart`` (results whose neighbours are along the rows) keep units of the multiprocessor busy. ``steps``,
    ``pipelined_steps``, ``chain`` (loads of one thread), ``placed`` (elements of windows whose places a thread
    computes) and ``pieces`` (its loads of rows that are no whole vectors, each with a condition, unless these are under
    way while the last are multiplied) are waited for, once for all blocks that are there at the same time.
    """
    batch, *extents = matmul.extents
    block_rows, block_columns, block_depth = tile.block
    rows, columns, steps = (math.ceil(e / size) for e, size in zip(extents, tile.block, strict=True))
    blocks = math.ceil(batch * rows * columns / device.multiprocessors)
    rounds = math.ceil(blocks / min(blocks, _resident(tile, device)))
    parts = (block_rows * block_depth, block_columns * block_depth)
    runs = runs_of(matmul)
    own = [part / math.gcd(vector, run) for part, vector, run in zip(parts, tile.vectors, runs, strict=True)]
    loads, in_pieces = sum(own), (runs[0] < AT_ONCE and not matmul.rows_first, runs[1] < AT_ONCE)
    fragments = tile.all_warps * tile.k_fragments * sum(tile.fragments)
    busy, waited = blocks * steps, rounds * steps
    return {
        "launch": 1.0,
        "products": busy * block_rows * block_columns * block_depth,
        "fragments": busy * fragments,
        "loads": busy * loads / WARP,
        "sectors": busy * sum(parts) * HALF / _SECTOR,
        "placed": waited * parts[0] / tile.threads if matmul.window > 1 and not tile.whole_windows else 0.0,
        "pieces": 0.0 if tile.pipelined else waited * sum(compress(own, in_pieces)) / tile.threads,
        "steps": 0.0 if tile.pipelined else waited,
        "pipelined_steps": waited if tile.pipelined else 0.0,
        "chain": waited * loads / tile.threads,
        "results": blocks * block_rows * block_columns * (1 + tile.groups),
        "apart": blocks * block_rows * block_columns if matmul.columns_first else 0.0,
        "bytes": matrix_bytes(matmul),
    }


def _resident(tile: TensorTile, device: GpuDevice) -> int:
    """How many blocks fit on a multiprocessor at a time."""
    waiting = sum(tile.block[:2]) * tile.block[2] / tile.threads / 2 if tile.pipelined else 0.0
    own = math.prod(tile.fragments) * _OF_ACCUMULATORS + sum(tile.fragments) * _OF_OPERAND
    registers = min(255.0, own + waiting + _OTHER_REGISTERS)
    limits = (
        device.warps / tile.all_warps,
        device.shared_memory / (shared_memory(tile) + RESERVED_BYTES),
        device.registers / (registers * tile.threads),
    )
    return max(1, min(device.blocks, math.floor(min(limits))))
