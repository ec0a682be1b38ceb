"""Running sums and products of booleans by way of integers.

TVM's importer of PyTorch's programs writes them for masks (transformers' packed sequences), and its CUDA kernels of
``cumsum`` read four booleans of a byte as ``ushort4`` (0.25 to 0.27): a misaligned address ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.nodes import calls_in, operator_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext

_OPERATORS = ("relax.cumsum", "relax.cumprod")


@tvm.transform.module_pass(opt_level=0, name="tunehub.boolean_sums_as_integers")  # type: ignore[untyped-decorator]
def boolean_sums_as_integers(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: the same booleans, by 32-bit integers; a sum is true from the first true one on."""
    return rewritten(_Sums(mod), mod) if any(map(_is_boolean, calls_in(mod))) else mod


@mutator
class _Sums(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        from tvm import relax

        call = super().visit_call_(call)
        if not _is_boolean(call):
            return call
        attrs = call.attrs
        by_name = {"relax.cumsum": relax.op.cumsum, "relax.cumprod": relax.op.cumprod}[operator_of(call)]
        wide = self.builder_.emit(relax.op.astype(call.args[0], "int32"))
        found = self.builder_.emit(by_name(wide, attrs.axis, exclusive=attrs.exclusive))
        return self.builder_.normalize(relax.op.astype(found, "bool"))


def _is_boolean(call: Call) -> bool:
    return operator_of(call) in _OPERATORS and str(tensor_type(call).dtype) == "bool"
