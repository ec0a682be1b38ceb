"""Sums and means of columns of known lengths on CUDA, such as those over the pixels of an image whose channels are
last, products of one row with a matrix [K, N], and what is made of them, number by number.

A block has columns side by side, and its threads share the rows; TVM's own schedule has 16 threads for those, each of
which waits for one load after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.guard import check_tiles
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_reduction, is_static, parameter_bytes, reduces
from tunehub.tir.schedules import has_root, open_schedule, root_blocks, root_nodes
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BufferLoad, IRModule, IterVar, PrimExpr, SBlock, Schedule

NAME, VERSION, ALONE = "column_sums", 1, False
_COLUMNS = (16, 8)  # of a block: a sector of memory, or half of one
_MOST_THREADS = 1024  # of a block
_AT_ONCE = 8  # loads of a thread, at most
_FEWEST_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnTile:
    """``columns`` of a block, whose rows so many ``threads`` share, each of which loads ``at_once``."""

    columns: int
    threads: int
    at_once: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnWorkload:
    """``mod``, whose first block adds up ``rows`` of ``columns``, the last axis of which has ``length``."""

    mod: IRModule
    rows: int
    columns: int
    length: int


def match(mod: IRModule, target: Target) -> ColumnWorkload | None:
    """A function of known shapes with one reduction, of a parameter's rows, and steps behind it of as many numbers."""
    function = mod["main"]
    if not is_static(function) or not has_root(function):
        return None
    blocks = root_nodes(mod)
    reducing = [at for at, block in enumerate(blocks) if reduces(block)]
    if reducing != [0] or len(blocks) < 2:
        return None
    extents = [(integer(axis.dom.extent) or 0, is_reduction(axis)) for axis in blocks[0].iter_vars]
    columns, rows = (math.prod(extent for extent, kind in extents if kind is wanted) for wanted in (False, True))
    results = [math.prod(integer(axis.dom.extent) or 0 for axis in block.iter_vars) for block in blocks[1:]]
    length = _length(blocks[0])
    if length is None or any(each != columns for each in results):
        return None
    return ColumnWorkload(mod=mod, rows=rows, columns=columns, length=length)


def candidates(workload: ColumnWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """As many threads for the rows as divide them; none where there are few rows."""
    columns = next((each for each in _COLUMNS if workload.length % each == 0), None)
    if columns is None or workload.rows < _FEWEST_ROWS:
        return
    threads = _divisor(workload.rows, _MOST_THREADS // columns)
    at_once = _divisor(workload.rows // threads, _AT_ONCE)
    moved = parameter_bytes(workload.mod["main"])
    tile = ColumnTile(columns=columns, threads=threads, at_once=at_once)
    yield KernelCandidate(tile=tile, seconds=device.launches.moving + moved / device.bandwidth)


def build(workload: ColumnWorkload, tile: ColumnTile) -> Schedule:
    """The schedule. Raises GuardError where a thread writes what others write, and what TVM raises."""
    schedule = open_schedule(workload.mod)
    # Step 1. Steps behind the sums in one.
    reduction, *between, last = root_blocks(schedule)
    for block in between:
        schedule.compute_inline(block)
    # Step 2. Columns to blocks and threads side by side, rows to the others.
    kinds = [is_reduction(axis) for axis in schedule.get(reduction).iter_vars]
    loops = schedule.get_loops(reduction)
    kept = [loop for loop, reducing in zip(loops, kinds, strict=True) if not reducing]
    reduced = [loop for loop, reducing in zip(loops, kinds, strict=True) if reducing]
    schedule.reorder(*kept, *reduced)
    rows, columns = schedule.fuse(*reduced), schedule.fuse(*kept)
    blocks, column = schedule.split(columns, [None, tile.columns])
    shared, _, at_once = schedule.split(rows, [tile.threads, None, tile.at_once])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(column, "threadIdx.x")
    schedule.bind(shared, "threadIdx.y")
    schedule.unroll(at_once)
    # Step 3. Results, by the threads that have the sums.
    schedule.set_scope(reduction, 0, "shared")
    schedule.reverse_compute_at(last, blocks, preserve_unit_loops=True)
    schedule.bind(schedule.fuse(*schedule.get_loops(last)[1:]), "threadIdx.x")
    check_tiles(schedule.mod["main"])
    return schedule


def _divisor(number: int, most: int) -> int:
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


def _length(block: SBlock) -> int | None:
    """Of the last axis, which is kept, of a parameter that ``block`` adds up, as it is or, in half precision and of one
    row alone, times one number for each of its rows; None for other sums."""
    body = block.body
    if type(body).__name__ != "BufferStore" or type(body.value).__name__ != "Add" or block.init is None:
        return None
    summand: PrimExpr = getattr(body.value, "b", None)
    factors = [summand.a, summand.b] if type(summand).__name__ == "Mul" else [summand]
    loads = [each.value if type(each).__name__ == "Cast" else each for each in factors]
    if any(type(each).__name__ not in LOADS for each in loads) or len(block.writes) != 1:
        return None
    kept = [axis for axis in block.iter_vars if not is_reduction(axis) and integer(axis.dom.extent) != 1]
    if len(loads) == 2:
        loads = loads if _is_kept(loads[0].indices[-1], kept) else loads[::-1]
        if len(kept) != 1 or any(_is_kept(index, kept) for index in loads[1].indices) or not _is_half(loads):
            return None
    extent = integer(buffer_kind(buffer_of(loads[0])).shape[-1])
    found = [integer(axis.dom.extent) for axis in kept if axis.var.same_as(loads[0].indices[-1])]
    return extent if found == [extent] else None


def _is_kept(index: PrimExpr, kept: Sequence[IterVar]) -> bool:
    return any(axis.var.same_as(index) for axis in kept)


def _is_half(loads: Sequence[BufferLoad]) -> bool:
    return all(str(buffer_kind(buffer_of(each)).dtype) in ("float16", "bfloat16") for each in loads)
