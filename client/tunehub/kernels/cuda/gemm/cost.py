"""What a tile of a product costs on a CUDA GPU, and what TVM's own schedule takes: rules without TVM.

A block of threads computes a tile of the result. In each step it loads a part of both operands into shared memory, and
every thread adds the products for its own elements, which lie in registers. The time is a sum of things that can be
counted from the tile alone; what one of each costs was fitted to times that were measured (``benchmarks/gpu_fit``,
16 thousand schedules of seven networks and other shapes on an H200; docs/adr/0018). All costs are positive, so that a
tile far from those that were measured is not found cheap by accident.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import BANKS, REGISTERS_OF_A_THREAD, RESERVED_BYTES, WARP

Array = npt.NDArray[Any]

_SECTOR = 8  # float32 numbers that are loaded at once
_OTHER_REGISTERS = 28  # of a thread: addresses and counters
_FLOAT = 4  # bytes

_DEFAULT_TILE, _DEFAULT_STEP = 32, 16  # of TVM's own rule for matmuls
SHORT_K = 16  # up to which TVM's own schedule for products with a vector has next to nothing for its threads


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """``scale`` * (``loop`` // ``divisor``): what a loop, counted through spatial and reduction loops, adds."""

    loop: int
    scale: int
    divisor: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """A buffer that is read: its shape, and the index in each of its dimensions as a sum of terms."""

    shape: tuple[int, ...]
    index: tuple[tuple[Term, ...], ...]

    @property
    def loops(self) -> frozenset[int]:
        """The loops that the place of an element depends on."""
        return frozenset(term.loop for terms in self.index for term in terms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Products of elements of two ``operands``, reduced: extents of the loops over results and over the reduction."""

    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    operands: tuple[Operand, Operand]

    @property
    def results(self) -> int:
        """How many elements the result has."""
        return math.prod(self.spatial)

    @property
    def summands(self) -> int:
        """How many products are added up for each."""
        return math.prod(self.reduction)

    @property
    def bytes(self) -> int:
        """Of the operands and the result, in float32."""
        return _FLOAT * (sum(math.prod(operand.shape) for operand in self.operands) + self.results)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """Tiles to compare, a row each: ``virtual`` threads, ``threads`` and ``inner`` elements of a thread for each loop
    over results; for each loop over what is added up how much of it is in one ``step``. The last one of a loop may go
    beyond its end: it takes as long as the others."""

    virtual: Array
    threads: Array
    inner: Array
    step: Array

    def __len__(self) -> int:
        return len(self.threads)

    def at(self, rows: Array) -> Tiles:
        """Some of the tiles."""
        return Tiles(
            virtual=self.virtual[rows], threads=self.threads[rows], inner=self.inner[rows], step=self.step[rows]
        )


def seconds(problem: Problem, tiles: Tiles, device: GpuDevice, *, conflicts: bool = True) -> Array:
    """The time that each tile should take on ``device``; ``conflicts``: of threads for a bank of shared memory, too."""
    found = counts(problem, tiles, device, conflicts=conflicts)
    costs = device.costs.threads
    return np.asarray(sum(costs[name] * found[name] for name in costs))


def counts(problem: Problem, tiles: Tiles, device: GpuDevice, *, conflicts: bool = True) -> dict[str, Array]:
    """How much of everything in ``costs.threads`` there is on the busiest multiprocessor, for each of ``tiles``.

    ``products``, ``shared_reads``, ``bank_conflicts`` (each of a warp) and ``sectors`` (of 32 bytes) keep units of the
    multiprocessor busy. ``steps``, ``loads`` and ``chain`` (of one thread) are waited for, once for all blocks that are
    there at the same time. ``spilled`` are registers that a thread lacks, in each step of K.
    """
    of_thread = tiles.virtual * tiles.inner
    of_block = of_thread * tiles.threads
    accumulators, threads = _product(of_thread), _product(tiles.threads)
    warps = np.ceil(threads / WARP)
    grid = _product(np.ceil(np.array(problem.spatial) / of_block))
    steps = _product(np.ceil(np.array(problem.reduction) / tiles.step))
    summands = steps * _product(tiles.step)
    parts = [_extents(each, np.hstack([of_block, tiles.step])) for each in problem.operands]
    once = np.ones_like(tiles.step)
    reads = [_product(_extents(each, np.hstack([of_thread, once]))) for each in problem.operands]
    loads = sum(np.ceil(_product(part) / threads) for part in parts)
    needed = accumulators + sum(reads) + _OTHER_REGISTERS
    blocks = np.ceil(grid / device.multiprocessors)
    rounds = np.ceil(blocks / np.minimum(blocks, _resident(device, warps, needed, shared_bytes(problem, tiles))))
    busy = blocks * warps * summands
    degrees = [
        _ways(each, tiles, part) if conflicts else 1.0 for each, part in zip(problem.operands, parts, strict=True)
    ]
    return {
        "launch": np.ones(len(tiles)),
        "products": busy * accumulators,
        "shared_reads": busy * sum(reads),
        "bank_conflicts": busy * sum(read * (ways - 1.0) for read, ways in zip(reads, degrees, strict=True)),
        "sectors": blocks * steps * sum(_sectors(e, part) for e, part in zip(problem.operands, parts, strict=True)),
        "steps": rounds * steps,
        "loads": rounds * steps * loads,
        "chain": rounds * summands * accumulators,
        "bytes": np.full(len(tiles), float(problem.bytes)),
        "spilled": rounds * summands * np.maximum(0.0, needed - _available(device, warps)),
    }


def shared_bytes(problem: Problem, tiles: Tiles) -> Array:
    """Shared memory of a block, in bytes."""
    block = np.hstack([tiles.virtual * tiles.inner * tiles.threads, tiles.step])
    return np.asarray(_FLOAT * sum(_product(_extents(operand, block)) for operand in problem.operands))


def default_s(problem: Problem, device: GpuDevice) -> float | None:
    """What TVM's own schedule should take on ``device``; None when neither its rule for matmuls nor that for products
    with a vector fits.

    It then takes several times as long as a tile: in 29 of 29 workloads, convolutions in groups, 3.9 times at least.
    """
    shape = matrix_shape(problem)
    if shape is None:
        vectors = _is_batch_of_vectors(problem) and problem.summands > SHORT_K
        of_vectors = device.costs.vectors_default
        return of_vectors["launch"] + problem.bytes * of_vectors["bytes"] if vectors else None
    found = default_counts(problem, shape, device)
    costs = device.costs.threads_default
    return math.fsum(costs[name] * found[name] for name in costs)


def default_counts(problem: Problem, shape: tuple[int, int, int], device: GpuDevice) -> dict[str, float]:
    """As :func:`counts`, of TVM's rule for products of ``shape``. Convolutions with a window cost it more."""
    batch, rows, columns = shape
    blocks = batch * math.ceil(rows / _DEFAULT_TILE) * math.ceil(columns / _DEFAULT_TILE)
    summands = math.ceil(problem.summands / _DEFAULT_STEP) * _DEFAULT_STEP
    window = float(any(len(terms) > 1 for operand in problem.operands for terms in operand.index))
    work = math.ceil(blocks / device.multiprocessors) * summands
    return {
        "launch": 1.0,
        "chain": summands,
        "work": work,
        "window_chain": window * summands,
        "window_work": window * work,
        "bytes": problem.bytes,
    }


def matrix_shape(problem: Problem) -> tuple[int, int, int] | None:
    """(batch, rows, columns) when the products are those of matrices; None for convolutions in groups."""
    first, second = (operand.loops for operand in problem.operands)
    if any(term.divisor > 1 for operand in problem.operands for terms in operand.index for term in terms):
        return None

    def size(loops: Iterable[int]) -> int:
        return math.prod(extent for loop, extent in enumerate(problem.spatial) if loop in loops)

    rows, columns, batch = size(first - second), size(second - first), size(first & second)
    return None if min(rows, columns) == 1 and batch > 1 else (batch, rows, columns)


def _is_batch_of_vectors(problem: Problem) -> bool:
    """Whether these are several products with a vector: no windows, no groups."""
    terms = [terms for operand in problem.operands for terms in operand.index]
    return all(len(each) <= 1 and all(term.divisor == 1 for term in each) for each in terms)


def _product(columns: Array) -> Array:
    return np.asarray(np.prod(columns, axis=1, dtype=np.float64))


def _extents(operand: Operand, loops: Array) -> Array:
    """How far a tile with these extents of ``loops`` reaches in each dimension of ``operand``: along a single loop also
    beyond its end."""
    reach = [1 + sum(_moved(term, loops[:, term.loop]) for term in terms) for terms in operand.index]
    most = [shape if len(terms) > 1 else math.inf for terms, shape in zip(operand.index, operand.shape, strict=True)]
    rows = [np.minimum(np.broadcast_to(each, len(loops)), end) for each, end in zip(reach, most, strict=True)]
    return np.stack(rows, axis=1).astype(np.float64)


def _moved(term: Term, extents: Array) -> Array:
    return np.asarray(term.scale * (np.ceil(extents / term.divisor) - 1))


def _sectors(operand: Operand, part: Array) -> Array:
    """Sectors that the ``part`` of an operand lies in: whole dimensions make one row with those before."""
    row, whole = np.ones(len(part)), np.ones(len(part), dtype=bool)
    for axis in reversed(range(part.shape[1])):
        row = np.where(whole, row * part[:, axis], row)
        whole &= part[:, axis] == operand.shape[axis]
    begun = np.where(row % _SECTOR == 0, 0.0, 0.5)  # a row that starts inside a sector
    return np.asarray(_product(part) / row * (np.ceil(row / _SECTOR) + begun))


def _resident(device: GpuDevice, warps: Array, registers: Array, shared: Array) -> Array:
    """How many blocks fit on a multiprocessor at a time."""
    held = np.ceil(np.minimum(registers, REGISTERS_OF_A_THREAD) / 8) * 8 * warps * WARP
    limits = (device.warps / warps, device.shared_memory / (shared + RESERVED_BYTES), device.registers / held)
    return np.asarray(np.maximum(1, np.minimum(device.blocks, np.floor(np.minimum.reduce(limits)))))


def _available(device: GpuDevice, warps: Array) -> Array:
    return np.asarray(np.minimum(REGISTERS_OF_A_THREAD, device.registers / (warps * WARP)))


def _ways(operand: Operand, tiles: Tiles, part: Array) -> Array:
    """How many different places of one bank the threads of the first warp read at most at a time."""
    lanes = _lanes(tiles)
    address = np.zeros((len(tiles), WARP), dtype=np.int64)
    for axis, terms in enumerate(operand.index):
        index = sum((term.scale * (lanes[term.loop] // term.divisor) for term in terms if term.loop in lanes), 0)
        address = address * part[:, axis : axis + 1].astype(np.int64) + index
    ordered = np.sort(address, axis=1)
    new = np.ones_like(ordered, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    place = ordered % BANKS + np.arange(len(tiles))[:, None] * BANKS
    taken = np.bincount(place[new], minlength=len(tiles) * BANKS)
    return np.asarray(taken.reshape(len(tiles), BANKS).max(axis=1))


def _lanes(tiles: Tiles) -> dict[int, Array]:
    """By loop the first element of each thread of a warp; a block with fewer threads has the last one again."""
    rest = np.minimum(np.arange(WARP), _product(tiles.threads).astype(np.int64)[:, None] - 1)
    found = {}
    for loop in reversed(range(tiles.threads.shape[1])):
        extent = tiles.threads[:, loop : loop + 1]
        found[loop] = rest % extent * tiles.inner[:, loop : loop + 1]
        rest = rest // extent
    return found


def as_tiles(rows: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]]) -> Tiles:
    """Tiles of (virtual, threads, inner, step) each."""
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    return Tiles(virtual=columns[0], threads=columns[1], inner=columns[2], step=columns[3])
