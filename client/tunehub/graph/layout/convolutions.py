"""The rules for convolutions: in float32, with operands in bfloat16, of integers; and for transposed ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tunehub.graph.layout.costs import PLAIN, ConvWorkload
from tunehub.graph.layout.images import image_shape, typical_shape
from tunehub.graph.layout.operators import Choice, Operator, Rules, four, pair
from tunehub.kernels.te import blocked, grouped
from tunehub.kernels.te.grouped import PAIRS, PIXEL, TILES, TILES_INT8, WORDS, Groups
from tunehub.kernels.te.weights import Array, ReadBlocks, pack_conv2d_weight, pack_depthwise_weight
from tunehub.tir.nodes import shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Call, Constant, Expr
    from tunehub.tir.types import Attrs, Tensor

Shape = tuple[int, int, int, int]
_TILES_GAIN = 4.0  # times as fast as in float32, cautiously
_WINDOWS = (PIXEL, TILES.depth)  # layouts of a plain image's convolution by instructions for matrices
_INT8_GAIN, _PLAIN_INT8 = 3.0, 0.2  # times as fast as float32: blocked, and plain, for which there is no instruction


@dataclass(frozen=True, kw_only=True, slots=True)
class _BlockedConvolution:
    """How a convolution is computed: the tensor expression, how it packs its weight, and whether data are rounded to
    bfloat16. Kernels of other names or layouts pack weights in other ways."""

    name: str
    compute: Callable[..., Tensor]
    pack: Callable[[], Constant]
    narrow: bool = False

    @property
    def given(self) -> tuple[Hashable, ...]:
        """What of the tensor expression is known beforehand: which it is, and how it is told of groups."""
        known: dict[str, Hashable] = getattr(self.compute, "keywords", {})
        return getattr(self.compute, "func", self.compute), *sorted(known.items())


def conv2d(rules: Rules, call: Call) -> Operator | None:
    """A convolution, whose weight is packed for its layouts."""
    if str(tensor_type(call.args[0]).dtype) == "uint8":
        return _conv2d_int8(rules, call)
    data, attrs, known = call.args[0], call.attrs, image_and_weight(rules, call, "OIHW")
    if known is None or str(attrs.out_dtype or "float32") not in ("float32", "void"):
        return None
    shape, values, result = known
    workload = _workload(shape, values, result, attrs)
    pairs = [(PLAIN, PLAIN), *_conv_layouts(workload, rules.blocks)]
    sizes = _ImageSizes.of(data)
    if sizes.image and rules.narrowing is not None and rules.narrowing.windows(workload):
        pairs.append(_WINDOWS)

    def seconds(source: int, result: int) -> float:
        by_tiles = (source, result) == _WINDOWS or _groups(rules, workload, (source, result), sizes) is TILES
        if not by_tiles:
            return rules.costs.conv(workload, source, result)
        return rules.costs.conv(_in_whole_blocks(workload, TILES.depth), source, result) / _TILES_GAIN

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
        return _written(rules, builder, call, _kernel(rules, workload, choice, values, sizes), (choice, inputs[0]))

    return Operator((data,), tuple(Choice(a, b, seconds(a, b)) for a, b in pairs), write)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ImageSizes:
    """What is known of the size of images: of each ``image``, and of the ``batch``, too."""

    image: bool
    batch: bool

    @classmethod
    def of(cls, data: Expr) -> _ImageSizes:
        extents = [isinstance(extent, int) for extent in shape_of(data) or (None,)]
        return cls(image=all(extents[1:]), batch=all(extents))


def _workload(shape: Shape, values: Array, result: Sequence[int], attrs: Attrs) -> ConvWorkload:
    return ConvWorkload(
        batch=shape[0],
        in_channels=shape[1],
        out_channels=result[1],
        in_size=(shape[2], shape[3]),
        out_size=(result[2], result[3]),
        kernel=(values.shape[2], values.shape[3]),
        groups=int(attrs.groups),
        dilation=pair(attrs.dilation),
    )


def _in_whole_blocks(workload: ConvWorkload, block: int) -> ConvWorkload:
    """A convolution of groups as instructions for matrices compute it: of inputs that a ``block`` of outputs reads."""
    if workload.groups == 1:
        return workload
    channels = (workload.in_channels, workload.out_channels)
    read = ReadBlocks.of(workload.groups, channels, block)
    return replace(workload, in_channels=read.count * read.block, groups=1)


def image_and_weight(
    rules: Rules, call: Call, kernel_layout: str, dtype: str = "float32"
) -> tuple[Shape, Array, tuple[int, ...]] | None:
    """The shape of the image, the constant weight of ``dtype`` in ``kernel_layout``, and the shape of the result."""
    data, weight = call.args
    attrs = call.attrs
    shape, values, result = image_shape(data), rules.constant(weight), typical_shape(call)
    if shape is None or result is None or values is None or values.dtype != dtype:
        return None
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    return (shape, values, result) if layouts == ("NCHW", kernel_layout, "NCHW") else None


def _conv_layouts(workload: ConvWorkload, blocks: Sequence[int]) -> list[tuple[int, int]]:
    if workload.depthwise:
        return [(block, block) for block in blocks]
    sources = (PLAIN, *blocks) if workload.groups == 1 else tuple(blocks)
    return [(source, result) for source in sources for result in blocks]


def _groups(rules: Rules, workload: ConvWorkload, layouts: tuple[int, int], sizes: _ImageSizes) -> Groups | None:
    """How a convolution is computed in bfloat16; None in float32."""
    if rules.narrowing is None:
        return None
    if sizes.image and rules.narrowing.conv_in_tiles(workload, *layouts):
        return TILES
    return PAIRS if rules.narrowing.conv(workload, *layouts) else None


def _kernel(
    rules: Rules, workload: ConvWorkload, choice: Choice, values: Array, sizes: _ImageSizes
) -> _BlockedConvolution:
    source, result, groups = choice.source, choice.result, workload.groups
    if workload.depthwise:
        narrow = rules.narrowing is not None and rules.narrowing.depthwise
        return replace(_depthwise("depthwise_bf16" if narrow else "depthwise", values, source), narrow=narrow)
    if (source, result) == _WINDOWS:
        return _in_windows(values, result)
    if source == PLAIN and sizes.batch and rules.narrowing is not None and rules.narrowing.rows(workload, result):
        return _in_rows(values, result)
    instruction = _groups(rules, workload, (source, result), sizes)
    if instruction is not None:
        return _in_groups(instruction, values, (source, result), workload)
    channels = (workload.in_channels, workload.out_channels)
    return _BlockedConvolution(
        name="conv2d",
        compute=partial(blocked.conv2d_blocked, groups=groups, channels=channels),
        pack=partial(pack_conv2d_weight, values, in_block=source or None, out_block=result, groups=groups),
    )


def _depthwise(name: str, values: Array, block: int) -> _BlockedConvolution:
    pack = partial(pack_depthwise_weight, values, block=block)
    return _BlockedConvolution(name=name, compute=blocked.depthwise_blocked, pack=pack)


def _in_groups(groups: Groups, values: Array, layouts: tuple[int, int], workload: ConvWorkload) -> _BlockedConvolution:
    of_channels, channels = workload.groups, (workload.in_channels, workload.out_channels)
    source, result = layouts
    return _BlockedConvolution(
        name=f"conv2d_{groups.name}",
        compute=partial(grouped.conv2d_grouped, groups=of_channels, channels=channels),
        pack=partial(grouped.pack_conv2d, values, groups, in_block=source, out_block=result, of_channels=of_channels),
        narrow=groups.kind == grouped.NARROW,
    )


def _in_rows(values: Array, result: int) -> _BlockedConvolution:
    return _BlockedConvolution(
        name=f"conv2d_{PAIRS.name}",
        compute=partial(grouped.conv2d_rows, columns=values.shape[3]),
        pack=partial(grouped.pack_conv2d_rows, values, out_block=result),
        narrow=True,
    )


def _in_windows(values: Array, result: int) -> _BlockedConvolution:
    return _BlockedConvolution(
        name=f"conv2d_{TILES.name}",
        compute=partial(grouped.conv2d_windows, columns=values.shape[3]),
        pack=partial(grouped.pack_conv2d_windows, values, channels=PIXEL, out_block=result),
        narrow=True,
    )


def _written(
    rules: Rules, builder: BlockBuilder, call: Call, kernel: _BlockedConvolution, data: tuple[Choice, Expr]
) -> Expr:
    (choice, image), attrs = data, call.attrs
    strides, padding, dilation = pair(attrs.strides), four(attrs.padding), pair(attrs.dilation)
    how = (kernel.name, choice.source, choice.result, int(attrs.groups))
    return rules.kernels(builder).call(
        lambda x, w: kernel.compute(x, w, strides=strides, padding=padding, dilation=dilation),
        rules.narrow(builder, image) if kernel.narrow else image,
        rules.packed(call.args[1], how, kernel.pack),
        name=kernel.name,
        how=(*strides, *padding, *dilation, *kernel.given),
    )


def _conv2d_int8(rules: Rules, call: Call) -> Operator | None:
    """uint8 times int8 with int32 sums; results in blocks of what one instruction computes. An image of few channels,
    as networks begin with, is read in blocks of what it multiplies at once."""
    known, dot = image_and_weight(rules, call, "OIHW", "int8"), rules.dot
    if known is None or dot is None:
        return None
    shape, values, result = known
    workload = _workload(shape, values, result, call.attrs)
    few = shape[1] <= dot.group and not workload.depthwise
    pairs = [(PLAIN, PLAIN), (dot.group if few else dot.lanes, dot.lanes)]
    step = TILES_INT8.depth
    if dot.tiles and not workload.depthwise and not few and _ImageSizes.of(call.args[0]).image:
        pairs.append((step, step))
    gains = {PLAIN: _PLAIN_INT8, step: _INT8_GAIN * _TILES_GAIN}

    def seconds(source: int, result: int) -> float:
        counted = _in_whole_blocks(workload, step) if result == step else workload
        return rules.costs.conv(counted, source, result) / gains.get(result, _INT8_GAIN)

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
        if workload.depthwise:
            kernel = _depthwise("depthwise_int8", values, choice.source)
        else:
            groups = TILES_INT8 if choice.result == step else WORDS[dot.group]
            kernel = _in_groups(groups, values, (choice.source, choice.result), workload)
        return _written(rules, builder, call, kernel, (choice, inputs[0]))

    return Operator((call.args[0],), tuple(Choice(a, b, seconds(a, b)) for a, b in pairs), write)
