"""Matmuls with constant right operands: their weights are packed by blocks of outputs at compile time.

``matmul(x, W)``, or ``matmul(x, permute_dims(W))``, becomes :func:`tunehub.kernels.te.blocked.dense_blocked`, whose
inputs and outputs are plain. So there is nothing to plan: a product is packed wherever its outputs fill a block.

Where ``W`` is an input, or a part of one, it cannot be packed; its transpose is not written at each call either: it is
read as it lies (:mod:`tunehub.kernels.te.nt_dense`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.layout.narrowing import Narrowing
from tunehub.graph.layout.tokens import image_of
from tunehub.kernels.cpu.dot_product import DotProduct
from tunehub.kernels.te import blocked, grouped
from tunehub.kernels.te.grouped import PAIRS, TILES, TILES_INT8, WORDS, Groups
from tunehub.kernels.te.nt_dense import nt_dense
from tunehub.kernels.te.weights import Array, pack_dense_weight
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    constant_like,
    is_constant,
    is_given,
    operator_of,
    shape_of,
    static_shape,
    tensor_type,
    transposed_matrix,
)

if TYPE_CHECKING:
    from tunehub.graph.types import BindingBlock, Call, Constant, Expr, Var
    from tunehub.tir.types import IRModule

_FLOATS = ("float32", "float16", "bfloat16")
_ROWS_FOR_TILES = 4  # one or two rows of bytes take 0.62 to 0.75 of the time by vectors (docs/adr/0045)


def pack_dense(
    mod: IRModule, block: int, dot: DotProduct | None = None, narrowing: Narrowing | None = None
) -> IRModule:
    """Return ``mod`` with the matmuls that have a constant right operand reading it in blocks of ``block``; those of
    uint8 and int8 as ``dot``, the instruction for them, does.

    ``narrowing``: which products have operands in bfloat16 (:mod:`tunehub.kernels.te.grouped`); a tensor that several
    of them read is rounded once.

    Left as they are: products of other types than float32 and these, with batches of weights, with fewer outputs than
    a block, or with sums of unknown length.
    """
    packer = _DensePacker(mod)
    packer.block, packer.dot, packer.narrowing = block, dot, narrowing
    written = rewritten(packer, mod)
    return relax.transform.DeadCodeElimination()(written) if packer.packed or packer.lying else mod


@mutator
class _DensePacker(PyExprMutator):  # type: ignore[misc]
    block: int
    dot: DotProduct | None
    narrowing: Narrowing | None

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)
        self.packed: dict[Hashable, Constant] = {}  # (constant, transposed, groups) -> packed: each weight is held once
        self._rounded: dict[Var, Var] = {}  # variable -> its value in bfloat16
        self.lying = 0  # products whose weights are read as they lie

    def visit_dataflow_block_(self, block: BindingBlock) -> BindingBlock:
        self._rounded = {}  # what is written in one block of dataflow is not known in the next
        return super().visit_dataflow_block_(block)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.matmul":
            return call
        data, shape = call.args[0], shape_of(call.args[0])
        if shape is None or len(shape) < 2 or not isinstance(shape[-1], int):
            return call
        return self._of_integers(call) if str(tensor_type(data).dtype) == "uint8" else self._of_floats(call)

    def _of_integers(self, call: Call) -> Expr:
        constant, dot = bound_value(self, call.args[1]), self.dot
        if dot is None or not is_constant(constant) or str(tensor_type(constant).dtype) != "int8":
            return call
        values = constant_array(constant)
        if values.ndim != 2 or values.shape[0] % dot.group:
            return call
        known = static_shape(call.args[0])
        many = known is not None and math.prod(known[:-1]) >= _ROWS_FOR_TILES
        tiles = dot.tiles and values.shape[0] % TILES_INT8.depth == 0 and many
        groups = TILES_INT8 if tiles else WORDS[dot.group]
        key = (constant, False, groups)
        if key not in self.packed:
            self.packed[key] = grouped.pack_dense(values, groups, out_block=dot.lanes)
        return self._grouped(groups, call.args[0], self.packed[key], values.shape[1])

    def _of_floats(self, call: Call) -> Expr:
        data = call.args[0]
        groups = self._groups(data)
        weight = self._weight(call.args[1], groups) if _is_float32(data, call) else None
        if weight is None:
            return self._as_it_lies(call)
        constant, outputs = weight
        if groups is not None:
            return self._grouped(groups, self._narrow(data), constant, outputs)
        return self._kernels.call(
            lambda x, w: blocked.dense_blocked(x, w, outputs=outputs), data, constant, name="dense", how=(outputs,)
        )

    def _as_it_lies(self, call: Call) -> Expr:
        """The product with an input [N, K] that would be transposed; ``call`` where it is another."""
        value = bound_value(self, call.args[1])
        if operator_of(value) != "relax.permute_dims" or not is_given(self, value.args[0]):
            return call
        source, shape = value.args[0], static_shape(value.args[0])
        types = {str(tensor_type(each).dtype) for each in call.args}
        result = str(tensor_type(call).dtype)
        if shape is None or len(shape) != 2 or shape[1] % self.block or len(types) != 1 or not types <= set(_FLOATS):
            return call
        self.lying += 1
        lying = partial(nt_dense, lanes=self.block)
        wide = self._kernels.call(lying, call.args[0], source, name="nt_dense", how=(self.block,), product=True)
        return wide if result == "float32" else relax.op.astype(self.builder_.emit(wide), result)

    def _grouped(self, groups: Groups, data: Expr, constant: Constant, outputs: int) -> Expr:
        return self._kernels.call(
            lambda x, w: grouped.dense_grouped(x, w, outputs=outputs),
            *(data, constant),
            name=f"dense_{groups.name}",
            how=(outputs,),
        )

    def _groups(self, data: Expr) -> Groups | None:
        """How a product of ``data`` is computed in bfloat16; None in float32."""
        shape, known = shape_of(data), static_shape(data)
        if shape is None or self.narrowing is None:
            return None
        if known is not None and self.narrowing.dense_in_tiles(known[-1]):
            return TILES
        return PAIRS if self.narrowing.dense(shape[-1]) else None

    def _narrow(self, data: Expr) -> Expr:
        """``data`` in bfloat16; an image that is read as tokens is rounded where it is written."""
        if data not in self._rounded:
            image = image_of(self, data)
            if image is None:
                self._rounded[data] = self.builder_.emit(relax.op.astype(data, grouped.NARROW))
            else:
                self._rounded[data] = self.builder_.emit(relax.op.reshape(self._narrow(image), shape_of(data)))
        return self._rounded[data]

    def _weight(self, operand: Expr, groups: Groups | None) -> tuple[Constant, int] | None:
        """The packed constant for the right operand of a product, and the number of outputs; None to keep it."""
        source = transposed_matrix(self, operand)
        transposed = source is not None
        constant = bound_value(self, operand if source is None else source)
        shape = static_shape(constant)
        if not is_constant(constant) or shape is None or len(shape) != 2 or not _is_float32(constant):
            return None
        depth, outputs = reversed(shape) if transposed else shape
        if outputs < self.block or not depth:
            return None
        key = (constant, transposed, groups)
        if key not in self.packed:
            array = constant_array(constant)
            array = array.T if transposed else array
            self.packed[key] = (
                _packed(array, self.block)
                if groups is None
                else grouped.pack_dense(array, groups, out_block=self.block)
            )
        return self.packed[key], outputs


def _packed(weight: Array, block: int) -> Expr:
    """The constant that is ``pack_dense_weight`` of ``weight``, written once: weights may be a gigabyte."""
    depth, outputs = weight.shape
    whole = outputs // block

    def fill(packed: Array) -> None:
        full = weight[:, : whole * block]
        if weight.strides[1] == weight.itemsize:  # blocks lie in one piece: numpy moves them nearly twice as fast so
            piece = f"V{block * weight.itemsize}"
            packed[:whole].view(piece)[..., 0] = full.view(piece).T
        else:
            packed[:whole] = full.reshape(depth, whole, block).transpose(1, 0, 2)
        if whole < len(packed):
            packed[whole:] = pack_dense_weight(weight[:, whole * block :], out_block=block)

    return constant_like((-(-outputs // block), depth, block), "float32", fill)


def _is_float32(*tensors: Expr) -> bool:
    return all(str(tensor_type(tensor).dtype) == "float32" for tensor in tensors)
