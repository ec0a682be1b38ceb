"""Norms and softmaxes of rows of known lengths on CUDA: layer norm, RMS norm and whatever else reduces each row, once
or several times, and computes its elements from that.

A warp has a row, or several whose lengths its threads do not divide, several warps are a block, and each thread keeps
its part of the row in registers, which is read once, by vectors. TVM's own schedule has a block of 256 threads for each
row, which read one element at a time, three times for a layer norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.guard import check_exact
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    integer,
    is_reduction,
    is_static,
    parameter_bytes,
    parameters,
    reduces,
)
from tunehub.tir.schedules import has_root, open_schedule, root_blocks, root_nodes

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, Buffer, IRModule, LoopRV, PrimFunc, SBlock, Schedule, Var

NAME, VERSION, ALONE = "row_norms", 1, False
_TYPES = ("float16", "bfloat16", "float32", "uint8", "int8")
_VECTOR_BYTES = 16  # of a load
_MOST_ELEMENTS = 96  # of a row that a thread keeps in registers
_MOST_ROWS = 8  # of a block, where a warp has one
_FEWEST_BYTES = 16  # that the threads of a row read at once
_BLOCKS = 2  # of each multiprocessor, at least, where a block has several rows


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTile:
    """``rows`` of a block, each of so many ``threads``, which read ``vector`` elements at once."""

    rows: int
    vector: int
    threads: int = WARP


@dataclass(frozen=True, kw_only=True, slots=True)
class RowWorkload:
    """``mod``, whose blocks but the last reduce ``count`` rows of ``length`` elements of the parameter ``row``, whose
    type takes ``size`` bytes; so many ``beside`` each other are of one place along all axes but the last of rows."""

    mod: IRModule
    row: Var
    count: int
    beside: int
    length: int
    size: int


def match(mod: IRModule, target: Target) -> RowWorkload | None:
    """A function of known shapes that reduces the rows of one parameter, and computes as many elements."""
    function = mod["main"]
    if not is_static(function) or not has_root(function):
        return None
    nodes = root_nodes(mod)
    reducing = [*map(reduces, nodes)]
    shape = [integer(axis.dom.extent) or 0 for axis in nodes[-1].iter_vars]
    if not any(reducing) or reducing[-1] or len(shape) < 2:
        return None
    schedule = open_schedule(mod)
    found = root_blocks(schedule)
    if not inlined(schedule, [block for block, of_rows in zip(found[:-1], reducing, strict=False) if not of_rows]):
        return None
    blocks = [schedule.get(block) for block in root_blocks(schedule)]
    if not all(map(is_by_place, blocks)) or not all(is_of_rows(block, shape) for block in blocks[:-1]):
        return None
    if not _one_result(function, blocks):
        return None
    row = row_of(function, blocks, shape)
    if row is None:
        return None
    dtype = str(buffer_kind(row).dtype)
    count = int(np.prod(shape[:-1]))
    return RowWorkload(
        mod=schedule.mod, row=row, count=count, beside=shape[-2], length=shape[-1], size=np.dtype(dtype).itemsize
    )


def candidates(workload: RowWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The longest vectors that a warp's threads can read alike, and so many rows in a block that all multiprocessors
    have some; none of rows that too few threads divide."""
    shares = _shares(workload)
    if not shares:
        return
    vector, threads = shares[0]
    enough = _BLOCKS * device.multiprocessors
    fitting = [each for each in range(_MOST_ROWS * WARP // threads, 0, -1) if workload.beside % each == 0]
    rows = next((each for each in fitting if workload.count // each >= enough), 1)
    moved = parameter_bytes(workload.mod["main"])
    tile = RowTile(rows=rows, vector=vector, threads=threads)
    yield KernelCandidate(tile=tile, seconds=device.launches.moving + moved / device.bandwidth)


def _shares(workload: RowWorkload) -> list[tuple[int, int]]:
    """Elements that a thread reads at once, and threads that share a row, the most first."""
    vectors = [each for each in (8, 4, 2, 1) if each * workload.size <= _VECTOR_BYTES]
    return [
        (vector, threads)
        for threads in (WARP, 16, 8, 4)
        for vector in vectors
        if workload.length % (threads * vector) == 0
        and workload.length <= threads * _MOST_ELEMENTS
        and threads * vector * workload.size >= _FEWEST_BYTES
    ]


def build(workload: RowWorkload, tile: RowTile) -> Schedule:
    """The schedule. Raises GuardError where a thread writes what others write, and what TVM raises."""
    schedule = open_schedule(workload.mod)
    *reductions, last = root_blocks(schedule)
    given = {hash(each) for each in parameters(workload.mod["main"])}
    # Step 1. Rows to warps, results by vectors.
    written = schedule.cache_write(last, 0, "local")
    *outer, along = schedule.get_loops(written)
    rows = schedule.fuse(*outer)
    blocks, row = schedule.split(rows, [None, tile.rows])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(row, "threadIdx.y")
    parts, vector = _in_vectors(schedule, along, tile)
    schedule.compute_at(last, parts, preserve_unit_loops=True)
    schedule.vectorize(vector)
    # Step 2. Reductions, in their order, by the same threads.
    for reduction in reversed(reductions):
        schedule.set_scope(reduction, 0, "local")
        schedule.compute_at(reduction, row, preserve_unit_loops=True)
        _, vector = _in_vectors(schedule, schedule.get_loops(reduction)[-1], tile)
        schedule.unroll(vector)
    # Step 3. The row in registers for all of them, weights by vectors.
    reads = [buffer_of(region) for region in schedule.get(reductions[0]).reads]
    kept = next(at for at, buffer in enumerate(reads) if buffer.same_as(workload.row))
    copy = schedule.cache_read(reductions[0], kept, "local", consumer_blocks=[*reductions, last])
    schedule.compute_at(copy, row, preserve_unit_loops=True)
    _, vector = _in_vectors(schedule, schedule.get_loops(copy)[-1], tile)
    schedule.vectorize(vector)
    _read_vectors(schedule, last, parts, given)
    check_exact(schedule.mod["main"])
    return schedule


def _in_vectors(schedule: Schedule, loop: LoopRV, tile: RowTile) -> tuple[LoopRV, LoopRV]:
    """``loop`` as the threads of a row; the vectors of each, which follow those of the others, and their elements."""
    parts, inside, vector = schedule.split(loop, [None, tile.threads, tile.vector])
    schedule.reorder(inside, parts)
    schedule.bind(inside, "threadIdx.x")
    schedule.unroll(parts)
    return parts, vector


def _read_vectors(schedule: Schedule, block: BlockRV, loop: LoopRV, given: set[int]) -> None:
    """What ``block`` reads of other parameters along their last axis comes by vectors, within ``loop``."""
    for at, region in enumerate(list(schedule.get(block).reads)):
        if hash(buffer_of(region)) in given and integer(region.region[-1].extent) == 1:
            cached = schedule.cache_read(block, at, "local", consumer_blocks=[block])
            schedule.compute_at(cached, loop, preserve_unit_loops=True)
            schedule.vectorize(schedule.get_loops(cached)[-1])


def _extents(buffer: Buffer) -> list[int]:
    return [integer(extent) or 0 for extent in buffer_kind(buffer).shape]


def is_by_place(block: SBlock) -> bool:
    """Whether a block writes one element, at the place that its axes say."""
    body = block.body
    if type(body).__name__ != "BufferStore" or len(block.writes) != 1:
        return False
    spatial = [axis for axis in block.iter_vars if not is_reduction(axis)]
    axes = [axis.var for axis in spatial if integer(axis.dom.extent) != 1]
    places = [index for index, extent in zip(body.indices, _extents(body.buffer), strict=True) if extent != 1]
    return len(places) == len(axes) and all(one.same_as(axis) for one, axis in zip(places, axes, strict=True))


def is_of_rows(block: SBlock, shape: Sequence[int]) -> bool:
    """Whether a reduction goes along the last axis of results of the ``shape``, whose others are rows."""
    kinds = [is_reduction(axis) for axis in block.iter_vars]
    extents = [integer(axis.dom.extent) for axis in block.iter_vars]
    rows = [extent for extent in extents[:-1] if extent != 1]
    return (
        kinds.count(True) == 1 and kinds[-1] and extents[-1] == shape[-1] and rows == [e for e in shape[:-1] if e != 1]
    )


def _one_result(function: PrimFunc, blocks: Sequence[SBlock]) -> bool:
    """Whether only the last block writes a parameter."""
    given = {hash(each) for each in parameters(function)}
    return [hash(buffer_of(block.writes[0])) in given for block in blocks] == [False] * (len(blocks) - 1) + [True]


def row_of(function: PrimFunc, blocks: Sequence[SBlock], shape: Sequence[int]) -> Buffer | None:
    """The parameter whose rows all ``blocks`` read, in whatever order of the rows, element by element."""
    *reductions, last = blocks
    given = {hash(each) for each in parameters(function)}
    first, *others = [{hash(buffer_of(each)): buffer_of(each) for each in block.reads} for block in reductions]
    shared = [key for key in first if key in given and all(key in each for each in others)]
    same = [first[key] for key in shared if math.prod(_extents(first[key])) == math.prod(shape)]
    if len(same) != 1 or str(buffer_kind(same[0]).dtype) not in _TYPES:
        return None
    return same[0] if all(_reads_rows(block, same[0]) for block in (*reductions, last)) else None


def _reads_rows(block: SBlock, row: Buffer) -> bool:
    """Whether ``block`` reads of ``row`` the place along its last axis that its own last axis says, of a row that its
    others say."""
    from tvm.tirx.analysis import undefined_vars

    along = block.iter_vars[-1].var
    regions = [region.region for region in block.reads if buffer_of(region).same_as(row)]
    return all(
        integer(last.extent) == 1
        and last.min.same_as(along)
        and not any(each.same_as(along) for index in before for each in undefined_vars(index.min))
        for *before, last in regions
    )


def inlined(schedule: Schedule, blocks: Iterable[BlockRV]) -> bool:
    """Compute all ``blocks`` where they are read; False where TVM refuses that."""
    try:
        for block in blocks:
            schedule.compute_inline(block)
    except Exception:  # TVM raises many kinds
        return False
    return True
