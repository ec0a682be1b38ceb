"""A reduction of each row and what is made of it and the row, such as an RMS norm, in half precision for an unknown
number of rows on CUDA: a block of threads for each row, which read and write eight neighbours at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.symbolic.elementwise import VECTOR, vector_threads
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_reduction, parameters, reduces
from tunehub.tir.schedules import open_schedule, root_blocks

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, SBlock, Schedule


def by_rows(mod: IRModule) -> Schedule | None:
    """A schedule of ``mod``, an IRModule with one PrimFunc ``main``; None unless that is one reduction of rows of a
    known length and elementwise functions. TVM's errors for schedules that do not apply are raised."""
    schedule = open_schedule(mod)
    found = root_blocks(schedule)
    blocks = [schedule.get(block) for block in found]
    reducing = [at for at, block in enumerate(blocks) if reduces(block)]
    threads = vector_threads(blocks[-1])
    if threads is None or len(reducing) != 1 or not _is_of_rows(blocks[reducing[0]], blocks[-1]):
        return None
    reduction, last = found[reducing[0]], found[-1]
    for block in found[:-1]:
        if block is not reduction:
            schedule.compute_inline(block)
    given = {hash(each) for each in parameters(mod["main"])}
    written = schedule.cache_write(last, 0, "local")
    *outer, along = schedule.get_loops(written)
    row = schedule.fuse(*outer)
    schedule.bind(row, "blockIdx.x")
    parts, vector = _in_vectors(schedule, along, threads)
    schedule.compute_at(last, parts)
    schedule.vectorize(vector)
    _read_vectors(schedule, last, parts, given)
    schedule.set_scope(reduction, 0, "shared")
    schedule.compute_at(reduction, row, preserve_unit_loops=True)
    parts, _ = _in_vectors(schedule, schedule.get_loops(reduction)[-1], threads)
    _read_vectors(schedule, reduction, parts, given)
    return schedule


def _in_vectors(schedule: Schedule, loop: LoopRV, threads: int) -> tuple[LoopRV, LoopRV]:
    """``loop`` as threads; inside of it the vectors of each, and the elements of each vector."""
    parts, inside, vector = schedule.split(loop, [None, threads, VECTOR])
    schedule.reorder(inside, parts)
    schedule.bind(inside, "threadIdx.x")
    return parts, vector


def _read_vectors(schedule: Schedule, block: BlockRV, loop: LoopRV, given: set[int]) -> None:
    """What ``block`` reads of parameters along their last axis comes by vectors, within ``loop``."""
    reads = [buffer_of(region) for region in schedule.get(block).reads]
    for at, buffer in enumerate(reads):
        if hash(buffer) in given and str(buffer_kind(buffer).dtype) in ("float16", "bfloat16"):
            cached = schedule.cache_read(block, at, "local", consumer_blocks=[block])
            schedule.compute_at(cached, loop)
            schedule.vectorize(schedule.get_loops(cached)[-1])


def _is_of_rows(reduction: SBlock, last: SBlock) -> bool:
    """Whether ``reduction`` goes along the last axis of ``last``, whose others are rows."""
    kinds = [is_reduction(axis) for axis in reduction.iter_vars]
    lengths: list[int | None] = [integer(block.iter_vars[-1].dom.extent) for block in (reduction, last)]
    rows = len(last.iter_vars) - 1
    return rows > 0 and kinds == [*[False] * rows, True] and lengths[0] == lengths[1] is not None
