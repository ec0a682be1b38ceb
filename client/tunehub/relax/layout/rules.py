"""Which layouts each operator of Relax can compute in, what they cost, and how it is written in them.

A rule looks at one call and returns an :class:`Operator`, or None when the operator has the plain layout only. The
first choice of every operator is plain to plain, which leaves the call as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from tunehub.relax.layout import blocked, paired, tiled
from tunehub.relax.layout.costs import PLAIN, ConvWorkload, LayoutCosts
from tunehub.relax.layout.images import batch_of, filled, image_shape, open_axes_of, transform, typical_shape
from tunehub.relax.nodes import (
    constant_array,
    constant_like,
    integers,
    is_constant,
    shape_of,
    static_shape,
    tensor_type,
)
from tunehub.templates.dot_product import DotProduct

if TYPE_CHECKING:
    from tunehub.relax.layout.narrowing import Narrowing

_Array = npt.NDArray[Any]
_Shape = tuple[int, int, int, int]
_SHORTEST_RUN = 4  # of channels that move together: fewer take as long as a transform to the plain layout


@dataclass(frozen=True, slots=True)
class Choice:
    """The layout of the data that an operator reads, that of its result, and its cost."""

    source: int
    result: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Operator:
    """A call with several choices. ``write(builder, choice, data)`` returns the expression in other layouts.

    ``fuses``: the operator becomes a part of the kernel before it, if there is no transform between them.
    """

    inputs: tuple[Any, ...]
    choices: tuple[Choice, ...]
    write: Callable[[Any, Choice, Sequence[Any]], Any]
    fuses: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules for one function. ``blocks``: sizes to consider; ``value_of``: what a variable is bound to; ``dot``:
    the instruction for products of integers; ``narrowing``: which operators have operands in bfloat16."""

    blocks: tuple[int, ...]
    costs: LayoutCosts
    value_of: Callable[[Any], Any]
    dot: DotProduct | None = None
    narrowing: Narrowing | None = None
    _packed: dict[Any, Any] = field(default_factory=dict)
    _rounded: dict[Any, Any] = field(default_factory=dict)

    def recognise(self, call: Any) -> Operator | None:
        """The operator that ``call`` is, if it has layouts to choose from."""
        name = str(getattr(getattr(call, "op", None), "name", ""))
        if name in _RULES:
            return _RULES[name](self, call)
        return _elementwise(self, call, name) if name in ELEMENTWISE else None

    def in_tiles(self, workload: ConvWorkload, source: int, result: int) -> bool:
        """Whether a convolution in float32 becomes one by instructions for matrices."""
        return self.narrowing is not None and self.narrowing.conv_in_tiles(workload, source, result)

    def constant(self, expression: Any) -> _Array | None:
        """The value of a constant tensor."""
        value = self.value_of(expression)
        return constant_array(value) if is_constant(value) else None

    def packed(self, constant: Any, how: tuple[object, ...], pack: Callable[[], Any]) -> Any:
        """A packed weight as a constant, once for all calls that use it in this way; ``pack`` gives an array, or a
        constant."""
        key = (self.value_of(constant), how)
        if key not in self._packed:
            values = pack()
            self._packed[key] = (
                values
                if is_constant(values)
                else constant_like(
                    values.shape, str(values.dtype), lambda packed: np.copyto(packed, values, casting="no")
                )
            )
        return self._packed[key]

    def in_pairs(self, builder: Any, data: Any) -> Any:
        """``data`` in bfloat16, rounded once."""
        if data not in self._rounded:
            self._rounded[data] = builder.emit(relax.op.astype(data, paired.NARROW))
        return self._rounded[data]


# --- Convolutions


def _conv2d(rules: Rules, call: Any) -> Operator | None:
    if str(tensor_type(call.args[0]).dtype) == "uint8":
        return _conv2d_int8(rules, call)
    data, attrs, known = call.args[0], call.attrs, _image_and_weight(rules, call, "OIHW")
    if known is None or str(attrs.out_dtype or "float32") not in ("float32", "void"):
        return None
    shape, values, result = known
    workload = _workload(shape, values, result, int(attrs.groups))
    pairs = [(PLAIN, PLAIN), *_conv_layouts(workload, rules.blocks)]
    fixed = static_shape(data) is not None
    choices = tuple(
        Choice(
            a, b, rules.costs.conv(workload, a, b) / (_TILES_GAIN if fixed and rules.in_tiles(workload, a, b) else 1)
        )
        for a, b in pairs
    )

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        return _write_conv2d(rules, builder, workload, call, (choice, inputs[0]))

    return Operator((data,), choices, write)


