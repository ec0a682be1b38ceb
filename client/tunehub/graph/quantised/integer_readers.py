"""Averages and layer norms of dequantised tensors on GPUs as kernels that read the integers: else these are made
floats, of four times the size, by the kernels before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised_tensors import has_type
from tunehub.kernels.te.scales import LIMITS
from tunehub.tir.nodes import bound_value, constant_array, is_constant, operator_of, static_shape

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PrimExpr, Tensor

_CAST, _WIDE, _SUM = "relax.astype", "float32", "int32"
_SHAPING = ("relax.reshape", "relax.permute_dims")
_RULES = {  # methods of the rewriter that write a call in another way, or return None
    "relax.mean": "_mean",
    "relax.nn.avg_pool2d": "_pooled",
    "relax.nn.layer_norm": "_normalised",
}
_MOST = 2**23  # integers of 8 bits that are added up in 32


class _WholeNumbers(NamedTuple):
    """``tensor`` less ``zero``, times ``scale``, which are ``numbers`` of the graph, if any."""

    tensor: Tensor
    zero: float
    scale: float
    numbers: tuple[Any, ...]


def averages_of_integers(mod: IRModule) -> IRModule:
    """``mod``, in which :mod:`tunehub.graph.quantised.elements` has written dequantising, with such kernels."""
    return relax.transform.DeadCodeElimination()(rewritten(_Averages(mod), mod))


@mutator
class _Averages(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        rule = _RULES.get(operator_of(call))
        written = None if rule is None else getattr(self, rule)(call)
        return call if written is None else written

    def _mean(self, call: Call) -> Expr | None:
        shape = static_shape(call.args[0])
        if shape is None or call.attrs.axis is None:
            return None
        axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis)
        return self._average(call, axes, keep=bool(call.attrs.keepdims))

    def _pooled(self, call: Call) -> Expr | None:
        """Of whole images with channels last as means, of others as TVM computes it."""
        shape, attrs = static_shape(call.args[0]), call.attrs
        if shape is None or str(attrs.layout) != "NHWC":
            return None
        sizes, around, *rest = (
            [*map(int, each)] for each in (attrs.pool_size, attrs.padding, attrs.strides, attrs.dilation)
        )
        if sizes == [*shape[1:3]] and not any(around):
            return self._average(call, [1, 2], keep=True)
        found = self._dequantised(call.args[0])
        if found is None:
            return None
        how = (bool(attrs.ceil_mode), bool(attrs.count_include_pad))

        def compute(integers: Tensor) -> Tensor:
            reals = te.compute(shape, lambda *i: (integers[i].astype(_WIDE) - found.zero) * found.scale, name="reals")
            return topi.nn.pool2d(reals, sizes, *rest, around, "avg", how[0], "NHWC", count_include_pad=how[1])

        given = (*sizes, *rest[0], *rest[1], *around, *how, found.zero, found.scale)
        return self._kernels.call(compute, found.tensor, name="avg_pool2d", how=given)

    def _normalised(self, call: Call) -> Expr | None:
        """A layer norm, as TVM computes it."""
        found, attrs = self._dequantised(call.args[0]), call.attrs
        rank = len(static_shape(call.args[0]) or ())
        if found is None or [len(static_shape(each) or ()) for each in found.numbers] != [rank, rank]:
            return None

        def compute(integers: Tensor, gamma: Tensor, beta: Tensor, zero: Tensor, scale: Tensor) -> Tensor:
            def real(*i: PrimExpr) -> PrimExpr:
                first = [0] * len(i)
                return (integers[i].astype(_WIDE) - zero(*first)) * scale(*first)

            reals = te.compute(integers.shape, real, name="dequantized")
            return topi.nn.layer_norm(reals, gamma, beta, [int(axis) for axis in attrs.axes], float(attrs.epsilon))

        how = (*map(int, attrs.axes), float(attrs.epsilon))
        return self._kernels.call(compute, found.tensor, *call.args[1:], *found.numbers, name="layer_norm", how=how)

    def _average(self, call: Call, axes: list[int], *, keep: bool) -> Expr | None:
        found, shape = self._dequantised(call.args[0]), static_shape(call.args[0]) or ()
        count = math.prod(shape[axis] for axis in axes)
        if found is None or count > _MOST:
            return None
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        extents = [1 if axis in axes else extent for axis, extent in enumerate(shape) if keep or axis in kept]

        def compute(integers: Tensor) -> Tensor:
            inner = [te.reduce_axis((0, shape[axis]), name="k") for axis in axes]

            def total(*i: PrimExpr) -> PrimExpr:
                place = dict(zip((*kept, *axes), (*([i[axis] for axis in kept] if keep else i), *inner), strict=True))
                return te.sum(integers[tuple(place[axis] for axis in range(len(shape)))].astype(_SUM), axis=inner)

            def average(*i: PrimExpr) -> PrimExpr:
                return (sums[i].astype(_WIDE) - found.zero * count) * (found.scale / count)

            sums = te.compute(extents, total, name="sums")
            return te.compute(extents, average, name="mean")

        return self._kernels.call(compute, found.tensor, name="mean", how=(*axes, keep, found.zero, found.scale))

    def _dequantised(self, expression: Expr) -> _WholeNumbers | None:
        value, zero, scale, numbers = bound_value(self, expression), 0.0, 1.0, list[Any]()
        if operator_of(value) == "relax.multiply" and (number := self._number(value.args[1])) is not None:
            numbers, scale, value = [value.args[1]], number, bound_value(self, value.args[0])
        if operator_of(value) == "relax.subtract" and (number := self._number(value.args[1])) is not None:
            numbers, zero, value = [value.args[1], *numbers], number, bound_value(self, value.args[0])
        is_cast = operator_of(value) == _CAST and has_type(value, _WIDE) and has_type(value.args[0], *LIMITS)
        return _WholeNumbers(value.args[0], zero, scale, tuple(numbers)) if is_cast else None

    def _number(self, operand: Expr) -> float | None:
        """A constant of one element, whatever its axes."""
        value = bound_value(self, operand)
        while operator_of(value) in _SHAPING:
            value = bound_value(self, value.args[0])
        return float(constant_array(value).item()) if is_constant(value) and constant_array(value).size == 1 else None
