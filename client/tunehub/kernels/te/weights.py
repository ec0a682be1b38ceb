"""Constant weights and addends in blocked layouts: numpy functions that pack them.

Layouts are those of :mod:`tunehub.kernels.te.blocked`. Results may be views that are not contiguous, so that a weight
is copied once, where it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tunehub.tir.types import Index

Array = npt.NDArray[Any]


def pack_conv2d_weight(weight: Array, *, in_block: int | None, out_block: int, groups: int = 1) -> Array:
    """Return ``weight`` ``[O, I/groups, KH, KW]`` as :func:`tunehub.kernels.te.blocked.conv2d_blocked` reads it,
    filled up with zeros.

    ``in_block``: the block of the data, None for plain data. With groups, the input channels of the result are those
    of the window (:func:`grouped_window`), in blocks of the largest divisor of the channels of a group up to
    ``in_block``.
    """
    if groups > 1:
        weight, in_block = _window_weight(weight, groups, out_block), _group_block(weight.shape[1], in_block or 1)
    filled = _fill(_fill(weight, 0, out_block), 1, in_block or 1)
    outputs, inputs, kh, kw = filled.shape
    split = filled.reshape(outputs // out_block, out_block, inputs // (in_block or 1), in_block or 1, kh, kw)
    packed: Array = split.transpose(0, 2, 4, 5, 3, 1)
    return packed if in_block else packed[:, :, :, :, 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBlocks:
    """Which whole blocks of ``block`` input channels blocks of ``out_block`` of the ``outputs`` read, at most ``count``
    of ``total``, where channels are in groups of ``each_in`` inputs and ``each_out`` outputs."""

    block: int
    out_block: int
    outputs: int
    each_in: int
    each_out: int
    count: int
    total: int

    @classmethod
    def of(cls, groups: int, channels: tuple[int, int], block: int, out_block: int | None = None) -> ReadBlocks:
        """``channels``: logical input, output channels. ``out_block``: as ``block`` by default."""
        inputs, outputs = channels
        found = cls(
            block=block,
            out_block=out_block or block,
            outputs=outputs,
            each_in=inputs // groups,
            each_out=outputs // groups,
            count=0,
            total=-(-inputs // block),
        )
        return replace(found, count=max(found.counts()))

    def counts(self) -> list[int]:
        """How many blocks of inputs each block of outputs reads."""
        return [self.last(output) + 1 - self.begin(output) for output in range(-(-self.outputs // self.out_block))]

    def first(self, output: Index, least: Callable[[Index, Index], Index] = min) -> Index:
        """The first block of inputs that weights of the block ``output`` of outputs are for."""
        if self.count == self.total:
            return 0 * output
        return least(self.begin(output), self.total - self.count)

    def begin(self, output: Index) -> Index:
        """The first block of inputs that the block ``output`` of outputs reads."""
        return output * self.out_block // self.each_out * self.each_in // self.block

    def last(self, output: Index, least: Callable[[Index, Index], Index] = min) -> Index:
        """The last one."""
        group = (least(output * self.out_block + self.out_block, self.outputs) - 1) // self.each_out
        return (group * self.each_in + self.each_in - 1) // self.block

    def widened(self, weight: Array) -> Array:
        """``weight`` ``[O, I/groups, KH, KW]`` with all inputs that are read, zero where they are of other groups."""
        wide = np.zeros((len(weight), self.count * self.block, *weight.shape[2:]), weight.dtype)
        for output, own in enumerate(weight):
            begin = output // self.each_out * self.each_in - self.first(output // self.out_block) * self.block
            wide[output, begin : begin + self.each_in] = own
        return wide


def phases_of_weight(weight: Array, *, strides: tuple[int, int], block: int) -> Array:
    """The weight ``[I, O, KH, KW]`` of a transposed convolution as that of a plain one, ``[P * O', I, A, B]``.

    Its result has one group of channels for each of the ``P`` places in a stride, filled up to ``O'``, a multiple of
    ``block``. A phase has each ``strides``-th tap, in reverse; taps beyond the kernel are zero.
    """
    inputs, outputs, *kernel = weight.shape
    taps = [-(-extent // stride) for extent, stride in zip(kernel, strides, strict=True)]
    whole = [tap * stride for tap, stride in zip(taps, strides, strict=True)]
    grown = np.zeros((inputs, -(-outputs // block) * block, *whole), weight.dtype)
    grown[:, :outputs, : kernel[0], : kernel[1]] = weight
    split = grown.reshape(inputs, -1, taps[0], strides[0], taps[1], strides[1])[:, :, ::-1, :, ::-1]
    phases = split.transpose(3, 5, 1, 0, 2, 4)  # rows and columns of a stride, outputs, inputs, taps
    return np.ascontiguousarray(phases.reshape(-1, inputs, *taps))


def pack_depthwise_weight(weight: Array, *, block: int) -> Array:
    """Return ``weight`` ``[C, 1, KH, KW]`` as ``[C/c, KH, KW, c]``, filled up with zeros."""
    filled = _fill(weight[:, 0], 0, block)
    channels, kh, kw = filled.shape
    return np.ascontiguousarray(filled.reshape(channels // block, block, kh, kw).transpose(0, 2, 3, 1))


def pack_dense_weight(weight: Array, *, out_block: int) -> Array:
    """Return ``weight`` ``[K, N]`` as ``[N/o, K, o]``, filled up with zeros."""
    filled = _fill(weight, 1, out_block)
    depth, outputs = filled.shape
    packed: Array = filled.reshape(depth, outputs // out_block, out_block).transpose(1, 0, 2)
    return packed


def pack_channels(values: Array, *, block: int) -> Array:
    """Return a tensor ``[..., C, *spatial]`` of three or four axes (``[C, 1, 1]``, ``[1, C, H, W]``) in blocks.

    The result has four or five axes, filled up with zeros: a bias ``[C, 1, 1]`` becomes ``[C/c, 1, 1, c]``, which
    broadcasts against ``[N, C/c, H, W, c]``. A tensor whose channel axis has the extent 1 becomes ``[..., 1, 1]``.
    """
    axis = values.ndim - 3
    if values.shape[axis] == 1:
        return values[..., np.newaxis]
    filled = _fill(values, axis, block)
    shape = filled.shape
    split = filled.reshape(*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def grouped_window(groups: int, channels: tuple[int, int], out_block: int) -> int:
    """The number of groups whose input channels a block of ``out_block`` output channels reads, at most.

    One where the output channels of a group are a multiple of the block; the multiply-adds of a grouped convolution
    grow by this factor, because weights for foreign groups are zero. ``channels``: logical input, output channels.
    """
    each = channels[1] // groups
    blocks = -(-channels[1] // out_block)
    return max(
        (min(b * out_block + out_block, channels[1]) - 1) // each - b * out_block // each + 1 for b in range(blocks)
    )


def _group_block(each_in: int, in_block: int) -> int:
    return max(size for size in range(1, in_block + 1) if each_in % size == 0 and in_block % size == 0)


def _window_weight(weight: Array, groups: int, out_block: int) -> Array:
    """Grouped ``weight`` with the input channels of the window of each output's block, zero for foreign groups."""
    outputs, each_in = weight.shape[:2]
    each_out = outputs // groups
    window = grouped_window(groups, (each_in * groups, outputs), out_block)
    wide = np.zeros((outputs, window * each_in, *weight.shape[2:]), weight.dtype)
    for output in range(outputs):
        first = min(output // out_block * out_block // each_out, groups - window)
        start = (output // each_out - first) * each_in
        wide[output, start : start + each_in] = weight[output]
    return wide


def _fill(array: Array, axis: int, block: int) -> Array:
    missing = -array.shape[axis] % block
    if not missing:
        return array
    return np.pad(array, [(0, missing if i == axis else 0) for i in range(array.ndim)])
