"""Products of matrices and convolutions as GPUs compute them best.

* In half precision TVM adds up in half precision. Tensor cores add up in float32 at the same speed, and so do all rules
  of TVM that use them: products have float32 results here, which are rounded once. Convolutions in groups, which no
  tensor core takes, likewise, but for those that add up few numbers in float16.
* Weights that integers or floats of 8 bits are multiplied with lie as [N, K]: tensor cores read these along K.
* Floats of 8 bits with scales for 128 of K, of weights for 128 columns, too, are multiplied with these in one kernel.
* bfloat16 likewise where there are kernels for it, by warpgroups and for few rows.
* A weight of `nn.Linear` has the shape [N, K]. Where it is a parameter of the function, or part of one that is a tuple
  (MLC-LLM's `packed_params`), TVM transposes it at each call, in a kernel of its own that takes longer than the product
  when this has few rows (3 to 17 times on an H200). Here it is read as it lies. Constants are transposed once, when
  TVM folds them.
* Quantised weights [N, K] that are made float16 before a product of few or of an open number of rows become part of it,
  so that memory gives a quarter or a half of the bytes (:mod:`tunehub.kernels.cuda.low_batch`). Before one of many rows
  they are made, and read as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised.block_scales import BLOCK, block_scaled
from tunehub.graph.quantised.dequantisation import Dequantised, dequantised_from
from tunehub.kernels.cuda.gemm.hopper.product import ROUNDED
from tunehub.kernels.cuda.gemm.hopper.rule import serves
from tunehub.kernels.cuda.gemm.hopper.tf32 import rounded
from tunehub.kernels.cuda.gemm.matmul import FLOAT8
from tunehub.kernels.cuda.low_batch.product import MOST_ROWS, has_low_batch
from tunehub.kernels.cuda.low_batch.weights import E4M3, QUANTISED, Format, weights_made
from tunehub.kernels.te.products import NAME, block_scaled_matmul, nt_matmul, nt_matmuls
from tunehub.kernels.te.scales import LIMITS
from tunehub.tir.nodes import (
    constant_array,
    is_constant,
    is_given,
    same_extent,
    shape_of,
    static_shape,
    tensor_type,
    transposed_matrices,
    transposed_matrix,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.tir.types import IRModule, PassContext, Tensor

_HALF = ("float16",)
_NARROW = (*_HALF, "bfloat16")
_SUM, _INTEGER_SUM = "float32", "int32"
_CONVOLUTIONS = {f"relax.nn.{name}": getattr(relax.op.nn, name) for name in ("conv1d", "conv2d", "conv3d")}
_BATCHED = 3  # axes of rows of several sequences
_MOST_OF_GROUP = 32  # products that are added up in float16 where there are groups


@tvm.transform.module_pass(opt_level=0, name="tunehub.gpu_products")  # type: ignore[untyped-decorator]
def gpu_products(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for GPUs: sums of products in half precision in float32, transposed parameters read as they lie."""
    return relax.transform.DeadCodeElimination()(rewritten(_Products(mod), mod))


@tvm.transform.module_pass(opt_level=0, name="tunehub.gpu_products_in_tf32")  # type: ignore[untyped-decorator]
def gpu_products_in_tf32(mod: IRModule, _context: PassContext) -> IRModule:
    """As :func:`gpu_products`, where operands in single precision may be TF32, which tensor cores read along K alone:
    constant weights are transposed for them, and rounded."""
    return relax.transform.DeadCodeElimination()(rewritten(_Products(mod, transposing=True), mod))


