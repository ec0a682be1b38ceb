"""Copies of tensors of bytes into words, groups of four, 16 words at a time, for products of two activations.

As :mod:`tunehub.kernels.cpu.pair_copies`, without a conversion: the bytes of a word lie side by side in memory (16 rows
of 4), or one above the other (4 rows of 16). What lies behind the last row is that row again: it counts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.instruction import pointer_to, widened
from tunehub.kernels.cpu.pair_copies import GroupVector, copy_by, order_of, vector_of_groups
from tunehub.kernels.cpu.pairs import LANES
from tunehub.kernels.te.grouped import WORDS
from tunehub.tir.statements import run

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, Buffer, Schedule, Stmt

_BESIDE, _ABOVE = "tunehub_words_beside", "tunehub_words_above"
_SIZE = WORDS[4].size


def copy_words(schedule: Schedule, block: BlockRV) -> bool:
    """Let functions do what ``block`` does, whose last axes are over a multiple of 16 and over the four bytes of a
    word. Returns whether they can: it copies a whole tensor of uint8, of which there are all columns."""
    from tvm import tirx

    place = order_of(schedule.get(block), "uint8")
    if place is None:
        return False
    found = GroupVector.of(schedule, vector_of_groups(schedule, block, _imported()), place.row)
    name = _BESIDE if place.beside else _ABOVE

    def call(to: Buffer) -> Stmt:
        pointers = [pointer_to(to, 0, 1), pointer_to(found.source, found.first, 1)]
        sizes = [tirx.Cast("int32", each) for each in (found.apart, found.rows)]
        return run(tirx.call_extern("int32", name, *pointers, *sizes))

    copy_by(schedule, found, (LANES, _SIZE), "uint8", call)
    return True


def _imported() -> str:
    return _function(_BESIDE, LANES, _beside()) + _function(_ABOVE, _SIZE, _above())


def _function(name: str, rows: int, body: str) -> str:
    """LLVM IR that copies ``%all``, made of so many ``rows``."""
    places = "".join(
        f"  %b{row} = icmp slt i64 {row}, %last\n  %k{row} = select i1 %b{row}, i64 {row}, i64 %last\n"
        f"  %r{row}_at = mul i64 %apart, %k{row}\n  %r{row} = getelementptr i8, ptr %from, i64 %r{row}_at\n"
        for row in range(rows)
    )
    return f"""define i32 @{name}(ptr %to, ptr %from, i32 %apart_32, i32 %rows_32) alwaysinline {{
{widened("apart", "rows")}  %last = sub i64 %rows, 1
{places}{body}  store <{LANES * _SIZE} x i8> %all, ptr %to, align 64
  ret i32 0
}}
"""


def _beside() -> str:
    """16 rows of a word."""
    loads = "".join(f"  %w{row} = load i32, ptr %r{row}, align 1\n" for row in range(LANES))
    vectors = ["poison", *(f"%v{row}" for row in range(LANES))]
    joined = "".join(
        f"  {vectors[row + 1]} = insertelement <16 x i32> {vectors[row]}, i32 %w{row}, i64 {row}\n"
        for row in range(LANES)
    )
    return f"{loads}{joined}  %all = bitcast <16 x i32> {vectors[-1]} to <64 x i8>\n"


def _above() -> str:
    """Four rows of 16 bytes, in turns."""
    loads = "".join(f"  %v{row} = load <16 x i8>, ptr %r{row}, align 1\n" for row in range(_SIZE))
    both = ", ".join(f"i32 {at}" for at in range(2 * LANES))
    order = ", ".join(f"i32 {lane + LANES * row}" for lane in range(LANES) for row in range(_SIZE))
    return (
        f"{loads}  %v01 = shufflevector <16 x i8> %v0, <16 x i8> %v1, <32 x i32> <{both}>\n"
        f"  %v23 = shufflevector <16 x i8> %v2, <16 x i8> %v3, <32 x i32> <{both}>\n"
        f"  %all = shufflevector <32 x i8> %v01, <32 x i8> %v23, <64 x i32> <{order}>\n"
    )
