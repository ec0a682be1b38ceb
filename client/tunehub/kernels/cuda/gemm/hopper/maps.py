"""Matrices in memory as the copy engine is told of them (TMA): statements before a kernel, where it is launched.

Source: CUDA Driver API, ``cuTensorMapEncodeTiled``, which TVM 0.27 has a statement for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunehub.tir.cuda.ptx import SIZES
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import address, bind, const, run

_SWIZZLED_128_BYTES, _LINES_OF_128_BYTES = 3, 2  # of CUtensorMapSwizzle and CUtensorMapL2promotion


def new_map(name: str) -> Any:
    """A variable for what the copy engine knows of an operand."""
    from tvm import tirx
    from tvm.tirx.script.builder.ir import handle

    return tirx.Var(name, handle("tensormap").ty)


def described(
    variable: Any, buffer: Any, dtype: str, *, extents: Sequence[int], apart: Sequence[int], box: Sequence[int]
) -> list[Any]:
    """``variable`` says of ``buffer`` how many numbers it has along each dimension, the innermost first, and how many
    they are ``apart`` along all but that, and how many a ``box`` has of each. Boxes are swizzled; beyond the end is
    zero."""
    from tvm.tirx.op import tensormap_encode_tiled, tvm_stack_alloca

    first = address(buffer, *[const(0)] * len(buffer_kind(buffer).shape))
    rest = [*box, *[1] * (len(extents) - len(box)), *[1] * len(extents)]
    numbers = [*extents, *(SIZES[dtype] * each for each in apart), *rest]
    encoded = tensormap_encode_tiled(
        variable,
        first,
        *(const(number, "int64") for number in numbers),
        descriptor_dtype=dtype,
        rank=len(extents),
        swizzle=_SWIZZLED_128_BYTES,
        l2_promotion=_LINES_OF_128_BYTES,
    )
    return [bind(variable, tvm_stack_alloca("tensormap", 1)), run(encoded)]


def flat_place(load: Any) -> Any:
    """The place of a load in its buffer, whose extents are known, as it lies in memory."""

    flat: Any = const(0)
    for index, extent in zip(load.indices, buffer_kind(load.source).shape, strict=True):
        flat = flat * extent + index
    return flat
