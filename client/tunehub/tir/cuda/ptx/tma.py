"""Boxes of matrices that the copy engine brings (TMA), and what it is told of these: PTX ISA 8.0 and later,
"cp.async.bulk.tensor"; CUDA Driver API, ``cuTensorMapEncodeTiled``, which TVM 0.27 has a statement for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.tir.cuda.ptx.function import Function, function
from tunehub.tir.cuda.ptx.wgmma import BYTE_KINDS, SIZES
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import address, bind, const, run

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferLoad, Index, PrimExpr, Stmt, Var

_BOX = "cp.async.bulk.tensor.{dimensions}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_SWIZZLED_128_BYTES, _LINES_OF_128_BYTES = 3, 2  # of CUtensorMapSwizzle and CUtensorMapL2promotion
_SIZES = {**SIZES, "uint32": 4, **dict.fromkeys(BYTE_KINDS, 1)}  # bytes of a number


def tensor_map(name: str) -> PrimExpr:
    """A variable for what the copy engine knows of an operand."""
    from tvm import tirx
    from tvm.tirx.script.builder.ir import handle

    return tirx.Var(name, handle("tensormap").ty)


def tensor_map_encode(
    variable: Var,
    buffer: Buffer,
    dtype: str,
    *,
    extents: Sequence[Index],
    apart: Sequence[int],
    box: Sequence[int],
    swizzled: bool = True,
) -> list[Stmt]:
    """``variable`` says of ``buffer`` how many numbers it has along each dimension, the innermost first, and how many
    they are ``apart`` along all but that, and how many a ``box`` has of each. Boxes are ``swizzled``; beyond the end is
    zero."""
    from tvm import tirx
    from tvm.tirx.op import tensormap_encode_tiled, tvm_stack_alloca

    first = address(buffer, *[const(0)] * len(buffer_kind(buffer).shape))
    rest = [*box, *[1] * (len(extents) - len(box)), *[1] * len(extents)]
    numbers = [*extents, *(_SIZES[dtype] * each for each in apart), *rest]
    encoded = tensormap_encode_tiled(
        variable,
        first,
        *(const(each, "int64") if isinstance(each, int) else tirx.Cast("int64", each) for each in numbers),
        descriptor_dtype="uint8" if dtype in BYTE_KINDS else dtype,
        rank=len(extents),
        swizzle=_SWIZZLED_128_BYTES if swizzled else 0,
        l2_promotion=_LINES_OF_128_BYTES,
    )
    return [bind(variable, tvm_stack_alloca("tensormap", 1)), run(encoded)]


def flat_place(load: BufferLoad) -> PrimExpr:
    """The place of a load in its buffer, whose extents are known, as it lies in memory."""

    flat: PrimExpr = const(0)
    for index, extent in zip(load.indices, buffer_kind(load.source).shape, strict=True):
        flat = flat * extent + index
    return flat


def tma_load_2d() -> Function:
    """Bring a box of a matrix, from the place ``x`` along its rows and the row ``y`` on, into the shared memory of this
    block; a barrier counts its bytes."""
    return function(
        "tunehub_ring_box",
        "unsigned to, unsigned long long map, unsigned barrier, int x, int y",
        f"""  asm volatile("{_BOX.format(dimensions=2)} [%0], [%1, {{%3, %4}}], [%2];"
               :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");""",
    )


def tma_load_2d_multicast() -> Function:
    """As :func:`tma_load_2d`, into the memory of those blocks of a cluster whose bits ``mask`` has."""
    return function(
        "tunehub_ring_box_shared",
        "unsigned to, unsigned long long map, unsigned barrier, int x, int y, int mask",
        f"""  asm volatile("{_BOX.format(dimensions=2)}.multicast::cluster [%0], [%1, {{%3, %4}}], [%2], %5;"
               :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"((unsigned short)mask) : "memory");""",
    )


def tma_load_3d() -> Function:
    """As :func:`tma_load_2d`, of the matrix ``z`` of several."""
    return function(
        "tunehub_ring_box_of",
        "unsigned to, unsigned long long map, unsigned barrier, int x, int y, int z",
        f"""  asm volatile("{_BOX.format(dimensions=3)} [%0], [%1, {{%3, %4, %5}}], [%2];"
               :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");""",
    )
