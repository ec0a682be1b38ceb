"""Tensors that a graph quantises by their own extremes, as ONNX's ``DynamicQuantizeLinear`` is imported: on CPUs one
kernel each, where TVM has six, two of which find an extreme element by element; on GPUs, where these two would be one
block of threads each, extremes of rows first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import open_extents, rewritten
from tunehub.graph.quantised_tensors import QUANTIZE, bounds_of, constant_of, has_type, variable_of
from tunehub.kernels.cpu.dynamic_quantisation import quantising_function
from tunehub.kernels.cpu.vectors import widest_lanes
from tunehub.tir.nodes import bound_value, calls_in, operator_of, shape_of, tensor_class, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.target.types import Target
    from tunehub.tir.types import GlobalVar, IRModule

_LANES = (16, 8, 4)
_STEPS = (0.0, 255.0)
_NAME = "dynamic_quantize"


def quantised_at_once(mod: IRModule, target: Target) -> IRModule:
    """``mod`` for ``target``, a CPU, with such functions."""
    if not any(operator_of(call) == QUANTIZE for call in calls_in(mod)):
        return mod
    rewriter = _Dynamic(mod, widest_lanes(target))
    written = rewritten(rewriter, mod)
    return relax.transform.DeadCodeElimination()(written) if rewriter.written else mod


def extremes_of_rows(mod: IRModule) -> IRModule:
    """``mod`` for GPUs, where it quantises, with the extremes of whole tensors as those of the extremes of rows."""
    if not any(operator_of(call) == QUANTIZE for call in calls_in(mod)):
        return mod
    return rewritten(_Extremes(mod), mod)


@mutator
class _Extremes(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        operators = {"relax.max": relax.op.max, "relax.min": relax.op.min}
        operator, attrs = operators.get(operator_of(call)), call.attrs
        if operator is None or attrs.axis is not None or attrs.keepdims or len(shape_of(call.args[0]) or ()) < 2:
            return call
        return operator(self.builder_.emit(operator(call.args[0], axis=[-1])))


@mutator
class _Dynamic(PyExprMutator):  # type: ignore[misc]
    """``written``: results by the variable of what is quantised, and the same by that of its scale."""

    def __init__(self, mod: IRModule, widest: int) -> None:
        super().__init__(mod)
        self._widest = widest
        self._functions: dict[Hashable, GlobalVar] = {}
        self.written: dict[Var, Expr] = {}
        self._scales: dict[Var, Expr] = {}

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        rules = {"relax.divide": self._scale, "relax.astype": self._zero, QUANTIZE: self._integers}
        rule = rules.get(operator_of(call))
        written = None if rule is None else rule(call)
        return call if written is None else written

    def _scale(self, call: Call) -> Expr | None:
        """The scale of a tensor, whose kernel is written here."""
        extent = bound_value(self, call.args[0])
        if operator_of(extent) != "relax.subtract" or not self._is(call.args[1], _STEPS[1]):
            return None
        data = [
            self._extreme(each, bound, reduced)
            for each, bound, reduced in zip(
                extent.args, ("relax.maximum", "relax.minimum"), ("relax.max", "relax.min"), strict=True
            )
        ]
        if data[0] is None or data[1] is None or not data[0].same_as(data[1]):
            return None
        return self._result(data[0], 1)

    def _extreme(self, expression: Expr, bound: str, reduced: str) -> Expr | None:
        """The tensor of which ``expression`` is an extreme, with 0."""
        value = bound_value(self, expression)
        if operator_of(value) != bound:
            return None
        for zero, inner in (value.args, reversed(value.args)):
            found = bound_value(self, inner)
            if self._is(zero, 0.0) and operator_of(found) == reduced and shape_of(found) == ():
                return variable_of(self, found.args[0])
        return None

    def _zero(self, call: Call) -> Expr | None:
        """The zero point of a tensor whose scale is known: ``round(clip(0 - least / scale))``."""
        rounded = bound_value(self, call.args[0])
        clipped = bound_value(self, rounded.args[0]) if operator_of(rounded) == "relax.round" else None
        if clipped is None or bounds_of(self, clipped) != _STEPS or not has_type(call, "uint8"):
            return None
        negative = bound_value(self, clipped.args[0])
        if operator_of(negative) != "relax.subtract" or not self._is(negative.args[0], 0.0):
            return None
        steps = bound_value(self, negative.args[1])
        data = self._data(steps.args[1]) if operator_of(steps) == "relax.divide" else None
        least = None if data is None else self._extreme(steps.args[0], "relax.minimum", "relax.min")
        return self._result(data, 2) if least is not None and least.same_as(data) else None

    def _integers(self, call: Call) -> Expr | None:
        """What is quantised by such a scale and zero point."""
        source, scale, zero = (variable_of(self, each) for each in call.args)
        data = self._data(scale)
        if data is None or not data.same_as(source) or not has_type(call, "uint8"):
            return None
        value, owner = bound_value(self, zero), self._data(zero)
        own = owner is not None and owner.same_as(data) and int(value.index) == 2
        return self._result(data, 0) if own else None

    def _data(self, scale: Expr) -> Expr | None:
        """The tensor that ``scale``, or another result of its kernel, belongs to."""
        value = bound_value(self, scale)
        return self._scales.get(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None

    def _result(self, data: Expr, number: int) -> Expr | None:
        """One of the results of a tensor's kernel; None where it has none."""
        if data not in self.written:
            called = self._called(data)
            self.written[data] = None if called is None else self.builder_.emit(called)
            if called is not None:
                self._scales[self.written[data]] = data
        made = self.written[data]
        return None if made is None else relax.TupleGetItem(made, number)

    def _called(self, data: Expr) -> Call | None:
        shape = shape_of(data)
        if not shape or not isinstance(shape[-1], int) or not has_type(data, "float32"):
            return None
        lanes = next((each for each in _LANES if each <= self._widest and shape[-1] % each == 0), None)
        if lanes is None:
            return None
        extents, tensor = list(tensor_type(data).shape), tensor_class()
        key = (lanes, *(each if isinstance(each, int) else hash(each) for each in shape))
        if key not in self._functions:
            self._functions[key] = self.builder_.add_func(quantising_function(open_extents(data), lanes), _NAME)
        types = [tensor(extents, "uint8"), tensor([], "float32"), tensor([], "uint8")]
        return relax.call_tir(self._functions[key], relax.Tuple([data]), types)

    def _is(self, expression: Expr, number: float) -> bool:
        found = constant_of(self, expression)
        return found is not None and found.size == 1 and float(found.reshape(())) == number
