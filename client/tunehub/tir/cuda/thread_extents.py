"""Loops of one kernel that are bound to one thread tag: they share its threads, so all must be of one length.

TVM launches as many threads as the first of them has iterations, without a word: the others then run short, or twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunehub.tir.nodes import children, integer, outermost
from tunehub.tir.versions import THREAD_BINDING

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc, Stmt

_TAGS = ("threadIdx", "blockIdx")  # virtual threads are copies of the code


def uneven_tag(function: PrimFunc) -> str | None:
    """The first thread tag with several lengths in a kernel of ``function``, a scheduled PrimFunc, and the lengths."""
    for kernel in outermost(function.body, thread_tag):
        extents: dict[str, int] = {}
        for tag, extent in _bound(kernel):
            if extents.setdefault(tag, extent) != extent:
                return f"{tag}: {extents[tag]}, {extent}"
    return None


def _bound(node: Stmt) -> Iterator[tuple[str, int]]:
    tag = thread_tag(node)
    extent = integer(node.extent) if tag.startswith(_TAGS) else None
    if extent is not None:
        yield tag, extent
    for child in children(node):
        yield from _bound(child)


def thread_tag(node: Stmt) -> str:
    """What a statement is bound to, as ``threadIdx.x``; empty for any that is not."""
    is_bound = type(node).__name__ == "For" and int(node.kind) == THREAD_BINDING
    return str(node.thread_binding.thread_tag) if is_bound else ""
