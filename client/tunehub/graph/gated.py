"""SiLU(gate) · up behind a product whose columns are those of gate and then of up, as a language model's feed-forward
network has it: the epilogue of that product, whose results are then neither written nor read again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import FEWEST_COLUMNS, FEWEST_K
from tunehub.kernels.cuda.gemm.hopper.rule import serves
from tunehub.kernels.cuda.gemm.matmul import FLOAT8
from tunehub.kernels.te.products import GATED, gated_product, gated_scaled_product
from tunehub.tir.nodes import (
    bound_value,
    integers,
    is_given,
    operator_of,
    same_extents,
    shape_of,
    static_shape,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext

_TYPES = ("float16", "bfloat16")
_TOGETHER = 8  # columns of a half that a block computes beside as many of the other
_RANK = 3


@tvm.transform.module_pass(opt_level=0, name="tunehub.gated_products")  # type: ignore[untyped-decorator]
def gated_products(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for GPUs with warpgroups: rows [1, n, K], n open, times a parameter [2 · N, K] in half precision,
    or in floats of 8 bits with scales of rows and columns."""
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
                dtype = str(tensor_type(call).dtype)
                made, how = (gated_product, ()) if len(operands) == 2 else (_scaled_in(dtype), (dtype,))
                return self._kernels.call(made, *operands, name=GATED, how=how, alone=True)
        return call

    def _operands(self, gate: Expr, up: Expr) -> tuple[Expr, ...] | None:
        """Rows and weights of the product of which these are SiLU of the first half and the second half, and of floats
        of 8 bits scales of both."""
        silu = bound_value(self, gate)
        if operator_of(silu) != "relax.nn.silu":
            return None
        first, second = self._part(silu.args[0]), self._part(up)
        if first is None or second is None or not first[0].same_as(second[0]):
            return None
        half = first[2]
        product, *scales = self._scaled(first[0]) or [bound_value(self, first[0])]
        if operator_of(product) != "relax.matmul" or (first[1], *second[1:]) != (0, half, 2 * half):
            return None
        rows, weight = product.args[0], self._weight(product.args[1])
        if weight is None or not _suits(product, rows, weight, half, scaled=bool(scales)):
            return None
        return rows, weight, *scales

    def _scaled(self, value: Expr) -> list[Expr] | None:
        """The product, and scales [1, n, 1] of its rows and [N] of its columns, of which ``value`` is made in half
        precision; None for others."""
        cast: Any = bound_value(self, value)
        if operator_of(cast) != "relax.astype" or str(tensor_type(cast).dtype) not in _TYPES:
            return None
        outer: Any = bound_value(self, cast.args[0])
        inner: Any = bound_value(self, outer.args[0]) if operator_of(outer) == "relax.multiply" else None
        if inner is None or operator_of(inner) != "relax.multiply":
            return None
        product, scales = bound_value(self, inner.args[0]), [inner.args[1], outer.args[1]]
        scales.sort(key=lambda each: -len(shape_of(each) or ()))
        shapes, extents = [shape_of(each) or () for each in scales], shape_of(product)
        if extents is None or len(extents) != _RANK:
            return None
        same = same_extents(shapes[0], (*extents[:-1], 1)) and same_extents(shapes[1], extents[-1:])
        return [product, *scales] if same else None

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


def _scaled_in(dtype: str) -> Any:
    return partial(gated_scaled_product, dtype=dtype)


def _suits(product: Call, rows: Expr, weight: Expr, half: int, *, scaled: bool) -> bool:
    """Whether there are kernels for rows and weights of such shapes and types."""
    extents, shape = shape_of(rows), static_shape(weight)
    result, *types = (str(tensor_type(each).dtype) for each in (product, rows, weight))
    if extents is None or len(extents) != _RANK or shape is None or len(shape) != 2:
        return False
    known = {*types} <= {*FLOAT8} and result == "float32" if scaled else {result} == {*types} <= {*_TYPES}
    together = _TOGETHER * (2 if scaled else 1)
    large = shape[0] == 2 * half >= FEWEST_COLUMNS and shape[1] >= FEWEST_K
    is_open = extents[0] == 1 and not isinstance(extents[1], int)
    return known and large and is_open and half % _TOGETHER == 0 and shape[1] % together == 0
