"""Softmax along an axis of unknown extent on CUDA: a block of two warps for each row, which it reads from memory three
times: row_max, row_sum, quotients (the safe softmax of Milakov and Gimelshein 2018, arXiv 1805.02867). TVM's own
schedule has 256 threads for a row of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.symbolic.row_reductions import in_threads, reduce_beside
from tunehub.tir.nodes import buffer_of, integer, is_reduction, reduces
from tunehub.tir.schedules import open_schedule, root_blocks

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, SBlock, Schedule

_THREADS = 64
_STEPS = [True, False, True, False]  # which reduce: the largest, exponentials, their sum, quotients


def by_rows(mod: IRModule) -> Schedule | None:
    """A schedule of ``mod``, an IRModule with one PrimFunc ``main``; None unless that is a softmax along an open last
    axis. TVM's errors for schedules that do not apply are raised."""
    schedule = open_schedule(mod)
    found = root_blocks(schedule)
    blocks = [schedule.get(block) for block in found]
    if [reduces(block) for block in blocks] != _STEPS or not _is_softmax(blocks):
        return None
    row_max, exponentials, row_sum, quotients = found
    # Step 1. A block of threads for each row of quotients.
    schedule.compute_inline(exponentials)
    *outer, last = schedule.get_loops(quotients)
    row = schedule.fuse(*outer)
    schedule.bind(row, "blockIdx.x")
    in_threads(schedule, last, _THREADS)
    # Step 2. Both reductions of the row by the same threads.
    reduce_beside(schedule, [row_max, row_sum], row, _THREADS)
    return schedule


def _is_softmax(blocks: Sequence[SBlock]) -> bool:
    """Whether both reductions are along the last axis alone, which is open and the quotients' last, too."""
    kinds = [[is_reduction(axis) for axis in block.iter_vars] for block in blocks]
    shape = [integer(axis.dom.extent) for axis in blocks[-1].iter_vars]
    rows = len(shape) - 1
    expected = [[*[False] * rows, reducing] for reducing in _STEPS]
    chained = all(
        any(buffer_of(region).same_as(buffer_of(blocks[before].writes[0])) for region in blocks[after].reads)
        for before, after in ((0, 1), (1, 2), (1, 3), (2, 3))
    )
    return rows > 0 and shape[-1] is None and kinds == expected and chained
