"""Softmax, layer norm and other reductions over the last axis: one row of the tensor after the other.

All steps of a row run while it is in cache; rows are shared among threads. Sums and maxima are kept in vectors and
joined at the end (``rfactor``), which changes the order of additions. Where the vectors do not divide a row, functions
may keep their sums in vectors themselves (the softmax of :mod:`tunehub.graph.numerics.fast_math`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tunehub.kernels.cpu.base import FLOAT_BYTES, Block, Knobs, Machine, refusing, require, size_of, worth_threads
from tunehub.kernels.cpu.divisors import divisors
from tunehub.tir.nodes import is_reduction, reduces
from tunehub.tir.schedules import open_schedule

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, Schedule

_ROW_FLOPS = 20  # per element: an exponential, or a few passes


@dataclass(frozen=True, kw_only=True, slots=True)
class LastAxisWorkload:
    """``lead``: axes that all blocks share; ``length``: of the last axis; ``blocks``: all, in order.

    ``side``: how many sums each reduction of the function keeps side by side before it joins them; 1: one.
    """

    lead: tuple[int, ...]
    length: int
    blocks: tuple[Block, ...]
    side: int = 1

    @property
    def flops(self) -> int:
        """A rough count: every element of every block costs the same."""
        return _ROW_FLOPS * size_of(self.lead) * self.length

    @property
    def bytes_moved(self) -> int:
        """The size of what is read and written once."""
        return 2 * FLOAT_BYTES * size_of(self.lead) * self.length


class LastAxisKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``lanes``: elements of a vector in elementwise steps; ``partial``: sums kept side by side in reductions.

    ``parallel``: use the thread pool.
    """

    lanes: Annotated[int, Meta(ge=1, le=64)]
    partial: Annotated[int, Meta(ge=1, le=256)]
    parallel: bool = True


