"""Group and instance normalisation whose variance does not cancel.

TVM computes the variance as the mean of squares less the square of the mean. Where the mean is a thousand times the
standard deviation nothing is left of it in float32, and its square root may be NaN. Here it is the mean of the squared
distances from the mean, as in TVM's own layer normalisation: one pass over the data more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from tvm import relax, te, tirx

from tunehub.graph.kernel_calls import Kernels
from tunehub.tir.nodes import plain_extent, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.tir.types import Index, PrimExpr, Tensor

_TYPES = ("float16", "float32")


def two_pass_norm(kernels: Kernels, emit: Callable[[Expr], Var], call: Call) -> Expr | None:
    """``call``, a ``relax.nn.group_norm`` or ``relax.nn.instance_norm``, by two passes; None for one with an open
    number of channels, one whose channels are not the second axis or which does not normalise all axes behind it, and
    other element types than float32 and float16, which is computed in float32."""
    data, shape, attrs = call.args[0], shape_of(call.args[0]), call.attrs
    dtype = str(tensor_type(data).dtype)
    if not shape or len(shape) < 3 or dtype not in _TYPES or int(attrs.channel_axis) % len(shape) != 1:
        return None
    if not isinstance(shape[1], int):
        return None
    if sorted(int(axis) % len(shape) for axis in attrs.axes) != list(range(2, len(shape))):
        return None
    short = str(call.op.name).rpartition(".")[2]
    groups = int(attrs.num_groups) if short == "group_norm" else shape[1]
    epsilon = float(attrs.epsilon)
    places = reduce(lambda a, b: a * b, shape[2:])
    grouped = emit(relax.op.reshape(data, (shape[0], groups, shape[1] // groups, places)))

    def compute(data: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return _normalised(data, scale, shift, epsilon)

    normal = kernels.call(compute, grouped, *call.args[1:], name=short, how=(epsilon,))
    return relax.op.reshape(emit(normal), shape)


def _normalised(data: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """``data``: batch, groups, channels of a group, places; ``scale`` and ``shift``: for each channel."""
    batch, groups, channels, places = map(plain_extent, data.shape)
    elements = channels * places
    count = tirx.const(float(elements), "float32") if isinstance(elements, int) else elements.astype("float32")

    def wide(value: PrimExpr) -> PrimExpr:
        return value.astype("float32")

    def total(name: str, term: Callable[..., PrimExpr]) -> Tensor:
        c, p = te.reduce_axis((0, channels), "c"), te.reduce_axis((0, places), "p")
        return te.compute((batch, groups), lambda n, g: te.sum(term(n, g, c, p), axis=[c, p]), name=name)

    def distance(n: PrimExpr, g: PrimExpr, c: Index, p: Index) -> PrimExpr:
        return wide(data[n, g, c, p]) - mean[n, g]

    def result(n: PrimExpr, g: PrimExpr, c: PrimExpr, p: PrimExpr) -> PrimExpr:
        inverse = tirx.rsqrt(squares[n, g] / count + tirx.const(epsilon, "float32"))
        channel = g * channels + c
        value = distance(n, g, c, p) * inverse * wide(scale[channel]) + wide(shift[channel])
        return value.astype(data.dtype)

    sums = total("norm_sum", lambda n, g, c, p: wide(data[n, g, c, p]))
    mean = te.compute((batch, groups), lambda n, g: sums[n, g] / count, name="norm_mean")
    squares = total("norm_squares", lambda n, g, c, p: distance(n, g, c, p) * distance(n, g, c, p))
    return te.compute((batch, groups, channels, places), result, name="T_norm")
