"""Matmuls and convolutions by instructions that multiply groups of numbers and add up the products of each group.

Groups are neighbours along what is summed up: activations have them as they are, because channels of a block, columns
of a matrix, or pixels of a plain image's row, lie side by side. Weights are ``[N/o, K/g, o, g]`` and
``[O/o, I/i, KH, KW, i/g, o, g]``. AMX adds up 16 groups in one step: its weights are ``[N/o, K/16g, 16, o, g]`` and
``[O/o, I/i, KH, KW, i/16g, 16, o, g]``; in a plain image, whose pixels have four channels then, eight neighbours in a
row are a step. The layout carries the instruction: no record can ask for it where weights were packed otherwise.

Sums of bfloat16 are float32, sums of integers int32; otherwise these are the operators of
:mod:`tunehub.kernels.te.blocked`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, te, tirx

from tunehub.kernels.te.blocked import PAD, at, cut, windows
from tunehub.kernels.te.channel_groups import groups_of
from tunehub.kernels.te.weights import Array, ReadBlocks, pack_conv2d_weight, pack_dense_weight
from tunehub.tir.nodes import constant_like, plain_extent

if TYPE_CHECKING:
    from tunehub.tir.types import Expr, Index, PrimExpr, Tensor

NARROW, WIDE = "bfloat16", "float32"
DENSE_INT8, DENSE_PAIRS, DENSE_TILES = "tunehub_dense_int8", "tunehub_dense_bf16", "tunehub_dense_amx"
CONV2D_INT8, CONV2D_PAIRS, CONV2D_TILES = "tunehub_conv2d_int8", "tunehub_conv2d_bf16", "tunehub_conv2d_amx"
PIXEL = 4  # channels in a block of a plain image that instructions for matrices read
ATTENTION_PAIRS, ATTENTION_TILES = "tunehub_attention_scores_bf16", "tunehub_attention_scores_amx"
ATTENTION_WORDS = "tunehub_attention_scores_int8"
_ROW_AXES = ("ic", "kh", "kw", "k0")  # the last counts one: pairs of a block of channels have more


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """How an instruction reads weights: ``size`` numbers of ``kind`` in a group, ``steps`` groups that it adds up.
    ``name``: of its kernels."""

    name: str
    kind: str
    size: int
    steps: int = 1

    @property
    def depth(self) -> int:
        """Numbers that one instruction adds up in each sum."""
        return self.steps * self.size

    def split(self, count: int) -> tuple[int, ...]:
        """The axes that ``count`` numbers along what is summed up have in weights, without that of a group."""
        return (count // self.depth, self.steps) if self.steps > 1 else (count // self.size,)


PAIRS = Groups(name="bf16", kind=NARROW, size=2)
WORDS = {size: Groups(name="int8", kind=kind, size=size) for size, kind in ((4, "int8"), (2, "int16"))}  # by size
TILES = Groups(name="amx", kind=NARROW, size=2, steps=16)
TILES_INT8 = Groups(name="int8_amx", kind="int8", size=4, steps=16)


def dense_grouped(data: Tensor, weight: Tensor, *, outputs: int) -> Tensor:
    """Return the matmul of ``data`` ``[..., M, K]``, bfloat16 or uint8, and ``weight``, as :func:`pack_dense` returns
    it, as ``[..., M, outputs]`` in float32 or int32."""
    *lead, depth = [plain_extent(extent) for extent in data.shape]
    outer, *split, block, group = [int(extent) for extent in weight.shape]
    if str(weight.dtype) == "int16":
        narrow = data
        data = te.compute((*lead, depth), lambda *i: at(narrow, *i).astype("int16"), name=PAD)
    sums = _sums(weight)
    axes = [te.reduce_axis((0, extent), f"k{i}") for i, extent in enumerate((*split, group))]

    def compute(*indices: PrimExpr) -> PrimExpr:
        *rows, oc, oi = indices
        element, factor = at(data, *rows, position(axes, (*split, group))), at(weight, oc, *axes[:-1], oi, axes[-1])
        return te.sum(element.astype(sums) * factor.astype(sums), axis=axes)

    name = _named(weight, len(split), DENSE_INT8, DENSE_PAIRS, DENSE_TILES)
    return cut(te.compute((*lead, outer, block), compute, name=name), outputs)


def conv2d_grouped(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    channels: tuple[int, int] | None = None,
) -> Tensor:
    """Return the convolution of ``data`` ``[N, C/c, H, W, c]``, bfloat16 or uint8, and ``weight``, as
    :func:`pack_conv2d` returns it, as ``[N, O/o, OH, OW, o]`` in float32 or int32; ``padding``: top, left, bottom,
    right. Where weights have 16 bits, data are widened once, with their padding.

    ``groups`` of channels need the logical numbers of input and output ``channels``. By pairs of bfloat16 they are read
    as by :func:`tunehub.kernels.te.blocked.conv2d_blocked`, by matrices in whole blocks, integers in whole groups of
    what is added up, of which blocks of outputs skip those that they have no weights for.
    """
    outer, inputs, *kernel, block, group = [int(extent) for extent in weight.shape]
    kernel, split = kernel[:2], kernel[2:]
    if str(weight.dtype) == "int16":
        data, padding = _widened(data, padding), (0, 0, 0, 0)
    padded, size, place = windows(data, kernel, strides, padding, dilation)
    sums = _sums(weight)
    extents = (("ic", inputs), ("kh", kernel[0]), ("kw", kernel[1]), *((f"k{i}", e) for i, e in enumerate(split)))
    axes = [te.reduce_axis((0, extent), name) for name, extent in (*extents, ("item", group))]
    ic, kh, kw, *inner = axes
    channel, touched = _channel(data, weight, groups, channels)

    def compute(n: PrimExpr, oc: PrimExpr, oh: PrimExpr, ow: PrimExpr, oi: PrimExpr) -> PrimExpr:
        outer_c, inner_c = channel(oc, ic, *inner)
        element = at(padded, n, outer_c, *place(oh, ow, kh, kw), inner_c)
        product = element.astype(sums) * at(weight, oc, *axes[:-1], oi, axes[-1]).astype(sums)
        if touched is not None:
            product = tirx.if_then_else(touched(oc, ic), product, tirx.const(0, sums))
        return te.sum(product, axis=axes)

    name = _named(weight, len(split), CONV2D_INT8, CONV2D_PAIRS, CONV2D_TILES)
    return te.compute((plain_extent(data.shape[0]), outer, *size, block), compute, name=name)


def conv2d_rows(
    data: Tensor,
    weight: Tensor,
    *,
    columns: int,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return the convolution of a plain image ``data`` ``[N, C, H, W]`` in bfloat16, as networks begin with, and
    ``weight``, as :func:`pack_conv2d_rows` returns it of a kernel with so many ``columns``, as ``[N, O/o, OH, OW, o]``.

    Neighbours in a row of the image are the pairs, so ``dilation`` is 1 there. Its size is known.
    """
    outer, _, kernel, *_, block, group = [int(extent) for extent in weight.shape]
    top, left, bottom, right = padding
    odd, unread = columns % group, (int(data.shape[3]) + left + right - columns) % strides[1]
    even = (top, left, bottom, right + max(odd - unread, 0))  # the last pair ends in the image, too
    padded, size, place = windows(data, (kernel, columns + odd), strides, even, dilation)
    axes = [te.reduce_axis((0, int(weight.shape[i])), name) for i, name in enumerate(_ROW_AXES, 1)]
    item = te.reduce_axis((0, group), "item")

    def compute(n: PrimExpr, oc: PrimExpr, oh: PrimExpr, ow: PrimExpr, oi: PrimExpr) -> PrimExpr:
        ic, kh, kw, k0 = axes
        element = at(padded, n, ic, *place(oh, ow, kh, (kw + k0) * group + item))
        factor = at(weight, oc, *axes, oi, item)
        return te.sum(element.astype(WIDE) * factor.astype(WIDE), axis=[*axes, item])

    return te.compute((plain_extent(data.shape[0]), outer, *size, block), compute, name=CONV2D_PAIRS)


