"""Copies of float32 tensors into pairs of bfloat16, 16 pairs at a time, for products of two activations.

A block whose innermost loops are over 16 pairs and over the two numbers of each gives way to a function of LLVM IR,
which is imported with the kernel: TVM would move one number after the other. The numbers of a pair lie side by side in
memory (16 rows of 2), or one above the other (2 rows of 16). What lies behind the end of the tensor is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.base import FLOAT_BYTES
from tunehub.kernels.cpu.instruction import pointer_to, widened
from tunehub.kernels.cpu.pairs import LANES
from tunehub.kernels.te.grouped import NARROW, PAIRS, WIDE
from tunehub.tir.expressions import has_variable, replaced
from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, element_type
from tunehub.tir.statements import either, run
from tunehub.tir.versions import LOADS
from tunehub.tir.views import match_region

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, Buffer, Expr, PrimExpr, SBlock, Schedule, Stmt, Var

_NARROW_BYTES = 2
_BESIDE, _ABOVE = "tunehub_pairs_beside", "tunehub_pairs_above"


def copy_pairs(schedule: Schedule, block: BlockRV) -> bool:
    """Let functions do what ``block`` does, whose last axes are over a multiple of 16 and over a pair. Returns whether
    they can: it copies a whole float32 tensor, pairs or what 16 of them begin with side by side."""
    place = order_of(schedule.get(block), WIDE)
    if place is None:
        return False
    _replace(schedule, vector_of_groups(schedule, block, _imported()), place)
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOrder:
    """``beside``: the numbers of a group are neighbours. ``row``: the axis along which rows are."""

    beside: bool
    row: int

    @property
    def rows(self) -> int:
        """Of 16 pairs."""
        return LANES if self.beside else PAIRS.size

    @property
    def columns(self) -> int:
        """Of 16 pairs."""
        return PAIRS.size if self.beside else LANES


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupVector:
    """``block``: what copies 16 groups, in a schedule. ``source``: the buffer that they lie in, from ``first`` on, in
    elements, and ``apart`` from row to row. ``rows`` and ``columns``: what there is of them from there on."""

    block: BlockRV
    source: Buffer
    first: PrimExpr
    apart: PrimExpr
    rows: PrimExpr
    columns: PrimExpr

    @classmethod
    def of(cls, schedule: Schedule, block: BlockRV, row: int) -> GroupVector:
        """``row``: the axis along which rows are."""
        (inside,) = (each for each in blocks_in(schedule.get(block).body) if len(each.iter_vars))
        load = _load(inside.body.value)
        zeros = {hash(axis.var): _zero(axis.var) for axis in inside.iter_vars}
        first, source = [replaced(index, zeros) for index in load.indices], buffer_of(load)
        shape, place = list(buffer_kind(source).shape), first[0]
        for extent, index in zip(shape[1:], first[1:], strict=True):
            place = place * extent + index
        rows, columns = (shape[axis] - first[axis] for axis in (row, -1))
        apart = math.prod(shape[row + 1 :])
        return cls(block=block, source=source, first=place, apart=apart, rows=rows, columns=columns)


def vector_of_groups(schedule: Schedule, block: BlockRV, imported: str) -> BlockRV:
    """Split a vector of 16 groups from the loops of ``block``, as a block of its own; functions of LLVM IR are
    ``imported`` around it."""
    *_, lanes, _ = schedule.get_loops(block)
    around, lanes = schedule.split(lanes, [None, LANES])
    outer = schedule.blockize(lanes)
    schedule.annotate(around, "pragma_import_llvm", imported)
    return outer


def order_of(node: SBlock, dtype: str) -> GroupOrder | None:
    """Where groups lie in the tensor of ``dtype`` that a block reads."""
    lane, item = (axis.var for axis in node.iter_vars[-2:])
    load = _load(node.body.value)
    *outer, last = load.indices
    beside = has_variable(last, item)
    others = [axis for axis, index in enumerate(outer) if has_variable(index, lane if beside else item)]
    if beside == has_variable(last, lane) or len(others) != 1 or str(buffer_kind(buffer_of(load)).dtype) != dtype:
        return None
    return GroupOrder(beside=beside, row=others[0])


def _replace(schedule: Schedule, block: BlockRV, place: GroupOrder) -> None:
    """Let ``block`` call a function."""
    from tvm import tirx

    found = GroupVector.of(schedule, block, place.row)
    name = _BESIDE if place.beside else _ABOVE

    def call(to: Buffer) -> Stmt:
        sizes = [tirx.Cast("int32", each) for each in (found.apart * FLOAT_BYTES, found.rows, found.columns)]
        pointers = [pointer_to(to, 0, _NARROW_BYTES), pointer_to(found.source, found.first, FLOAT_BYTES)]
        whole = run(tirx.call_extern("int32", name, *pointers, sizes[0]))
        part = run(tirx.call_extern("int32", f"{name}_part", *pointers, *sizes))
        return either(tirx.And(found.rows >= place.rows, found.columns >= place.columns), whole, part)

    copy_by(schedule, found, (LANES, PAIRS.size), NARROW, call)


def copy_by(
    schedule: Schedule, found: GroupVector, shape: tuple[int, int], dtype: str, call: Callable[[Buffer], Stmt]
) -> None:
    """Let the block do what ``call`` does to the buffer of ``shape`` that it writes."""
    from tvm import ir, tirx

    old = schedule.get(found.block)
    whole = [ir.Range.from_min_extent(0, extent) for extent in buffer_kind(found.source).shape]
    to = tirx.decl_buffer(shape, dtype, "to", offset_factor=1)
    matched = [match_region(to, old.writes[0])]
    reads = [tirx.BufferRegion(found.source, whole)]
    new = type(old)(old.iter_vars, reads, old.writes, old.name_hint, call(to), None, [], matched, {})
    schedule.state.replace(schedule.get_sref(found.block), new, {old: new})


def _load(value: PrimExpr) -> PrimExpr:
    """What is read: a conversion of it is written, on a condition or not."""
    while type(value).__name__ not in LOADS:
        value = value.value if type(value).__name__ == "Cast" else value.args[1]
    return value


def _zero(variable: Var) -> Expr:
    from tvm import tirx

    return tirx.const(0, element_type(variable))


def _imported() -> str:
    """The functions of LLVM IR: for 16 whole pairs, and where only ``rows`` and ``columns`` of them are there."""
    whole = "ptr %to, ptr %from, i32 %apart_32"
    part = f"{whole}, i32 %rows, i32 %columns"
    functions = [
        _function(_BESIDE, whole, _rows(), _beside()),
        _function(_ABOVE, whole, _rows(), _above()),
        _function(f"{_BESIDE}_part", part, _rows(), _numbers(LANES, PAIRS.size), _joined(_in_order(LANES, PAIRS.size))),
        _function(f"{_ABOVE}_part", part, _rows(), _numbers(PAIRS.size, LANES), _joined(_in_turns())),
    ]
    return "".join(functions)


def _function(name: str, parameters: str, *body: str) -> str:
    """Rounded to the nearest, ties to even, in integers: where LLVM has no instruction for ``fptrunc`` to ``bfloat`` it
    calls ``__truncsfbf2``, which nobody links."""
    text = "".join(body)
    return f"""define i32 @{name}({parameters}) alwaysinline {{
{text}  %bits = bitcast <32 x float> %all to <32 x i32>
  %high = lshr <32 x i32> %bits, splat (i32 16)
  %odd = and <32 x i32> %high, splat (i32 1)
  %half = add <32 x i32> %odd, splat (i32 32767)
  %sum = add <32 x i32> %bits, %half
  %rounded = lshr <32 x i32> %sum, splat (i32 16)
  %narrow = trunc <32 x i32> %rounded to <32 x i16>
  store <32 x i16> %narrow, ptr %to, align 64
  ret i32 0
}}
"""


def _rows() -> str:
    """Where each row begins."""
    return widened("apart") + "".join(
        f"  %r{row}_at = mul i64 %apart, {row}\n  %r{row} = getelementptr i8, ptr %from, i64 %r{row}_at\n"
        for row in range(LANES)
    )


def _beside() -> str:
    """16 rows of a pair, joined two by two."""
    text = "".join(f"  %j2_{row} = load <2 x float>, ptr %r{row}, align 4\n" for row in range(LANES))
    width = PAIRS.size
    while width < LANES * PAIRS.size:
        order = ", ".join(f"i32 {at}" for at in range(2 * width))
        for at in range(LANES * PAIRS.size // (2 * width)):
            name = "all" if width == LANES else f"j{2 * width}_{at}"
            text += (
                f"  %{name} = shufflevector <{width} x float> %j{width}_{2 * at}, "
                f"<{width} x float> %j{width}_{2 * at + 1}, <{2 * width} x i32> <{order}>\n"
            )
        width *= 2
    return text


def _above() -> str:
    """Two rows of 16 numbers, in turns."""
    order = ", ".join(f"i32 {lane + LANES * row}" for lane in range(LANES) for row in range(PAIRS.size))
    return (
        "  %v0 = load <16 x float>, ptr %r0, align 4\n  %v1 = load <16 x float>, ptr %r1, align 4\n"
        f"  %all = shufflevector <16 x float> %v0, <16 x float> %v1, <32 x i32> <{order}>\n"
    )


def _numbers(rows: int, columns: int) -> str:
    """Numbers one by one, zero where there is none."""
    has_row = "".join(f"  %has_r{row} = icmp sgt i32 %rows, {row}\n" for row in range(rows))
    has_column = "".join(f"  %has_c{column} = icmp sgt i32 %columns, {column}\n" for column in range(columns))
    loads = "".join(
        f"  %has{row}_{column} = and i1 %has_r{row}, %has_c{column}\n"
        f"  %p{row}_{column} = getelementptr float, ptr %r{row}, i64 {column}\n"
        f"  %q{row}_{column} = select i1 %has{row}_{column}, ptr %p{row}_{column}, ptr %nothing\n"
        f"  %n{row}_{column} = load float, ptr %q{row}_{column}, align 4\n"
        for row in range(rows)
        for column in range(columns)
    )
    nothing = "  %nothing = alloca float, align 4\n  store float 0.0, ptr %nothing, align 4\n"
    return nothing + has_row + has_column + loads


def _in_order(rows: int, columns: int) -> list[str]:
    return [f"%n{row}_{column}" for row in range(rows) for column in range(columns)]


def _in_turns() -> list[str]:
    return [f"%n{row}_{lane}" for lane in range(LANES) for row in range(PAIRS.size)]


def _joined(numbers: Sequence[str]) -> str:
    """A vector of ``numbers``."""
    vectors = ["poison", *(f"%a{at}" for at in range(len(numbers) - 1)), "%all"]
    return "".join(
        f"  {vectors[at + 1]} = insertelement <32 x float> {vectors[at]}, float {number}, i64 {at}\n"
        for at, number in enumerate(numbers)
    )
