"""Quantising and dequantising as code that becomes vectors, and additions between integers as one step.

TVM writes ``quantize`` with ``round`` and a cast, which LLVM does not make vectors of. LLVM's ``lrint`` is one
instruction that rounds to the nearest integer, ties to even (``cvtps2dq``), and the least of that and 255 in unsigned
numbers is part of the one that keeps 8 bits (``vpmovusdb``). What is too large for 32 bits becomes, on x86 the least
negative number, elsewhere the largest one: above 255 in either case.

What is computed of dequantised tensors and quantised again, such as the addition of a residual, is one function of
integers: else what it is fused with would hand over numbers of four times the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised.operands import DEQUANTIZE, QUANTIZE, affine_of
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import (
    bound_value,
    operator_of,
    same_shape,
    shape_of,
    static_shape,
    tensor_type,
)

_ADD = "relax.add"
_LEAVES = 3  # tensors that one function adds up, at most


@tvm.transform.module_pass(opt_level=0, name="tunehub.quantise_in_vectors")  # type: ignore[untyped-decorator]
def quantise_in_vectors(mod: Any, _context: Any) -> Any:
    """Module pass: write quantising and dequantising of 8 bits with one scale for a tensor in this way."""
    return relax.transform.DeadCodeElimination()(rewritten(_Rounding(mod), mod))


def quantised(x: Any, affine: Affine, dtype: str) -> Any:
    """The integer of ``dtype`` that stands for the float32 expression ``x``; NaN becomes one of the limits."""
    steps = x if affine.scale == 1 else x / _f32(affine.scale)
    least = LIMITS[dtype][0]
    return _clipped(_rounded(te.max(steps, _f32(least - affine.zero))) + _i32(affine.zero - least), dtype)


def quantised_at_run_time(x: Any, scale: Any, zero: Any, dtype: str) -> Any:
    """The same for a scale and a zero point that are expressions."""
    least = LIMITS[dtype][0]
    steps = te.max(x / scale, _f32(least) - zero.astype("float32"))
    return _clipped(_rounded(steps) + (zero.astype("int32") - _i32(least)), dtype)


def dequantised(q: Any, affine: Affine) -> Any:
    """The float32 number that the integer ``q`` stands for."""
    steps = q.astype("int32")
    if affine.zero:
        steps = steps - _i32(affine.zero)
    return steps.astype("float32") * _f32(affine.scale)


@mutator
class _Rounding(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)
        self._terms: dict[Any, tuple[Any, Affine]] = {}  # dequantised variables, and what they are of

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        value = binding.value
        if operator_of(value) == DEQUANTIZE and (affine := self._affine(value)) is not None:
            self._terms[self.visit_expr(binding.var)] = self.visit_expr(value.args[0]), affine

    def visit_call_(self, call: Any) -> Any:
        original, call = call, self.visit_expr_post_order(call)
        name = operator_of(call)
        if name not in (QUANTIZE, DEQUANTIZE) or shape_of(call) is None:
            return call
        source, result = (str(tensor_type(each).dtype) for each in (original.args[0], call))
        affine = affine_of(self, call)
        if "float32" not in (source, result) or not {source, result} & set(LIMITS):
            return call
        if affine is None:
            return self._at_run_time(call, result)
        if name == QUANTIZE:
            return self._quantised(call.args[0], affine, result)
        return self._kernels.call(
            lambda q: te.compute(q.shape, lambda *i: dequantised(q[i], affine), name="dequantize"),
            call.args[0],
            name="dequantize",
            how=(affine.scale, affine.zero),
        )

    def _quantised(self, x: Any, affine: Affine, dtype: str) -> Any:
        terms, clipped = self._sum(x)
        if len(terms) > 1:
            return self._requantised(terms, clipped, affine, dtype)
        return self._kernels.call(
            lambda x: te.compute(x.shape, lambda *i: quantised(x[i], affine, dtype), name="quantize"),
            x,
            name="quantize",
            how=(affine.scale, affine.zero, dtype),
        )

    def _at_run_time(self, call: Any, dtype: str) -> Any:
        """Quantising by a scale and a zero point that are computed."""
        kinds = [(static_shape(each), str(tensor_type(each).dtype)) for each in call.args[1:]]
        if operator_of(call) != QUANTIZE or kinds != [((), "float32"), ((), dtype)]:
            return call

        def compute(x: Any, scale: Any, zero: Any) -> Any:
            return te.compute(
                x.shape, lambda *i: quantised_at_run_time(x[i], scale[()], zero[()], dtype), name="quantize"
            )

        return self._kernels.call(compute, *call.args, name="quantize", how=(dtype,))

    def _requantised(self, terms: Sequence[tuple[Any, Affine]], clipped: bool, affine: Affine, dtype: str) -> Any:
        """The sum of ``terms``, without what is negative where ``clipped``, in the order and the precision of
        onnxruntime's ``QLinearAdd`` for AVX2: scales are divided once, zero points are one number."""
        affines, (low, _) = [each for _, each in terms], LIMITS[dtype]
        factors = [np.float32(each.scale) / np.float32(affine.scale) for each in affines]
        first, least = (
            float(np.float32(affine.zero) - _zeros(factors, affines)),
            max(affine.zero, low) if clipped else low,
        )

        def compute(*tensors: Any) -> Any:
            def element(*i: Any) -> Any:
                total = _f32(first)
                for q, factor in reversed(list(zip(tensors, factors, strict=True))):
                    total = q[i].astype("int32").astype("float32") * _f32(float(factor)) + total
                return _clipped(_rounded(te.max(total, _f32(least))) - _i32(low), dtype)

            return te.compute(tensors[0].shape, element, name="requantize")

        how = (clipped, dtype, *((each.scale, each.zero) for each in (*affines, affine)))
        return self._kernels.call(compute, *(q for q, _ in terms), name="requantize", how=how)

    def _sum(self, x: Any) -> tuple[list[tuple[Any, Affine]], bool]:
        """The dequantised tensors of one shape that ``x`` is the sum of, none where it is anything else, and whether
        that is clipped at zero."""
        value = bound_value(self, x)
        if operator_of(value) == "relax.nn.relu":
            return self._added(value.args[0], x), True
        return self._added(x, x), False

    def _added(self, x: Any, whole: Any) -> list[tuple[Any, Affine]]:
        known = self._terms.get(x)
        if known is not None:
            return [known] if same_shape(x, whole) else []
        value = bound_value(self, x)
        if operator_of(value) != _ADD:
            return []
        parts = [self._added(each, whole) for each in value.args]
        return [] if not all(parts) or sum(map(len, parts)) > _LEAVES else [*parts[0], *parts[1]]

    def _affine(self, call: Any) -> Affine | None:
        affine, kinds = affine_of(self, call), [str(tensor_type(each).dtype) for each in (call.args[0], call)]
        return affine if kinds[0] in LIMITS and kinds[1] == "float32" and shape_of(call) is not None else None


def _zeros(factors: Sequence[Any], affines: Sequence[Affine]) -> Any:
    """The sum of what zero points stand for, by multiply-adds with one rounding each, from the last on: another order
    moved one of 100,000 results a step."""
    total = np.float32(0)
    for factor, affine in reversed(list(zip(factors, affines, strict=True))):
        total = np.float32(np.float64(factor) * affine.zero + np.float64(total))
    return total


def _rounded(x: Any) -> Any:
    return tirx.call_llvm_pure_intrin("int32", "llvm.lrint", x)


def _clipped(above: Any, dtype: str) -> Any:
    """The integer of ``dtype`` that is ``above`` its least one, or its largest one."""
    low, high = LIMITS[dtype]
    steps = te.min(above.astype("uint32"), tirx.const(high - low, "uint32"))
    return (steps.astype("int32") + _i32(low)).astype(dtype) if low else steps.astype(dtype)


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _i32(value: int) -> Any:
    return tirx.const(value, "int32")