def conv2d_windows(
    data: Tensor,
    weight: Tensor,
    *,
    columns: int,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return the convolution of an image of few channels ``data`` ``[N, 1, H, W, c]`` in bfloat16, and ``weight``, as
    :func:`pack_conv2d_windows` returns it of a kernel with so many ``columns``, as ``[N, O/o, OH, OW, o]``.

    Neighbours in a row of the image are what one instruction adds up, so ``dilation`` is 1 there. Its size is known.
    """
    outer, _, kernel, count, *_, block, group = [int(extent) for extent in weight.shape]
    channels, (top, left, bottom, right) = int(data.shape[4]), padding
    read = TILES.depth // channels  # pixels in a step
    width = int(data.shape[3]) + left + right
    unread = width - (width - columns) // strides[1] * strides[1]  # from where the last window begins
    whole = (top, left, bottom, right + max(count * read - unread, 0))  # its last step ends in the image, too
    padded, size, place = windows(data, (kernel, count * read), strides, whole, dilation)
    axes = [te.reduce_axis((0, int(weight.shape[i])), name) for i, name in enumerate((*_ROW_AXES, "k1"), 1)]
    item = te.reduce_axis((0, group), "item")

    def compute(n: PrimExpr, oc: PrimExpr, oh: PrimExpr, ow: PrimExpr, oi: PrimExpr) -> PrimExpr:
        ic, kh, kw, k0, k1 = axes
        number = (k0 * TILES.steps + k1) * group + item
        element = at(padded, n, ic, *place(oh, ow, kh, kw * read + number // channels), number % channels)
        factor = at(weight, oc, *axes, oi, item)
        return te.sum(element.astype(WIDE) * factor.astype(WIDE), axis=[*axes, item])

    return te.compute((plain_extent(data.shape[0]), outer, *size, block), compute, name=CONV2D_TILES)


def pack_dense(weight: Array, groups: Groups, *, out_block: int) -> Expr:
    """The constant of ``weight`` ``[K, N]`` as :func:`dense_grouped` reads it, filled up with zeros where outputs end;
    what one instruction adds up divides K."""
    return _packed(pack_dense_weight(weight, out_block=out_block), groups)


def pack_conv2d(weight: Array, groups: Groups, *, in_block: int, out_block: int, of_channels: int = 1) -> Expr:
    """The constant of ``weight`` ``[O, I, KH, KW]`` as :func:`conv2d_grouped` reads it, filled up with zeros; what one
    instruction adds up divides ``in_block``, and of pairs the inputs of each of the groups ``of_channels``, too. For
    matrices blocks of outputs read whole blocks of inputs, and of integers whole groups, with zeros for those that
    others of ``of_channels`` have."""
    if of_channels > 1 and groups is not PAIRS:
        in_block = in_block if groups.steps > 1 else groups.size
        channels = (weight.shape[1] * of_channels, len(weight))
        weight, of_channels = ReadBlocks.of(of_channels, channels, in_block, out_block).widened(weight), 1
    return _packed(pack_conv2d_weight(weight, in_block=in_block, out_block=out_block, groups=of_channels), groups)


def pack_conv2d_rows(weight: Array, *, out_block: int) -> Expr:
    """The constant of ``weight`` ``[O, I, KH, KW]`` as :func:`conv2d_rows` reads it, ``[O/o, I, KH, KW/2, 1, o, 2]``,
    filled up with zeros."""
    even = np.pad(weight, [(0, 0)] * 3 + [(0, weight.shape[3] % PAIRS.size)])
    packed = pack_conv2d_weight(even, in_block=None, out_block=out_block)
    *outer, columns, block = packed.shape
    return _packed(packed.reshape(*outer, columns // PAIRS.size, PAIRS.size, block), PAIRS)


def pack_conv2d_windows(weight: Array, *, channels: int, out_block: int) -> Expr:
    """The constant of ``weight`` ``[O, I, KH, KW]`` as :func:`conv2d_windows` reads it with pixels of so many
    ``channels``, ``[O/o, 1, KH, KW', 1, 16, o, 2]``, filled up with zeros."""
    outputs, inputs, rows, columns = weight.shape
    read = TILES.depth // channels
    whole = np.pad(weight, [(0, 0), (0, channels - inputs), (0, 0), (0, -columns % read)])
    steps = whole.transpose(0, 3, 1, 2).reshape(outputs, -1, TILES.depth, rows)  # of eight pixels
    return _packed(pack_conv2d_weight(steps.transpose(0, 2, 3, 1), in_block=TILES.depth, out_block=out_block), TILES)


def _packed(weight: Array, groups: Groups) -> Expr:
    """The constant of ``weight`` ``[..., inputs, outputs]`` with its inputs in ``groups``."""
    *outer, _, outputs = weight.shape
    steps = (groups.steps,) if groups.steps > 1 else ()
    values = weight.reshape(*outer, -1, *steps, groups.size, outputs).swapaxes(-1, -2)
    if groups.kind != NARROW:
        return constant_like(values.shape, groups.kind, lambda own: np.copyto(own, values))
    import ml_dtypes  # with TVM from 0.27 on

    return relax.const(np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)), NARROW)