def _workload(shape: _Shape, values: _Array, result: Sequence[int], groups: int) -> ConvWorkload:
    return ConvWorkload(
        batch=shape[0],
        in_channels=shape[1],
        out_channels=result[1],
        in_size=(shape[2], shape[3]),
        out_size=(result[2], result[3]),
        kernel=(values.shape[2], values.shape[3]),
        groups=groups,
    )


def _image_and_weight(
    rules: Rules, call: Any, kernel_layout: str, dtype: str = "float32"
) -> tuple[_Shape, _Array, tuple[int, ...]] | None:
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


def _write_conv2d(rules: Rules, builder: Any, workload: ConvWorkload, call: Any, data: tuple[Choice, Any]) -> Any:
    choice, expression = data
    weight, values = call.args[1], rules.constant(call.args[1])
    assert values is not None
    strides, padding, dilation = _pair(call.attrs.strides), _four(call.attrs.padding), _pair(call.attrs.dilation)
    if workload.depthwise:
        constant = rules.packed(
            weight,
            ("depthwise", choice.source),
            lambda: blocked.pack_depthwise_weight(values, block=choice.source),
        )
        return builder.call_te(
            lambda x, w: blocked.depthwise_blocked(x, w, strides=strides, padding=padding, dilation=dilation),
            expression,
            constant,
            primfunc_name_hint="depthwise",
        )
    if static_shape(call.args[0]) is not None and rules.in_tiles(workload, choice.source, choice.result):
        constant = rules.packed(
            weight,
            ("tiles", choice.source, choice.result),
            lambda: tiled.pack_conv2d_tiles(
                values, in_block=choice.source, out_block=choice.result, kind=paired.NARROW
            ),
        )
        return builder.call_te(
            lambda x, w: tiled.conv2d_tiled(x, w, strides=strides, padding=padding, dilation=dilation),
            rules.in_pairs(builder, expression),
            constant,
            primfunc_name_hint="conv2d_amx",
        )
    if rules.narrowing is not None and rules.narrowing.conv(workload, choice.source, choice.result):
        constant = rules.packed(
            weight,
            ("pairs", choice.source, choice.result),
            lambda: paired.pack_conv2d_pairs(values, in_block=choice.source, out_block=choice.result),
        )
        return builder.call_te(
            lambda x, w: paired.conv2d_paired(x, w, strides=strides, padding=padding, dilation=dilation),
            rules.in_pairs(builder, expression),
            constant,
            primfunc_name_hint="conv2d_bf16",
        )
    groups, channels = workload.groups, (workload.in_channels, workload.out_channels)
    how = ("conv2d", choice.source, choice.result, groups)
    constant = rules.packed(
        weight,
        how,
        lambda: blocked.pack_conv2d_weight(
            values, in_block=choice.source or None, out_block=choice.result, groups=groups
        ),
    )
    return builder.call_te(
        lambda x, w: blocked.conv2d_blocked(
            x, w, strides=strides, padding=padding, dilation=dilation, groups=groups, channels=channels
        ),
        expression,
        constant,
        primfunc_name_hint="conv2d",
    )


# --- Convolutions of integers


def _conv2d_int8(rules: Rules, call: Any) -> Operator | None:
    """uint8 times int8 with int32 sums; results in blocks of what one instruction computes. An image of few channels,
    as networks begin with, is read in blocks of what it multiplies at once."""
    known, dot = _image_and_weight(rules, call, "OIHW", "int8"), rules.dot
    if known is None or dot is None:
        return None
    shape, values, result = known
    workload = _workload(shape, values, result, int(call.attrs.groups))
    if workload.groups > 1 and not workload.depthwise:
        return None
    few = shape[1] <= dot.group and not workload.depthwise
    pairs = [(PLAIN, PLAIN), (dot.group if few else dot.lanes, dot.lanes)]
    step = tiled.STEP * tiled.GROUPS["int8"]
    if dot.tiles and workload.groups == 1 and not few and static_shape(call.args[0]) is not None:
        pairs.append((step, step))
    gains = {PLAIN: _PLAIN_INT8, step: _INT8_GAIN * _TILES_GAIN}
    choices = tuple(Choice(a, b, rules.costs.conv(workload, a, b) / gains.get(b, _INT8_GAIN)) for a, b in pairs)

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        return _write_conv2d_int8(rules, builder, call, values, (choice, inputs[0]))

    return Operator((call.args[0],), choices, write)


