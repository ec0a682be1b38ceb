"""Reductions along open axes that may have no elements when a model runs.

TVM's LowerInitBlock (``lower_init_block.cc``) puts what a reduction begins with in front of its first step, inside of
its loops: over no elements that never runs, and the result is what the memory held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm

from tunehub.tir.nodes import integer, is_reduction, main_module, realized_blocks
from tunehub.tir.schedules import open_schedule
from tunehub.tir.symbols import is_symbolic, variables_in

if TYPE_CHECKING:
    from tunehub.tir.types import For, IRModule, PassContext, PrimFunc, SBlockRealize


@tvm.transform.module_pass(opt_level=0, name="tunehub.begin_open_reductions")  # type: ignore[untyped-decorator]
def begin_open_reductions(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for scheduled functions: reductions along open axes begin in front of their loops."""
    changed = {
        variable: begun
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and is_symbolic(function) and (begun := _begun(function)) is not None
    }
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs) if changed else mod


def _begun(function: PrimFunc) -> PrimFunc | None:
    """``function`` with such reductions decomposed; None where there are none, or TVM cannot."""
    places = [
        (str(realize.block.name_hint), depth)
        for realize, loops in realized_blocks(function.body)
        if (depth := _first_open_step(realize, loops)) is not None
    ]
    if not places:
        return None
    schedule = open_schedule(main_module(function))
    try:
        for name, depth in places:
            block = schedule.get_sblock(name)
            schedule.decompose_reduction(block, schedule.get_loops(block)[depth])
    except tvm.s_tir.ScheduleError:  # several blocks of one name, or loops that are no plain nest
        return None
    return schedule.mod["main"].with_attrs(function.attrs)


def _first_open_step(realize: SBlockRealize, loops: tuple[For, ...]) -> int | None:
    """Which of the loops around a block that has a beginning is the first of its reduction, where an axis of that is
    open; else None."""
    block = realize.block
    steps = [at for at, axis in enumerate(block.iter_vars) if is_reduction(axis)]
    if block.init is None or all(integer(block.iter_vars[at].dom.extent) is not None for at in steps):
        return None
    variables = {hash(each) for each in variables_in(realize.iter_values[at] for at in steps)}
    return next((depth for depth, loop in enumerate(loops) if hash(loop.loop_var) in variables), None)
