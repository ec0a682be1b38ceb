"""Operators on blocked tensors, as tensor expressions of current TVM.

A blocked tensor has its channels in two axes: ``[N, C, H, W]`` becomes ``[N, ceil(C / b), H, W, b]`` (TVM's
``NCHW16c`` for ``b = 16``), so that the elements that one vector register holds lie side by side. Channels that ``b``
does not divide are filled up: :func:`to_blocked` writes zeros there, packed weights are zero for them, and whatever
an elementwise operator makes of them stays finite and is multiplied by zero by the next convolution, or cut off by
:func:`from_blocked`. Averages and softmax over channels must not run on blocked tensors with filled-up channels.

Shapes are static but for the batch, and the rows of matmuls. The names of the blocks are fixed (``tunehub_conv2d``,
``tunehub_depthwise``, ``tunehub_dense``, ``tunehub_to_blocked``, ``tunehub_from_blocked``, ``tunehub_concat``,
``tunehub_slice``, ``tunehub_shuffle``, ``pad_temp``): templates recognise them, and the anchor keys of records contain
them. :mod:`tunehub.kernels.te.weights` packs weights for them.

Source of the layouts: ``topi/nn/conv2d.py`` (``conv2d_NCHWc``) and ``topi/x86/conv2d_avx_*.py`` of TVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tvm import te, tirx, topi

from tunehub.kernels.te.channel_groups import groups_of
from tunehub.tir.nodes import plain_extent, symbolic

if TYPE_CHECKING:
    from tunehub.tir.types import Index, IterVar, PrimExpr, Tensor

CONV2D, DEPTHWISE, DENSE = "tunehub_conv2d", "tunehub_depthwise", "tunehub_dense"
TO_BLOCKED, FROM_BLOCKED, CONCAT, PAD = "tunehub_to_blocked", "tunehub_from_blocked", "tunehub_concat", "pad_temp"
SHUFFLE, SLICE = "tunehub_shuffle", "tunehub_slice"


def conv2d_blocked(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    channels: tuple[int, int] | None = None,
) -> Tensor:
    """Return the convolution of ``data`` as the tensor ``[N, O/o, OH, OW, o]``.

    ``data``: ``[N, C/c, H, W, c]`` with ``weight`` ``[O/o, I/i, KH, KW, i, o]``, or plain ``[N, C, H, W]`` with
    ``weight`` ``[O/o, I, KH, KW, o]`` (stems; groups must be 1), both as
    :func:`tunehub.kernels.te.weights.pack_conv2d_weight` returns them.
    ``padding``: top, left, bottom, right. ``channels``: the logical numbers of input and output channels, needed with
    ``groups > 1`` where blocks are filled up; the default takes the blocks as full.
    With one group ``i`` must equal ``c``. With more, a block of output channels reads the input channels of all
    groups that it touches, see :func:`tunehub.kernels.te.weights.grouped_window`; its weights are zero for groups
    that an output is not in.
    Blocks that touch fewer groups than others skip the rest of the window.
    """
    blocked = len(data.shape) == 5
    outer, kernel, block = int(weight.shape[0]), _ints(weight.shape[2:4]), int(weight.shape[-1])
    padded, size, place = windows(data, kernel, strides, padding, dilation)
    channel, touched = groups_of(data, weight, groups, channels) if groups > 1 else (None, None)
    outer_in, kh, kw = (
        te.reduce_axis((0, int(weight.shape[i])), name) for i, name in ((1, "ic"), (2, "kh"), (3, "kw"))
    )
    inner_in = [te.reduce_axis((0, int(weight.shape[4])), "ii")] if blocked else []

    def compute(n: PrimExpr, oc: PrimExpr, oh: PrimExpr, ow: PrimExpr, oi: PrimExpr) -> PrimExpr:
        outer_c, *inner_c = channel(oc, outer_in, *inner_in) if channel is not None else (outer_in, *inner_in)
        element = at(padded, n, outer_c, *place(oh, ow, kh, kw), *inner_c)
        product = element * at(weight, oc, outer_in, kh, kw, *inner_in, oi)
        if touched is not None:  # te.sum(where=...) is ignored by TVM's create_prim_func
            product = tirx.if_then_else(touched(oc, outer_in), product, tirx.const(0, data.dtype))
        return te.sum(product, axis=[outer_in, kh, kw, *inner_in])

    return te.compute((plain_extent(data.shape[0]), outer, *size, block), compute, name=CONV2D)


def depthwise_blocked(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return the depthwise convolution of ``data`` ``[N, C/c, H, W, c]`` with ``weight`` ``[C/c, KH, KW, c]``.

    One output channel for each input channel. The result has the shape ``[N, C/c, OH, OW, c]``; sums of uint8 ``data``
    are int32, those of bfloat16 float32, as ``weight`` is.
    """
    batch, outer, _, _, block = _extents(data.shape)
    kernel = _ints(weight.shape[1:3])
    padded, size, place = windows(data, kernel, strides, padding, dilation)
    kh, kw = te.reduce_axis((0, kernel[0]), "kh"), te.reduce_axis((0, kernel[1]), "kw")

    def compute(n: PrimExpr, c: PrimExpr, oh: PrimExpr, ow: PrimExpr, ci: PrimExpr) -> PrimExpr:
        element, factor = at(padded, n, c, *place(oh, ow, kh, kw), ci), weight[c, kh, kw, ci]
        if str(data.dtype) != str(weight.dtype):
            sums = "int32" if str(data.dtype) == "uint8" else "float32"
            element, factor = element.astype(sums), factor.astype(sums)
        return te.sum(element * factor, axis=[kh, kw])

    return te.compute((batch, outer, *size, block), compute, name=DEPTHWISE)


