"""Functions with reductions whose open axes lie anywhere: loops in a good order, on threads, in vectors where a known
extent allows them.

What is inlined, and which loop of a block may be in vectors, is what :mod:`tunehub.kernels.cpu.loops` finds for the
typical instance; it does not depend on the extents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu import loops
from tunehub.kernels.cpu.base import Machine, blocks_of
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.loop_plan import Stage
from tunehub.tir.nodes import integer, main_module
from tunehub.tir.schedules import open_schedule
from tunehub.tir.symbols import typical_instance

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, LoopRV, PrimFunc, Schedule

FEWEST_STEPS = 1 << 13  # of the typical instance: fewer are not worth threads
_NARROWEST = 4  # lanes
_AT_ONCE = 4  # vectors of partial results, so that none waits for the one before


def schedule_reductions(function: PrimFunc, machine: Machine) -> Schedule | None:
    """The schedule of ``function``; None where the typical instance is not such, and for little work."""
    typical = typical_instance(function)
    if typical is None:
        return None
    mod = main_module(typical)
    workload = loops.recognise(mod, blocks_of(mod))
    if workload is None or sum(stage.nest.iterations for stage in workload.stages) < FEWEST_STEPS:
        return None
    schedule = open_schedule(main_module(function))
    for name in workload.inlined:
        schedule.compute_inline(schedule.get_sblock(name))
    for stage in workload.stages:
        if stage.nest.reductions:
            _reduction(schedule, stage, machine)
        else:
            _map(schedule, stage, machine)
    return schedule


def _map(schedule: Schedule, stage: Stage, machine: Machine) -> None:
    found = schedule.get_loops(schedule.get_sblock(stage.nest.name))
    if not found:
        return
    if stage.vector is not None and (lanes := lanes_along(schedule, found[stage.vector], machine)) > 1:
        found[stage.vector], vector = schedule.split(found[stage.vector], [None, lanes])
        schedule.reorder(*found, vector)
        schedule.vectorize(vector)
    schedule.parallel(schedule.fuse(*found[:-1]) if len(found) > 1 else found[0])


def _reduction(schedule: Schedule, stage: Stage, machine: Machine) -> None:
    """Results on threads; neighbours in vectors, or side by side in the innermost loop, which LLVM makes vectors of."""
    block, count = schedule.get_sblock(stage.nest.name), len(stage.nest.spatial)
    found = schedule.get_loops(block)
    spatial, steps = found[:count], found[count:]
    alone = stage.nest.results == 1 and len(steps) == 1
    if alone and stage.kind == "dots" and integer(schedule.get(steps[0]).extent) is None:
        _side_by_side(schedule, stage, machine)
        return
    if not spatial:
        if stage.kind == "dots":
            _all_in_one(schedule, block, steps[-1], machine)
        return
    follower = None if stage.follower is None else schedule.get_sblock(stage.follower)
    column = stage.vector if stage.kind == "columns" and stage.nest.results == 1 else None
    lanes = 1 if column is None else lanes_along(schedule, spatial[column], machine)
    vector = []
    if column is not None and lanes > 1:
        spatial[column], inner = schedule.split(spatial[column], [None, lanes])
        vector, follower = [inner], follower or schedule.cache_write(block, 0, "global")
    elif column is not None:
        vector = [spatial.pop(column)]
    schedule.reorder(*spatial, *steps, *vector)
    if spatial and follower is not None:
        schedule.reverse_compute_at(follower, spatial[-1], preserve_unit_loops=True)
    if lanes > 1:  # first: TVM does not see through loops of unknown extents that are fused
        for each in (block, *([follower] if column == count - 1 else [])):
            schedule.vectorize(schedule.get_loops(each)[-1])
    if spatial:
        schedule.parallel(schedule.fuse(*spatial))
    schedule.decompose_reduction(block, steps[0])


def _side_by_side(schedule: Schedule, stage: Stage, machine: Machine) -> None:
    """Sums along an open axis in which neighbours lie side by side: several of each result, joined at the end. Vectors
    without conditions, and the remainder one by one."""
    total = schedule.get_sblock(stage.nest.name)
    _, inner = schedule.split(schedule.get_loops(total)[-1], [None, machine.vector])
    parts = schedule.rfactor(inner, -1)
    *spatial, steps, lanes = schedule.get_loops(parts)
    outer = spatial[-1] if spatial else schedule.add_unit_loop(steps)
    schedule.reverse_compute_at(total, outer, preserve_unit_loops=True)
    if stage.follower is not None:
        schedule.reverse_compute_at(schedule.get_sblock(stage.follower), outer, preserve_unit_loops=True)
    schedule.annotate(steps, "pragma_loop_partition_hint", 1)
    schedule.vectorize(lanes)
    if spatial:
        schedule.parallel(schedule.fuse(*spatial))
    schedule.vectorize(schedule.get_loops(schedule.decompose_reduction(parts, steps))[-1])


def _all_in_one(schedule: Schedule, block: BlockRV, last: LoopRV, machine: Machine) -> None:
    """One result of all elements, as the largest one is: several vectors of them side by side along the innermost loop,
    where its extent is known, joined at the end."""
    extent = integer(schedule.get(last).extent)
    lanes = 1 if extent is None else max(divisors(extent, _AT_ONCE * machine.vector))
    if lanes < _NARROWEST:
        return
    _, inner = schedule.split(last, [None, lanes])
    parts = schedule.rfactor(inner, 0)
    first, *_, lane = schedule.get_loops(parts)
    schedule.vectorize(lane)
    schedule.vectorize(schedule.get_loops(schedule.decompose_reduction(parts, first))[-1])


def lanes_along(schedule: Schedule, loop: LoopRV, machine: Machine) -> int:
    """How many elements of a loop a vector may have; 1 where none pays or the extent is not known."""
    extent = integer(schedule.get(loop).extent)
    lanes = 1 if extent is None else max(divisors(extent, machine.vector))
    return lanes if lanes >= _NARROWEST else 1
