"""Quantising and dequantising as code that becomes vectors, and additions between integers as one step.

TVM writes ``quantize`` with ``round`` and a cast, which LLVM does not make vectors of. LLVM's ``lrint`` is one
instruction that rounds to the nearest integer, ties to even (``cvtps2dq``), and the least of that and 255 in unsigned
numbers is part of the one that keeps 8 bits (``vpmovusdb``). What is too large for 32 bits becomes, on x86 the least
negative number, elsewhere the largest one: above 255 in either case.

Where a target has no instruction for integers, products read float32: what is quantised for them and dequantised is
rounded in float32, with the same numbers.

What is computed of dequantised tensors and quantised again, such as the addition of a residual, is one function of
integers: else what it is fused with would hand over numbers of four times the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised_tensors import DEQUANTIZE, QUANTIZE, affine_of, has_type, users_in
from tunehub.kernels.te.rounding import (
    clipped_to,
    dequantised,
    quantised,
    quantised_at_run_time,
    rounded,
    rounded_to_steps,
)
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import (
    bound_value,
    operator_of,
    same_shape,
    shape_of,
    static_shape,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Var
    from tunehub.tir.types import Index, IRModule, PrimExpr, Tensor

_ADD = "relax.add"
_LEAVES = 3  # tensors that one function adds up, at most


def quantise_in_vectors(mod: IRModule, *, integers: bool) -> IRModule:
    """``mod`` with quantising and dequantising of 8 bits with one scale for a tensor written in this way. ``integers``:
    whether products of the target compute in integers."""
    rewriter = _Rounding(mod)
    rewriter.begin({} if integers else users_in(mod))
    return relax.transform.DeadCodeElimination()(rewritten(rewriter, mod))


@mutator
class _Rounding(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)
        self._terms: dict[Var, tuple[Expr, Affine]] = {}  # dequantised variables, and what they are of
        self._in_float: dict[Var, tuple[Affine, Expr]] = {}  # quantised variables, and their numbers rounded in float32

    def begin(self, users: dict[Var, list[Call]]) -> None:
        """Take over who reads each variable; of those that are only dequantised the numbers are rounded in float32."""
        self._users = users

    def visit_var_binding_(self, binding: Binding) -> None:
        super().visit_var_binding_(binding)
        value, variable = binding.value, binding.var
        if operator_of(value) == DEQUANTIZE and (affine := self._affine(value)) is not None:
            source = self.visit_expr(value.args[0])
            if self._rounded(source, affine) is None:
                self._terms[self.visit_expr(variable)] = source, affine
        users = {operator_of(each) for each in self._users.get(variable, ())}
        if operator_of(value) == QUANTIZE and users == {DEQUANTIZE}:
            self._keep_in_float(self.visit_expr(variable), value)

    def _keep_in_float(self, quantised: Expr, call: Call) -> None:
        """Round what ``call`` has made ``quantised`` of in float32, too."""
        affine, dtype = affine_of(self, call), str(tensor_type(call).dtype)
        if affine is None or dtype not in LIMITS or not has_type(call.args[0], "float32") or shape_of(call) is None:
            return
        rounded = self._kernels.call(
            lambda x: te.compute(x.shape, lambda *i: rounded_to_steps(x[i], affine, dtype), name="round"),
            self.visit_expr(call.args[0]),
            name="round",
            how=(affine.scale, affine.zero, dtype),
        )
        self._in_float[quantised] = affine, self.builder_.emit(rounded)

    def _rounded(self, quantised: Expr, affine: Affine) -> Expr | None:
        """The numbers that ``quantised`` stands for where they are rounded in float32."""
        known = self._in_float.get(quantised)
        return known[1] if known is not None and known[0] == affine else None

    def visit_call_(self, call: Call) -> Expr:
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
        in_float = self._rounded(call.args[0], affine)
        if in_float is not None:
            return in_float
        return self._kernels.call(
            lambda q: te.compute(q.shape, lambda *i: dequantised(q[i], affine), name="dequantize"),
            call.args[0],
            name="dequantize",
            how=(affine.scale, affine.zero),
        )

    def _quantised(self, x: Expr, affine: Affine, dtype: str) -> Expr:
        terms, clipped = self._sum(x)
        if len(terms) > 1:
            return self._requantised(terms, clipped, affine, dtype)
        return self._kernels.call(
            lambda x: te.compute(x.shape, lambda *i: quantised(x[i], affine, dtype), name="quantize"),
            x,
            name="quantize",
            how=(affine.scale, affine.zero, dtype),
        )

    def _at_run_time(self, call: Call, dtype: str) -> Expr:
        """Quantising by a scale and a zero point that are computed."""
        kinds = [(static_shape(each), str(tensor_type(each).dtype)) for each in call.args[1:]]
        if operator_of(call) != QUANTIZE or kinds != [((), "float32"), ((), dtype)]:
            return call

        def compute(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
            return te.compute(
                x.shape, lambda *i: quantised_at_run_time(x[i], scale[()], zero[()], dtype), name="quantize"
            )

        return self._kernels.call(compute, *call.args, name="quantize", how=(dtype,))

    def _requantised(self, terms: Sequence[tuple[Expr, Affine]], clipped: bool, affine: Affine, dtype: str) -> Expr:
        """The sum of ``terms``, without what is negative where ``clipped``, in the order and the precision of
        onnxruntime's ``QLinearAdd`` for AVX2: scales are divided once, zero points are one number."""
        affines, (low, _) = [each for _, each in terms], LIMITS[dtype]
        factors = [np.float32(each.scale) / np.float32(affine.scale) for each in affines]
        first, least = (
            float(np.float32(affine.zero) - _zeros(factors, affines)),
            max(affine.zero, low) if clipped else low,
        )

        def compute(*tensors: Tensor) -> Tensor:
            def element(*i: Index) -> PrimExpr:
                total = tirx.const(first, "float32")
                for q, factor in reversed(list(zip(tensors, factors, strict=True))):
                    total = q[i].astype("int32").astype("float32") * tirx.const(float(factor), "float32") + total
                return clipped_to(
                    rounded(te.max(total, tirx.const(least, "float32"))) - tirx.const(low, "int32"), dtype
                )

            return te.compute(tensors[0].shape, element, name="requantize")

        how = (clipped, dtype, *((each.scale, each.zero) for each in (*affines, affine)))
        return self._kernels.call(compute, *(q for q, _ in terms), name="requantize", how=how)

    def _sum(self, x: Expr) -> tuple[list[tuple[Expr, Affine]], bool]:
        """The dequantised tensors of one shape that ``x`` is the sum of, none where it is anything else, and whether
        that is clipped at zero."""
        value = bound_value(self, x)
        if operator_of(value) == "relax.nn.relu":
            return self._added(value.args[0], x), True
        return self._added(x, x), False

    def _added(self, x: Expr, whole: Expr) -> list[tuple[Expr, Affine]]:
        known = self._terms.get(x)
        if known is not None:
            return [known] if same_shape(x, whole) else []
        value = bound_value(self, x)
        if operator_of(value) != _ADD:
            return []
        parts = [self._added(each, whole) for each in value.args]
        return [] if not all(parts) or sum(map(len, parts)) > _LEAVES else [*parts[0], *parts[1]]

    def _affine(self, call: Call) -> Affine | None:
        affine, kinds = affine_of(self, call), [str(tensor_type(each).dtype) for each in (call.args[0], call)]
        return affine if kinds[0] in LIMITS and kinds[1] == "float32" and shape_of(call) is not None else None


def _zeros(factors: Sequence[float], affines: Sequence[Affine]) -> PrimExpr:
    """The sum of what zero points stand for, by multiply-adds with one rounding each, from the last on: another order
    moved one of 100,000 results a step."""
    total = np.float32(0)
    for factor, affine in reversed(list(zip(factors, affines, strict=True))):
        total = np.float32(np.float64(factor) * affine.zero + np.float64(total))
    return total