def dense_blocked(data: Tensor, weight: Tensor, *, outputs: int | None = None) -> Tensor:
    """Return the matmul of ``data`` ``[..., M, K]`` and ``weight`` ``[N/o, K, o]`` as ``[..., M, N]``.

    ``weight`` is as :func:`tunehub.kernels.te.weights.pack_dense_weight` returns it; ``outputs``: ``N`` without the
    fill-up (default: all).
    Two blocks: the products by blocks of ``o`` (``tunehub_dense``) and the copy to the plain result
    (``tunehub_from_blocked``), which a template computes in one pass.
    """
    *lead, depth = _extents(data.shape)
    outer, _, block = _ints(weight.shape)
    k = te.reduce_axis((0, depth), "k")

    def compute(*indices: PrimExpr) -> PrimExpr:
        *rows, oc, oi = indices
        return te.sum(at(data, *rows, k) * weight[oc, k, oi], axis=[k])

    product = te.compute((*lead, outer, block), compute, name=DENSE)
    return cut(product, outer * block if outputs is None else outputs)


def cut(product: Tensor, outputs: int) -> Tensor:
    """Return ``product`` ``[..., M, N/o, o]`` as ``[..., M, outputs]``, without the fill-up."""
    *lead, _, block = _extents(product.shape)
    return te.compute(
        (*lead, outputs), lambda *i: at(product, *i[:-1], i[-1] // block, i[-1] % block), name=FROM_BLOCKED
    )


def pool2d_blocked(
    data: Tensor,
    *,
    kind: Literal["max", "avg"],
    pool_size: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Tensor:
    """Return the pooling of ``data`` ``[N, C/c, H, W, c]``; the meaning of the arguments is Relax's.

    ``padding``: top, left, bottom, right. Blocks are TOPI's (``pool_max``; ``pool_sum`` and ``pool_avg``).
    """
    is_open = not all(isinstance(extent, int) for extent in _extents(data.shape)[2:4])
    if kind == "avg" and is_open and not ceil_mode and (count_include_pad or not any(padding)):
        return _average(data, pool_size, strides, padding, dilation)
    return topi.nn.pool2d(
        data, pool_size, strides, dilation, padding, kind, ceil_mode, _layout(data), count_include_pad=count_include_pad
    )


def max_pool2d_narrow(
    data: Tensor,
    *,
    pool_size: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    size: tuple[int, int],
) -> Tensor:
    """Return the largest of each window of ``data`` ``[N, C/c, H, W, c]`` in bfloat16 as float32; ``size``: rows and
    columns of the result, whose last windows may end behind the image."""
    batch, outer, *image, block = _extents(data.shape)
    taken = [(size[i] - 1) * strides[i] + (pool_size[i] - 1) * dilation[i] + 1 - padding[i] for i in (0, 1)]
    after = [max(taken[i] - image[i], 0) for i in (0, 1)]
    whole = (padding[0], padding[1], after[0], after[1])
    if any(whole):
        least = tirx.min_value("bfloat16")
        data = topi.nn.pad(data, [0, 0, *whole[:2], 0], [0, 0, *whole[2:], 0], least, name=PAD)
    kh, kw = te.reduce_axis((0, pool_size[0]), "rv0"), te.reduce_axis((0, pool_size[1]), "rv1")

    def most(n: PrimExpr, c: PrimExpr, oh: PrimExpr, ow: PrimExpr, ci: PrimExpr) -> PrimExpr:
        row, column = oh * strides[0] + kh * dilation[0], ow * strides[1] + kw * dilation[1]
        return te.max(at(data, n, c, row, column, ci).astype("float32"), axis=[kh, kw])

    return te.compute((batch, outer, *size, block), most, name="pool_max")


def _average(
    data: Tensor,
    pool_size: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Averages over windows that are all of one size: TOPI counts their elements, where it does not know the image."""
    batch, outer, _, _, block = _extents(data.shape)
    padded, size, place = windows(data, pool_size, strides, padding, dilation)
    kh, kw = te.reduce_axis((0, pool_size[0]), "rv0"), te.reduce_axis((0, pool_size[1]), "rv1")

    def total(n: PrimExpr, c: PrimExpr, oh: PrimExpr, ow: PrimExpr, ci: PrimExpr) -> PrimExpr:
        return te.sum(at(padded, n, c, *place(oh, ow, kh, kw), ci), axis=[kh, kw])

    count = tirx.const(math.prod(pool_size), data.dtype)
    sums = te.compute((batch, outer, *size, block), total, name="pool_sum")
    return te.compute(sums.shape, lambda *at: sums[at] / count, name="pool_avg")


def adaptive_pool2d_blocked(data: Tensor, *, kind: Literal["max", "avg"], output_size: tuple[int, int]) -> Tensor:
    """Return the adaptive pooling of ``data`` ``[N, C/c, H, W, c]``; ``(1, 1)`` pools the whole image."""
    return topi.nn.adaptive_pool(data, output_size, kind, _layout(data))


def to_blocked(data: Tensor, block: int) -> Tensor:
    """Return ``data`` ``[N, C, *spatial]`` as ``[N, ceil(C / block), *spatial, block]``, zeros where channels end."""
    batch, channels, *spatial = _extents(data.shape)

    def compute(n: PrimExpr, outer: PrimExpr, *rest: PrimExpr) -> PrimExpr:
        channel = outer * block + rest[-1]
        value = at(data, n, channel, *rest[:-1])
        if channels % block == 0:
            return value
        return tirx.if_then_else(channel < channels, value, tirx.const(0, data.dtype))

    return te.compute((batch, -(-channels // block), *spatial, block), compute, name=TO_BLOCKED)


def from_blocked(data: Tensor, channels: int) -> Tensor:
    """Return ``data`` ``[N, C/c, *spatial, c]`` as ``[N, channels, *spatial]``; filled-up channels are cut off."""
    batch, _, *spatial, block = _extents(data.shape)

    def compute(n: PrimExpr, channel: PrimExpr, *rest: PrimExpr) -> PrimExpr:
        return at(data, n, channel // block, *rest, channel % block)

    return te.compute((batch, channels, *spatial), compute, name=FROM_BLOCKED)


def reblock(data: Tensor, channels: int, block: int) -> Tensor:
    """Return ``data`` ``[N, C/c, *spatial, c]`` with ``channels`` logical channels in blocks of another size."""
    batch, _, *spatial, old = _extents(data.shape)

    def compute(n: PrimExpr, outer: PrimExpr, *rest: PrimExpr) -> PrimExpr:
        channel = outer * block + rest[-1]
        value = at(data, n, channel // old, *rest[:-1], channel % old)
        if channels % block == 0:
            return value
        return tirx.if_then_else(channel < channels, value, tirx.const(0, data.dtype))

    return te.compute((batch, -(-channels // block), *spatial, block), compute, name=TO_BLOCKED)


def shuffle_blocked(data: Tensor, *, strides: tuple[int, int], begin: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return ``[N, C/c, H, W, c]`` of ``size`` (H, W), taken from the phases of ``data`` ``[N, P * C/c, R, S, c]``.

    Row ``h`` is row ``u // strides[0]`` of phase ``u % strides[0]`` with ``u = h + begin[0]``, columns likewise; the
    phases, row by row, are the outermost part of the channels (the sub-pixel shuffle of Shi et al. 2016,
    arXiv 1609.05158).
    """
    batch, phases, _, _, block = _extents(data.shape)
    outer = phases // (strides[0] * strides[1])

    def compute(n: PrimExpr, c: PrimExpr, h: PrimExpr, w: PrimExpr, i: PrimExpr) -> PrimExpr:
        row, column = h + begin[0], w + begin[1]
        phase = (row % strides[0]) * strides[1] + column % strides[1]
        return at(data, n, phase * outer + c, row // strides[0], column // strides[1], i)

    return te.compute((batch, outer, *size, block), compute, name=SHUFFLE)


def concat_blocked(tensors: Sequence[Tensor], channels: Sequence[int]) -> Tensor:
    """Return the tensors ``[N, C/c, *spatial, c]`` of one block joined along their logical ``channels``.

    Where all but the last are full blocks, it is a plain concatenation; otherwise channels move between lanes, and
    those after the last are zero. They move in runs of :func:`run_of` channels that stay side by side: the block is
    called ``tunehub_concat_8`` for runs of 8, and a schedule makes vectors of them.
    """
    block, dtype = int(tensors[0].shape[-1]), tensors[0].dtype
    if all(count % block == 0 for count in channels[:-1]):
        return topi.concatenate(list(tensors), axis=1)
    batch, _, *spatial, _ = _extents(tensors[0].shape)
    starts, total = [sum(channels[:i]) for i in range(len(channels))], sum(channels)
    run = run_of(block, (*starts, total))

    def compute(n: PrimExpr, outer: PrimExpr, *rest: PrimExpr) -> PrimExpr:
        place = outer * (block // run) + rest[-1] // run  # in runs
        value = tirx.const(0, dtype)
        for tensor, start, end in reversed(list(zip(tensors, starts, [*starts[1:], total], strict=True))):
            own = _run_at(tensor, n, place - start // run, rest, run)
            value = tirx.if_then_else(tirx.all(place >= start // run, place < end // run), own, value)
        return value

    return te.compute((batch, -(-total // block), *spatial, block), compute, name=f"{CONCAT}_{run}")


def slice_blocked(data: Tensor, begin: int, channels: int) -> Tensor:
    """Return ``channels`` logical channels of ``data`` ``[N, C/c, *spatial, c]``, from ``begin`` on.

    From the beginning of a block on they stay where they are in their blocks, and those after the last are whatever
    ``data`` has there. Otherwise they move between lanes as in :func:`concat_blocked`.
    """
    batch, _, *spatial, block = _extents(data.shape)
    run = run_of(block, (begin, channels))

    def compute(n: PrimExpr, outer: PrimExpr, *rest: PrimExpr) -> PrimExpr:
        if begin % block == 0:
            return at(data, n, outer + begin // block, *rest)
        place = outer * (block // run) + rest[-1] // run
        value = _run_at(data, n, place + begin // run, rest, run)
        if channels % block == 0:
            return value
        return tirx.if_then_else(place < channels // run, value, tirx.const(0, data.dtype))

    name = SLICE if begin % block == 0 else f"{SLICE}_{run}"
    return te.compute((batch, -(-channels // block), *spatial, block), compute, name=name)


def run_of(block: int, channels: Sequence[int]) -> int:
    """How many channels stay side by side in blocks of ``block`` where channels of these numbers begin and end."""
    return math.gcd(block, *channels)


def run_in_name(name: str) -> int:
    """The run in the name of a block that moves channels between lanes; 0 for other names."""
    kind, _, run = name.rpartition("_")
    return int(run) if kind in (CONCAT, SLICE) and run.isdecimal() else 0


def resize2d_blocked(data: Tensor, **how: Any) -> Tensor:
    """Return ``data`` ``[N, C/c, H, W, c]`` in another size; ``how``: the arguments of ``topi.image.resize2d``."""
    return topi.image.resize2d(data, layout=_layout(data), **how)


def pad_blocked(data: Tensor, before: tuple[int, int], after: tuple[int, int], value: float) -> Tensor:
    """Return ``data`` ``[N, C/c, H, W, c]`` with rows and columns of ``value`` around it."""
    return topi.nn.pad(data, [0, 0, *before, 0], [0, 0, *after, 0], value)


def at(tensor: Tensor, *indices: Index) -> PrimExpr:
    """The element of ``tensor`` there; Python 3.10 has no star in subscripts."""
    return tensor[indices]


def _run_at(data: Tensor, n: PrimExpr, place: PrimExpr, rest: Sequence[PrimExpr], run: int) -> PrimExpr:
    """The element of ``data`` at a place along the channels, counted in runs, and at the lane of ``rest`` in it."""
    runs = int(data.shape[-1]) // run
    return at(data, n, place // runs, *rest[:-1], place % runs * run + rest[-1] % run)


def windows(
    data: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: tuple[int, int, int, int],
    dilation: Sequence[int],
) -> tuple[Tensor, tuple[Index, Index], Callable[..., tuple[Index, Index]]]:
    """``data`` with zeros around it, how many windows of ``kernel`` its rows and columns have, and a function of
    (oh, ow, kh, kw): the row and the column of an element of a window."""
    height, width = _extents(data.shape)[2:4]
    whole = (height + padding[0] + padding[2], width + padding[1] + padding[3])
    rows, columns = (_simplified((whole[i] - (kernel[i] - 1) * dilation[i] - 1) // strides[i] + 1) for i in (0, 1))

    def place(oh: PrimExpr, ow: PrimExpr, kh: IterVar, kw: IterVar) -> tuple[PrimExpr, PrimExpr]:
        return oh * strides[0] + kh * dilation[0], ow * strides[1] + kw * dilation[1]

    return _zeros_around(data, padding), (rows, columns), place


def _zeros_around(data: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
    if not any(padding):
        return data
    top, left, bottom, right = padding
    tail = [0] * (len(data.shape) - 4)
    return topi.nn.pad(data, [0, 0, top, left, *tail], [0, 0, bottom, right, *tail], name=PAD)


def _simplified(extent: Index) -> Index:
    """An extent in the form that equal ones have: functions are compiled once if they are written alike."""
    return extent if isinstance(extent, int) else symbolic().Analyzer().simplify(extent)


def _layout(data: Tensor) -> str:
    return f"NCHW{int(data.shape[4])}c"


def _ints(extents: Iterable[Index]) -> list[int]:
    return [int(extent) for extent in extents]


def _extents(extents: Iterable[Index]) -> list[Index]:
    """Numbers, and TVM's expressions for what is not known."""
    return [plain_extent(extent) for extent in extents]
