"""AutoTVM's x86 configurations as knobs of the client's templates: which schedule of ours a configuration means. Pure.

The templates are those of ``topi/x86``: ``conv2d_avx_common.py`` and ``conv2d_avx_1x1.py`` (``conv2d_NCHWc.x86``),
``depthwise_conv2d.py`` (``depthwise_conv2d_NCHWc.x86``) and ``dense.py`` (``dense_pack.x86``, ``dense_nopack.x86``), as
they are in TVM 0.7 to 0.19. Ours keep sums in the same registers, in blocks of a vector or half of one, where AutoTVM
has blocks of any size: a block of 64 outputs in vectors of 16 is four blocks of ours.

Where a configuration differs from what it becomes in something that does not change the tile of sums, a note says so.
Where it has a tile that ours cannot have, it is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tunehub.kernels.cpu.divisors import divisors
from tunehub_builder.logs.autotvm_v01_to_v02 import UntranslatableError
from tunehub_registry.template_record import KnobValue
from tunehub_registry.tuning_log import LogRecord

PLAIN = 0
_SMALLEST_BLOCK = 4  # as in tunehub.graph.layout.planning
MAX_STEPS, MAX_UNROLLED = 16, 256  # bounds of the template `dense`, which imports TVM
_MAX_EXTENT = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvLayer:
    """A convolution, depthwise where ``groups`` is the number of channels, in the layouts of the client.

    ``size`` and ``kernel``: height, width; ``padding``: top, left, bottom, right; ``blocks``: channels in a block of
    the input (``PLAIN`` for a plain one) and of the output.
    """

    batch: int
    in_channels: int
    out_channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    blocks: tuple[int, int] = (PLAIN, PLAIN)

    @property
    def out_size(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        rows, columns = (
            (self.size[i] + self.padding[i] + self.padding[i + 2] - (self.kernel[i] - 1) * self.dilation[i] - 1)
            // self.strides[i]
            + 1
            for i in (0, 1)
        )
        return rows, columns

    @property
    def depthwise(self) -> bool:
        """One input and one output channel a group."""
        return self.groups == self.in_channels == self.out_channels and self.groups > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseLayer:
    """A matmul ``[rows, depth] × [depth, outputs]`` with weights in blocks of ``block`` outputs."""

    rows: int
    depth: int
    outputs: int
    block: int


Layer = ConvLayer | DenseLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """A template's knobs for a layer. ``notes``: what the configuration said otherwise.

    ``layers``: the layer in each of the input's layouts that the planner may choose: the tile of sums does not depend
    on it, and which one it is depends on the layers around.
    """

    template: str
    layers: tuple[Layer, ...]
    knobs: dict[str, KnobValue]
    notes: tuple[str, ...] = ()


def translate_knobs(record: LogRecord, vector: int) -> Translation:
    """The knobs that ``record`` means for a CPU with ``vector`` float32 elements in its widest vector.

    Raises UntranslatableError with the reason. Whether the template takes the knobs, only the template can say.
    """
    task, *arguments = record.workload
    rule = _RULES.get(str(task))
    if rule is None:
        _refuse(f"no template is that of {task} (those of {', '.join(_RULES)} are known)")
    config = record.config
    entity = config.get("entity") if isinstance(config, dict) else None
    try:
        knobs = {str(name): value for name, _kind, value in entity or ()}
    except (TypeError, ValueError):
        _refuse("its configuration has no knobs")
    sizes = tuple(block for block in (vector, vector // 2) if block >= _SMALLEST_BLOCK)
    return rule(arguments, knobs, sizes)


# --- Convolutions


def _conv2d(arguments: Sequence[Any], knobs: Mapping[str, Any], sizes: tuple[int, ...]) -> Translation:
    layer = _conv_layer(arguments)
    tile_ic, tile_oc = _inner(knobs, "tile_ic"), _inner(knobs, "tile_oc")
    if layer.out_channels % tile_oc:
        _refuse(f"tile_oc: {tile_oc} does not divide {layer.out_channels} channels")
    block = next((size for size in sizes if tile_oc % size == 0), None)
    if block is None:
        _refuse(f"tile_oc: {tile_oc} is no multiple of a block, which is {_words(sizes)}")
    inputs = tuple(size for size in sizes if layer.in_channels % size == 0)
    if tile_ic == 1 or not inputs:  # a block of one channel is plain
        inputs = (*inputs, PLAIN)
    notes = [] if tile_ic in (*inputs, 1) else [f"tile_ic {tile_ic}: the input is {_layout_words(inputs)} here"]
    columns, row, noted = _pixels(layer, knobs)
    return Translation(
        template="conv2d",
        layers=tuple(replace(layer, blocks=(in_block, block)) for in_block in inputs),
        knobs={
            "columns": columns,
            "blocks": tile_oc // block,
            "row": row,
            "order": "channels",
            "unroll": "unroll_kw" not in knobs or _flag(knobs, "unroll_kw"),
            "padding": "whole" if any(layer.padding) else "inline",
            "parallel": True,
        },
        notes=(*notes, *noted),
    )


def _pixels(layer: ConvLayer, knobs: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """Columns of a tile, columns of a row, and notes. Pixels of a 1×1 kernel do not depend on where they are."""
    width, height = _inner(knobs, "tile_ow"), _number(knobs, "tile_oh") if "tile_oh" in knobs else 1
    rows, columns = layer.out_size
    if width > columns:
        _refuse(f"tile_ow: {width} is more than {columns} columns")
    if height == 1:
        return width, columns, []
    if layer.kernel != (1, 1):
        _refuse(f"tile_oh: {height} rows in a tile are for 1×1 kernels only")
    pixels = height * width
    notes = [] if width == columns else [f"tile_oh {height}, tile_ow {width}: {pixels} pixels are in one row here"]
    if columns % pixels == 0:
        return pixels, columns, notes
    joined = layer.strides == (1, 1) and not any(layer.padding)
    if not joined or pixels % columns or rows * columns % pixels:
        _refuse(f"tile_oh, tile_ow: {pixels} pixels are neither a part of a row nor whole rows")
    return pixels, pixels, notes


def _depthwise(arguments: Sequence[Any], knobs: Mapping[str, Any], sizes: tuple[int, ...]) -> Translation:
    layer = _conv_layer(arguments, depthwise=True)
    tile_ic, tile_oc = _inner(knobs, "tile_ic"), _inner(knobs, "tile_oc")
    if tile_oc not in sizes:
        _refuse(f"tile_oc: {tile_oc} is no block of the template, which keeps one of {_words(sizes)} in registers")
    if layer.out_channels % tile_oc:
        _refuse(f"tile_oc: {tile_oc} does not divide {layer.out_channels} channels")
    columns = _inner(knobs, "tile_ow")
    if columns > layer.out_size[1]:
        _refuse(f"tile_ow: {columns} is more than {layer.out_size[1]} columns")
    notes = [] if tile_ic == tile_oc else [f"tile_ic {tile_ic}: the input is {_layout_words((tile_oc,))} here"]
    if not _flag(knobs, "unroll_kw") and layer.kernel[1] > 1:
        notes.append("unroll_kw false: the template always unrolls the columns of the kernel")
    return Translation(
        template="depthwise",
        layers=(replace(layer, blocks=(tile_oc, tile_oc)),),
        knobs={
            "columns": columns,
            "unroll": False,  # of rows: AutoTVM unrolls columns at most
            "padding": "whole" if any(layer.padding) else "inline",
            "parallel": True,
        },
        notes=tuple(notes),
    )


def _conv_layer(arguments: Sequence[Any], *, depthwise: bool = False) -> ConvLayer:
    data, kernel, strides, padding, dilation, layout, *rest = [*arguments, *[None] * 8][:8]
    batch, in_channels, *size = _shape(data, 4, "data")
    out_channels, each_in, *window = _shape(kernel, 4, "kernel")
    if layout != "NCHW":
        _refuse(f"its layout is {layout}, not NCHW")
    if rest[1] not in (None, "float32"):
        _refuse(f"its result is {rest[1]}, not float32")
    if depthwise and (each_in != 1 or out_channels != in_channels):
        _refuse("it has more than one output channel for each input channel")
    if not depthwise and each_in != in_channels:
        _refuse(f"its kernel has {each_in} input channels, its data {in_channels}")
    layer = ConvLayer(
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        size=_pair(size, "data", 1),
        kernel=_pair(window, "kernel", 1),
        strides=_pair(strides, "strides", 1),
        padding=_four(padding),
        dilation=_pair(dilation, "dilation", 1),
        groups=in_channels if depthwise else 1,
    )
    if min(layer.out_size) < 1:
        _refuse("its result has no pixels")
    return layer


# --- Matmuls


def _dense_pack(arguments: Sequence[Any], knobs: Mapping[str, Any], sizes: tuple[int, ...]) -> Translation:
    layer = _dense_layer(arguments, sizes[0])
    _, tasks_rows, columns = _split(knobs, "tile_y", 3)
    _, tasks_outputs, tile_x = _split(knobs, "tile_x", 3)
    if tile_x % layer.block or layer.outputs % tile_x:
        _refuse(f"tile_x: {tile_x} is no multiple of a block of {layer.block} that divides {layer.outputs} outputs")
    step, part = _inner(knobs, "tile_k"), _inner(knobs, "tile_inner") if "tile_inner" in knobs else 1
    if 1 < part < columns and step > 1:
        _refuse(f"tile_inner: {part} of {columns} rows are computed for {step} steps before the next {part}")
    row, blocks = tasks_rows * columns, tile_x // layer.block
    if layer.rows % row or layer.depth % step:
        _refuse(f"tile_y, tile_k: tasks of {row} rows and steps of {step} do not divide {layer.rows} and {layer.depth}")
    unrolled = max((d for d in divisors(step, MAX_STEPS) if d * columns * blocks <= MAX_UNROLLED), default=1)
    notes = [f"tile_k {step}: {unrolled} steps are unrolled here"] if unrolled != step else []
    if tasks_outputs > 1:
        notes.append(f"tile_x: a task has the outputs of one tile here, not of {tasks_outputs}")
    tile = {"columns": columns, "blocks": blocks, "lanes": layer.block, "row": row}
    return Translation(
        template="dense",
        layers=(layer,),
        knobs={**tile, "order": "outputs", "step": unrolled, "parallel": True},
        notes=tuple(notes),
    )


def _dense_layer(arguments: Sequence[Any], block: int) -> DenseLayer:
    """The product of the first two arguments, [M, K] and [N, K]."""
    rows, depth = _shape(arguments[0] if arguments else None, 2, "data")
    outputs, weight_depth = _shape(arguments[1] if len(arguments) > 1 else None, 2, "weight")
    if weight_depth != depth or any(other not in (None, "float32") for other in arguments[2:]):
        _refuse("it is no plain product of float32 matrices")
    return DenseLayer(rows=rows, depth=depth, outputs=outputs, block=block)


def _dense_nopack(_arguments: Sequence[Any], _knobs: Mapping[str, Any], _sizes: tuple[int, ...]) -> Translation:
    _refuse("dense_nopack adds up in vectors along the reduction, the template dense in vectors of outputs")


_RULES: dict[str, Callable[[Sequence[Any], Mapping[str, Any], tuple[int, ...]], Translation]] = {
    "conv2d_NCHWc.x86": _conv2d,
    "depthwise_conv2d_NCHWc.x86": _depthwise,
    "dense_pack.x86": _dense_pack,
    "dense_nopack.x86": _dense_nopack,
}


# --- Reading arguments and knobs


def _shape(tensor: Any, rank: int, what: str) -> tuple[int, ...]:
    if not isinstance(tensor, tuple) or len(tensor) < 3 or tensor[0] != "TENSOR" or not isinstance(tensor[1], tuple):
        _refuse(f"its {what} is no tensor")
    shape = tensor[1]
    if tensor[2] != "float32":
        _refuse(f"its {what} is {tensor[2]}, not float32")
    if len(shape) != rank or not all(type(extent) is int and 0 < extent <= _MAX_EXTENT for extent in shape):
        _refuse(f"its {what} has not {rank} axes of fixed extents")
    return shape


def _pair(value: Any, what: str, least: int) -> tuple[int, int]:
    pair = (value, value) if type(value) is int else tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(item) is int and least <= item <= _MAX_EXTENT for item in pair):
        _refuse(f"its {what} are not two numbers")
    return pair[0], pair[1]


def _four(value: Any) -> tuple[int, int, int, int]:
    """One number, (height, width) or (top, left, bottom, right), as the last."""
    if isinstance(value, tuple) and len(value) == 4:
        return (*_pair(value[:2], "paddings", 0), *_pair(value[2:], "paddings", 0))
    pair = _pair(value, "paddings", 0)
    return (*pair, *pair)


def _split(knobs: Mapping[str, Any], name: str, parts: int) -> list[int]:
    value = knobs.get(name)
    if not isinstance(value, list) or len(value) != parts or any(type(size) is not int for size in value):
        _refuse(f"{name}: its configuration has no such split in {parts}")
    if min(value[1:]) < 1:
        _refuse(f"{name}: the sizes {value} are not positive")
    return value


def _inner(knobs: Mapping[str, Any], name: str) -> int:
    return _split(knobs, name, 2)[1]


def _number(knobs: Mapping[str, Any], name: str) -> int:
    value = knobs.get(name)
    if type(value) is not int or value < 1:
        _refuse(f"{name}: {value!r:.40} is not a positive number")
    return value


def _flag(knobs: Mapping[str, Any], name: str) -> bool:
    value = knobs.get(name)
    if not isinstance(value, int) or value not in (0, 1):
        _refuse(f"{name}: {value!r:.40} is neither true nor false")
    return bool(value)


def _words(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))


def _layout_words(blocks: tuple[int, ...]) -> str:
    return "plain" if blocks == (PLAIN,) else f"in blocks of {_words(blocks)}"


def _refuse(reason: str) -> NoReturn:
    raise UntranslatableError(reason)