def _sums(weight: Tensor) -> str:
    return WIDE if str(weight.dtype) == NARROW else "int32"


def _named(weight: Tensor, split: int, integers: str, pairs: str, tiles: str) -> str:
    """The name for the instruction that ``weight``, with its inputs in ``split`` axes of groups, is packed for."""
    return tiles if split > 1 else pairs if str(weight.dtype) == NARROW else integers


def position(axes: Sequence[Index], extents: Sequence[int]) -> PrimExpr:
    """Where along the inputs an element is that ``axes`` count, the last of them fastest."""
    place = axes[0]
    for axis, extent in zip(axes[1:], extents[1:], strict=True):
        place = place * extent + axis
    return place


def _channel(data: Tensor, weight: Tensor, groups: int, channels: tuple[int, int] | None) -> tuple[Any, Any | None]:
    """A function of the loops (oc, ic, …) that returns the indices of the input channel, and on which condition."""
    *split, _, group = [int(extent) for extent in weight.shape[4:]]
    if groups == 1:
        return (lambda oc, ic, *inner: (ic, position(inner, (*split, group)))), None
    if len(split) > 1 or str(weight.dtype) != NARROW:
        return _whole_blocks(data, weight, groups, channels)
    of_group, touched = groups_of(data, weight, groups, channels, group)

    def channel(oc: Index, ic: Index, inner: Index, item: Index) -> tuple[PrimExpr, PrimExpr]:
        outer, place = of_group(oc, ic, inner)
        return outer, place * group + item

    return channel, touched


