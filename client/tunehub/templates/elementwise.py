"""Functions without a reduction: chains of elementwise operators, transposes, paddings, concatenations.

All steps are inlined into the last. Its outer loops are fused and shared among threads in large pieces; the innermost
becomes vectors. Small tensors run on one thread: starting the pool costs more than they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from tunehub.relax_blocked import FROM_BLOCKED
from tunehub.templates.base import (
    FLOAT_BYTES,
    Block,
    KnobError,
    Knobs,
    Machine,
    is_map,
    open_schedule,
    refusing,
    require,
    size_of,
    worth_threads,
)

_MAX_BLOCKS, _PIECES = 64, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """``extents``: the loops of the last block. ``flat``: all operands have its shape, so that all loops are one.

    ``leaves``: channels in the blocks of an operand whose plain form the result has, else 0.
    """

    extents: tuple[int, ...]
    flat: bool
    elements_moved: int
    blocks: tuple[Block, ...]
    leaves: int = 0

    @property
    def flops(self) -> int:
        """A rough count: one operation for each element of each block."""
        return sum(size_of(block.spatial) for block in self.blocks)


class ElementwiseKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``lanes``: elements of a vector along the innermost loop, 1 for none. ``parallel``: use the thread pool."""

    lanes: Annotated[int, Meta(ge=1, le=64)]
    parallel: bool = True


NAME, VERSION, KNOBS = "elementwise", 1, ElementwiseKnobs


def recognise(mod: Any, blocks: tuple[Block, ...]) -> Workload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when one of its blocks is a reduction."""
    if not blocks or len(blocks) > _MAX_BLOCKS or not all(map(is_map, blocks)) or not blocks[-1].spatial:
        return None
    last = blocks[-1]
    reads = [shape for block in blocks for shape in block.reads]
    return Workload(
        extents=last.spatial,
        flat=len(blocks) == 1 and all(shape == last.write for shape in reads) and last.spatial == last.write,
        elements_moved=sum(map(size_of, {*reads, last.write})),
        blocks=blocks,
        leaves=_leaves(blocks),
    )


def knob_space(workload: Workload, machine: Machine) -> list[ElementwiseKnobs]:
    """The choices worth measuring, the default's first."""
    first = default_knobs(workload, machine)
    found = {first: None}
    for lanes in (1, machine.vector // 2, machine.vector, 2 * machine.vector):
        for parallel in (False, True):
            if lanes <= _innermost(workload):
                found.setdefault(ElementwiseKnobs(lanes=lanes, parallel=parallel))
    return list(found)


def default_knobs(workload: Workload, machine: Machine) -> ElementwiseKnobs:
    """The choice of a rule, without measuring."""
    return ElementwiseKnobs(
        lanes=min(machine.vector, _innermost(workload)),
        parallel=worth_threads(workload.flops, FLOAT_BYTES * workload.elements_moved, machine),
    )


@refusing
def apply(mod: Any, workload: Workload, knobs: ElementwiseKnobs) -> Any:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    innermost = _innermost(workload)
    require(knobs.lanes <= innermost, f"lanes: {knobs.lanes} is more than the innermost loop of {innermost}")
    schedule = open_schedule(mod)
    for block in workload.blocks[:-1]:
        _inline(schedule, block.name)
    loops = schedule.get_loops(schedule.get_sblock(workload.blocks[-1].name))
    if workload.flat:
        loops = [schedule.fuse(*loops)]
    elif workload.leaves:
        loops = _block_by_block(schedule, loops, workload.leaves)
    outer, lanes = schedule.split(loops[-1], [None, knobs.lanes])
    schedule.vectorize(lanes)
    if innermost % knobs.lanes:
        schedule.annotate(outer, "pragma_loop_partition_hint", 1)
    if knobs.parallel:
        _share(schedule, [*loops[:-1], outer])
    return schedule


def _leaves(blocks: tuple[Block, ...]) -> int:
    """The size of the block of channels that the function takes apart, 0 when it does nothing of the kind."""
    last = blocks[-1].spatial
    found = [
        block.reads[0][-1]
        for block in blocks
        if block.name.startswith(FROM_BLOCKED) and block.spatial == last and len(last) == len(block.reads[0]) - 1 > 2
    ]
    return found[0] if len(found) == 1 else 0


def _block_by_block(schedule: Any, loops: list[Any], size: int) -> list[Any]:
    """Take one row of a block of channels apart after the other, so that its cache lines are read once."""
    batch, channel, *rows, innermost = loops
    outer, inner = schedule.split(channel, [None, size])
    schedule.reorder(batch, outer, *rows, inner, innermost)
    return [batch, outer, *rows, inner, innermost]


def _share(schedule: Any, loops: list[Any]) -> None:
    """Run on the thread pool: as many of the outer loops as give each thread several pieces, one loop at least."""
    count = 1
    while count < len(loops) - 1 and size_of(tuple(int(schedule.get(loop).extent) for loop in loops[:count])) < _PIECES:
        count += 1
    schedule.parallel(schedule.fuse(*loops[:count]) if count > 1 else loops[0])


def _inline(schedule: Any, name: str) -> None:
    try:
        schedule.compute_inline(schedule.get_sblock(name))
    except Exception as error:  # TVM raises several kinds
        raise KnobError(f"the block {name} cannot be inlined") from error


def _innermost(workload: Workload) -> int:
    return size_of(workload.extents) if workload.flat else workload.extents[-1]
