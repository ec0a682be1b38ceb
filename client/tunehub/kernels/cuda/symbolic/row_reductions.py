"""Several reductions of each row, one after the other, such as the largest value of a row and the first place that has
it, for an unknown number of rows on CUDA: a block of threads for each row. TVM's rules know one reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.tir.nodes import integer, is_reduction
from tunehub.tir.schedules import open_schedule, root_blocks

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, SBlock, Schedule

_MOST_THREADS = 1024  # of a block: any GPU launches as many
_ELEMENTS = 8  # of a thread, at least


def by_rows(mod: IRModule) -> Schedule | None:
    """A schedule of ``mod``, an IRModule with one PrimFunc ``main``; None unless that is reductions of the same rows
    alone, two or more, of a known length. TVM's errors for schedules that do not apply are raised."""
    schedule = open_schedule(mod)
    found = root_blocks(schedule)
    length = _length([schedule.get(block) for block in found])
    if length is None:
        return None
    threads = 32
    while threads < _MOST_THREADS and 2 * threads * _ELEMENTS <= length:
        threads *= 2
    *before, last = found
    *outer, _ = schedule.get_loops(last)
    row = schedule.fuse(*outer)
    schedule.bind(row, "blockIdx.x")
    reduce_beside(schedule, before, row, threads)
    in_threads(schedule, schedule.get_loops(last)[-1], threads)
    return schedule


def reduce_beside(schedule: Schedule, reductions: Sequence[BlockRV], row: LoopRV, threads: int) -> None:
    """Make ``reductions``, in their order, within each ``row`` by so many ``threads``, into shared memory."""
    for reduction in reversed(reductions):
        schedule.set_scope(reduction, 0, "shared")
        schedule.compute_at(reduction, row, preserve_unit_loops=True)
        in_threads(schedule, schedule.get_loops(reduction)[-1], threads)


def in_threads(schedule: Schedule, loop: LoopRV, threads: int) -> None:
    """Bind ``loop``, taken apart by so many, to threads."""
    schedule.bind(schedule.split(loop, [None, threads])[1], "threadIdx.x")


def _length(blocks: Sequence[SBlock]) -> int | None:
    """Of the rows that all ``blocks`` reduce along their last axis alone; None if that is not what they do."""
    if len(blocks) < 2:
        return None
    lengths = {integer(block.iter_vars[-1].dom.extent) for block in blocks}
    count = len(blocks[-1].iter_vars)
    rows = all([is_reduction(axis) for axis in block.iter_vars] == [*[False] * (count - 1), True] for block in blocks)
    single = all(len(block.writes) == 1 for block in blocks)
    return lengths.pop() if len(lengths) == 1 and rows and single and count > 1 else None