def _whole_blocks(
    data: Tensor, weight: Tensor, groups: int, channels: tuple[int, int] | None
) -> tuple[Any, Any | None]:
    """As :func:`_channel`, where blocks of outputs read whole blocks of inputs, as many as ``weight`` has."""
    assert channels is not None
    *split, out_block, group = [int(extent) for extent in weight.shape[4:]]
    in_block = math.prod(split) * group
    read = ReadBlocks.of(groups, channels, in_block, out_block)
    in_one = int(data.shape[4]) // in_block  # of the data

    def channel(oc: Index, ic: Index, *inner: Index) -> tuple[PrimExpr, PrimExpr]:
        block, place = read.first(oc, tirx.min) + ic, position(inner, (*split, group))
        return (block, place) if in_one == 1 else (block // in_one, block % in_one * in_block + place)

    def touched(oc: Index, ic: Index) -> PrimExpr:
        block = read.first(oc, tirx.min) + ic
        return tirx.all(block >= read.begin(oc), block <= read.last(oc, tirx.min))

    uneven = len(split) == 1 and len(set(read.counts())) > 1
    return channel, touched if uneven else None


def _widened(data: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
    """``data`` in 16 bits with zeros around it."""
    top, left, bottom, right = padding
    batch, outer, height, width, block = [plain_extent(extent) for extent in data.shape]

    def compute(n: PrimExpr, c: PrimExpr, h: PrimExpr, w: PrimExpr, i: PrimExpr) -> PrimExpr:
        row, column = h - top, w - left
        value = at(data, n, c, row, column, i).astype("int16")
        if not any(padding):
            return value
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return tirx.if_then_else(inside, value, tirx.const(0, "int16"))

    return te.compute((batch, outer, height + top + bottom, width + left + right, block), compute, name=PAD)
