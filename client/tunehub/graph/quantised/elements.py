"""Quantising and dequantising on GPUs: operators on elements, which TVM brings into other orders of axes and fuses with
kernels before and behind. Each reader of dequantised numbers has operators of its own: it reads 8 bits then, not 32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised_tensors import DEQUANTIZE, QUANTIZE, affine_of, has_type, variable_of
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import bound_value, calls_in, operator_of, permuted_axes, same_shape, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Var
    from tunehub.tir.types import IRModule, Tensor

_PERMUTE = "relax.permute_dims"
_IMAGE = 4  # axes


def quantise_by_element(mod: IRModule) -> IRModule:
    """``mod`` with quantising to 8 bits and dequantising, with one constant scale for a tensor, in this way."""
    if not any(operator_of(call) in (QUANTIZE, DEQUANTIZE) for call in calls_in(mod)):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_Elements(mod), mod))


@mutator
class _Elements(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)
        self._dequantised: dict[Var, tuple[Expr, Affine]] = {}  # variables, and what they are of
        self._sums: dict[Var, list[Expr]] = {}  # variables that are sums of dequantised ones, and these

    def visit_var_binding_(self, binding: Binding) -> None:
        super().visit_var_binding_(binding)
        value = binding.value
        if operator_of(value) == DEQUANTIZE and (affine := self._affine(value, value.args[0], value)) is not None:
            self._dequantised[self.visit_expr(binding.var)] = self.visit_expr(value.args[0]), affine
        if operator_of(value) == "relax.add":
            terms = [self.visit_expr(each) for each in value.args]
            if all(same_shape(each, value) and self._terms(each) for each in terms):
                self._sums[self.visit_expr(binding.var)] = terms

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if operator_of(call) == _PERMUTE:
            return self._transposed_once(call)
        if operator_of(call) == QUANTIZE and (affine := self._affine(call, call, call.args[0])) is not None:
            return self._quantised(call.args[0], affine, str(tensor_type(call).dtype))
        if operator_of(call) == "relax.concat":
            return relax.Call(call.op, [self._own(each) for each in call.args], call.attrs)
        own = [each if isinstance(each, relax.Tuple) else self._own(each) for each in call.args]
        same = all(one.same_as(other) for one, other in zip(own, call.args, strict=True))
        return call if same else relax.Call(call.op, own, call.attrs)

    def _transposed_once(self, call: Call) -> Expr:
        """Of what was transposed before: nothing where both together change nothing."""
        inner = bound_value(self, call.args[0])
        axes, before = permuted_axes(call), permuted_axes(inner)
        same = axes is not None and before is not None and [before[axis] for axis in axes] == [*range(len(axes))]
        return inner.args[0] if same else call

    def _affine(self, call: Call, integers: Expr, reals: Expr) -> Affine | None:
        return affine_of(self, call) if has_type(integers, *LIMITS) and has_type(reals, "float32") else None

    def _own(self, argument: Expr) -> Expr:
        """``argument``, or what is joined, dequantised for the one who asks."""
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([self._own(each) for each in argument.fields])
        found = self._known(argument)
        return argument if found is None else self._real(*found)

    def _real(self, source: Expr, affine: Affine) -> Expr:
        steps = self._emit(relax.op.astype(source, "float32"))
        if affine.zero:
            steps = self._by(relax.op.subtract, steps, affine.zero)
        return steps if affine.scale == 1 else self._by(relax.op.multiply, steps, affine.scale)

    def _in_steps(self, x: Expr, scale: float) -> Expr:
        """``x`` in units of ``scale``: what is added up of integers has one factor each, as in onnxruntime. An input
        is divided, all else multiplied by the reciprocal, as TVM has CUDA divide."""
        value = bound_value(self, x)
        if scale == 1:
            return self._own(x)
        if operator_of(value) == "relax.nn.relu" and variable_of(self, value.args[0]) in self._sums:
            return self._limited(relax.op.maximum, self._in_steps(value.args[0], scale), 0)
        terms = self._sums.get(variable_of(self, x))
        if terms is not None:
            return self._emit(relax.op.add(*(self._in_steps(each, scale) for each in terms)))
        found = self._known(x)
        if found is not None:
            return self._real(found[0], replace(found[1], scale=float(np.float32(found[1].scale) / np.float32(scale))))
        if isinstance(value, relax.Var):
            return self._by(relax.op.divide, x, scale)
        return self._by(relax.op.multiply, self._own(x), float(np.float32(1) / np.float32(scale)))

    def _terms(self, x: Expr) -> bool:
        """Whether ``x`` is dequantised, or a sum of such."""
        return self._known(x) is not None or variable_of(self, x) in self._sums

    def _known(self, argument: Expr) -> tuple[Expr, Affine] | None:
        """What ``argument`` is dequantised from, and by what."""
        return self._dequantised.get(variable_of(self, argument)) if isinstance(argument, relax.Var) else None

    def _quantised(self, x: Expr, affine: Affine, dtype: str) -> Expr:
        steps = self._emit(relax.op.round(self._in_steps(x, affine.scale)))  # ties to even
        if affine.zero:
            steps = self._zero_added(steps, affine.zero, dtype)
        low, high = LIMITS[dtype]
        clipped = self._limited(relax.op.minimum, self._limited(relax.op.maximum, steps, low), high)
        return relax.op.astype(clipped, dtype)

    def _zero_added(self, steps: Expr, zero: int, dtype: str) -> Expr:
        """A zero point of sequences is a parameter, too, of the bytes' type: kernels see that it is an integer."""
        if len(shape_of(steps) or ()) == _IMAGE:
            return self._limited(relax.op.add, steps, zero)

        def compute(x: Tensor, own: Tensor) -> Tensor:
            return te.compute(x.shape, lambda *i: x[i] + own[0].astype("float32"), name="zero_added")

        return self._emit(self._kernels.call(compute, steps, relax.const(np.full(1, zero, dtype)), name="zero_added"))

    def _by(self, operator: Callable[[Expr, Expr], Expr], x: Expr, number: float) -> Expr:
        """With a number of as many axes: of another one TVM knows no layout. Of sequences kernels have it as a
        parameter, so that layers share them: it is no constant, which TVM would write into their code."""
        axes = [1] * len(shape_of(x) or ())
        if len(axes) == _IMAGE:
            return self._limited(operator, x, number)
        return self._emit(operator(x, self._emit(relax.op.reshape(relax.const(np.full(1, number, np.float32)), axes))))

    def _limited(self, operator: Callable[[Expr, Expr], Expr], x: Expr, number: float) -> Expr:
        """With a number that all layers have."""
        return self._emit(operator(x, relax.const(np.full([1] * len(shape_of(x) or ()), number, np.float32))))

    def _emit(self, expression: Expr) -> Expr:
        return self.builder_.emit(expression)
