"""Sequences as images of height one: what convolutions of them gain from the blocked layouts of images.

``conv1d`` on ``[N, C, W]`` becomes ``conv2d`` with a kernel of one row on ``[N, C, 1, W]``, ``conv1d_transpose``
likewise; the reshapes around it are views. Operators on single elements and slices between two convolutions become
those of images, too, so that the layout is kept there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    integers,
    is_constant,
    operator_of,
    same_extent,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, Call, Expr
    from tunehub.tir.types import Index, IRModule

_CONVOLUTIONS = {"relax.nn.conv1d": ("OIW", "OIHW"), "relax.nn.conv1d_transpose": ("IOW", "IOHW")}


def as_images(mod: IRModule, elementwise: Iterable[str]) -> IRModule:
    """``mod`` with its one-dimensional convolutions of constant float32 weights as two-dimensional ones.

    ``elementwise``: names of the operators on single elements that have blocked forms. Convolutions in other layouts
    than ``NCW``, of other types or of unknown shapes stay as they are.
    """
    if not any(map(_has_sequences, mod.functions.values())):
        return mod
    raiser = _ImageRaiser(mod)
    raiser.elementwise = frozenset(elementwise)
    return relax.transform.DeadCodeElimination()(rewritten(raiser, mod))


def _has_sequences(function: BaseFunc) -> bool:
    blocks = getattr(getattr(function, "body", None), "blocks", ())  # without a visitor, which would take milliseconds
    return any(operator_of(binding.value) in _CONVOLUTIONS for block in blocks for binding in block.bindings)


@mutator
class _ImageRaiser(PyExprMutator):  # type: ignore[misc]
    elementwise: frozenset[str]

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        name, result = operator_of(call), shape_of(call)
        if result is None or str(tensor_type(call).dtype) != "float32":
            return call
        image = None
        if name in _CONVOLUTIONS:
            image = self._convolution(call, name)
        elif len(result) != 3:
            return self._without_reshape(call, name, result)
        elif name in self.elementwise:
            image = self._elementwise(call, result)
        elif name == "relax.strided_slice":
            image = self._slice(call, result)
        return call if image is None else relax.op.reshape(self.builder_.emit(image), result)

    def _convolution(self, call: Call, name: str) -> Expr | None:
        attrs, shape, weight = call.attrs, shape_of(call.args[0]), bound_value(self, call.args[1])
        kernel_layout, image_layout = _CONVOLUTIONS[name]
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
        if layouts != ("NCW", kernel_layout, "NCW") or not is_constant(weight) or shape is None:
            return None
        if str(tensor_type(weight).dtype) != "float32" or str(tensor_type(call.args[0]).dtype) != "float32":
            return None
        if name == "relax.nn.conv1d_transpose" and (int(attrs.groups), int(attrs.dilation[0])) != (1, 1):
            return None
        how: dict[str, Any] = {
            "strides": [1, int(attrs.strides[0])],
            "padding": [0, int(attrs.padding[0]), 0, int(attrs.padding[1])],
            "dilation": [1, int(attrs.dilation[0])],
            "groups": int(attrs.groups),
            "kernel_layout": image_layout,
        }
        if name == "relax.nn.conv1d_transpose":
            how["output_padding"] = [0, int(attrs.output_padding[0])]
        operator: Callable[..., Expr] = getattr(relax.op.nn, name.rpartition(".")[2].replace("1d", "2d"))
        values = constant_array(weight)
        return operator(self._image(call.args[0]), relax.const(values[:, :, None]), **how)

    def _elementwise(self, call: Call, result: Sequence[Index]) -> Expr | None:
        """On images where one argument is a sequence that was an image."""
        if all(self._known_image(argument) is None for argument in call.args):
            return None
        arguments = [self._operand(argument, result) for argument in call.args]
        return None if any(each is None for each in arguments) else relax.Call(call.op, arguments, call.attrs)

    def _operand(self, argument: Expr, result: Sequence[Index]) -> Expr | None:
        """An argument of an operator on elements as one of images; None where it is broadcast."""
        value, shape = bound_value(self, argument), shape_of(argument)
        if is_constant(value):
            values = constant_array(value)
            return value if values.ndim < 2 else relax.const(values[..., None, :])
        if shape is None:  # a number
            return None if isinstance(argument, relax.Var) else argument
        return self._image(argument) if _same(shape, result) else None

    def _slice(self, call: Call, result: Sequence[Index]) -> Expr | None:
        """A part of the places of a sequence, in steps of one."""
        image, shape = self._known_image(call.args[0]), shape_of(call.args[0])
        axes, begins, _, *steps = (integers(each, partial(bound_value, self)) for each in call.args[1:])
        if image is None or shape is None or axes not in ([2], [-1]) or not begins or steps not in ([], [[1]]):
            return None
        if not isinstance(shape[2], int) or not isinstance(result[2], int):
            return None
        first = min(max(begins[0] + shape[2] * (begins[0] < 0), 0), shape[2])
        return relax.op.strided_slice(image, [3], [first], [first + result[2]])

    def _without_reshape(self, call: Call, name: str, result: Sequence[Index]) -> Expr:
        """A sequence that was this image as the image."""
        image = self._known_image(call.args[0]) if name == "relax.reshape" else None
        return image if image is not None and _same(shape_of(image), result) else call

    def _image(self, sequence: Expr) -> Expr:
        """``sequence`` ``[N, C, W]`` as a variable ``[N, C, 1, W]``."""
        known, (batch, channels, width) = self._known_image(sequence), shape_of(sequence) or (0, 0, 0)
        if known is not None:
            return known
        return self.builder_.emit(relax.op.reshape(sequence, (batch, channels, 1, width)))

    def _known_image(self, sequence: Expr) -> Expr | None:
        """The image that a sequence is the only row of."""
        reshape, shape = bound_value(self, sequence), shape_of(sequence)
        if operator_of(reshape) != "relax.reshape" or shape is None:
            return None
        image = reshape.args[0]
        same = len(shape) == 3 and _same(shape_of(image), (*shape[:2], 1, shape[2]))
        return image if same and isinstance(image, relax.Var) else None


def _same(first: Sequence[Index] | None, second: Sequence[Index]) -> bool:
    """Whether two shapes, the first of which may be unknown, are equal for all values of their symbols."""
    return first is not None and len(first) == len(second) and all(map(same_extent, first, second))
