"""Schedules of TVM without its checks after each step, and steps of several."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, PrimFunc, SBlock, Schedule

_ROOT = "root"  # as TVM names the outermost block


def open_schedule(mod: IRModule) -> Schedule:
    """A schedule of ``mod``, with one PrimFunc ``main``, without TVM's checks after each step (they take most of the
    time), and without those of types before it: TVM does these in Python, 0.1 ms a call, and C++ repeats them.

    The function gets an outermost statement of its own. TVM writes into the body of a function that nobody else holds,
    also where another function has the same body, as the one has that a copy with another name was made of.
    """
    import tvm

    function = mod["main"]
    whole = function.body
    own = function.with_body(type(whole)(whole.iter_values, whole.predicate, whole.block))
    return _schedule_type()(tvm.IRModule({"main": own}), debug_mask="none", error_render_level="none")


def has_root(function: PrimFunc) -> bool:
    """Whether :func:`root_blocks` finds what ``function`` does: what TVM's TE did not write, such as a scatter, may be
    one block by another name, or loops alone."""
    body = function.body
    return type(body).__name__ == "SBlockRealize" and str(body.block.name_hint) == _ROOT


def root_blocks(schedule: Schedule) -> list[BlockRV]:
    """The blocks of a function in their order, those inside of others left out. Raises what TVM raises where
    :func:`has_root` says no."""
    return list(schedule.get_child_blocks(schedule.get_sblock(_ROOT)))


@functools.lru_cache(maxsize=1)
def root_nodes(mod: IRModule) -> tuple[SBlock, ...]:
    """The nodes of :func:`root_blocks` of ``mod``, one PrimFunc ``main``. TVM makes a schedule in milliseconds, and one
    rule after the other looks at the same function."""
    schedule = open_schedule(mod)
    return tuple(map(schedule.get, root_blocks(schedule)))


def unroll_and_vectorize(schedule: Schedule, loops: Sequence[LoopRV]) -> None:
    """Unroll all ``loops`` but the last, which becomes a vector."""
    *unrolled, vectorized = loops
    for loop in unrolled:
        schedule.unroll(loop)
    schedule.vectorize(vectorized)


@functools.cache
def _schedule_type() -> type:
    from tvm.s_tir import Schedule

    methods = {name: method.__wrapped__ for name, method in vars(Schedule).items() if hasattr(method, "__wrapped__")}
    return type("Schedule", (Schedule,), methods)
