"""Scatters along an axis into a part of the other axes, as parts of their own.

TVM's kernels (0.25 to 0.27) place what they write by the extents of the indices: where those are fewer than the data's
along another axis, it lands elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm import relax

from tunehub.tir.nodes import same_extent, shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr


def scattered_in_part(emit: Callable[[Expr], Expr], call: Call) -> Expr | None:
    """A ``scatter_elements`` as one into what its indices reach, and the rest of its data behind that; None where TVM's
    is right: where they reach all but of the first axis and of its own. The data itself where there are no indices."""
    data, index, updates = call.args
    whole, reached = shape_of(data), shape_of(index)
    if whole is None or reached is None:
        return None
    if 0 in reached:
        return data
    axis, reduction = int(call.attrs.axis) % len(whole), call.attrs.reduction
    for at, (extent, count) in enumerate(zip(whole, reached, strict=True)):
        if at not in (0, axis) and not same_extent(extent, count):
            first = emit(relax.op.strided_slice(data, [at], [0], [count], assume_inbound=True))
            rest = emit(relax.op.strided_slice(data, [at], [count], [extent], assume_inbound=True))
            part = relax.op.scatter_elements(first, index, updates, axis, reduction)
            inner = scattered_in_part(emit, part)
            return relax.op.concat([emit(part if inner is None else inner), rest], at)
    return None
