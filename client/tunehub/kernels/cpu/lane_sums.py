"""The sum of what lies side by side, by a function of LLVM IR: of a loop over it, LLVM makes gathers of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.base import FLOAT_BYTES
from tunehub.kernels.cpu.instruction import pointer_to
from tunehub.tir.nodes import buffer_kind, buffer_of
from tunehub.tir.views import match_region

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, Schedule


def sum_lanes(schedule: Schedule, block: BlockRV) -> None:
    """Let a function do what ``block`` does: add up all of a row of float32 or int32, its innermost loop."""
    from tvm import tirx

    around, lanes = schedule.get_loops(block)[-2:]
    count = int(schedule.get(lanes).extent)
    outer = schedule.blockize(lanes)
    old = schedule.get(outer)
    (read,), written = old.reads, old.writes[0]
    dtype = str(buffer_kind(buffer_of(read)).dtype)
    name, imported = _function(dtype, count)
    schedule.annotate(around, "pragma_import_llvm", imported)
    row = tirx.decl_buffer((count,), dtype, "row", offset_factor=1)
    total = tirx.decl_buffer((1,), dtype, "total", offset_factor=1)
    matched = [match_region(row, read), match_region(total, written)]
    body = total.vstore([0], tirx.call_extern(dtype, name, pointer_to(row, 0, FLOAT_BYTES)))
    new = type(old)(old.iter_vars, [read], [written], old.name_hint, body, None, [], matched, {})
    schedule.state.replace(schedule.get_sref(outer), new, {old: new})


def _function(dtype: str, count: int) -> tuple[str, str]:
    """Its name and LLVM IR; floats are added up in pairs."""
    name = f"tunehub_sum_{dtype}_{count}"
    kind = "float" if dtype == "float32" else "i32"
    vector, letter = f"<{count} x {kind}>", kind[0] + "32"
    operation = "fadd" if kind == "float" else "add"
    intrinsic = f"@llvm.vector.reduce.{operation}.v{count}{letter}"
    begin, flag = ("float 0.0, ", "reassoc ") if kind == "float" else ("", "")
    parameters = f"float, {vector}" if kind == "float" else vector
    return (
        name,
        f"""
declare {kind} {intrinsic}({parameters})
define {kind} @{name}(ptr %row) alwaysinline {{
  %all = load {vector}, ptr %row, align 4
  %total = call {flag}{kind} {intrinsic}({begin}{vector} %all)
  ret {kind} %total
}}
""",
    )
