"""Functions without a reduction: chains of elementwise operators, transposes, paddings, concatenations.

All steps are inlined into the last. Its outer loops are fused and shared among threads in large pieces; the innermost
becomes vectors. Small tensors run on one thread: starting the pool costs more than they do.

Functions that only move elements are as fast with TVM's own loops, of which LLVM makes vectors and ``memcpy``; there
threads are the one gain, and fewer passes through memory. What both take is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tunehub.kernels.cpu.access import Nest, goes_on, nest_of, only_copies
from tunehub.kernels.cpu.base import (
    FLOAT_BYTES,
    Block,
    KnobError,
    Knobs,
    Machine,
    is_map,
    refusing,
    require,
    size_of,
    worth_threads,
)
from tunehub.kernels.cpu.fusion import inline
from tunehub.kernels.te.blocked import FROM_BLOCKED, TO_BLOCKED, run_in_name
from tunehub.tir.schedules import open_schedule

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, LoopRV, Schedule

_MAX_BLOCKS, _PIECES = 64, 64
_WIDEST = 16  # elements of the widest vector
_BLOCKED = 5  # axes of a tensor with blocks of channels
_MANY = 4  # tensors that are joined: each is chosen by a condition of its own
_FEW = 4  # channels in a block, which LLVM's vectors of pixels interleave
# Of one thread that moves one element, in the caches, as measured on Zen 5: to the next place, to one at some distance,
# and to one that divisions have to find.
_NEXT_S, _FAR_S, _SCATTERED_S = 0.08e-9, 0.2e-9, 0.6e-9
_VECTOR = 8  # elements that lie side by side, or at one distance, where divisions do not count
_START_S = 2e-6  # of the thread pool while its threads wait for work
_MARGIN, _LEAST_S = 1.25, 5e-7  # what these estimates must promise: times as fast as TVM's own loops, and seconds less


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementwiseWorkload:
    """``extents``: the loops of the last block. ``joined``: how many of them, the innermost first, are one loop through
    memory in all operands; at least one.

    ``leaves``: channels in the blocks of an operand whose plain form the result has, else 0. ``enters``: plain channels
    become blocks of a few. Where elements are only
    moved, ``apart_s`` estimates the seconds of TVM's own loops, and ``moved_s`` those of one thread with all steps in
    one; else both are 0.
    """

    extents: tuple[int, ...]
    joined: int
    elements_moved: int
    blocks: tuple[Block, ...]
    leaves: int = 0
    enters: bool = False
    apart_s: float = 0.0
    moved_s: float = 0.0

    @property
    def flops(self) -> int:
        """A rough count: one operation for each element of each block."""
        return sum(size_of(block.spatial) for block in self.blocks)


class ElementwiseKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``lanes``: elements of a vector along the innermost loop, 1 for none. ``parallel``: use the thread pool."""

    lanes: Annotated[int, Meta(ge=1, le=64)]
    parallel: bool = True


NAME, VERSION, KNOBS = "elementwise", 1, ElementwiseKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> ElementwiseWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when one of its blocks is a reduction."""
    if not blocks or len(blocks) > _MAX_BLOCKS or not all(map(is_map, blocks)) or not blocks[-1].spatial:
        return None
    last = blocks[-1]
    reads = [shape for block in blocks for shape in block.reads]
    apart_s, moved_s = _moves(mod, blocks)
    return ElementwiseWorkload(
        extents=last.spatial,
        joined=_joined(mod, blocks),
        elements_moved=sum(map(size_of, {*reads, last.write})),
        blocks=blocks,
        leaves=_leaves(blocks),
        enters=_enters(blocks),
        apart_s=apart_s,
        moved_s=moved_s,
    )


def gains(workload: ElementwiseWorkload, machine: Machine) -> bool:
    """False where elements are only moved, unless threads or fewer passes make that faster than TVM's own loops."""
    if not workload.apart_s:
        return True
    seconds = workload.moved_s
    if default_knobs(workload, machine).parallel:
        seconds = seconds / machine.cores + _START_S
    return _MARGIN * seconds + _LEAST_S <= workload.apart_s