_TILES_GAIN = 4.0  # times as fast as in float32, cautiously
_INT8_GAIN, _PLAIN_INT8 = 3.0, 0.2  # times as fast as float32: blocked, and plain, for which there is no instruction


def _write_conv2d_int8(rules: Rules, builder: Any, call: Any, values: _Array, data: tuple[Choice, Any]) -> Any:
    (choice, expression), dot = data, rules.dot
    assert dot is not None
    if int(call.attrs.groups) > 1:
        kernel, key, name = blocked.depthwise_blocked, ("depthwise", choice.source), "depthwise_int8"

        def pack() -> Any:
            return blocked.pack_depthwise_weight(values, block=choice.source)
    elif choice.result > dot.lanes:
        kernel, key, name = tiled.conv2d_tiled, ("tiles", choice.source), "conv2d_int8_amx"

        def pack() -> Any:
            return tiled.pack_conv2d_tiles(values, in_block=choice.source, out_block=choice.result, kind="int8")
    else:
        kernel, key, name = blocked.conv2d_int8_blocked, ("int8", choice.source), "conv2d_int8"

        def pack() -> Any:
            return blocked.pack_conv2d_int8_weight(values, in_block=choice.source, out_block=dot.lanes, group=dot.group)

    strides, padding, dilation = _pair(call.attrs.strides), _four(call.attrs.padding), _pair(call.attrs.dilation)
    return builder.call_te(
        lambda x, w: kernel(x, w, strides=strides, padding=padding, dilation=dilation),
        expression,
        rules.packed(call.args[1], key, pack),
        primfunc_name_hint=name,
    )


# --- Transposed convolutions


