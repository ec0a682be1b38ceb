"""Channels that are shuffled behind a convolution of groups: its outputs are computed in that order at once.

A shuffle (Zhang et al. 2017, arXiv 1707.01083) makes groups exchange channels: it is ``reshape``, ``permute_dims`` and
``reshape``. Between blocks of channels that is a kernel that finds each element anew. With its outputs in another order
a convolution has no groups any more, only weights that are zero: instructions for matrices multiply with these in less
time than the elements take to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.bindings import BoundValues, repeated, rewritten_where_found
from tunehub.kernels.te.weights import Array
from tunehub.tir.nodes import constant_array, is_constant, operator_of, static_shape

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Constant, Expr, Function, Var
    from tunehub.tir.types import IRModule

_MOST = 1024  # products for each element that tiles do in the time in which it moves: 1.4 ns of a core
STEPS = frozenset(  # on elements, between integers, too
    f"relax.{name}"
    for name in ("add", "astype", "clip", "divide", "maximum", "minimum", "multiply", "nn.relu", "round", "subtract")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shuffled:
    """A convolution of groups, what is done with its elements after that, the weight, and which of its outputs each
    channel is after the shuffle."""

    convolution: Call
    steps: tuple[Call, ...]
    weight: Array
    order: Array


def fold_shuffles(mod: IRModule) -> IRModule:
    """``mod`` with the convolutions whose channels are shuffled writing them in that order, without groups."""
    return rewritten_where_found(mod, _found, _Folder)


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]
    found: Mapping[Var, _Shuffled]

    def visit_var_binding_(self, binding: Binding) -> None:
        shuffled = self.found.get(binding.var)
        if shuffled is not None:
            binding = relax.VarBinding(binding.var, self._written(shuffled))
        super().visit_var_binding_(binding)

    def _written(self, shuffled: _Shuffled) -> Expr:
        call, order = shuffled.convolution, shuffled.order
        attrs = call.attrs
        value = relax.op.nn.conv2d(
            self.visit_expr(call.args[0]),
            relax.const(_without_groups(shuffled.weight, int(attrs.groups))[order]),
            strides=attrs.strides,
            padding=attrs.padding,
            dilation=attrs.dilation,
            out_dtype=attrs.out_dtype,
        )
        return repeated(self.builder_, value, shuffled.steps, lambda constant: _ordered(constant, order))


def _found(function: Function) -> Iterator[tuple[Var, _Shuffled]]:
    bindings = BoundValues(function)
    alone: Callable[[Expr], Expr | None] = bindings.alone
    for variable, value in bindings.values.items():
        permuted = alone(value.args[0]) if operator_of(value) == "relax.reshape" else None
        if permuted is None or operator_of(permuted) != "relax.permute_dims":
            continue
        split = alone(permuted.args[0])
        if split is None or operator_of(split) != "relax.reshape":
            continue
        shape, groups = static_shape(value), static_shape(split)
        axes = [int(axis) for axis in permuted.attrs.axes or ()]
        if shape is None or groups is None or len(shape) != 4 or axes != [0, 2, 1, 3, 4]:
            continue
        if static_shape(split.args[0]) != shape or groups != (shape[0], *groups[1:3], *shape[2:]):
            continue
        order = np.arange(shape[1]).reshape(groups[1:3]).T.ravel()
        shuffled = _behind(split.args[0], alone, order)
        if shuffled is not None:
            yield variable, shuffled


def _behind(image: Expr, alone: Callable[[Expr], Expr | None], order: Array) -> _Shuffled | None:
    """The convolution that a shuffled image comes from, and the steps between; None where there is another operator."""
    steps: list[Call] = []
    value: Expr = alone(image)
    while operator_of(value) in STEPS:
        images = [each for each in value.args if not is_constant(each)]
        if len(images) != 1 or not all(_broadcasts(each, len(order)) for each in value.args if is_constant(each)):
            return None
        steps.append(value)
        value = alone(images[0])
    if operator_of(value) != "relax.nn.conv2d" or not is_constant(value.args[1]):
        return None
    attrs, weight = value.attrs, constant_array(value.args[1])
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    few = weight.dtype == "float32" and weight[0].size * int(attrs.groups) <= _MOST
    integers = weight.dtype == "int8" and int(attrs.groups) == 1  # that GPUs multiply, whose groups are one already
    if layouts != ("NCHW", "OIHW", "NCHW") or weight.shape[1] == 1 or not (few or integers):
        return None
    return _Shuffled(convolution=value, steps=tuple(steps[::-1]), weight=weight, order=order)


def _broadcasts(constant: Constant, channels: int) -> bool:
    """Whether a constant is a number, or has one for each channel."""
    shape = static_shape(constant)
    return shape is not None and (np.prod(shape) == 1 or (len(shape) > 2 and np.prod(shape) == shape[-3] == channels))


def _ordered(constant: Constant, order: Array) -> Expr:
    values = constant_array(constant)
    return constant if values.size == 1 else relax.const(np.ascontiguousarray(values.take(order, axis=-3)))


def _without_groups(weight: Array, groups: int) -> Array:
    """``weight`` ``[O, I/groups, KH, KW]`` as ``[O, I, KH, KW]``, zero for inputs of other groups."""
    outputs, each, *kernel = weight.shape
    whole = np.zeros((groups, outputs // groups, groups, each, *kernel), weight.dtype)
    for group in range(groups):
        whole[group, :, group] = weight.reshape(groups, -1, each, *kernel)[group]
    return whole.reshape(outputs, groups * each, *kernel)
