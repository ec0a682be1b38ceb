"""SiLU(gate) · up behind a product whose columns are those of gate and then of up, as a language model's feed-forward
network has it: the epilogue of that product, whose results are then neither written nor read again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.halves import gated_halves
from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised.dequantisation import Dequantised, dequantised_from
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import FEWEST_COLUMNS, FEWEST_K
from tunehub.kernels.cuda.gemm.hopper.rule import serves
from tunehub.kernels.cuda.gemm.matmul import FLOAT8
from tunehub.kernels.cuda.low_batch.gated_functions import gated_quantised_product
from tunehub.kernels.te.products import GATED, gated_packed_product, gated_product, gated_scaled_product
from tunehub.tir.nodes import (
    bound_value,
    is_given,
    operator_of,
    same_extents,
    shape_of,
    static_shape,
    tensor_type,
    transposed_matrix,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimFunc

_TYPES = ("float16", "bfloat16")
_PACKED = "float8_e4m3fn"
_TOGETHER = 8  # columns of a half that a block computes beside as many of the other
_RANK = 3


@tvm.transform.module_pass(opt_level=0, name="tunehub.gated_products")  # type: ignore[untyped-decorator]
def gated_products(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for GPUs with warpgroups: rows [1, n, K], n open, times a parameter [2 · N, K] in half precision,
    or in floats of 8 bits with scales of rows and columns; or one in e4m3 with scales of columns, or in groups of 4 or
    8 bits, n open or 1. With a single row TVM's own product in half precision and SiLU behind it take as long."""
    target = tvm.target.Target.current(allow_none=True)
    if target is None or not serves(target):
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_Gated(mod), mod))


@mutator
class _Gated(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod, self._kernels = mod, Kernels(self.builder_)
        self._computed = dict[Hashable, bool]()

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if operator_of(call) != "relax.multiply":
            return call
        for gate, up in (call.args, reversed(call.args)):
            found = self._made(gate, up, str(tensor_type(call).dtype))
            if found is not None:
                maker, operands, how = found
                return self._kernels.call(maker, *operands, name=GATED, how=how, alone=True)
        return call

    def _made(
        self, gate: Expr, up: Expr, dtype: str
    ) -> tuple[Callable[..., PrimFunc], Sequence[Expr], tuple[Hashable, ...]] | None:
        """What makes the product of which these are SiLU of the first half and the second half, and of what: rows,
        weights, and scales of columns, of rows and of columns, or of groups."""
        found = gated_halves(self, gate, up)
        if found is None:
            return None
        value, half = found
        product, *scales = self._scaled(value) or [bound_value(self, value)]
        if operator_of(product) != "relax.matmul":
            return None
        rows, made = product.args[0], None if scales else self._quantised(product.args[1])
        weight = self._weight(product.args[1]) if made is None else transposed_matrix(self, product.args[1])
        if weight is None or not _suits(product, rows, weight, half, scales=len(scales), one=made is not None):
            return None
        if made is not None:
            maker: Callable[..., PrimFunc] = partial(gated_quantised_product, form=made.format)
            return maker, (rows, *made.operands), (dtype, made.format)
        return (gated_product, gated_packed_product, _scaled_in(dtype))[len(scales)], (rows, weight, *scales), (dtype,)

    def _quantised(self, value: Expr) -> Dequantised | None:
        """What ``value`` is the transpose of, where that is made of parameters in groups of 4 or 8 bits."""
        weight = transposed_matrix(self, value)
        if not isinstance(weight, relax.Var) or self.lookup_binding(weight) is None:
            return None
        found = dequantised_from(weight, self.lookup_binding, self._mod, _TYPES, known=self._computed)
        return found if found is not None and all(is_given(self, each) for each in found.operands) else None

    def _scaled(self, value: Expr) -> list[Expr] | None:
        """The product, and scales [1, n, 1] of its rows, if it has some, and [N] of its columns, of which ``value`` is
        made in half precision; None for others."""
        cast: Expr = bound_value(self, value)
        if operator_of(cast) != "relax.astype" or str(tensor_type(cast).dtype) not in _TYPES:
            return None
        outer: Expr = bound_value(self, cast.args[0])
        if operator_of(outer) != "relax.multiply":
            return None
        scales, product = [outer.args[1]], bound_value(self, outer.args[0])
        if operator_of(product) == "relax.multiply":
            scales, product = [product.args[1], *scales], bound_value(self, product.args[0])
        scales.sort(key=lambda each: -len(shape_of(each) or ()))
        shapes, extents = [shape_of(each) or () for each in scales], shape_of(product)
        if extents is None or len(extents) != _RANK:
            return None
        wanted = [(*extents[:-1], 1), extents[-1:]][-len(scales) :]
        return [product, *scales] if all(map(same_extents, shapes, wanted)) else None

    def _weight(self, value: Expr) -> Expr | None:
        """The parameter of which ``value`` is the transpose, in half precision if that is in e4m3."""
        weight = transposed_matrix(self, value)
        if weight is None:
            return None
        cast: Expr = bound_value(self, weight)
        if operator_of(cast) == "relax.astype" and str(tensor_type(cast.args[0]).dtype) == _PACKED:
            weight = cast.args[0]
        return weight if is_given(self, weight) else None


def _scaled_in(dtype: str) -> Callable[..., PrimFunc]:
    return partial(gated_scaled_product, dtype=dtype)


def _suits(product: Call, rows: Expr, weight: Expr, half: int, *, scales: int, one: bool) -> bool:
    """Whether there are kernels for rows and weights of such shapes and types, with so many operands that scale;
    ``one``: for a single row, too."""
    extents, shape = shape_of(rows), static_shape(weight)
    result, *types = (str(tensor_type(each).dtype) for each in (product, rows, weight))
    if extents is None or len(extents) != _RANK or shape is None or len(shape) != 2:
        return False
    known = (
        {result} == {*types} <= {*_TYPES},
        result == "float32" and types[0] in _TYPES and types[1] == _PACKED,
        result == "float32" and {*types} <= {*FLOAT8},
    )
    together = _TOGETHER * (1, 4, 2)[scales]
    large = shape[0] == 2 * half >= FEWEST_COLUMNS and shape[1] >= FEWEST_K
    counts = extents[0] == 1 and (not isinstance(extents[1], int) or (extents[1] == 1 and (one or scales == 1)))
    return known[scales] and large and counts and half % _TOGETHER == 0 and shape[1] % together == 0
