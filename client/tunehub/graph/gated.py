"""SiLU(gate) · up behind a product whose columns are those of gate and then of up, as a language model's feed-forward
network has it: the epilogue of that product, whose results are then neither written nor read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import FEWEST_COLUMNS, FEWEST_K
from tunehub.kernels.cuda.gemm.hopper.rule import serves
from tunehub.kernels.te.products import GATED, gated_product
from tunehub.tir.nodes import bound_value, integers, is_given, operator_of, shape_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext

_TYPES = ("float16", "bfloat16")
_TOGETHER = 8  # columns of a half that a block computes beside as many of the other
_RANK = 3


@tvm.transform.module_pass(opt_level=0, name="tunehub.gated_products")  # type: ignore[untyped-decorator]
def gated_products(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for GPUs with warpgroups: rows [1, n, K], n open, times a parameter [2 · N, K] in half precision."""
    target = tvm.target.Target.current(allow_none=True)
    if target is None or not serves(target):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_Gated(mod), mod))


@mutator
class _Gated(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if operator_of(call) != "relax.multiply":
            return call
        for gate, up in (call.args, reversed(call.args)):
            operands = self._operands(gate, up)
            if operands is not None:
                return self._kernels.call(gated_product, *operands, name=GATED, alone=True)
        return call

    def _operands(self, gate: Expr, up: Expr) -> tuple[Expr, Expr] | None:
        """Rows and weights of the product of which these are SiLU of the first half and the second half."""
        silu = bound_value(self, gate)
        if operator_of(silu) != "relax.nn.silu":
            return None
        first, second = self._part(silu.args[0]), self._part(up)
        if first is None or second is None or not first[0].same_as(second[0]):
            return None
        product, half = bound_value(self, first[0]), first[2]
        if operator_of(product) != "relax.matmul" or (first[1], *second[1:]) != (0, half, 2 * half):
            return None
        rows, weight = product.args[0], self._weight(product.args[1])
        if weight is None or not _suits(product, rows, weight, half):
            return None
        return rows, weight

    def _part(self, value: Expr) -> tuple[Expr, int, int] | None:
        """What ``value`` is a slice of along the last axis, from where and up to where."""
        call: Any = bound_value(self, value)
        if operator_of(call) != "relax.strided_slice":
            return None
        axes, begin, end, *strides = (integers(each, lambda own: bound_value(self, own)) for each in call.args[1:])
        last = axes in ([_RANK - 1], [-1]) and strides in ([], [[1]])
        return (call.args[0], begin[0], end[0]) if last and begin and end else None

    def _weight(self, value: Expr) -> Expr | None:
        """The parameter of which ``value`` is the transpose."""
        permuted: Any = bound_value(self, value)
        if operator_of(permuted) != "relax.permute_dims" or not is_given(self, permuted.args[0]):
            return None
        axes = permuted.attrs.axes
        return permuted.args[0] if axes is None or [int(axis) % 2 for axis in axes] == [1, 0] else None


def _suits(product: Call, rows: Expr, weight: Expr, half: int) -> bool:
    """Whether there are kernels for rows and weights of such shapes and types."""
    extents, shape = shape_of(rows), static_shape(weight)
    types = {str(tensor_type(each).dtype) for each in (product, rows, weight)}
    if extents is None or len(extents) != _RANK or shape is None or len(shape) != 2 or len(types) != 1:
        return False
    large = shape[0] == 2 * half >= FEWEST_COLUMNS and shape[1] >= FEWEST_K
    is_open = extents[0] == 1 and not isinstance(extents[1], int)
    return types <= {*_TYPES} and large and is_open and half % _TOGETHER == 0 and shape[1] % _TOGETHER == 0
