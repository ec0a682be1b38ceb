"""Matmuls with constant right operands: their weights are packed by blocks of outputs at compile time.

``matmul(x, W)``, or ``matmul(x, permute_dims(W))``, becomes :func:`tunehub.relax.layout.blocked.dense_blocked`, whose
inputs and outputs are plain. So there is nothing to plan: a product is packed wherever its outputs fill a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.relax.kernels import Kernels, rewritten
from tunehub.relax.layout import blocked, paired, tiled
from tunehub.relax.layout.narrowing import Narrowing
from tunehub.relax.nodes import (
    bound_value,
    constant_array,
    constant_like,
    is_constant,
    shape_of,
    static_shape,
    tensor_type,
)
from tunehub.templates.dot_product import DotProduct

_Array = npt.NDArray[Any]


def pack_dense(mod: Any, block: int, dot: DotProduct | None = None, narrowing: Narrowing | None = None) -> Any:
    """Return ``mod`` with the matmuls that have a constant right operand reading it in blocks of ``block``; those of
    uint8 and int8 as ``dot``, the instruction for them, does.

    ``narrowing``: which products have operands in bfloat16 (:mod:`tunehub.relax.layout.paired`); a tensor that several
    of them read is rounded once.

    Left as they are: products of other types than float32 and these, with batches of weights, with fewer outputs than
    a block, or with sums of unknown length.
    """
    packer = _DensePacker(mod)
    packer.block, packer.dot, packer.narrowing = block, dot, narrowing
    written = rewritten(packer, mod)
    return relax.transform.DeadCodeElimination()(written) if packer.packed else mod


@mutator
class _DensePacker(PyExprMutator):  # type: ignore[misc]
    block: int
    dot: DotProduct | None
    narrowing: Narrowing | None

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)
        self.packed: dict[Any, Any] = {}  # (constant, transposed) -> packed constant: each weight is held once
        self._rounded: dict[Any, Any] = {}  # variable -> its value in bfloat16

    def visit_dataflow_block_(self, block: Any) -> Any:
        self._rounded = {}  # what is written in one block of dataflow is not known in the next
        return super().visit_dataflow_block_(block)

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.matmul":
            return call
        data, shape = call.args[0], shape_of(call.args[0])
        if shape is None or len(shape) < 2 or not isinstance(shape[-1], int):
            return call
        if str(tensor_type(data).dtype) == "uint8":
            return self._of_integers(call)
        if not _is_float32(data, call):
            return call
        weight = self._weight(call.args[1], tiles=self._in_tiles(data))
        if weight is None:
            return call
        constant, outputs = weight
        if self._in_tiles(data):
            return self._kernels.call(
                lambda x, w: tiled.dense_tiled(x, w, outputs=outputs),
                *(self._in_pairs(data), constant),
                name="dense_amx",
                how=(outputs,),
            )
        if self._narrows(shape[-1]):
            return self._kernels.call(
                lambda x, w: paired.dense_paired(x, w, outputs=outputs),
                *(self._in_pairs(data), constant),
                name="dense_bf16",
                how=(outputs,),
            )
        return self._kernels.call(
            lambda x, w: blocked.dense_blocked(x, w, outputs=outputs), data, constant, name="dense", how=(outputs,)
        )

    def _of_integers(self, call: Any) -> Any:
        constant, dot = bound_value(self, call.args[1]), self.dot
        if dot is None or not is_constant(constant) or str(tensor_type(constant).dtype) != "int8":
            return call
        values = constant_array(constant)
        if values.ndim != 2 or values.shape[0] % dot.group:
            return call
        step = tiled.STEP * tiled.GROUPS["int8"]
        tiles = dot.tiles and values.shape[0] % step == 0 and static_shape(call.args[0]) is not None
        key = (constant, False, tiles)
        if key not in self.packed:
            self.packed[key] = _integers_in_tiles(values) if tiles else _integers(values, dot)
        outputs = values.shape[1]
        kernel = tiled.dense_tiled if tiles else blocked.dense_int8_blocked
        return self._kernels.call(
            lambda x, w: kernel(x, w, outputs=outputs),
            call.args[0],
            self.packed[key],
            name="dense_int8_amx" if tiles else "dense_int8",
            how=(outputs,),
        )

    def _narrows(self, depth: int) -> bool:
        return self.narrowing is not None and self.narrowing.dense(depth)

    def _in_pairs(self, data: Any) -> Any:
        """``data`` in bfloat16."""
        if data not in self._rounded:
            self._rounded[data] = self.builder_.emit(relax.op.astype(data, paired.NARROW))
        return self._rounded[data]

    def _in_tiles(self, data: Any) -> bool:
        shape = static_shape(data)
        return shape is not None and self.narrowing is not None and self.narrowing.dense_in_tiles(shape[-1])

    def _weight(self, operand: Any, *, tiles: bool) -> tuple[Any, int] | None:
        """The packed constant for the right operand of a product, and the number of outputs; None to keep it."""
        value = bound_value(self, operand)
        transposed = getattr(getattr(value, "op", None), "name", "") == "relax.permute_dims"
        constant = bound_value(self, value.args[0]) if transposed else value
        shape = static_shape(constant)
        if not is_constant(constant) or shape is None or len(shape) != 2 or not _is_float32(constant):
            return None
        if transposed and [int(axis) for axis in value.attrs.axes or (1, 0)] != [1, 0]:
            return None
        depth, outputs = reversed(shape) if transposed else shape
        if outputs < self.block or not depth:
            return None
        key = (constant, transposed, tiles)
        if key not in self.packed:
            array = constant_array(constant)
            pack = _in_tiles if tiles else paired.pack_dense_pairs if self._narrows(depth) else _packed
            self.packed[key] = pack(array.T if transposed else array, self.block)
        return self.packed[key], outputs


def _integers(values: _Array, dot: DotProduct) -> Any:
    packed = blocked.pack_dense_int8_weight(values, out_block=dot.lanes, group=dot.group)
    return constant_like(packed.shape, str(packed.dtype), lambda own: np.copyto(own, packed))


def _integers_in_tiles(values: _Array) -> Any:
    return tiled.pack_dense_tiles(values, tiled.STEP, "int8")


def _in_tiles(weight: _Array, block: int) -> Any:
    return tiled.pack_dense_tiles(weight, block, paired.NARROW)


def _packed(weight: _Array, block: int) -> Any:
    """The constant that is ``blocked.pack_dense_weight`` of ``weight``, written once: weights may be a gigabyte."""
    depth, outputs = weight.shape
    whole = outputs // block

    def fill(packed: _Array) -> None:
        full = weight[:, : whole * block]
        if weight.strides[1] == weight.itemsize:  # blocks lie in one piece: numpy moves them nearly twice as fast so
            piece = f"V{block * weight.itemsize}"
            packed[:whole].view(piece)[..., 0] = full.view(piece).T
        else:
            packed[:whole] = full.reshape(depth, whole, block).transpose(1, 0, 2)
        if whole < len(packed):
            packed[whole:] = blocked.pack_dense_weight(weight[:, whole * block :], out_block=block)

    return constant_like((-(-outputs // block), depth, block), "float32", fill)


def _is_float32(*tensors: Any) -> bool:
    return all(str(tensor_type(tensor).dtype) == "float32" for tensor in tensors)
