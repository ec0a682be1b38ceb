"""Products of matrices as one function of LLVM IR each, by instructions that add up groups of products in 16 sums.

The function is written for its number of rows and vectors: all sums are its variables, so that LLVM keeps them in
registers. Groups of data are repeated in all lanes; weights, or what stands for them, lie side by side for 16 outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.instruction import pointer_to, strided_match, widened
from tunehub.kernels.cpu.pairs import LANES
from tunehub.kernels.te.grouped import PAIRS, WORDS, Groups
from tunehub.tir.nodes import buffer_of
from tunehub.tir.statements import run

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, LoopRV, Schedule

_SUM_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixProduct:
    """An instruction, as LLVM calls it: 16 ``sums``, and the product of 16 ``groups`` of weights with one of data, of
    an ``element`` of so many ``bytes``."""

    intrinsic: str
    groups: Groups
    sums: str
    element: str
    bytes: int


BY_PAIRS = MatrixProduct(
    intrinsic="@llvm.x86.avx512bf16.dpbf16ps.512", groups=PAIRS, sums="float", element="bfloat", bytes=2
)
BY_WORDS = MatrixProduct(  # of unsigned weights and signed data
    intrinsic="@llvm.x86.avx512.vpdpbusd.512", groups=WORDS[4], sums="i32", element="i8", bytes=1
)


def multiply_matrices(
    schedule: Schedule, block: BlockRV, loop: LoopRV, by: MatrixProduct, *, rows: tuple[int, int], step: int
) -> None:
    """Let one function of LLVM IR do what is in ``block``, which holds all of a reduction: a product of matrices, whose
    sums all stay in registers. ``loop`` is one around it.

    ``rows``: the axes of data and of sums along which its rows are; what of data is behind that lies in one piece.
    ``step``: the axis of weights along which groups are. Axes count from the last.
    """
    from tvm import tirx

    old, (of_data, of_sums) = schedule.get(block), rows
    written = old.writes[0]
    *_, outputs = (int(each.extent) for each in written.region)
    count = int(written.region[of_sums].extent)
    name = f"tunehub_{by.groups.name}_{count}x{outputs}"
    schedule.annotate(loop, "pragma_import_llvm", _function(by, name, count, outputs // LANES))
    data, weights = (each for each in old.reads if not buffer_of(each).same_as(buffer_of(written)))
    names = ("sums", "data", "weights")
    matched = [strided_match(region, each) for region, each in zip((written, data, weights), names, strict=True)]
    sums, elements, factors = (each.buffer for each in matched)
    steps = math.prod(elements.shape[of_data + 1 :]) // by.groups.size
    sizes = (
        (sums, sums.strides[of_sums], _SUM_BYTES),
        (elements, elements.strides[of_data], by.bytes),
        (factors, factors.strides[step], by.bytes),
    )
    arguments = [
        part
        for buffer, apart, size in sizes
        for part in (pointer_to(buffer, 0, size), tirx.Cast("int32", apart * size))
    ]
    body = run(tirx.call_extern("int32", name, *arguments, tirx.Cast("int32", steps)))
    new = type(old)(old.iter_vars, [data, weights], old.writes, old.name_hint, body, None, [], matched, {})
    schedule.state.replace(schedule.get_sref(block), new, {old: new})


def _function(by: MatrixProduct, name: str, rows: int, vectors: int) -> str:
    """LLVM IR of the product of ``rows`` times ``vectors`` of outputs, all sums in registers."""
    sums, operand = f"<{LANES} x {by.sums}>", f"<{LANES * by.groups.size} x {by.element}>"
    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]
    begun = "".join(f"  %s{r}_{v} = phi {sums} [ zeroinitializer, %begin ], [ %n{r}_{v}, %step ]\n" for r, v in tile)
    places = "".join(
        f"  %d{r}_at = mul i64 %data_row, {r}\n  %d{r} = getelementptr i8, ptr %data, i64 %d{r}_at\n"
        for r in range(rows)
    )
    weights = "".join(_loaded_weights(vector, operand) for vector in range(vectors))
    data = "".join(_broadcast_group(row, operand) for row in range(rows))
    products = "".join(
        f"  %n{r}_{v} = call {sums} {by.intrinsic}({sums} %s{r}_{v}, {operand} %w{v}, {operand} %p{r})\n"
        for r, v in tile
    )
    ended = "".join(_stored_sums(row, vector, sums) for row, vector in tile)
    return f"""
declare {sums} {by.intrinsic}({sums}, {operand}, {operand})
define i32 @{name}(ptr %sums, i32 %sums_row_32, ptr %data, i32 %data_row_32, ptr %weights, i32 %weights_step_32, \
i32 %steps_32) alwaysinline {{
begin:
{widened("sums_row", "data_row", "weights_step", "steps")}{places}  br label %step
step:
  %i = phi i64 [ 0, %begin ], [ %next, %step ]
{begun}  %weights_place = mul i64 %i, %weights_step
  %weights_now = getelementptr i8, ptr %weights, i64 %weights_place
{weights}{data}{products}  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %steps
  br i1 %more, label %step, label %end
end:
{ended}  ret i32 0
}}
"""


def _loaded_weights(vector: int, operand: str) -> str:
    """``%w``: a vector of weights of this step."""
    return (
        f"  %w{vector}_at = getelementptr i8, ptr %weights_now, i64 {64 * vector}\n"
        f"  %w{vector} = load {operand}, ptr %w{vector}_at, align 64\n"
    )


def _broadcast_group(row: int, operand: str) -> str:
    """``%p``: a group of a row of data in all lanes."""
    return (
        f"  %p{row}_at = getelementptr i32, ptr %d{row}, i64 %i\n"
        f"  %p{row}_one = load i32, ptr %p{row}_at, align 4\n"
        f"  %p{row}_first = insertelement <16 x i32> poison, i32 %p{row}_one, i64 0\n"
        f"  %p{row}_all = shufflevector <16 x i32> %p{row}_first, <16 x i32> poison, <16 x i32> zeroinitializer\n"
        f"  %p{row} = bitcast <16 x i32> %p{row}_all to {operand}\n"
    )


def _stored_sums(row: int, vector: int, sums: str) -> str:
    """The store of ``%n``, a vector of sums."""
    at = f"%e{row}_{vector}"
    return (
        f"  {at}_row = mul i64 %sums_row, {row}\n  {at}_at = add i64 {at}_row, {64 * vector}\n"
        f"  {at} = getelementptr i8, ptr %sums, i64 {at}_at\n"
        f"  store {sums} %n{row}_{vector}, ptr {at}, align 4\n"
    )