NAME, VERSION, KNOBS = "last_axis", 1, LastAxisKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> LastAxisWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None unless all its reductions run over one last axis."""
    reductions = [block for block in blocks if block.reduction]
    if not reductions or any(len(block.reduction) != 1 or block.dtype != "float32" for block in reductions):
        return None
    lead = min((_without_ones(block.spatial) for block in reductions), key=len)
    apart = [block for block in reductions if len(_without_ones(block.spatial)) > len(lead)]
    whole = [block for block in blocks if not block.reduction] if apart else reductions
    if not whole or not all((*block.spatial, *block.reduction) for block in whole):
        return None
    length, side = (*whole[0].spatial, *whole[0].reduction)[-1], apart[0].spatial[-1] if apart else 1
    row, sums = (*lead, length), (*lead, side)
    allowed: set[tuple[tuple[int, ...], tuple[int, ...]]] = {(row, ()), (lead, ())}
    allowed |= {(sums, (-(-length // side),)), (lead, (side,))} if apart else {(lead, (length,))}
    if length == 1 or any((_without_ones(block.spatial), block.reduction) not in allowed for block in blocks):
        return None
    if not apart and not all(_reads_rows(block, row) for block in reductions):
        return None
    return LastAxisWorkload(lead=lead, length=length, blocks=blocks, side=side)


def knob_space(workload: LastAxisWorkload, machine: Machine) -> list[LastAxisKnobs]:
    """The choices worth measuring, the default's first."""
    found = {default_knobs(workload, machine): None}
    for lanes in (machine.vector, machine.vector // 2, 2 * machine.vector):
        for partial in _partials(workload, machine):
            if lanes <= workload.length:
                found.setdefault(LastAxisKnobs(lanes=lanes, partial=partial, parallel=_parallel(workload, machine)))
    return list(found)


def default_knobs(workload: LastAxisWorkload, machine: Machine) -> LastAxisKnobs:
    """The choice of a rule, without measuring: full vectors, and two of them for sums where the length allows."""
    partial = max(divisors(workload.length, 2 * machine.vector)) if workload.side == 1 else 1
    return LastAxisKnobs(
        lanes=min(machine.vector, workload.length),
        partial=partial if partial >= 4 else 1,
        parallel=_parallel(workload, machine),
    )


def gains(workload: LastAxisWorkload, machine: Machine) -> bool:
    """False where nothing but the elements is in vectors: sums of a row that are taken one after the other, since its
    length has no divisor for several side by side, take as long in TVM's own loops, and those have no rest."""
    knobs = default_knobs(workload, machine)
    return workload.side > 1 or knobs.partial > 1 or knobs.parallel or workload.length % knobs.lanes == 0


def _partials(workload: LastAxisWorkload, machine: Machine) -> list[int]:
    """Numbers of sums side by side; a function that has several itself gets no more."""
    if workload.side > 1:
        return [1]
    return [1, *[d for d in divisors(workload.length, 4 * machine.vector) if d % 4 == 0]]


@refusing
def apply(mod: IRModule, workload: LastAxisWorkload, knobs: LastAxisKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    require(knobs.lanes <= workload.length, f"lanes: {knobs.lanes} is more than a row of {workload.length}")
    require(workload.length % knobs.partial == 0, f"partial: {knobs.partial} does not divide {workload.length}")
    require(workload.side == 1 or knobs.partial == 1, f"partial: the function itself keeps {workload.side} sums")
    schedule = open_schedule(mod)
    last = schedule.get_sblock(workload.blocks[-1].name)
    if workload.blocks[-1].reduction:
        last = schedule.cache_write(last, 0, "global")
    # Step 1. A reduction in vectors becomes partial sums in lanes, and their sum.
    steps = [part for block in workload.blocks for part in _parts(schedule, block, knobs)]
    # Step 2. All steps of a row in its loop; rows among threads.
    outer = _row_loop(schedule, last, workload)
    kept = [block for block in reversed(steps) if not _is_last(schedule, block, last)]
    moved = [block for block in kept if _moved(schedule, block, outer)]
    if knobs.parallel:
        schedule.parallel(outer)  # decomposing comes later: parallel wants reductions in one block
    # Step 3. Vectors along the row.
    for block in [*moved, last]:
        _vectorize(schedule, block, workload, knobs)
    return schedule


def _parts(schedule: Schedule, block: Block, knobs: LastAxisKnobs) -> list[BlockRV]:
    """The block, or for a reduction in vectors the two that it becomes."""
    anchor = schedule.get_sblock(block.name)
    if not block.reduction or knobs.partial == 1:
        return [anchor]
    _, lanes = schedule.split(schedule.get_loops(anchor)[-1], [None, knobs.partial])
    return [schedule.rfactor(lanes, -1), anchor]


def _row_loop(schedule: Schedule, last: BlockRV, workload: LastAxisWorkload) -> LoopRV:
    """The loop over rows: all loops of the last block but that over a row."""
    loops = schedule.get_loops(last)
    inside = 1 if _covers_row(schedule, last, workload) else 0
    rows = loops[: len(loops) - inside]
    return schedule.fuse(*rows) if rows else schedule.add_unit_loop(loops[0])


def _covers_row(schedule: Schedule, block: BlockRV, workload: LastAxisWorkload) -> bool:
    """True for an elementwise step over whole rows."""
    return not _reduces(schedule, block) and _extents(schedule, block) == (*workload.lead, workload.length)


def _extents(schedule: Schedule, block: BlockRV) -> tuple[int, ...]:
    """The extents of the axes that are no reductions, without ones."""
    axes = schedule.get(block).iter_vars
    return _without_ones(tuple(int(axis.dom.extent) for axis in axes if not is_reduction(axis)))


def _is_last(schedule: Schedule, block: BlockRV, last: BlockRV) -> bool:
    return bool(schedule.get(block).name_hint == schedule.get(last).name_hint)


def _moved(schedule: Schedule, block: BlockRV, outer: LoopRV) -> bool:
    """Move a step into the loop over rows; False for one that is inlined, because one other step reads it."""
    if not _reduces(schedule, block) and len(schedule.get_consumers(block)) == 1:
        schedule.compute_inline(block)
        return False
    schedule.compute_at(block, outer, preserve_unit_loops=True)
    return True


def _reduces(schedule: Schedule, block: BlockRV) -> bool:
    return reduces(schedule.get(block))


def _vectorize(schedule: Schedule, block: BlockRV, workload: LastAxisWorkload, knobs: LastAxisKnobs) -> None:
    """Vectors in steps over whole rows, and in the first of the two parts of a reduction in vectors."""
    if _reduces(schedule, block):
        if str(schedule.get(block).name_hint).endswith("_rf"):
            _, lanes, *_, steps = schedule.get_loops(block)  # rfactor makes the factor the block's first axis
            _vectorize_sums(schedule, block, lanes, steps)
        elif workload.side > 1 and _extents(schedule, block) == (*workload.lead, workload.side):
            *_, lanes, steps = schedule.get_loops(block)
            _vectorize_sums(schedule, block, lanes, steps)
            schedule.annotate(steps, "pragma_loop_partition_hint", 1)
    elif _covers_row(schedule, block, workload):
        outer, lanes = schedule.split(schedule.get_loops(block)[-1], [None, knobs.lanes])
        schedule.vectorize(lanes)
        if workload.length % knobs.lanes:
            schedule.annotate(outer, "pragma_loop_partition_hint", 1)


def _vectorize_sums(schedule: Schedule, block: BlockRV, lanes: LoopRV, steps: LoopRV) -> None:
    schedule.reorder(steps, lanes)
    schedule.vectorize(lanes)
    schedule.vectorize(schedule.get_loops(schedule.decompose_reduction(block, steps))[-1])


def _parallel(workload: LastAxisWorkload, machine: Machine) -> bool:
    return worth_threads(workload.flops, workload.bytes_moved, machine) and size_of(workload.lead) > 1


def _reads_rows(block: Block, row: tuple[int, ...]) -> bool:
    """True when a reduction runs along what lies side by side, and reads each element once.

    A sum over another axis has operands that end with a different one; those of a matmul are smaller.
    """
    return any(size_of(shape) == size_of(row) and _without_ones(shape)[-1:] == row[-1:] for shape in block.reads)


def _without_ones(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in extents if extent != 1)
