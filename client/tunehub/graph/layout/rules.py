"""Which layouts each operator of Relax can compute in, what they cost, and how it is written in them.

A rule looks at one call and returns an :class:`Operator`, or None when the operator has the plain layout only. The
first choice of every operator is plain to plain, which leaves the call as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tunehub.graph.layout.convolutions import conv2d
from tunehub.graph.layout.costs import PLAIN
from tunehub.graph.layout.images import (
    batch_of,
    filled,
    has_image_type,
    image_shape,
    open_axes_of,
    transform,
    typical_shape,
)
from tunehub.graph.layout.operators import Choice, Operator, Rules, four, pair
from tunehub.graph.layout.transposed import conv2d_transpose
from tunehub.kernels.te import blocked
from tunehub.kernels.te.weights import pack_channels
from tunehub.tir.nodes import integers, operator_of, shape_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Call, Expr
    from tunehub.tir.types import Attrs, Tensor

_SHORTEST_RUN = 4  # of channels that move together: fewer take as long as a transform to the plain layout


def recognise(rules: Rules, call: Expr) -> Operator | None:
    """The operator that ``call`` is, if it has layouts to choose from."""
    name = operator_of(call)
    if name in _RULES:
        return _RULES[name](rules, call)
    return _elementwise(rules, call, name) if name in ELEMENTWISE else None


# --- Pooling and reductions over the image


def _pool2d(kind: str, attrs: Attrs) -> partial[Tensor]:
    return partial(
        blocked.pool2d_blocked,
        kind="max" if kind == "max" else "avg",
        pool_size=pair(attrs.pool_size),
        strides=pair(attrs.strides),
        padding=four(attrs.padding),
        dilation=pair(attrs.dilation),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
    )


def _pooling(kind: str) -> Callable[[Rules, Call], Operator | None]:
    def rule(rules: Rules, call: Call) -> Operator | None:
        attrs = call.attrs
        if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
            return None

        sizes = (static_shape(call.args[0]), static_shape(call))
        fixed = kind == "max" and None not in sizes and rules.narrowing is not None and rules.narrowing.narrow_bytes

        def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
            if fixed and choice.result:
                return _narrow_pooling(rules, builder, call, inputs[0])
            pool = _pool2d(kind, attrs)
            return rules.kernels(builder).call(pool, inputs[0], name=f"{kind}_pool2d", how=(*pool.keywords.items(),))

        taps = math.prod(pair(attrs.pool_size))
        return _same_layout(rules, call, (call.args[0],), write, taps=taps)

    return rule


def _narrow_pooling(rules: Rules, builder: BlockBuilder, call: Call, image: Expr) -> Expr:
    """The largest elements of windows of bfloat16: rounding them before or after gives the same."""
    attrs, (_, _, rows, columns) = call.attrs, shape_of(call) or (0, 0, 0, 0)
    return builder.call_te(
        lambda x: blocked.max_pool2d_narrow(
            x,
            pool_size=pair(attrs.pool_size),
            strides=pair(attrs.strides),
            padding=four(attrs.padding),
            dilation=pair(attrs.dilation),
            size=(int(rows), int(columns)),
        ),
        rules.narrow(builder, image),
        primfunc_name_hint="max_pool2d_bf16",
    )


def _adaptive_pooling(kind: str) -> Callable[[Rules, Call], Operator | None]:
    def rule(rules: Rules, call: Call) -> Operator | None:
        result = typical_shape(call)
        if (call.attrs.layout, call.attrs.out_layout) != ("NCHW", "NCHW") or result is None:
            return None
        size = (result[2], result[3])
        if open_axes_of(call) - {0} or (open_axes_of(call.args[0]) - {0} and size != (1, 1)):
            return None  # windows whose sizes depend on their places

        def write(builder: BlockBuilder, _choice: Choice, inputs: Sequence[Expr]) -> Expr:
            return builder.call_te(
                lambda x: blocked.adaptive_pool2d_blocked(x, kind="max" if kind == "max" else "avg", output_size=size),
                inputs[0],
                primfunc_name_hint=f"adaptive_{kind}_pool2d",
            )

        return _same_layout(rules, call, (call.args[0],), write)

    return rule


def _image_reduction(rules: Rules, call: Call) -> Operator | None:
    """A reduction over height and width. Without these axes the result is a matrix, which is always plain."""
    data = call.args[0]
    shape = image_shape(data)
    axes = sorted(int(axis) % 4 for axis in call.attrs.axis or ())
    if shape is None or axes != [2, 3] or str(tensor_type(data).dtype) != "float32":
        return None
    keep = bool(call.attrs.keepdims)

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
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


def _reduced(builder: BlockBuilder, call: Call, image: Expr) -> Expr:
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


def _elementwise(rules: Rules, call: Call, name: str) -> Operator | None:
    result = typical_shape(call)
    images = tuple(argument for argument in call.args if image_shape(argument) is not None)
    if result is None or len(result) != 4 or not images or not _keeps_type(rules, call, name):
        return None
    if not all(_fits(rules, argument, result) for argument in call.args):
        return None
    whole = ELEMENTWISE[name] == "whole" or (name == "relax.divide" and image_shape(call.args[1]) is not None)

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
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


def _keeps_type(rules: Rules, call: Call, name: str) -> bool:
    """Whether conversions are those of quantised models: of sums, and with one scale and zero point for a tensor; to a
    type that can be blocked."""
    if not has_image_type(call):
        return False
    if name == "relax.astype":
        return [str(tensor_type(each).dtype) for each in (call.args[0], call)] == ["int32", "float32"]
    if name in ("relax.quantize", "relax.dequantize"):
        constants = [rules.constant(argument) for argument in call.args[1:]]
        return all(constant is not None and constant.ndim == 0 for constant in constants)
    return True


def _fits(rules: Rules, argument: Expr, result: Sequence[int]) -> bool:
    """True for images with all channels of the result, constants that broadcast to them, and scalars."""
    shape = image_shape(argument)
    if shape is not None:
        return shape[1] == result[1]
    constant = rules.constant(argument)
    if constant is not None:
        return constant.ndim <= 4
    return not isinstance(argument, relax.Var) and static_shape(argument) is None  # a number, not a tensor


def _blocked_constant(rules: Rules, call: Call, argument: Expr, choice: Choice) -> Expr:
    """A number as it is; a tensor with its channels in blocks. Filled-up channels are divided by one, not by zero."""
    values: Any = rules.constant(argument)
    if values is None or values.ndim == 0:
        return argument
    image = values.reshape((1,) * (4 - values.ndim) + values.shape)
    missing = -image.shape[1] % choice.result
    if image.shape[1] > 1 and missing and str(call.op.name) == "relax.divide":
        image = np.pad(image, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=1)
    return relax.const(pack_channels(image, block=choice.result))


def _concat(rules: Rules, call: Call) -> Operator | None:
    """Joining keeps layouts. Along channels, where blocks do not stay whole, channels move between lanes."""
    parts = rules.value_of(call.args[0])
    fields = tuple(parts.fields[:]) if isinstance(parts, relax.Tuple) else ()
    shapes = [image_shape(part) for part in fields]
    if not fields or None in shapes:
        return None
    axis = int(call.attrs.axis or 0) % 4
    channels = [shape[1] for shape in shapes if shape is not None]

    def run(block: int) -> int:
        """How many channels stay side by side; all of a block where blocks stay whole."""
        whole = axis != 1 or all(count % block == 0 for count in channels[:-1])
        return block if whole else blocked.run_of(block, channels)

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
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


def _slice(rules: Rules, call: Call) -> Operator | None:
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

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
        image = inputs[0]
        if begin[1] or result[1] < shape[1]:
            image = builder.emit_te(
                lambda x: blocked.slice_blocked(x, begin[1], result[1]), image, primfunc_name_hint="slice"
            )
        inside = [(axis, begin[axis], begin[axis] + result[axis]) for axis in (0, 2, 3) if result[axis] < shape[axis]]
        return relax.op.strided_slice(image, *zip(*inside, strict=True)) if inside else image

    return _same_layout(rules, call, (data,), write, _moving(rules.blocks, run))


def _pad(rules: Rules, call: Call) -> Operator | None:
    """A border of numbers along height and width."""
    widths, attrs = [int(width) for width in call.attrs.pad_width], call.attrs
    if len(widths) != 8 or any(widths[:4]) or min(widths) < 0 or str(attrs.pad_mode) != "constant":
        return None

    def write(builder: BlockBuilder, _choice: Choice, inputs: Sequence[Expr]) -> Expr:
        return builder.call_te(
            lambda x: blocked.pad_blocked(x, (widths[4], widths[6]), (widths[5], widths[7]), float(attrs.pad_value)),
            inputs[0],
            primfunc_name_hint="pad",
        )

    return _same_layout(rules, call, (call.args[0],), write)


def _resize(rules: Rules, call: Call) -> Operator | None:
    """Interpolation. What follows joins it only element by element: in another order of the elements each would find
    its place in the source anew, which takes longer than all the rest."""
    attrs, result = call.attrs, shape_of(call)
    if str(attrs.layout) != "NCHW" or result is None or str(tensor_type(call).dtype) != "float32":
        return None

    def write(builder: BlockBuilder, _choice: Choice, inputs: Sequence[Expr]) -> Expr:
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
    call: Call,
    images: tuple[Expr, ...],
    write: Callable[..., Expr],
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


_RULES: dict[str, Callable[[Rules, Call], Operator | None]] = {
    "relax.nn.conv2d": conv2d,
    "relax.nn.conv2d_transpose": conv2d_transpose,
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
