"""Sums of operands in half precision in float32 on GPUs, where TVM adds up in half precision.

A sum of n numbers in their own type is off by about sqrt(n) roundings (Higham, "Accuracy and Stability of Numerical
Algorithms", 4.2), and TVM divides a mean by the number of its terms in that type, too: 70,000 are infinite in float16.

* Sums and means are one kernel as before, which adds up in float32 and rounds once.
* Variances and deviations between casts: TVM does not compile those of 65,505 numbers in float16.
* In bfloat16, whose roundings are eight times as large, also softmax and norms, between casts.

Products and convolutions are those of :mod:`tunehub.graph.products`. Softmax and norms in float16 are within two units
in the last place of float32, measured on random shapes, and stay.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.tir.nodes import calls_in, operator_of, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, Tensor

_SUM = "float32"
_HALF, _BFLOAT = "float16", "bfloat16"
_REDUCED = {"relax.sum": False, "relax.mean": True}  # whether divided by the number of terms
_IN_BFLOAT = tuple(f"relax.nn.{name}_norm" for name in ("layer", "rms", "group", "instance"))
_CAST = ("relax.nn.softmax", "relax.nn.log_softmax", *_IN_BFLOAT)
_SPREADS = ("relax.variance", "relax.std")


@tvm.transform.module_pass(opt_level=0, name="tunehub.wide_sums")  # type: ignore[untyped-decorator]
def wide_sums(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for GPUs: reductions in half precision with sums in float32."""
    return rewritten(_WideSums(mod), mod)


@tvm.transform.module_pass(opt_level=0, name="tunehub.wide_sums_of_half")  # type: ignore[untyped-decorator]
def wide_sums_of_half(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CPUs: sums, means, variances and deviations in float16 with sums in float32."""
    named = (call for call in calls_in(mod) if operator_of(call) in (*_REDUCED, *_SPREADS))
    if not any(str(tensor_type(call.args[0]).dtype) == _HALF for call in named):
        return mod
    return rewritten(_WideSums(mod, (_HALF,)), mod)


@mutator
class _WideSums(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, types: tuple[str, ...] = (_HALF, _BFLOAT)) -> None:
        super().__init__(mod)
        self._types = types
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", ""))
        if name not in _REDUCED and name not in _CAST and name not in _SPREADS:
            return call
        dtype = str(tensor_type(call.args[0]).dtype)
        if name in _SPREADS:
            return self._between_casts(call, dtype) if dtype in self._types else call
        if name in _CAST:
            return self._between_casts(call, dtype) if dtype == _BFLOAT and _BFLOAT in self._types else call
        shape = shape_of(call.args[0])
        if dtype not in self._types or shape is None:
            return call
        attrs = call.attrs
        axes = range(len(shape)) if attrs.axis is None else (int(axis) % len(shape) for axis in attrs.axis)
        how = (tuple(sorted(axes)), bool(attrs.keepdims), _REDUCED[name])
        compute = partial(_reduced, axes=how[0], kept=how[1], divided=how[2])
        return self._kernels.call(compute, call.args[0], name=name.removeprefix("relax."), how=how)

    def _between_casts(self, call: Call, dtype: str) -> Expr:
        wide = [self.builder_.emit(relax.op.astype(argument, _SUM)) for argument in call.args]
        return relax.op.astype(self.builder_.emit(relax.Call(call.op, wide, call.attrs)), dtype)


def _reduced(data: Tensor, *, axes: tuple[int, ...], kept: bool, divided: bool) -> Tensor:
    """The sum of ``data`` along ``axes``, or its mean, in the type of ``data``."""
    terms = [te.reduce_axis((0, data.shape[axis]), name=f"k{axis}") for axis in axes]
    by_axis = dict(zip(axes, terms, strict=True))
    rank = len(data.shape)
    left = [axis for axis in range(rank) if axis not in by_axis]
    places = range(rank) if kept else left
    shape = [1 if axis in by_axis else data.shape[axis] for axis in places]

    def total(*i: PrimExpr) -> PrimExpr:
        own = dict(zip(places, i, strict=True))
        return te.sum(data(*(by_axis.get(axis, own.get(axis)) for axis in range(rank))).astype(_SUM), axis=terms)

    def result(*i: PrimExpr) -> PrimExpr:
        found = sums(*i)
        return (found / tirx.Cast(_SUM, count) if divided else found).astype(data.dtype)

    count = math.prod((tirx.Cast("int64", term.dom.extent) for term in terms), start=tirx.const(1, "int64"))
    sums = te.compute(shape, total, name="red")
    return te.compute(shape, result, name="rounded")