@mutator
class _Products(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, *, transposing: bool = False) -> None:
        super().__init__(mod)
        self._transposing = transposing
        self._mod = mod
        self._kernels = Kernels(self.builder_)
        target = tvm.target.Target.current(allow_none=True)
        self._has_warpgroups = target is not None and serves(target)
        self._half = _NARROW if self._has_warpgroups else _HALF
        self._packed = target is None or has_low_batch(target)
        self._made: dict[Var, Dequantised | None] = {}
        self._computed: dict[Hashable, bool] = {}

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", ""))
        if name != "relax.matmul" and name not in _CONVOLUTIONS:
            return call
        if name == "relax.matmul" and (of_bytes := self._of_bytes(call)) is not None:
            return of_bytes
        if name == "relax.matmul" and (scaled := self._block_scaled(call)) is not None:
            return scaled
        types, result = {str(tensor_type(argument).dtype) for argument in call.args}, str(tensor_type(call).dtype)
        if len(types) != 1 or not types <= {*_NARROW, "float32"} or result not in {*types, _SUM}:
            return call
        (own,) = types
        wide = self._by_kernel(call, own) if name == "relax.matmul" else None
        if wide is None and own in self._half and result == own:
            wide = self._wide(name, call)
        if wide is None or result == _SUM:
            return call if wide is None else wide
        return relax.op.astype(self.builder_.emit(wide), result)

    def _of_bytes(self, call: Call) -> Expr | None:
        """A matmul of 8 bits with weights that are transposed for it, which are read as they lie, or with constants,
        which are transposed; None for others. Sums are those of floats in float32, of integers in int32."""
        data, result = call.args[0], str(tensor_type(call).dtype)
        types = {str(tensor_type(argument).dtype) for argument in call.args}
        sum_type = _INTEGER_SUM if types <= {*LIMITS} else _SUM
        known = {_INTEGER_SUM} if sum_type == _INTEGER_SUM else {*_NARROW, _SUM}
        weight = self._of_columns(call) if types <= {*LIMITS} or types <= {*FLOAT8} else None
        if weight is None or result not in known:
            return None
        if types == {E4M3.stored} and self._is_step(data):
            given = [self.builder_.emit(relax.op.astype(data, _HALF[0])), weight]
            product = partial(_dequantised_matmul, form=E4M3)
            wide = self._kernels.call(product, *given, name=f"dequantize_{NAME}", how=(E4M3,))
            return wide if result == sum_type else relax.op.astype(self.builder_.emit(wide), result)
        wide = self._kernels.call(partial(nt_matmul, sum_type=sum_type), data, weight, name=NAME, how=(sum_type,))
        return wide if result == sum_type else relax.op.astype(self.builder_.emit(wide), result)

    def _is_step(self, data: Expr) -> bool:
        """Whether rows are those of a step, few or one of each sequence: for these weights are read as fast as memory
        gives them, and products of numbers in e4m3 are exact in half precision."""
        shape = shape_of(data) or ()
        few = all(isinstance(extent, int) for extent in shape[:-1]) and math.prod(shape[:-1]) <= MOST_ROWS
        return self._packed and len(shape) >= 2 and (few or (len(shape) == _BATCHED and shape[1] == 1))

    def _block_scaled(self, call: Call) -> Expr | None:
        """A matmul of floats of 8 bits with scales of blocks, the second transposed, which are part of it; None for
        others."""
        source, last = self._untransposed(call), len(shape_of(call.args[0]) or ()) - 1
        if source is None or not self._has_warpgroups or str(tensor_type(call).dtype) != _SUM:
            return None
        data = block_scaled(call.args[0], self.lookup_binding, {last: BLOCK})
        weight = block_scaled(source, self.lookup_binding, {0: BLOCK, 1: BLOCK})
        if data is None or weight is None:
            return None
        return self._kernels.call(block_scaled_matmul, *data, *weight, name=NAME, how=(BLOCK,), product=True)

    def _of_columns(self, call: Call) -> Expr | None:
        """The second operand of a matmul, two-dimensional, as [N, K]: what is transposed for it, or a constant, which
        is transposed; None for others."""
        data, weight = call.args
        source = self._untransposed(call)
        if source is not None or not is_constant(weight):
            return source
        if len(shape_of(weight) or ()) != 2 or len(shape_of(data) or ()) < 2:
            return None
        return relax.const(np.ascontiguousarray(constant_array(weight).T), str(tensor_type(weight).dtype))

    def _by_kernel(self, call: Call, own: str) -> Expr | None:
        """A matmul of operands of the type ``own``, the second transposed, as a kernel that reads that as it lies and
        has a result in float32; None where there is none."""
        rows, half = _rows(call), own in self._half
        few = rows is not None and rows <= MOST_ROWS
        if own in _NARROW and not half and not few:
            return None
        made = self._dequantised(call) if half else None
        if made is not None and (few or (rows is None and self._packed)):
            product = self._kernels.call(
                partial(_dequantised_matmul, form=made.format),
                *(call.args[0], *made.operands),
                name=f"dequantize_{NAME}",
                how=(made.format,),
            )
            return product if made.scale is None else relax.op.multiply(self.builder_.emit(product), made.scale)
        weight, kernel = self._transposed(call) if made is None else self._untransposed(call), NAME
        if weight is None and self._transposing and own == _SUM:
            weight, kernel = self._rounded_weight(call), ROUNDED
        if weight is not None:
            return self._kernels.call(partial(nt_matmul, name=kernel), call.args[0], weight, name=kernel)
        weights = self._transposed_each(call) if half else None
        return None if weights is None else self._kernels.call(nt_matmuls, call.args[0], weights, name=NAME)

    def _transposed_each(self, call: Call) -> Expr | None:
        """The parameter [B, N, K], or part of one, whose matrices' transposes the matrices [B, M, K] are multiplied
        with, or None."""
        data, weight = call.args
        source = transposed_matrices(self, weight)
        shapes = [shape_of(each) or () for each in (data, source)] if is_given(self, source) else []
        return source if [len(shape) for shape in shapes] == [3, 3] and same_extent(*(s[0] for s in shapes)) else None

    def _transposed(self, call: Call) -> Expr | None:
        """The parameter [N, K], or part of one, whose transpose is the second operand of a matmul, or None."""
        source = self._untransposed(call)
        return source if is_given(self, source) else None

    def _rounded_weight(self, call: Call) -> Expr | None:
        """The constant that is the second operand of a matmul, or is transposed for it, as [N, K], as TF32 has it; None
        for others."""
        source = self._untransposed(call)
        weight = call.args[1] if source is None else source
        shape, rows = shape_of(weight), static_shape(call.args[0])
        if not is_constant(weight) or shape is None or len(shape) != 2 or rows is None or len(rows) < 2:
            return None
        values = constant_array(weight)
        return relax.const(rounded(np.ascontiguousarray(values.T if source is None else values)), _SUM)

    def _dequantised(self, call: Call) -> Dequantised | None:
        """What the second operand of a matmul is the transpose of, where it is made of quantised weights."""
        source = self._untransposed(call)
        if not isinstance(source, relax.Var) or self.lookup_binding(source) is None:
            return None
        if source not in self._made:
            self._made[source] = dequantised_from(
                source, self.lookup_binding, self._mod, self._half, (*QUANTISED, E4M3), known=self._computed
            )
        return self._made[source]

    def _untransposed(self, call: Call) -> Expr | None:
        """What the second operand of a matmul is the transpose of, two-dimensional, or None."""
        data, weight = call.args
        return transposed_matrix(self, weight) if len(shape_of(data) or ()) >= 2 else None

    def _wide(self, name: str, call: Call) -> Expr | None:
        """``call`` with a result in float32; None for convolutions in groups that add up few numbers in float16."""
        if name == "relax.matmul":
            return relax.op.matmul(*call.args, out_dtype=_SUM)
        attrs = call.attrs
        groups = int(attrs.groups)
        few = _MOST_OF_GROUP if str(tensor_type(call).dtype) in _HALF else 0
        if groups != 1 and _terms(call) <= few:
            return None
        return _CONVOLUTIONS[name](
            *call.args,
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            groups=groups,
            data_layout=str(attrs.data_layout),
            kernel_layout=str(attrs.kernel_layout),
            out_layout=str(attrs.out_layout),
            out_dtype=_SUM,
        )


def _terms(call: Call) -> int:
    """Of how many products each result of a convolution is; 0 where that is not known."""
    weights, results = static_shape(call.args[1]), str(call.attrs.kernel_layout).index("O")
    return 0 if weights is None else math.prod(weights) // weights[results]


def _rows(call: Call) -> int | None:
    """Of the first operand of a matmul, None where their number is open; a vector counts as many."""
    shape = shape_of(call.args[0]) or (0,)
    if len(shape) < 2:
        return MOST_ROWS + 1
    return math.prod(shape[:-1]) if all(isinstance(extent, int) for extent in shape[:-1]) else None


def _dequantised_matmul(data: Tensor, *given: Tensor, form: Format) -> Tensor:
    return nt_matmul(data, weights_made(given, form, str(data.dtype)))
