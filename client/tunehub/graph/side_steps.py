"""What fusion put in front of a product though only its epilogue reads it: a branch's scale, a part of a wider tensor.

Kernels for GPUs take operands in front of a product, and results behind it. Such a step is computed where it is read:
it is of the epilogue then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm

from tunehub.graph.workloads import workloads
from tunehub.tir.nodes import buffer_of, main_module, parameters, reduces
from tunehub.tir.schedules import has_root, open_schedule, root_blocks

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, PassContext, PrimFunc, Schedule


@tvm.transform.module_pass(opt_level=0, name="tunehub.side_steps_in_epilogues")  # type: ignore[untyped-decorator]
def side_steps_in_epilogues(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA, behind fusion."""
    changed = {variable: new for variable, function in workloads(mod) if (new := _without(function)) is not None}
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs) if changed else mod


def _without(function: PrimFunc) -> PrimFunc | None:
    """``function`` without side steps; None where it has none."""
    if not has_root(function):
        return None
    schedule = open_schedule(main_module(function))
    blocks = root_blocks(schedule)
    reducing = [at for at, block in enumerate(blocks) if reduces(schedule.get(block))]
    if len(reducing) != 1 or not reducing[0]:
        return None
    side = _side_steps(schedule, blocks, reducing[0], {hash(each) for each in parameters(function)})
    if not side:
        return None
    try:
        for block in side:
            schedule.compute_inline(block)
    except Exception:  # TVM raises many kinds for what it does not move
        return None
    found, symbol = schedule.mod["main"], (function.attrs or {}).get("global_symbol")
    return found.with_attr("global_symbol", symbol) if symbol else found.without_attr("global_symbol")


def _side_steps(schedule: Schedule, blocks: list[BlockRV], at: int, given: set[int]) -> list[BlockRV]:
    """Those before the block ``at`` that it reads nothing of."""
    nodes = [schedule.get(block) for block in blocks]
    needed = {hash(buffer_of(region)) for region in nodes[at].reads}
    side = []
    for block, node in zip(reversed(blocks[:at]), reversed(nodes[:at]), strict=True):
        written = {hash(buffer_of(region)) for region in node.writes}
        if written & needed:
            needed |= {hash(buffer_of(region)) for region in node.reads}
        elif not written & given:
            side.append(block)
    return side[::-1]
