"""Buffers that each lane of a vector should have of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.nodes import integer, statements_in
from tunehub.tir.versions import VECTORIZED

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc


def shared_by_lanes(opaque: PrimFunc) -> str | None:
    """The name of a buffer inside a vectorized loop of ``opaque``, a function of
    :func:`tunehub.tir.flattening.with_opaque_blocks`: TVM makes vectors of what is stored there, and leaves the buffer
    as it is, so that all lanes have the last one's value. None where there is none."""
    for loop in statements_in(opaque.body):
        if type(loop).__name__ == "For" and int(loop.kind) == VECTORIZED and integer(loop.extent) != 1:
            for node in statements_in(loop.body):
                for buffer in getattr(node, "alloc_buffers", ()):
                    return str(buffer.name)
    return None
