"""Attention over the pixels of an image as it is of rows of channels: the convolutions of one place before and behind
it as linear layers over pixels whose channels are beside each other (CoAtNet, and others that have heads along
channels). Attention reads and writes these as they lie, where channels are last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import bound_value, calls_in, operator_of, permuted_axes, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext

_TYPES = ("float16", "bfloat16")
_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]  # channels
_SWAPPED = [0, 1, 3, 2]


@tvm.transform.module_pass(opt_level=0, name="tunehub.attention_over_pixels")  # type: ignore[untyped-decorator]
def attention_over_pixels(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA, before attention is recognised and images are transposed."""
    names = {operator_of(call) for call in calls_in(mod)}
    if not {"relax.nn.softmax", "relax.nn.conv2d"} <= names:
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_OverPixels(mod), mod))


@mutator
class _OverPixels(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        written = {"relax.reshape": self._heads, "relax.nn.conv2d": self._behind}.get(operator_of(call))
        return call if written is None else written(call)

    def _heads(self, call: Call) -> Expr:
        """Channels in heads, and pixels in one axis."""
        shape, image = static_shape(call), static_shape(call.args[0])
        if shape is None or image is None or len(shape) != 4 or len(image) != 4:
            return call
        batch, heads, depth, pixels = shape
        if (batch, heads * depth, pixels) != (image[0], image[1], image[2] * image[3]) or min(image[2:]) < 2:
            return call
        value, bias = bound_value(self, call.args[0]), None
        if operator_of(value) == "relax.add":
            bias, value = value.args[1], bound_value(self, value.args[0])
        if not _is_linear(value) or not (bias is None or static_shape(bias) in ((1, image[1], 1, 1), (image[1], 1, 1))):
            return call
        emit = self.builder_.emit
        found = self._layer(emit(relax.op.permute_dims(value.args[0], _LAST)), value)
        if bias is not None:
            found = emit(relax.op.add(found, emit(relax.op.reshape(bias, [image[1]]))))
        rows = emit(relax.op.reshape(found, [batch, pixels, heads, depth]))
        return relax.op.permute_dims(rows, [0, 2, 3, 1])

    def _behind(self, call: Call) -> Expr:
        """A convolution of what heads give, which lie along its channels."""
        value, image = bound_value(self, call.args[0]), static_shape(call.args[0])
        if not _is_linear(call) or operator_of(value) != "relax.reshape" or image is None:
            return call
        swapped = bound_value(self, value.args[0])
        shape = static_shape(swapped) if permuted_axes(swapped) == _SWAPPED else None
        if shape is None or (shape[0], shape[1] * shape[2], shape[3]) != (*image[:2], image[2] * image[3]):
            return call
        emit = self.builder_.emit
        rows = emit(relax.op.permute_dims(swapped.args[0], [0, 2, 1, 3]))
        pixels = emit(relax.op.reshape(rows, [image[0], image[2], image[3], image[1]]))
        return relax.op.permute_dims(self._layer(pixels, call), _FIRST)

    def _layer(self, pixels: Expr, convolution: Call) -> Expr:
        """What a convolution of one place makes of pixels whose channels are last."""
        emit, weight = self.builder_.emit, convolution.args[1]
        outputs, inputs = (static_shape(weight) or (0, 0))[:2]
        flat = emit(relax.op.reshape(weight, [outputs, inputs]))
        return emit(relax.op.matmul(pixels, emit(relax.op.permute_dims(flat, [1, 0])), _dtype(convolution)))


def _is_linear(call: Call) -> bool:
    """Whether it is a convolution of one place in half precision."""
    if operator_of(call) != "relax.nn.conv2d" or _dtype(call) not in _TYPES or _dtype(call.args[0]) != _dtype(call):
        return False
    attrs, weight = call.attrs, static_shape(call.args[1])
    plain: Sequence[int] = [*map(int, attrs.strides), int(attrs.groups)]
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    in_order = layouts == ("NCHW", "OIHW", "NCHW") and not any(map(int, attrs.padding))
    return in_order and {*plain} == {1} and weight is not None and weight[2:] == (1, 1)


def _dtype(value: Expr) -> str:
    return str(tensor_type(value).dtype)
