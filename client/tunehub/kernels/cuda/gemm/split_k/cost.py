"""What tiles of :mod:`.sketch` cost: a sum of things that are counted, as :mod:`tunehub.kernels.cuda.gemm.cost` has it.
The costs were fitted to 484 tiles of 44 workloads, at batch 1, 3 and 8, on an H200 (``benchmarks/gpu_fit``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunehub.kernels.cuda.gemm.cost import Array
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.split_k.sketch import Side, SplitTiles, blocks_of, registers, shared_memory, sides
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import RESERVED_BYTES, WARP

_FLOAT = 4  # bytes
_SECTOR = 32  # bytes that are loaded at once
_VECTOR = 4  # elements that are read from shared memory at once


def seconds(matmul: Matmul, tiles: SplitTiles, device: GpuDevice) -> Array:
    """What each of ``tiles`` should take on ``device``."""
    found = counts(matmul, tiles, device)
    costs = device.costs.split_k
    return np.asarray(sum(costs[name] * found[name] for name in costs))


def counts(matmul: Matmul, tiles: SplitTiles, device: GpuDevice) -> dict[str, Array]:
    """How much of everything in ``costs.split_k`` there is on the busiest multiprocessor, for each of ``tiles``.

    ``products`` and ``shared_reads`` (of a warp, up to four elements each), ``loads`` (of a warp), ``sectors``,
    ``parts`` (partial sums) and ``results`` keep units of the multiprocessor busy. ``steps``, ``pipelined_steps`` and
    ``chain`` (products of one thread) are waited for, once for all blocks that are there at the same time.
    """
    k, both = matmul.extents[-1], sides(matmul)
    slow, fast, depth = tiles.block
    grid = blocks_of(matmul, tiles)
    steps = _ceil(k, depth)
    blocks = _ceil(grid, device.multiprocessors)
    rounds = _ceil(blocks, np.minimum(blocks, resident(matmul, tiles, device)))
    warps = tiles.block_threads / WARP
    accumulators = tiles.sums[0] * tiles.sums[1]
    parts = (slow * depth, fast * depth)
    loads = sum(_loads(side, part, vector) for side, part, vector in zip(both, parts, tiles.vectors, strict=True))
    reads = sum(_reads(side.along, own, tiles.depth) for side, own in zip(both, tiles.sums, strict=True))
    busy, waited = blocks * steps, rounds * steps
    return {
        "launch": np.ones(len(tiles)),
        "products": busy * warps * tiles.depth * accumulators,
        "shared_reads": busy * warps * reads,
        "loads": busy * loads / WARP,
        "sectors": busy * (parts[0] + parts[1]) * (_FLOAT / _SECTOR),
        "steps": waited * ~tiles.pipelined,
        "pipelined_steps": waited * tiles.pipelined,
        "chain": waited * tiles.depth * accumulators,
        "parts": blocks * tiles.groups * slow * fast,
        "results": blocks * slow * fast,
    }


def resident(matmul: Matmul, tiles: SplitTiles, device: GpuDevice) -> Array:
    """How many blocks of each of ``tiles`` fit on a multiprocessor at a time."""
    threads = tiles.block_threads
    limits = (
        device.warps * WARP // threads,
        device.shared_memory // (shared_memory(matmul, tiles) + RESERVED_BYTES),
        device.registers // (threads * registers(matmul, tiles)),
    )
    return np.asarray(np.clip(np.minimum.reduce(limits), 1, device.blocks))


def _loads(side: Side, part: Array, vector: Array) -> Array:
    """Loads of a part of an operand: of windows each element by itself."""
    return part if side.window > 1 else part / vector


def _reads(along: bool, own: Array, depth: Array) -> Array:
    """Reads of shared memory by a thread in a step."""
    return own * depth / np.gcd(_VECTOR, depth if along else own)


def _ceil(whole: Any, part: Any) -> Any:
    return -(-whole // part)
