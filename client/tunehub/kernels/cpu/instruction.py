"""One instruction in place of a block of loops: sums of groups of products, in as many lanes as a vector has.

TVM's ``tensorize`` does the same, but not in tiles that go over the end of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tunehub.target.tvm_generation import find_tvm
from tunehub.tir.nodes import blocks_in, buffer_of
from tunehub.tir.statements import sequence, when
from tunehub.tir.views import match_region

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import (
        BlockRV,
        Buffer,
        BufferRegion,
        Index,
        MatchBufferRegion,
        PrimExpr,
        SBlock,
        Schedule,
        Stmt,
    )

_ONLY_IF = ".if_then_else"
_OLDEST_TVM = (0, 27)  # whose LLVM takes such instructions as they are written here


def lacking(target: Target, features: Mapping[str, str]) -> str | None:
    """Why code for ``target`` cannot have instructions of these ``features`` (LLVM's names, and those for people), or
    None: LLVM ends the process when it is to generate one that the target has not."""
    from tvm.target import codegen

    if target.kind.name != "llvm":
        return "it is for CPUs"
    installed = find_tvm()
    if installed is None or installed.release < _OLDEST_TVM:
        return "it needs TVM 0.27"
    missing = [name for feature, name in features.items() if not codegen.target_has_features([feature], target)]
    return f"the target lacks {', '.join(missing)}" if missing else None


def set_groups_apart(schedule: Schedule, anchor: BlockRV, lanes: int) -> BlockRV:
    """Make one block of the innermost loops of ``anchor``: over the sums of a vector, at position ``lanes`` of its
    loops, and over a group, the last. Returns the block around it, whose loops are the others."""
    loops = schedule.get_loops(anchor)
    schedule.reorder(*loops[lanes + 1 : -1], loops[lanes])
    return schedule.blockize(loops[lanes])


def compute_by(
    schedule: Schedule,
    block: BlockRV,
    kinds: Sequence[tuple[tuple[int, ...], str, str]],
    value: Callable[..., PrimExpr],
    before: Callable[[SBlock], Stmt | None] = lambda block: None,
) -> None:
    """Let ``block``, whose sums are begun elsewhere, store the vector ``value(sums, *operands)`` in its sums. Where it
    adds something up on a condition, which is then the same for all of its loops, the rest keeps its sums.

    ``kinds``: shape, element type and name of the sums and of each operand, as buffers on the memory of its regions.
    ``before``: what else is done, by the block as it was, such as asking for memory.
    """
    from tvm import tirx

    old = schedule.get(block)
    written = old.writes[0]
    regions = [written, *(region for region in old.reads if not buffer_of(region).same_as(buffer_of(written)))]
    buffers = [tirx.decl_buffer(shape, kind, name, offset_factor=1) for shape, kind, name in kinds]
    matched = [match_region(buffer, region) for buffer, region in zip(buffers, regions, strict=True)]
    body, condition = sequence(before(old), buffers[0].vstore([0], value(*buffers))), _condition(old)
    body = body if condition is None else when(condition, body)
    new = type(old)(old.iter_vars, old.reads, old.writes, old.name_hint, body, None, [], matched, {})
    schedule.state.replace(schedule.get_sref(block), new, {old: new})


def _condition(block: SBlock) -> PrimExpr | None:
    """On what ``block`` adds something to its sums; None: always."""
    store = list(blocks_in(block.body))[-1].body
    product = store.value.b
    conditional = str(getattr(getattr(product, "op", None), "name", "")).endswith(_ONLY_IF)
    return product.args[0] if conditional else None


def widened(*names: str) -> str:
    """LLVM IR that makes ``%name`` of the parameter ``i32 %name_32``, for each. TVM makes 32 bits of 64 where it can
    prove that they suffice (``NarrowDataType``), and a call of other types than those of a function is not inlined."""
    return "".join(f"  %{name} = sext i32 %{name}_32 to i64\n" for name in names)


def strided_match(region: BufferRegion, name: str) -> MatchBufferRegion:
    """A buffer on the memory of ``region``, whose strides are known when TVM has compacted what it lies in."""
    from tvm import tirx

    shape = [each.extent for each in region.region]
    strides = [tirx.Var(f"{name}_{axis}", "int32") for axis in range(len(shape))]
    buffer = tirx.decl_buffer(shape, buffer_of(region).dtype, name, strides=strides, offset_factor=1)
    return match_region(buffer, region)


def pointer_to(buffer: Buffer, elements: Index, size: int) -> PrimExpr:
    """Of ``elements`` behind the first, by the memory itself: of what is reached otherwise TVM makes float32
    (``BF16ComputeLegalize``)."""
    from tvm import tirx

    return tirx.handle_add_byte_offset(buffer.data, (buffer.elem_offset + elements) * size)
