"""Images of Relax in their layouts: plain NCHW, or channels in blocks of some size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm import relax

from tunehub.kernels.te import blocked
from tunehub.tir.nodes import shape_of, tensor_type
from tunehub.tir.symbols import extent_at, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Expr
    from tunehub.tir.types import Index, PrimExpr

_SIDES = (224, 1 << 16)
_TYPES = ("float32", "uint8", "int32")


def image_shape(expression: Expr) -> tuple[int, int, int, int] | None:
    """The shape of a tensor that can be blocked: float32, or integers of quantised models, four axes, channels known;
    not a constant.

    Open extents count as in :func:`typical_shape`.
    """
    shape = typical_shape(expression) if isinstance(expression, relax.Var) else None
    if shape is None or len(shape) != 4 or 0 in shape:
        return None
    return shape if has_image_type(expression) else None


def has_image_type(expression: Expr) -> bool:
    """Whether images of this type are transformed between layouts."""
    return str(tensor_type(expression).dtype) in _TYPES


def typical_shape(expression: Expr) -> tuple[int, ...] | None:
    """The shape of a tensor, for costs. Of four axes the first counts as 1 where it is open, and the last two as what
    they are where the image is 224 pixels high and wide, or, where that would leave less than two, a sound of many
    samples long; None for others that are open."""
    shape = shape_of(expression)
    if shape is None or all(isinstance(extent, int) for extent in shape):
        return shape
    if len(shape) != 4 or not isinstance(shape[1], int):
        return None
    batch = shape[0] if isinstance(shape[0], int) else 1
    height, width = (extent if isinstance(extent, int) else _typical_side(extent) for extent in shape[2:])
    return None if height is None or width is None else (batch, shape[1], height, width)


def _typical_side(extent: PrimExpr) -> int | None:
    for side in _SIDES:
        try:
            found = extent_at(extent, {hash(variable): side for variable in variables_in([extent])})
        except KeyError:  # something that is read from memory
            return None
        if found > 1:
            return found
    return None


def open_axes_of(expression: Expr) -> set[int]:
    """The axes of a tensor whose extents are open."""
    return {axis for axis, extent in enumerate(shape_of(expression) or ()) if not isinstance(extent, int)}


def filled(shape: Sequence[int], layout: int) -> int:
    """The number of elements of an image in ``layout``."""
    channels = -(-shape[1] // layout) * layout if layout else shape[1]
    return math.prod((shape[0], channels, *shape[2:]))


def transform(builder: BlockBuilder, expression: Expr, shape: Sequence[int], layouts: tuple[int, int]) -> Expr:
    """``expression``, an image of logical ``shape``, in the second of ``layouts`` instead of the first."""
    source, result = layouts
    if source == result:
        return expression
    if is_view(shape, layouts):
        return relax.op.reshape(expression, _shape_in((batch_of(expression), *shape[1:]), result))
    if not source:
        return builder.call_te(lambda x: blocked.to_blocked(x, result), expression, primfunc_name_hint="to_blocked")
    if not result:
        cut = shape[1]
        return builder.call_te(lambda x: blocked.from_blocked(x, cut), expression, primfunc_name_hint="from_blocked")
    return builder.call_te(
        lambda x: blocked.reblock(x, shape[1], result), expression, primfunc_name_hint="change_block"
    )


def batch_of(expression: Expr) -> Index:
    """The batch of an image: a number, or TVM's expression where it is open."""
    shape = shape_of(expression)
    assert shape is not None
    return shape[0]


def is_view(shape: Sequence[int], layouts: tuple[int, int]) -> bool:
    """True when an image has the same bytes in both layouts: one pixel, and whole blocks."""
    return shape[2] == shape[3] == 1 and all(not layout or shape[1] % layout == 0 for layout in layouts)


def _shape_in(shape: Sequence[Index], layout: int) -> tuple[Index, ...]:
    batch, channels, height, width = shape
    return (batch, channels // layout, height, width, layout) if layout else (batch, channels, height, width)
