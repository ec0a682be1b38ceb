"""Products of bfloat16 in pairs, with sums in float32, by ``vdpbf16ps`` of AVX512_BF16: 16 sums of two products each.

LLVM's intrinsic wants ``<32 x bfloat>``, which TVM's types have not (it stores bfloat16 as 16-bit integers): a function
of LLVM IR is imported with the kernel and inlined. Its operands are pointers: TVM's passes for bfloat16 make float32 of
values (``BF16ComputeLegalize``), and of buffers of which nobody takes the memory itself.
"""

from __future__ import annotations

import math
from typing import Any

from tunehub.relax.layout.grouped import (
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
from tunehub.relax.nodes import blocks_in, buffer_kind, buffer_of
from tunehub.templates.base import FLOAT_BYTES
from tunehub.templates.instruction import compute_by, lacking, pointer_to, strided_match, widened

LANES = 16  # sums of one instruction
FEATURE = "avx512bf16"
_NARROW_BYTES = 2
_FUNCTION = "tunehub_dpbf16ps"
_INTRINSIC = "@llvm.x86.avx512bf16.dpbf16ps.512"
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


def doubt(target: Any) -> str | None:
    """Why code for ``target`` cannot have the instruction, or None."""
    return lacking(target, {FEATURE: "AVX512_BF16"})


def is_paired(function: Any) -> bool:
    """Whether ``function``, a PrimFunc without a schedule, multiplies pairs, or tiles of them."""
    names = (DENSE_PAIRS, CONV2D_PAIRS, DENSE_TILES, CONV2D_TILES, ATTENTION_PAIRS, ATTENTION_TILES)
    found = (block for block in blocks_in(function.body) if str(block.name_hint) in names)
    return any(str(buffer_kind(buffer_of(block.writes[0])).dtype) == WIDE for block in found)


def multiply_in_pairs(schedule: Any, block: Any, loop: Any) -> None:
    """Let one instruction do what is in ``block``, whose sums are begun elsewhere; ``loop`` is one around it."""
    from tvm import tirx

    schedule.annotate(loop, "pragma_import_llvm", _IMPORTED)
    vector = f"{WIDE}x{LANES}"

    def value(sums: Any, *operands: Any) -> Any:
        pointers = [tirx.handle_add_byte_offset(each.data, each.elem_offset * _NARROW_BYTES) for each in operands]
        return tirx.call_extern(vector, _FUNCTION, sums.vload([0], vector), *pointers)

    kinds = (((LANES,), WIDE, "sums"), ((PAIRS.size,), NARROW, "pair"), ((LANES, PAIRS.size), NARROW, "weights"))
    compute_by(schedule, block, kinds, value)


def multiply_matrices(schedule: Any, block: Any, loop: Any, *, rows: tuple[int, int], step: int) -> None:
    """Let one function of LLVM IR do what is in ``block``, which holds all of a reduction: a product of matrices, whose
    sums all stay in registers. ``loop`` is one around it.

    ``rows``: the axes of data and of sums along which its rows are; what of data is behind that lies in one piece.
    ``step``: the axis of weights along which pairs are. Axes count from the last.
    """
    from tvm import tirx

    old, (of_data, of_sums) = schedule.get(block), rows
    written = old.writes[0]
    *_, outputs = (int(each.extent) for each in written.region)
    count = int(written.region[of_sums].extent)
    name = f"tunehub_pairs_{count}x{outputs}"
    schedule.annotate(loop, "pragma_import_llvm", _matrices_function(name, count, outputs // LANES))
    data, weights = (each for each in old.reads if not buffer_of(each).same_as(buffer_of(written)))
    names = ("sums", "data", "weights")
    matched = [strided_match(region, each) for region, each in zip((written, data, weights), names, strict=True)]
    sums, elements, factors = (each.buffer for each in matched)
    steps = math.prod(elements.shape[of_data + 1 :]) // PAIRS.size
    sizes = (
        (sums, sums.strides[of_sums], FLOAT_BYTES),
        (elements, elements.strides[of_data], _NARROW_BYTES),
        (factors, factors.strides[step], _NARROW_BYTES),
    )
    arguments = [
        part
        for buffer, apart, size in sizes
        for part in (pointer_to(buffer, 0, size), tirx.Cast("int32", apart * size))
    ]
    body = tirx.Evaluate(tirx.call_extern("int32", name, *arguments, tirx.Cast("int32", steps)))
    new = type(old)(old.iter_vars, [data, weights], old.writes, old.name_hint, body, None, [], matched, {})
    schedule.state.replace(schedule.get_sref(block), new, {old: new})


def _matrices_function(name: str, rows: int, vectors: int) -> str:
    """LLVM IR of the product of ``rows`` times ``vectors`` of outputs, all sums in registers."""
    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]
    begun = "".join(
        f"  %s{r}_{v} = phi <16 x float> [ zeroinitializer, %begin ], [ %n{r}_{v}, %step ]\n" for r, v in tile
    )
    places = "".join(
        f"  %d{r}_at = mul i64 %data_row, {r}\n  %d{r} = getelementptr i8, ptr %data, i64 %d{r}_at\n"
        for r in range(rows)
    )
    weights = "".join(
        f"  %w{v}_at = getelementptr i8, ptr %weights_now, i64 {64 * v}\n"
        f"  %w{v} = load <32 x bfloat>, ptr %w{v}_at, align 64\n"
        for v in range(vectors)
    )
    pairs = "".join(
        f"  %p{r}_at = getelementptr i32, ptr %d{r}, i64 %i\n"
        f"  %p{r}_one = load i32, ptr %p{r}_at, align 4\n"
        f"  %p{r}_first = insertelement <16 x i32> poison, i32 %p{r}_one, i64 0\n"
        f"  %p{r}_all = shufflevector <16 x i32> %p{r}_first, <16 x i32> poison, <16 x i32> zeroinitializer\n"
        f"  %p{r} = bitcast <16 x i32> %p{r}_all to <32 x bfloat>\n"
        for r in range(rows)
    )
    products = "".join(
        f"  %n{r}_{v} = call <16 x float> {_INTRINSIC}(<16 x float> %s{r}_{v}, <32 x bfloat> %w{v}, "
        f"<32 x bfloat> %p{r})\n"
        for r, v in tile
    )
    ended = "".join(
        f"  %e{r}_{v}_row = mul i64 %sums_row, {r}\n  %e{r}_{v}_at = add i64 %e{r}_{v}_row, {64 * v}\n"
        f"  %e{r}_{v} = getelementptr i8, ptr %sums, i64 %e{r}_{v}_at\n"
        f"  store <16 x float> %n{r}_{v}, ptr %e{r}_{v}, align 4\n"
        for r, v in tile
    )
    return f"""
declare <16 x float> {_INTRINSIC}(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define i32 @{name}(ptr %sums, i32 %sums_row_32, ptr %data, i32 %data_row_32, ptr %weights, i32 %weights_step_32, \
i32 %steps_32) alwaysinline {{
begin:
{widened("sums_row", "data_row", "weights_step", "steps")}{places}  br label %step
step:
  %i = phi i64 [ 0, %begin ], [ %next, %step ]
{begun}  %weights_place = mul i64 %i, %weights_step
  %weights_now = getelementptr i8, ptr %weights, i64 %weights_place
{weights}{pairs}{products}  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %steps
  br i1 %more, label %step, label %end
end:
{ended}  ret i32 0
}}
"""
