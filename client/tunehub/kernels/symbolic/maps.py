"""Functions without a reduction whose open axes lie anywhere: transpositions, masks, concatenations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.base import KnobError, Machine, blocks_of, size_of
from tunehub.kernels.cpu.fusion import inline
from tunehub.kernels.symbolic.reductions import FEWEST_STEPS, lanes_along
from tunehub.tir.nodes import main_module, reduces
from tunehub.tir.schedules import open_schedule, root_blocks
from tunehub.tir.symbols import typical_instance

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc, Schedule


def schedule_maps(function: PrimFunc, machine: Machine) -> Schedule | None:
    """The schedule of ``function``: all steps in the last one, its outer loops on threads, vectors along the innermost
    where its extent is known. None for other functions, and for little work."""
    mod, typical = main_module(function), typical_instance(function)
    blocks = () if typical is None else blocks_of(main_module(typical))
    if sum(size_of(block.spatial) for block in blocks) < FEWEST_STEPS:
        return None
    schedule = open_schedule(mod)
    steps = root_blocks(schedule)
    if any(reduces(schedule.get(step)) for step in steps):
        return None
    try:
        for step in steps[:-1]:
            inline(schedule, str(schedule.get(step).name_hint))
    except KnobError:
        return None
    *outer, innermost = schedule.get_loops(steps[-1])
    lanes = lanes_along(schedule, innermost, machine)
    if lanes > 1:
        _, vector = schedule.split(innermost, [None, lanes])
        schedule.vectorize(vector)
    if outer:
        schedule.parallel(schedule.fuse(*outer))
    return schedule