@dataclass(frozen=True, kw_only=True, slots=True)
class _Phases:
    """One axis of a transposed convolution as a plain one: each place in a stride is computed on its own.

    Element ``o`` of the result is element ``u // stride`` of phase ``u % stride``, with ``u = o + cut``.
    """

    stride: int
    taps: int
    padding: tuple[int, int]
    cut: int
    extent: int  # of each phase

    @classmethod
    def of(cls, inputs: int, kernel: int, stride: int, padding: tuple[int, int], more: int) -> _Phases:
        """``padding``: before the first element and after the last, as the transposed convolution has it; ``more``:
        elements that its result has besides. Nothing but ``extent`` depends on ``inputs``."""
        before, after = padding
        taps, last = -(-kernel // stride), inputs - 1 + (kernel - 1 - after + more) // stride
        skipped = min(before // stride, taps - 1)
        extent = last + 1 - skipped
        padding = (taps - 1 - skipped, extent - inputs + skipped)
        return cls(stride=stride, taps=taps, padding=padding, cut=before - skipped * stride, extent=extent)


def _conv2d_transpose(rules: Rules, call: Any) -> Operator | None:
    """Sub-pixel convolution (Shi et al. 2016, arXiv 1609.05158): no products with the zeros between the inputs."""
    data, attrs, known = call.args[0], call.attrs, _image_and_weight(rules, call, "IOHW")
    if known is None or int(attrs.groups) != 1 or _pair(attrs.dilation) != (1, 1):
        return None
    shape, values, result = known
    padding, kernel, strides = _four(attrs.padding), values.shape[2:], _pair(attrs.strides)
    more = _pair(attrs.output_padding)
    rows, columns = (
        _Phases.of(shape[2 + i], kernel[i], strides[i], (padding[i], padding[2 + i]), more[i]) for i in (0, 1)
    )
    if min(*rows.padding, *columns.padding) < 0:
        return None

    def workload(block: int) -> ConvWorkload:
        return ConvWorkload(
            batch=shape[0],
            in_channels=shape[1],
            out_channels=math.prod(strides) * filled((1, result[1], 1, 1), block),
            in_size=(shape[2], shape[3]),
            out_size=(rows.extent, columns.extent),
            kernel=(rows.taps, columns.taps),
        )

    def cost(source: int, block: int) -> float:
        seconds = rules.costs.conv(workload(block), source, block)
        if not block:  # the plain operator multiplies with the zeros, too
            return seconds * math.prod(strides)
        return seconds + rules.costs.pooling(2 * filled(result, block), block)

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        return _write_phases(rules, builder, call, (rows, columns), (choice, inputs[0]))

    pairs = [(PLAIN, PLAIN), *((a, b) for a in (PLAIN, *rules.blocks) for b in rules.blocks)]
    return Operator((data,), tuple(Choice(a, b, cost(a, b)) for a, b in pairs), write)


def _write_phases(
    rules: Rules, builder: Any, call: Any, axes: tuple[_Phases, _Phases], data: tuple[Choice, Any]
) -> Any:
    choice, expression = data
    (rows, columns), weight = axes, call.args[1]
    strides, result, values = (rows.stride, columns.stride), shape_of(call), rules.constant(weight)
    assert values is not None and result is not None

    def pack() -> Any:
        phases = blocked.phases_of_weight(values, strides=strides, block=choice.result)
        return blocked.pack_conv2d_weight(phases, in_block=choice.source or None, out_block=choice.result)

    constant = rules.packed(weight, ("phases", choice.source, choice.result, strides), pack)
    padding = (rows.padding[0], columns.padding[0], rows.padding[1], columns.padding[1])
    phases = builder.emit_te(
        lambda x, w: blocked.conv2d_blocked(x, w, padding=padding), expression, constant, primfunc_name_hint="conv2d"
    )
    begin, size = (rows.cut, columns.cut), (result[2], result[3])
    return builder.call_te(
        lambda x: blocked.shuffle_blocked(x, strides=strides, begin=begin, size=size),
        phases,
        primfunc_name_hint="shuffle",
    )


# --- Pooling and reductions over the image


def _pooling(kind: str) -> Callable[[Rules, Any], Operator | None]:
    def rule(rules: Rules, call: Any) -> Operator | None:
        attrs = call.attrs
        if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
            return None

        def write(builder: Any, _choice: Choice, inputs: Sequence[Any]) -> Any:
            return builder.call_te(
                lambda x: blocked.pool2d_blocked(
                    x,
                    kind="max" if kind == "max" else "avg",
                    pool_size=_pair(attrs.pool_size),
                    strides=_pair(attrs.strides),
                    padding=_four(attrs.padding),
                    dilation=_pair(attrs.dilation),
                    ceil_mode=bool(attrs.ceil_mode),
                    count_include_pad=bool(attrs.count_include_pad),
                ),
                inputs[0],
                primfunc_name_hint=f"{kind}_pool2d",
            )

        taps = math.prod(_pair(attrs.pool_size))
        return _same_layout(rules, call, (call.args[0],), write, taps=taps)

    return rule


def _adaptive_pooling(kind: str) -> Callable[[Rules, Any], Operator | None]:
    def rule(rules: Rules, call: Any) -> Operator | None:
        result = typical_shape(call)
        if (call.attrs.layout, call.attrs.out_layout) != ("NCHW", "NCHW") or result is None:
            return None
        size = (result[2], result[3])
        if open_axes_of(call) - {0} or (open_axes_of(call.args[0]) - {0} and size != (1, 1)):
            return None  # windows whose sizes depend on their places

        def write(builder: Any, _choice: Choice, inputs: Sequence[Any]) -> Any:
            return builder.call_te(
                lambda x: blocked.adaptive_pool2d_blocked(x, kind="max" if kind == "max" else "avg", output_size=size),
                inputs[0],
                primfunc_name_hint=f"adaptive_{kind}_pool2d",
            )

        return _same_layout(rules, call, (call.args[0],), write)

    return rule


def _image_reduction(rules: Rules, call: Any) -> Operator | None:
    """A reduction over height and width. Without these axes the result is a matrix, which is always plain."""
    data = call.args[0]
    shape = image_shape(data)
    axes = sorted(int(axis) % 4 for axis in call.attrs.axis or ())
    if shape is None or axes != [2, 3] or str(tensor_type(data).dtype) != "float32":
        return None
    keep = bool(call.attrs.keepdims)

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        reduced = _reduced(builder, call, inputs[0])
        if keep:
            return reduced
        pooled = builder.emit(reduced)
        plain = transform(builder, pooled, (shape[0], shape[1], 1, 1), (choice.source, PLAIN))
        return relax.op.reshape(builder.emit(plain), (batch_of(pooled), shape[1]))

    choices = tuple(
        Choice(layout, layout if keep else PLAIN, rules.costs.pooling(filled(shape, layout), layout))
        for layout in (PLAIN, *rules.blocks)
    )
    return Operator((data,), choices, write)


def _reduced(builder: Any, call: Any, image: Any) -> Any:
    """A reduction over height and width that keeps all axes; means and maxima are pooling, which has a template."""
    kind = _POOLED.get(str(call.op.name))
    if kind is None:
        example = relax.op.mean(call.args[0], axis=[2, 3], keepdims=True)
        return relax.Call(call.op, [image], example.attrs)
    return builder.call_te(
        lambda x: blocked.adaptive_pool2d_blocked(x, kind="max" if kind == "max" else "avg", output_size=(1, 1)),
        image,
        primfunc_name_hint=f"adaptive_{kind}_pool2d",
    )


_POOLED = {"relax.mean": "avg", "relax.max": "max"}


# --- Operators on single elements, and joining


def _elementwise(rules: Rules, call: Any, name: str) -> Operator | None:
    result = typical_shape(call)
    images = tuple(argument for argument in call.args if image_shape(argument) is not None)
    if result is None or len(result) != 4 or not images or not _keeps_type(rules, call, name):
        return None
    if not all(_fits(rules, argument, result) for argument in call.args):
        return None
    whole = ELEMENTWISE[name] == "whole" or (name == "relax.divide" and image_shape(call.args[1]) is not None)

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        given = iter(inputs)
        arguments = [
            next(given) if image_shape(argument) is not None else _blocked_constant(rules, call, argument, choice)
            for argument in call.args
        ]
        return relax.Call(call.op, arguments, call.attrs)

    blocks = tuple(block for block in rules.blocks if not whole or result[1] % block == 0)
    choices = tuple(
        Choice(layout, layout, rules.costs.elementwise(filled(result, layout))) for layout in (PLAIN, *blocks)
    )
    return Operator(images, choices, write, fuses=True)


def _keeps_type(rules: Rules, call: Any, name: str) -> bool:
    """Whether conversions are those of quantised models: of sums, and with one scale and zero point for a tensor."""
    if name == "relax.astype":
        return [str(tensor_type(each).dtype) for each in (call.args[0], call)] == ["int32", "float32"]
    if name in ("relax.quantize", "relax.dequantize"):
        constants = [rules.constant(argument) for argument in call.args[1:]]
        return all(constant is not None and constant.ndim == 0 for constant in constants)
    return True


def _fits(rules: Rules, argument: Any, result: Sequence[int]) -> bool:
    """True for images with all channels of the result, constants that broadcast to them, and scalars."""
    shape = image_shape(argument)
    if shape is not None:
        return shape[1] == result[1]
    constant = rules.constant(argument)
    if constant is not None:
        return constant.ndim <= 4
    return not isinstance(argument, relax.Var) and static_shape(argument) is None  # a number, not a tensor


def _blocked_constant(rules: Rules, call: Any, argument: Any, choice: Choice) -> Any:
    """A number as it is; a tensor with its channels in blocks. Filled-up channels are divided by one, not by zero."""
    values: Any = rules.constant(argument)
    if values is None or values.ndim == 0:
        return argument
    image = values.reshape((1,) * (4 - values.ndim) + values.shape)
    missing = -image.shape[1] % choice.result
    if image.shape[1] > 1 and missing and str(call.op.name) == "relax.divide":
        image = np.pad(image, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=1)
    return relax.const(blocked.pack_channels(image, block=choice.result))


def _concat(rules: Rules, call: Any) -> Operator | None:
    """Joining keeps layouts. Along channels, where blocks do not stay whole, channels move between lanes."""
    parts = rules.value_of(call.args[0])
    fields = tuple(parts.fields) if isinstance(parts, relax.Tuple) else ()
    shapes = [image_shape(part) for part in fields]
    if not fields or None in shapes:
        return None
    axis = int(call.attrs.axis or 0) % 4
    channels = [shape[1] for shape in shapes if shape is not None]

    def run(block: int) -> int:
        """How many channels stay side by side; all of a block where blocks stay whole."""
        whole = axis != 1 or all(count % block == 0 for count in channels[:-1])
        return block if whole else blocked.run_of(block, channels)

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        if run(choice.result) == choice.result:
            return relax.op.concat(list(inputs), axis=axis)
        return builder.call_te(
            lambda *tensors: blocked.concat_blocked(tensors, channels), *inputs, primfunc_name_hint="concat"
        )

    return _same_layout(rules, call, fields, write, _moving(rules.blocks, run))


def _moving(blocks: Sequence[int], run: Callable[[int], int]) -> dict[int, float]:
    """The blocks that stay whole; without any, those whose channels vectors move in runs, and the passes over memory
    that this takes."""
    whole = dict.fromkeys((block for block in blocks if run(block) == block), 1.0)
    return whole or {block: block / run(block) for block in blocks if run(block) >= _SHORTEST_RUN}


def _slice(rules: Rules, call: Any) -> Operator | None:
    """A part of an image, in steps of one."""
    data, shape, result = call.args[0], image_shape(call.args[0]), typical_shape(call)
    bounds = [integers(argument, rules.value_of) for argument in call.args[1:]]
    if shape is None or result is None or len(bounds) not in (3, 4) or None in bounds:
        return None
    axes, begins, _, steps = [*bounds, [1]][:4]
    assert axes is not None and begins is not None and steps is not None
    of_open = {axis % 4 for axis in axes} & (open_axes_of(data) | open_axes_of(call))
    if any(step != 1 for step in steps) or 0 in result or of_open:
        return None
    begin = dict.fromkeys(range(4), 0)
    for axis, first in zip(axes, begins, strict=True):
        begin[axis % 4] = min(max(first + shape[axis % 4] * (first < 0), 0), shape[axis % 4])

    def run(block: int) -> int:
        return block if begin[1] % block == 0 else blocked.run_of(block, (begin[1], result[1]))

    def write(builder: Any, choice: Choice, inputs: Sequence[Any]) -> Any:
        image = inputs[0]
        if begin[1] or result[1] < shape[1]:
            image = builder.emit_te(
                lambda x: blocked.slice_blocked(x, begin[1], result[1]), image, primfunc_name_hint="slice"
            )
        inside = [(axis, begin[axis], begin[axis] + result[axis]) for axis in (0, 2, 3) if result[axis] < shape[axis]]
        return relax.op.strided_slice(image, *zip(*inside, strict=True)) if inside else image

    return _same_layout(rules, call, (data,), write, _moving(rules.blocks, run))


def _pad(rules: Rules, call: Any) -> Operator | None:
    """A border of numbers along height and width."""
    widths, attrs = [int(width) for width in call.attrs.pad_width], call.attrs
    if len(widths) != 8 or any(widths[:4]) or min(widths) < 0 or str(attrs.pad_mode) != "constant":
        return None

    def write(builder: Any, _choice: Choice, inputs: Sequence[Any]) -> Any:
        return builder.call_te(
            lambda x: blocked.pad_blocked(x, (widths[4], widths[6]), (widths[5], widths[7]), float(attrs.pad_value)),
            inputs[0],
            primfunc_name_hint="pad",
        )

    return _same_layout(rules, call, (call.args[0],), write)


def _resize(rules: Rules, call: Any) -> Operator | None:
    """Interpolation. What follows joins it only element by element: in another order of the elements each would find
    its place in the source anew, which takes longer than all the rest."""
    attrs, result = call.attrs, shape_of(call)
    if str(attrs.layout) != "NCHW" or result is None or str(tensor_type(call).dtype) != "float32":
        return None

    def write(builder: Any, _choice: Choice, inputs: Sequence[Any]) -> Any:
        return builder.call_te(
            lambda x: blocked.resize2d_blocked(
                x,
                roi=[float(each) for each in attrs.roi],
                size=result[2:],
                method=str(attrs.method),
                coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
                rounding_method=str(attrs.rounding_method),
                bicubic_alpha=float(attrs.cubic_alpha),
                bicubic_exclude=int(attrs.cubic_exclude),
                extrapolation_value=float(attrs.extrapolation_value),
            ),
            inputs[0],
            primfunc_name_hint="resize2d",
            primfunc_attrs={"op_pattern": _JOINED_BY_ELEMENTS} if str(attrs.method) in _TAPS else None,
        )

    return _same_layout(rules, call, (call.args[0],), write, taps=_TAPS.get(str(attrs.method), 1))


_TAPS = {"linear": 4, "cubic": 16}  # of an interpolation; each is a load of its own where vectors run along a row
_JOINED_BY_ELEMENTS = 4  # TVM's kOutEWiseFusable


def _same_layout(
    rules: Rules,
    call: Any,
    images: tuple[Any, ...],
    write: Callable[..., Any],
    passes: Mapping[int, float] | None = None,
    taps: int = 1,
) -> Operator | None:
    """An operator that reads and writes images of one layout, in a kernel of its own.

    ``passes``: the blocks that it has, by default all, and how often their tensors are read and written.
    ``taps``: the elements of a window. There are templates for blocked windows only; the plain kernel reads each
    element of each window on its own.
    """
    shapes = [image_shape(image) for image in images]
    result = typical_shape(call)
    if result is None or len(result) != 4 or None in shapes:
        return None
    choices = []
    for layout, times in {PLAIN: 1.0, **(dict.fromkeys(rules.blocks, 1.0) if passes is None else passes)}.items():
        elements = sum(filled(shape, layout) for shape in [*shapes, result] if shape is not None)
        elements = math.ceil(times * elements) + (0 if layout else (taps - 1) * math.prod(result))
        choices.append(Choice(layout, layout, rules.costs.pooling(elements, layout)))
    return Operator(images, tuple(choices), write)


_RULES: dict[str, Callable[[Rules, Any], Operator | None]] = {
    "relax.nn.conv2d": _conv2d,
    "relax.nn.conv2d_transpose": _conv2d_transpose,
    "relax.nn.max_pool2d": _pooling("max"),
    "relax.nn.avg_pool2d": _pooling("avg"),
    "relax.nn.adaptive_max_pool2d": _adaptive_pooling("max"),
    "relax.nn.adaptive_avg_pool2d": _adaptive_pooling("avg"),
    "relax.mean": _image_reduction,
    "relax.sum": _image_reduction,
    "relax.max": _image_reduction,
    "relax.min": _image_reduction,
    "relax.concat": _concat,
    "relax.strided_slice": _slice,
    "relax.nn.pad": _pad,
    "relax.image.resize2d": _resize,
}
# "any": stays finite on channels that are filled up with zeros. "whole": may not, so blocks must be whole there
# (what it makes of them is multiplied by zero weights later, which infinity and NaN survive).
ELEMENTWISE = {
    **dict.fromkeys(
        ("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "negative", "abs", "sigmoid"), "any"
    ),
    **dict.fromkeys(("tanh", "erf", "square", "floor", "ceil", "round", "sign"), "any"),
    **dict.fromkeys(("nn.relu", "nn.relu6", "nn.leakyrelu", "nn.silu", "nn.gelu", "nn.gelu_tanh"), "any"),
    **dict.fromkeys(("astype", "quantize", "dequantize"), "any"),
    **dict.fromkeys(("exp", "log", "sqrt", "rsqrt", "power", "sin", "cos", "nn.softplus"), "whole"),
}
ELEMENTWISE = {f"relax.{name}": kind for name, kind in ELEMENTWISE.items()}


def _pair(values: Any) -> tuple[int, int]:
    first, second = (int(value) for value in values)
    return first, second


def _four(values: Any) -> tuple[int, int, int, int]:
    top, left, bottom, right = (int(value) for value in values)
    return top, left, bottom, right