def knob_space(workload: ElementwiseWorkload, machine: Machine) -> list[ElementwiseKnobs]:
    """The choices worth measuring, the default's first."""
    first = default_knobs(workload, machine)
    found = {first: None}
    for lanes in (1, machine.vector // 2, machine.vector, 2 * machine.vector):
        for parallel in (False, True):
            if lanes <= _innermost(workload):
                found.setdefault(ElementwiseKnobs(lanes=lanes, parallel=parallel))
    return list(found)


def default_knobs(workload: ElementwiseWorkload, machine: Machine) -> ElementwiseKnobs:
    """The choice of a rule, without measuring."""
    return ElementwiseKnobs(lanes=_lanes(workload, machine), parallel=_parallel(workload, machine))


@refusing
def apply(mod: IRModule, workload: ElementwiseWorkload, knobs: ElementwiseKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    innermost = _innermost(workload)
    require(knobs.lanes <= innermost, f"lanes: {knobs.lanes} is more than the innermost loop of {innermost}")
    schedule = open_schedule(mod)
    for block in workload.blocks[:-1]:
        inline(schedule, block.name)
    loops = list(schedule.get_loops(schedule.get_sblock(workload.blocks[-1].name)))
    if workload.joined > 1:
        loops[-workload.joined :] = [schedule.fuse(*loops[-workload.joined :])]
    elif workload.leaves:
        loops = _block_by_block(schedule, loops, workload.leaves)
    elif workload.enters and knobs.lanes == innermost:
        _interleave(schedule, loops, parallel=knobs.parallel)
        return schedule
    if knobs.lanes == innermost and any(len(block.reads) > _MANY for block in workload.blocks):
        loops = _pixels_in_one(schedule, loops, workload.blocks[-1].name)
    outer, lanes = schedule.split(loops[-1], [None, knobs.lanes])
    schedule.vectorize(lanes)
    if innermost % knobs.lanes:
        schedule.annotate(outer, "pragma_loop_partition_hint", 1)
    if knobs.parallel:
        _share(schedule, [*loops[:-1], outer], whole=innermost % knobs.lanes == 0)
    return schedule


def _lanes(workload: ElementwiseWorkload, machine: Machine) -> int:
    """Whole vectors; where blocks of channels change their size, what the smaller block holds lies side by side."""
    rank, innermost = len(workload.extents), _innermost(workload)
    reads = [shape for block in workload.blocks for shape in block.reads] if rank == _BLOCKED else []
    blocks = [shape[-1] for shape in reads if len(shape) == rank and innermost % shape[-1] == 0 and shape[-1] >= 4]
    runs = [run for block in workload.blocks if (run := run_in_name(block.name)) > 1]
    return min(machine.vector, innermost, *blocks, *runs)


def _parallel(workload: ElementwiseWorkload, machine: Machine) -> bool:
    if workload.apart_s:
        return workload.moved_s * (1 - 1 / machine.cores) > _START_S
    return worth_threads(workload.flops, FLOAT_BYTES * workload.elements_moved, machine)


def _moves(mod: IRModule, blocks: tuple[Block, ...]) -> tuple[float, float]:
    """The seconds ``apart_s`` and ``moved_s`` of a function that only moves elements; 0 for any other one."""
    schedule = open_schedule(mod)
    steps = [schedule.get_sblock(block.name) for block in blocks]
    if not all(only_copies(schedule, step) for step in reversed(steps)):  # the last one computes something most often
        return 0.0, 0.0
    nests = [nest_of(schedule, step, _VECTOR) for step in steps]
    try:
        for block in blocks[:-1]:
            inline(schedule, block.name)
    except KnobError:  # as in a function with two results; `apply` says so
        return 0.0, 0.0
    known = [nest for nest in (*nests, nest_of(schedule, steps[-1], _VECTOR)) if nest is not None]
    if len(known) <= len(blocks):
        return 0.0, 0.0
    return sum(map(_seconds, known[:-1])), _seconds(known[-1])


def _joined(mod: IRModule, blocks: tuple[Block, ...]) -> int:
    """How many of the last block's loops are one. All of them where all operands have its shape.

    Others are looked at only if whole vectors do not divide the innermost, so that rows have no remainders each.
    """
    last = blocks[-1]
    if len(blocks) == 1 and all(shape == last.write for shape in last.reads) and last.spatial == last.write:
        return len(last.spatial)
    if last.spatial[-1] % _WIDEST == 0 or _leaves(blocks):
        return 1
    schedule = open_schedule(mod)
    try:
        for block in blocks[:-1]:
            inline(schedule, block.name)
    except KnobError:  # as in `_moves`
        return 1
    nest = nest_of(schedule, schedule.get_sblock(last.name))
    return 1 if nest is None or nest.extents != last.spatial else _running_on(nest)


def _running_on(nest: Nest) -> int:
    """How many of the innermost loops go on in memory where the next one ends, in all that is read and written."""
    accesses, apart = (nest.write, *nest.reads), nest.conditions | nest.places
    first = len(nest.extents) - 1
    while first > 0 and not {first, first - 1} & apart and all(goes_on(nest, access, first) for access in accesses):
        first -= 1
    return len(nest.extents) - first


def _seconds(nest: Nest) -> float:
    """The time that one thread takes for the loops of ``nest``."""
    innermost = max((i for i, extent in enumerate(nest.extents) if extent > 1), default=0)
    steps = {step for access in (*nest.reads, nest.write) for step in access[innermost : innermost + 1]}
    each = _SCATTERED_S if None in steps else _FAR_S if steps - {0, 1} else _NEXT_S
    return nest.iterations * each


def _leaves(blocks: tuple[Block, ...]) -> int:
    """The size of the block of channels that the function takes apart, 0 when it does nothing of the kind."""
    last = blocks[-1].spatial
    found = [
        block.reads[0][-1]
        for block in blocks
        if block.name.startswith(FROM_BLOCKED) and block.spatial == last and len(last) == len(block.reads[0]) - 1 > 2
    ]
    return found[0] if len(found) == 1 else 0


def _enters(blocks: tuple[Block, ...]) -> bool:
    """Whether plain channels become blocks of a few, which another block may convert to another type."""
    last = blocks[-1]
    converts = len(blocks) > 1 and (last.spatial, last.dtype != blocks[-2].dtype) == (blocks[-2].spatial, True)
    return blocks[-2 if converts else -1].name.startswith(TO_BLOCKED) and 1 < last.spatial[-1] <= _FEW


def _block_by_block(schedule: Schedule, loops: list[LoopRV], size: int) -> list[LoopRV]:
    """Take one row of a block of channels apart after the other, so that its cache lines are read once."""
    batch, channel, *rows, innermost = loops
    outer, inner = schedule.split(channel, [None, size])
    schedule.reorder(batch, outer, *rows, inner, innermost)
    return [batch, outer, *rows, inner, innermost]


def _pixels_in_one(schedule: Schedule, loops: list[LoopRV], block: str) -> list[LoopRV]:
    """The loops over the pixels of blocked channels as one, where no operand changes between them. Of two LLVM unrolls
    the inner one, with a load of each part that a concatenation chooses from: most of the time that DenseNets took to
    compile."""
    nest = nest_of(schedule, schedule.get_sblock(block)) if len(loops) == _BLOCKED else None
    if nest is None or {2, 3} & (nest.conditions | nest.places):
        return loops
    if not all(goes_on(nest, access, 3) for access in (nest.write, *nest.reads)):
        return loops
    return [*loops[:2], schedule.fuse(*loops[2:4]), loops[4]]


def _interleave(schedule: Schedule, loops: list[LoopRV], *, parallel: bool) -> None:
    """Leave the pixels of a row to LLVM, which reads vectors of each channel and stores them in turns."""
    *outer, column, channels = loops
    schedule.unroll(channels)
    schedule.annotate(column, "pragma_loop_partition_hint", 1)  # no conditions but where padding begins and ends
    if parallel:
        _share(schedule, outer, whole=True)


def _share(schedule: Schedule, loops: list[LoopRV], *, whole: bool) -> None:
    """Run on the thread pool: as many of the outer loops as give each thread several pieces, one loop at least.

    The last of them is left alone unless there is no other, or the vectors divide it (``whole``).
    """
    count, most = 1, len(loops) if whole else len(loops) - 1
    while count < most and size_of(tuple(int(schedule.get(loop).extent) for loop in loops[:count])) < _PIECES:
        count += 1
    schedule.parallel(schedule.fuse(*loops[:count]) if count > 1 else loops[0])


def _innermost(workload: ElementwiseWorkload) -> int:
    return size_of(workload.extents[-workload.joined :])
