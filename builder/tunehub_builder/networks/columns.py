"""Windows of images as columns, and images as sums of columns: ``unfold``, ``im2col``, ``col2im``, which TVM has not.

Images are ``(batch, channels, *sizes)`` here, columns ``(batch, channels, *windows, *places)``: the element of each
window at each of its places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnWindows:
    """``sizes``, ``strides`` and ``dilations`` of windows, a number an axis, and how many elements are added ``before``
    and ``behind`` each axis of an image."""

    sizes: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    behind: Sequence[int]

    def places(self, image: Sequence[Any]) -> list[Any]:
        """How many places windows have along each axis of an image."""
        reached = [gap * (size - 1) + 1 for gap, size in zip(self.dilations, self.sizes, strict=True)]
        axes = zip(image, self.before, self.behind, reached, self.strides, strict=True)
        return [(size + before + behind - reach) // by + 1 for size, before, behind, reach, by in axes]

    def shifted(self, each: Sequence[Any]) -> list[Any]:
        """How far behind the beginning of a window, in elements of an image, the one at ``each`` of its axes is."""
        return [at * gap - before for at, gap, before in zip(each, self.dilations, self.before, strict=True)]


def sliding(data: Any, axis: int, size: int, step: int) -> Any:
    """PyTorch's ``data.unfold(axis, size, step)`` as a tensor expression: windows along an axis, elements last."""
    from tvm import te

    places = (data.shape[axis] - size) // step + 1
    shape = (*data.shape[:axis], places, *data.shape[axis + 1 :], size)
    return te.compute(shape, lambda *at: data(*at[:axis], at[axis] * step + at[-1], *at[axis + 1 : -1]), name="unfold")


def columns(data: Any, windows: ColumnWindows) -> Any:
    """The columns of an image as a tensor expression; what is added to the image is 0."""
    from tvm import te, tirx

    axes, image = len(windows.sizes), data.shape[2:]

    def element(batch: Any, channel: Any, *at: Any) -> Any:
        begins = [place * by for place, by in zip(at[axes:], windows.strides, strict=True)]
        inside = [begin + more for begin, more in zip(begins, windows.shifted(at[:axes]), strict=True)]
        value = data(batch, channel, *inside)
        if not any((*windows.before, *windows.behind)):
            return value
        within = [limit for each, size in zip(inside, image, strict=True) for limit in (each >= 0, each < size)]
        return tirx.if_then_else(tirx.all(*within), value, tirx.const(0, data.dtype))

    return te.compute((*data.shape[:2], *windows.sizes, *windows.places(image)), element, name="im2col")


def image_of_columns(data: Any, image: Sequence[int], windows: ColumnWindows) -> Any:
    """The image of these sizes, to each element of which all columns are added that have it, as a tensor expression."""
    from tvm import te, tirx

    axes = len(windows.sizes)
    taps = [te.reduce_axis((0, size), f"tap{number}") for number, size in enumerate(windows.sizes)]

    def element(batch: Any, channel: Any, *at: Any) -> Any:
        begins = [each - more for each, more in zip(at, windows.shifted([tap.var for tap in taps]), strict=True)]
        places = [begin // by for begin, by in zip(begins, windows.strides, strict=True)]
        limits = []
        for begin, place, by, end in zip(begins, places, windows.strides, data.shape[2 + axes :], strict=True):
            limits += [begin >= 0, place < end, *([begin % by == 0] if by > 1 else [])]
        value = data(batch, channel, *(tap.var for tap in taps), *places)
        return te.sum(tirx.if_then_else(tirx.all(*limits), value, tirx.const(0, data.dtype)), axis=taps)

    return te.compute((*data.shape[:2], *image), element, name="col2im")


def emitted_columns(builder: Any, data: Any, windows: ColumnWindows) -> Any:
    """``im2col`` of an image, whose channels and windows are one axis then, and whose places are one."""
    from tvm import relax

    from tunehub.tir.nodes import shape_of

    made = builder.emit_te(lambda image: columns(image, windows), data, primfunc_name_hint="im2col")
    batch, *rest = shape_of(made) or ()
    inner = 1 + len(windows.sizes)
    return builder.emit(relax.op.reshape(made, (batch, prod(rest[:inner]), prod(rest[inner:]))))


def emitted_image(builder: Any, data: Any, image: Sequence[int], windows: ColumnWindows) -> Any:
    """``col2im``, its opposite."""
    from tvm import relax

    from tunehub.tir.nodes import shape_of

    batch, rows, _ = shape_of(data) or ()
    shape = (batch, rows // prod(windows.sizes), *windows.sizes, *windows.places(image))
    apart = builder.emit(relax.op.reshape(data, shape))
    return builder.emit_te(lambda given: image_of_columns(given, image, windows), apart, primfunc_name_hint="col2im")
