"""Tokens as images: convolutions between transposes read and write channels last, as the tokens lie.

Transformers turn tokens ``[N, H·W, C]`` into an image ``[N, C, H, W]`` for a convolution, and its result back. A
depthwise convolution is one on a blocked image whose block is all channels (``[N, 1, H, W, C]``), which is how tokens
lie; one whose windows do not overlap is a product of patches. Operators on elements behind it are of the image, too,
so that they join its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.bindings import BoundValues, repeated, rewritten_where_found
from tunehub.graph.layout.narrowing import Narrowing
from tunehub.graph.layout.operators import four, pair
from tunehub.kernels.cpu.window import LANES
from tunehub.kernels.te import blocked
from tunehub.kernels.te.grouped import NARROW
from tunehub.kernels.te.weights import Array, pack_depthwise_weight
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    is_constant,
    operator_of,
    permuted_axes,
    shape_of,
    static_shape,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Function, Var
    from tunehub.tir.types import IRModule, Mutator

Shape = tuple[int, ...]
_LAST, _FIRST, _TRANSPOSED = (
    [0, 2, 3, 1],
    [0, 3, 1, 2],
    [0, 2, 1],
)  # axes: of images with channels moved behind, and back; of tokens
_WITH_AXES = {"relax.quantize", "relax.dequantize"}
_WHOLE = 1  # blocks of channels, of which each is all of them


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfTokens:
    """A convolution of ``tokens``, which are an image of this ``shape`` (N, C, H, W), with its weight, what is done
    with its elements after that, and the ``result`` (N, C, H, W)."""

    call: Call
    tokens: Expr
    shape: Shape
    weight: Array
    steps: tuple[Call, ...]
    result: Shape

    @property
    def depthwise(self) -> bool:
        """One input and one output channel a group, and whole vectors of them."""
        channels = self.shape[1]
        return int(self.call.attrs.groups) == channels == self.result[1] and channels % LANES == 0

    @property
    def patches(self) -> bool:
        """Each element of the image is in one window."""
        attrs, kernel = self.call.attrs, self.weight.shape[2:]
        whole = all(size % step == 0 for size, step in zip(self.shape[2:], kernel, strict=True))
        alone = int(attrs.groups) == 1 and not any(four(attrs.padding)) and pair(attrs.dilation) == (1, 1)
        return whole and alone and pair(attrs.strides) == kernel


def images_of_tokens(mod: IRModule, elementwise: Iterable[str], narrowing: Narrowing | None = None) -> IRModule:
    """``mod`` with convolutions of tokens whose results are tokens reading and writing channels last.

    ``elementwise``: names of the operators on single elements. Left as they are: shapes that are not known, other
    element types than float32, channels that are no whole vectors, and convolutions that are neither depthwise nor
    of patches. ``narrowing``: whether depthwise convolutions read bfloat16.
    """
    names = frozenset(elementwise) - _WITH_AXES

    def writer(mod: IRModule) -> Mutator:
        made: Mutator = _TokenWriter(mod)
        made.elementwise, made.narrow = names, narrowing is not None and narrowing.depthwise
        return made

    return rewritten_where_found(mod, lambda function: _found(function, names), writer)


@mutator
class _TokenWriter(PyExprMutator):  # type: ignore[misc]
    found: Mapping[Var, _OfTokens]
    elementwise: frozenset[str]
    narrow: bool

    def visit_var_binding_(self, binding: Binding) -> None:
        convolution = self.found.get(binding.var)
        if convolution is not None:
            written = (self._depthwise if convolution.depthwise else self._product)(convolution)
            image = self.builder_.emit(repeated(self.builder_, written, convolution.steps, _last))
            value = relax.op.reshape(image, static_shape(binding.var))
            binding = relax.VarBinding(binding.var, value)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Expr:
        """Operators on elements behind a convolution, as those of its image."""
        call = super().visit_call_(call)
        shape = static_shape(call)
        images = [image_of(self, each) for each in call.args]
        if operator_of(call) not in self.elementwise or shape is None or all(each is None for each in images):
            return call
        size = static_shape(next(each for each in images if each is not None))
        arguments = [self._operand(each, image, shape, size) for each, image in zip(call.args, images, strict=True)]
        if any(each is None for each in arguments):
            return call
        return relax.op.reshape(self.builder_.emit(relax.Call(call.op, arguments, call.attrs)), shape)

    def _operand(self, argument: Expr, image: Expr | None, shape: Shape, size: Shape | None) -> Expr | None:
        """An argument of an operator on tokens of ``shape`` as one on images of ``size``; None for others."""
        if image is not None:
            return image
        own, value = static_shape(argument), bound_value(self, argument)
        if shape_of(argument) is None:
            return None if isinstance(argument, relax.Var) else argument
        if own is not None and is_constant(value) and _of_channels(own, shape[-1], axis=-1):
            return _last(value)
        return self.builder_.emit(relax.op.reshape(argument, size)) if own == shape else None

    def _depthwise(self, convolution: _OfTokens) -> Expr:
        attrs, (batch, channels, *size) = convolution.call.attrs, convolution.shape
        data = self.visit_expr(convolution.tokens)
        if self.narrow:
            data = self.builder_.emit(relax.op.astype(data, NARROW))
        image = self.builder_.emit(relax.op.reshape(data, (batch, _WHOLE, *size, channels)))
        weight = np.ascontiguousarray(pack_depthwise_weight(convolution.weight, block=channels))
        return self.builder_.call_te(
            lambda x, w: blocked.depthwise_blocked(
                x, w, strides=pair(attrs.strides), padding=four(attrs.padding), dilation=pair(attrs.dilation)
            ),
            image,
            relax.const(weight),
            primfunc_name_hint="depthwise_bf16" if self.narrow else "depthwise",
        )

    def _product(self, convolution: _OfTokens) -> Expr:
        (batch, channels, *_), (_, outputs, *size) = convolution.shape, convolution.result
        kernel = convolution.weight.shape[2:]
        tokens = self.visit_expr(convolution.tokens)
        if kernel != (1, 1):
            split = relax.op.reshape(tokens, (batch, size[0], kernel[0], size[1], kernel[1], channels))
            tokens = relax.op.permute_dims(self.builder_.emit(split), [0, 1, 3, 2, 4, 5])
            tokens = self.builder_.emit(tokens)
        rows = (batch, size[0] * size[1], kernel[0] * kernel[1] * channels)
        weight = convolution.weight.transpose(2, 3, 1, 0).reshape(rows[2], outputs)
        patches = self.builder_.emit(relax.op.reshape(tokens, rows))
        return relax.op.matmul(patches, relax.const(np.ascontiguousarray(weight)))


def image_of(graph: Mutator, tokens: Expr) -> Expr | None:
    """The image ``[N, 1, H, W, C]`` whose elements ``tokens`` are, in what ``graph`` writes."""
    view: Expr = bound_value(graph, tokens) if isinstance(tokens, relax.Var) else None
    shape = static_shape(view.args[0]) if operator_of(view) == "relax.reshape" else None
    own = static_shape(tokens)
    if shape is None or own is None or len(shape) != 5:
        return None
    return view.args[0] if shape[1] == _WHOLE and own[-1] == shape[-1] else None


def _found(function: Function, elementwise: frozenset[str]) -> Iterator[tuple[Var, _OfTokens]]:
    """The variables that are tokens of such convolutions."""
    bindings = BoundValues(function)
    values = bindings.values
    if not any(operator_of(value) == "relax.nn.conv2d" for value in values.values()):
        return

    def value_of(expression: Expr) -> Expr:
        while isinstance(expression, relax.Var) and expression in values:
            expression = values[expression]
        return expression

    for variable, value in values.items():
        image = _image_behind(value, bindings.alone)
        convolution = _convolution(image, bindings.alone, value_of, elementwise) if image is not None else None
        if convolution is not None and (convolution.depthwise or convolution.patches):
            yield variable, convolution


def _image_behind(value: Expr, alone: Callable[[Expr], Expr | None]) -> Expr | None:
    """The image ``[N, C, H, W]`` that tokens are written from; None for what is none."""
    if operator_of(value) != "relax.permute_dims":
        return None
    axes = permuted_axes(value)
    if axes == _LAST:
        return value.args[0]
    flat: Expr = alone(value.args[0]) if axes == _TRANSPOSED else None
    if flat is None or operator_of(flat) != "relax.reshape":
        return None
    shape, image = static_shape(flat), static_shape(flat.args[0])
    if shape is None or image is None or len(image) != 4:
        return None
    return flat.args[0] if shape[:2] == image[:2] else None


def _tokens_before(image: Expr, value_of: Callable[[Expr], Expr]) -> Expr | None:
    """The tokens that are the image ``[N, C, H, W]``; None for an image of another kind."""
    value: Expr = value_of(image)
    if operator_of(value) == "relax.permute_dims" and permuted_axes(value) == _FIRST:
        return value.args[0]
    transposed: Expr = value_of(value.args[0]) if operator_of(value) == "relax.reshape" else None
    shape = static_shape(value)
    if (
        transposed is None
        or operator_of(transposed) != "relax.permute_dims"
        or permuted_axes(transposed) != _TRANSPOSED
    ):
        return None
    flat = static_shape(transposed)
    return transposed.args[0] if flat is not None and shape is not None and flat[:2] == shape[:2] else None


def _convolution(
    image: Expr, alone: Callable[[Expr], Expr | None], value_of: Callable[[Expr], Expr], elementwise: frozenset[str]
) -> _OfTokens | None:
    """The convolution of tokens that an image comes from, with the steps between."""
    steps: list[Call] = []
    call: Expr = alone(image)
    result = static_shape(image)
    while result is not None and operator_of(call) in elementwise:
        arguments = [value_of(each) if is_constant(value_of(each)) else each for each in call.args]
        images = [each for each in arguments if not is_constant(each)]
        constants = [static_shape(each) for each in arguments if is_constant(each)]
        if len(images) != 1 or not all(shape is not None and _of_channels(shape, result[1]) for shape in constants):
            return None
        steps.append(relax.Call(call.op, arguments, call.attrs))
        call = alone(images[0])
    if result is None or operator_of(call) != "relax.nn.conv2d" or str(tensor_type(call).dtype) != "float32":
        return None
    tokens, weight, shape = _tokens_before(call.args[0], value_of), value_of(call.args[1]), static_shape(call.args[0])
    layouts = tuple(str(each) for each in (call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout))
    if tokens is None or shape is None or not is_constant(weight) or layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    values = constant_array(weight)
    if values.dtype != "float32" or str(tensor_type(call.args[0]).dtype) != "float32":
        return None
    return _OfTokens(call=call, tokens=tokens, shape=shape, weight=values, steps=tuple(steps[::-1]), result=result)


def _of_channels(shape: Shape, channels: int, axis: int = -3) -> bool:
    """Whether a constant is a number, or has one for each channel, which are this axis."""
    size = int(np.prod(shape))
    return size == 1 or (len(shape) >= -axis and size == shape[axis] == channels)


def _last(constant: Expr) -> Expr:
    """A constant for each channel as one of images with channels last."""
    return relax.const(np.ascontiguousarray(constant_array(constant).reshape(-1)))
