"""Sums whose loops NVRTC unrolls instead of TVM.

A tile of 8 × 4 results and 16 steps is 512 multiplications in a row, each with the places of its operands spelt out:
300 kB, for which NVRTC's optimizer takes a second. As loops with ``#pragma unroll`` they are 7 kB, places are
computed once, it takes a third of the time, and machine code has the same instructions (ADR 24).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.nodes import integer, reduces, with_children
from tunehub.tir.statements import const, loop

if TYPE_CHECKING:
    from tunehub.tir.types import Node, PrimFunc, Stmt

_EXPLICIT = "pragma_unroll_explicit"


def with_kept_loops(function: PrimFunc) -> PrimFunc:
    """``function``, a scheduled PrimFunc, with the loops around its sums kept, which have straight code otherwise."""
    return function.with_body(_kept(function.body))


def _kept(node: Stmt) -> Stmt:
    if type(node).__name__ != "For":
        return with_children(node, _kept)
    is_first = integer(node.extent) != 1 and _only_adds_up(node)  # TVM drops loops of one step, without an annotation
    return _annotated(node) if is_first else with_children(node, _kept)


def _only_adds_up(node: Stmt) -> bool:
    """Whether there is nothing in a loop but loops around one block that adds up, whose start is elsewhere."""
    while type(node).__name__ == "For" and node.thread_binding is None:
        node = node.body
    if type(node).__name__ != "SBlockRealize" or node.block.init is not None:
        return False
    return type(node.block.body).__name__ == "BufferStore" and reduces(node.block)


def _annotated(node: Node) -> Stmt:
    annotations = {**dict(node.annotations.items()), _EXPLICIT: const(0)}
    return loop(node.loop_var, node.extent, node.body, node.kind, start=node.min, annotations=annotations)
