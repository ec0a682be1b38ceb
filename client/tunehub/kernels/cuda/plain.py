"""The plain schedule of a function for CUDA: slow, and right by its form.

Every block is a kernel of its own, in the order of the function. A thread computes one element at a time, with all of
its reduction; nothing is inlined, staged or shared. It is what other schedules are held to, and what serves where TVM's
own is wrong. dlight's ``Fallback`` is no such thing: it inlines an epilogue into a reduction whose axes have one value
each, and the epilogue is then applied in every step (TVM 0.27, ``s_tir/dlight/gpu/fallback.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from tunehub.tir.index_expressions import parts_of
from tunehub.tir.nodes import buffer_of, children, integer, main_module
from tunehub.tir.versions import DATA_PAR, LOADS, THREAD_BINDING

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, BufferLoad, LoopRV, PrimExpr, PrimFunc, SBlockRealize, Schedule, Stmt

_LAUNCHES = ("thread_extent", "virtual_thread")
_THREADS = 256  # of a block: any GPU launches as many


def plain_schedule(function: PrimFunc) -> PrimFunc:
    """``function``, a PrimFunc as Relax's legalisation makes it, with a kernel for each of its blocks.

    Extents may be symbolic. What launches threads itself (sorting, scans) stays as it is, and so does a function
    without blocks. Statements without a loop that is parallel run in one thread. The name and the attributes of
    ``function`` are kept. A primitive that TVM refuses raises what TVM raises (``tvm.s_tir.ScheduleError``).
    """
    from tvm.s_tir import Schedule

    if type(function.body).__name__ != "SBlockRealize":
        return function
    module = main_module(function)  # kept: TVM's schedule writes into the body of ``function`` when no one else has it
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    for block in schedule.get_child_blocks(schedule.get_sblock(str(function.body.block.name_hint))):
        loops = schedule.get_loops(block)
        if not any(map(launches_threads, (*map(schedule.get, loops[:1]), schedule.get(block)))):
            _give_threads(schedule, block, loops)
    scheduled = schedule.mod["main"]
    symbol = function.attrs.get("global_symbol") if function.attrs else None
    return scheduled.with_attr("global_symbol", symbol) if symbol else scheduled.without_attr("global_symbol")


def launches_threads(node: Stmt) -> bool:
    """Whether a statement, or one inside of it, binds threads or calls what does, such as a library."""
    kind = type(node).__name__
    if kind == "For" and int(node.kind) == THREAD_BINDING:
        return True
    if kind == "AttrStmt" and str(node.attr_key) in _LAUNCHES:
        return True
    return kind == "Evaluate" or any(map(launches_threads, children(node)))


def _give_threads(schedule: Schedule, block: BlockRV, loops: list[LoopRV]) -> None:
    """Bind the parallel loops of ``block``, the others inside of them; without any, one thread does it all."""
    parallel = _parallel(schedule, loops)
    if not parallel:
        schedule.bind(schedule.add_unit_loop(loops[0] if loops else block), "blockIdx.x")
        return
    serial = [loop for loop in loops if loop not in parallel]
    count = _threads([schedule.get(each) for each in parallel])
    schedule.reorder(*parallel, *serial)
    blocks, threads = schedule.split(schedule.fuse(*parallel), [None, count])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    if serial and schedule.get(block).init is not None:
        schedule.decompose_reduction(block, serial[0])


def _threads(nest: list[Stmt]) -> int:
    """Of a block: where elements are computed under a condition, which TVM asks before it knows that there are such
    elements, as many as divide what is known of their number."""
    if type(nest[-1].body).__name__ != "IfThenElse":
        return _THREADS
    return math.gcd(_THREADS, math.prod(integer(each.extent) or 1 for each in nest))


def _parallel(schedule: Schedule, loops: list[LoopRV]) -> list[LoopRV]:
    """Those of ``loops`` that are an axis of the blocks inside along which elements do not depend on each other; none
    where other statements stand in the loops, too."""
    if not loops:
        return []
    nest = [schedule.get(loop) for loop in loops]
    inside = _realized(nest[-1].body)
    if inside is None or not all(outer.body.same_as(inner) for outer, inner in pairwise(nest)):
        return []
    free = set[int].intersection(*map(_independent, inside))
    return [loop for loop, node in zip(loops, nest, strict=True) if hash(node.loop_var) in free]


def _independent(realize: SBlockRealize) -> set[int]:
    """Values of the axes along which elements of a block do not depend on each other."""
    kinds = zip(realize.iter_values, realize.block.iter_vars, strict=True)
    return {hash(value) for value, axis in kinds if int(axis.iter_type) == DATA_PAR}


def _realized(statement: Stmt) -> list[SBlockRealize] | None:
    """The blocks of a loop's body: one, or some under a condition that write what none of them reads, as where keys and
    values are appended to a cache. None for other statements."""
    kind = type(statement).__name__
    if kind == "SBlockRealize":
        return [statement]
    if kind != "IfThenElse" or statement.else_case is not None:
        return None
    body = statement.then_case
    found = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
    if any(type(each).__name__ != "SBlockRealize" for each in found):
        return None
    blocks = [each.block for each in found]
    written = {hash(buffer_of(region)) for block in blocks for region in block.writes}
    read = {hash(buffer_of(region)) for block in blocks for region in block.reads}
    read |= {hash(buffer_of(load)) for load in _loads(statement.condition)}
    return None if written & read else found


def _loads(expression: PrimExpr) -> Iterator[BufferLoad]:
    if type(expression).__name__ in LOADS:
        yield expression
    for part in parts_of(expression):
        yield from _loads(part)
