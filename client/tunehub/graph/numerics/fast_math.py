"""exp, erf, tanh and what is made of them in a graph, as the polynomials of :mod:`tunehub.kernels.te.fast_math`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tvm
from tvm import te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.kernels.te.fast_math import erf, exp, gelu, gelu_tanh, quarter_power, sigmoid, silu, softmax, tanh
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    is_constant,
    same_shape,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, Tensor


@tvm.transform.module_pass(opt_level=0, name="tunehub.fast_math")  # type: ignore[untyped-decorator]
def fast_math(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: write exp, erf, tanh, sigmoid, silu, gelu and softmax of float32 tensors as polynomials; those of
    16 bits, but for softmax, in float32.

    Powers with an exponent that is a multiple of a quarter become square roots and products.
    """
    return rewritten(_FastMathRewriter(mod), mod)


_HALVES = ("float16", "bfloat16")
_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relax.exp": exp,
    "relax.erf": erf,
    "relax.tanh": tanh,
    "relax.sigmoid": sigmoid,
    "relax.nn.silu": silu,
    "relax.nn.gelu": gelu,
    "relax.nn.gelu_tanh": gelu_tanh,
}


@mutator
class _FastMathRewriter(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", ""))
        if name not in (*_ELEMENTWISE, "relax.nn.softmax", "relax.power"):
            return call
        data, shape = call.args[0], shape_of(call.args[0])
        dtype = str(tensor_type(data).dtype)
        if not shape or (dtype != "float32" and not (dtype in _HALVES and name in _ELEMENTWISE)):
            return call
        if name == "relax.nn.softmax":
            axis = int(call.attrs.axis) % len(shape)
            return self._kernels.call(lambda x: softmax(x, axis), data, name="softmax", how=(axis,))
        short = name.rpartition(".")[2]
        if name in _ELEMENTWISE:
            return self._elementwise(short, _ELEMENTWISE[name], data)
        quarters = self._quarters(call)
        if quarters is None:
            return call
        return self._elementwise(short, lambda x: quarter_power(x, quarters), data, quarters)

    def _elementwise(self, name: str, function: Callable[[PrimExpr], PrimExpr], data: Expr, *how: int) -> Expr:
        def compute(x: Tensor) -> Tensor:
            def element(*at: PrimExpr) -> PrimExpr:
                return function(x[at].astype("float32")).astype(x.dtype)

            return te.compute(x.shape, element, name=f"T_{name}")

        return self._kernels.call(compute, data, name=name, how=how)

    def _quarters(self, call: Call) -> int | None:
        """Four times a constant exponent, when that is a whole number of 1 to 16."""
        exponent = bound_value(self, call.args[1])
        if not is_constant(exponent) or constant_array(exponent).size != 1:
            return None
        quarters = 4 * float(constant_array(exponent).item())
        if quarters not in range(1, 17) or not same_shape(call, call.args[0]):
            return None
        return int(quarters)
