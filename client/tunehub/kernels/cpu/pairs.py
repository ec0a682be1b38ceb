"""Products of bfloat16 in pairs, with sums in float32, by ``vdpbf16ps`` of AVX512_BF16: 16 sums of two products each.

LLVM's intrinsic wants ``<32 x bfloat>``, which TVM's types have not (it stores bfloat16 as 16-bit integers): a function
of LLVM IR is imported with the kernel and inlined. Its operands are pointers: TVM's passes for bfloat16 make float32 of
values (``BF16ComputeLegalize``), and of buffers of which nobody takes the memory itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.instruction import compute_by, lacking
from tunehub.kernels.te.grouped import (
    ATTENTION_PAIRS,
    ATTENTION_TILES,
    CONV2D_PAIRS,
    CONV2D_TILES,
    DENSE_PAIRS,
    DENSE_TILES,
    NARROW,
    PAIRS,
    WIDE,
)
from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, Buffer, LoopRV, PrimExpr, PrimFunc, Schedule

LANES = 16  # sums of one instruction
ROUNDS = "tunehub.rounds"  # an attribute of functions that arrive scheduled: operands are rounded to bfloat16
FEATURE = "avx512bf16"
_NARROW_BYTES = 2
_FUNCTION = "tunehub_dpbf16ps"
_IMPORTED = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @tunehub_dpbf16ps(<16 x float> %sums, ptr %pair, ptr %weights) alwaysinline {
  %one = load i32, ptr %pair, align 2
  %first = insertelement <16 x i32> poison, i32 %one, i64 0
  %all = shufflevector <16 x i32> %first, <16 x i32> poison, <16 x i32> zeroinitializer
  %a = bitcast <16 x i32> %all to <32 x bfloat>
  %b = load <32 x bfloat>, ptr %weights, align 64
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}
"""
_OF_VALUES = "tunehub_dpbf16ps_values"
IMPORTED = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @tunehub_dpbf16ps_values(<16 x float> %sums, <16 x i32> %one, <16 x i32> %other) alwaysinline {
  %a = bitcast <16 x i32> %one to <32 x bfloat>
  %b = bitcast <16 x i32> %other to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}
"""


def doubt(target: Target) -> str | None:
    """Why code for ``target`` cannot have the instruction, or None."""
    return lacking(target, {FEATURE: "AVX512_BF16"})


def pair_products(sums: PrimExpr, one: PrimExpr, other: PrimExpr) -> PrimExpr:
    """``sums`` and in each lane the products of two pairs, as words of 32 bits; where ``IMPORTED`` is."""
    from tvm import tirx

    return tirx.call_extern(f"{WIDE}x{LANES}", _OF_VALUES, sums, one, other)


def is_paired(function: PrimFunc) -> bool:
    """Whether ``function``, a PrimFunc without a schedule, multiplies pairs, or tiles of them."""
    names = (DENSE_PAIRS, CONV2D_PAIRS, DENSE_TILES, CONV2D_TILES, ATTENTION_PAIRS, ATTENTION_TILES)
    found = (block for block in blocks_in(function.body) if str(block.name_hint) in names)
    return any(str(buffer_kind(buffer_of(block.writes[0])).dtype) == WIDE for block in found)


def multiply_in_pairs(schedule: Schedule, block: BlockRV, loop: LoopRV) -> None:
    """Let one instruction do what is in ``block``, whose sums are begun elsewhere; ``loop`` is one around it."""
    from tvm import tirx

    schedule.annotate(loop, "pragma_import_llvm", _IMPORTED)
    vector = f"{WIDE}x{LANES}"

    def value(sums: Buffer, *operands: Buffer) -> PrimExpr:
        pointers = [tirx.handle_add_byte_offset(each.data, each.elem_offset * _NARROW_BYTES) for each in operands]
        return tirx.call_extern(vector, _FUNCTION, sums.vload([0], vector), *pointers)

    kinds = (((LANES,), WIDE, "sums"), ((PAIRS.size,), NARROW, "pair"), ((LANES, PAIRS.size), NARROW, "weights"))
    compute_by(schedule, block, kinds, value)
