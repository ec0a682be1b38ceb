"""Sums over neighbouring channels as convolutions: local response normalisation beside instructions for matrices.

ONNX's LRN arrives as an average over a window of channels (``avg_pool3d`` on an axis of its own). Over blocks of
channels that moves every element, and has the image plain. As a convolution of 1 × 1 with a band of equal weights it is
products that tiles do in passing, in the layout of its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import bound_value, operator_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Array, Attrs, IRModule


def sum_channels_by_tiles(mod: IRModule) -> IRModule:
    """``mod`` with averages over windows of channels as convolutions."""
    summer = _ChannelSummer(mod)
    written = rewritten(summer, mod)
    return relax.transform.DeadCodeElimination()(written) if summer.found else mod


@mutator
class _ChannelSummer(PyExprMutator):  # type: ignore[misc]
    found = False

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if operator_of(call) != "relax.squeeze":
            return call
        pooled = bound_value(self, call.args[0])
        apart = bound_value(self, pooled.args[0]) if operator_of(pooled) == "relax.nn.avg_pool3d" else None
        if apart is None or operator_of(apart) != "relax.expand_dims":
            return call
        shape, window = static_shape(apart.args[0]), _window(pooled.attrs)
        axes = [[int(axis) for axis in each.attrs.axis or ()] for each in (call, apart)]
        kind = str(tensor_type(apart.args[0]).dtype)
        if window is None or shape is None or len(shape) != 4 or axes != [[1], [1]] or kind != "float32":
            return call
        self.found = True
        return relax.op.nn.conv2d(apart.args[0], relax.const(_band(shape[1], *window)))


def _window(attrs: Attrs) -> tuple[int, int] | None:
    """How many channels an average is of, and how many of them are before its own; None for one that is over more than
    channels, has another number of results, or counts channels that are not there otherwise."""
    size, padding = [int(each) for each in attrs.pool_size], [int(each) for each in attrs.padding]
    steps = [int(each) for each in (*attrs.strides, *attrs.dilation)]
    alone = size[1:] == [1, 1] and not any(padding[1:3] + padding[4:]) and set(steps) == {1}
    keeps = padding[0] + padding[3] == size[0] - 1 and bool(attrs.count_include_pad) and not attrs.ceil_mode
    return (size[0], padding[0]) if alone and keeps and str(attrs.layout) == str(attrs.out_layout) == "NCDHW" else None


def _band(channels: int, size: int, before: int) -> Array:
    """The weight ``[channels, channels, 1, 1]``: a share of each of ``size`` channels, so many before one's own."""
    apart = np.arange(channels)[None] - np.arange(channels)[:, None] + before
    weight: Array = np.where((apart >= 0) & (apart < size), np.float32(1 / size), np.float32(0))
    return weight[:, :, None, None]
