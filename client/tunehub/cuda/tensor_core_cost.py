"""What a tile of a product on tensor cores costs: a sum of things that are counted from the tile, as
:mod:`tunehub.cuda.cost` has it for products without tensor cores."""

from __future__ import annotations

import math

from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.cuda.matmul import Matmul
from tunehub.cuda.tensor_core import TensorTile, shared_memory
from tunehub.target.gpu_architectures import MOST_BLOCKS, MOST_WARPS, REGISTERS, RESERVED_BYTES, SHARED_BYTES, WARP

_HALF = 2  # bytes
_SECTOR = 32  # bytes that are loaded at once
_OF_SUMS, _OF_OPERAND, _OTHER_REGISTERS = 8, 8, 48  # registers of a thread: for a fragment, and addresses

# Seconds for one of each; see `counts`.
COSTS = {
    "launch": 2.2e-06,
    "products": 2.8e-13,
    "fragments": 1.7e-09,
    "loads": 9.7e-10,
    "sectors": 2.7e-10,
    "placed": 2.0e-10,
    "steps": 2.9e-07,
    "pipelined_steps": 1.5e-07,
    "chain": 8.4e-09,
    "results": 4.2e-11,
    "bytes": 2.5e-13,
}


def seconds(matmul: Matmul, tile: TensorTile) -> float:
    """What ``tile`` should take on a large GPU."""
    found = counts(matmul, tile)
    return math.fsum(COSTS[name] * found[name] for name in COSTS)


def counts(matmul: Matmul, tile: TensorTile) -> dict[str, float]:
    """How much of everything in :data:`COSTS` there is on the busiest multiprocessor.

    ``products``, ``fragments`` (read from shared memory by a warp), ``loads`` (of a warp), ``sectors``, ``placed``
    (elements of windows whose places are computed) and ``results`` keep units of the multiprocessor busy. ``steps``,
    ``pipelined_steps`` and ``chain`` (loads of one thread) are waited for, once for all blocks that are there at the
    same time.
    """
    batch, *extents = matmul.extents
    block_rows, block_columns, block_depth = tile.block
    rows, columns, steps = (math.ceil(e / size) for e, size in zip(extents, tile.block, strict=True))
    blocks = math.ceil(batch * rows * columns / MULTIPROCESSORS)
    rounds = math.ceil(blocks / min(blocks, _resident(tile)))
    parts = (block_rows * block_depth, block_columns * block_depth)
    loads = sum(part / vector for part, vector in zip(parts, tile.vectors, strict=True))
    fragments = tile.all_warps * tile.k_fragments * sum(tile.fragments)
    busy, waited = blocks * steps, rounds * steps
    return {
        "launch": 1.0,
        "products": busy * block_rows * block_columns * block_depth,
        "fragments": busy * fragments,
        "loads": busy * loads / WARP,
        "sectors": busy * sum(parts) * _HALF / _SECTOR,
        "placed": busy * parts[0] if matmul.window > 1 and not tile.whole_windows else 0.0,
        "steps": 0.0 if tile.pipelined else waited,
        "pipelined_steps": waited if tile.pipelined else 0.0,
        "chain": waited * loads / tile.threads,
        "results": blocks * block_rows * block_columns * (1 + tile.groups),
        "bytes": _HALF * batch * (extents[0] * extents[2] + extents[1] * extents[2] + extents[0] * extents[1]),
    }


def _resident(tile: TensorTile) -> int:
    """How many blocks fit on a multiprocessor at a time."""
    waiting = sum(tile.block[:2]) * tile.block[2] / tile.threads / 2 if tile.pipelined else 0.0
    own = math.prod(tile.fragments) * _OF_SUMS + sum(tile.fragments) * _OF_OPERAND
    registers = min(255.0, own + waiting + _OTHER_REGISTERS)
    limits = (
        MOST_WARPS / tile.all_warps,
        SHARED_BYTES / (shared_memory(tile) + RESERVED_BYTES),
        REGISTERS / (registers * tile.threads),
    )
    return max(1, min(MOST_BLOCKS, math.floor(min(limits))))
