"""Layouts that a trace changes, and padding that it adds, checked before TVM applies them.

TVM applies an index map that is not a bijection on the buffer's shape, or that changes the layout of a parameter, and
the results are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tunehub.tir.guard import GuardError, static_extents
from tunehub.tir.index_expressions import evaluate
from tunehub.tir.nodes import buffer_of, parameters
from tunehub.tir.padding_guard import check_padding
from tunehub.tir.traces import export_index_map

if TYPE_CHECKING:
    from tunehub.tir.types import Decision, IndexMap, Instruction, IRModule, Operand, SBlock, Schedule, Trace

MAX_TRIED = 1 << 20  # elements of a buffer whose layout is tried one by one


def layout_provider(
    schedule: Schedule,
) -> Callable[[Instruction, Sequence[Operand], Sequence[Operand], Decision], Decision]:
    """Return a decision provider for ``Trace.apply_to_schedule`` that checks every ``TransformLayout`` and every
    ``PadEinsum`` beforehand."""

    def provide(
        instruction: Instruction, inputs: Sequence[Operand], attrs: Sequence[Operand], decision: Decision
    ) -> Decision:
        if instruction.kind.name == "TransformLayout":
            _check_layout(schedule, schedule.get(inputs[0]), inputs[1], int(attrs[0]), int(attrs[1]))
        if instruction.kind.name == "PadEinsum":
            check_padding(schedule.get(inputs[0]), [int(size) for size in attrs[0]])
        return decision

    return provide


def needs_provider(trace: Trace) -> bool:
    """True when ``trace`` has an instruction that :func:`layout_provider` checks."""
    return any(instruction.kind.name in ("TransformLayout", "PadEinsum") for instruction in trace.insts)


def changes_layout(trace: Trace) -> bool:
    """True when ``trace`` changes the layout of a buffer."""
    return any(instruction.kind.name == "TransformLayout" for instruction in trace.insts)


def anchor_writes_parameter(mod: IRModule) -> bool:
    """True when the anchor block of ``mod`` writes the function's result directly: nothing is fused behind it."""
    from tvm.s_tir import analysis

    block = analysis.find_anchor_sblock(mod)
    own = parameters(mod["main"])
    return block is not None and any(buffer_of(region).same_as(p) for region in block.writes for p in own)


def _check_layout(schedule: Schedule, block: SBlock, index_map: IndexMap, position: int, kind: int) -> None:
    regions = block.reads if kind == 0 else block.writes
    if position >= len(regions):
        raise GuardError(f"the block {block.name_hint} has no buffer {position}")
    buffer = buffer_of(regions[position])
    if any(buffer.same_as(parameter) for parameter in parameters(schedule.mod["main"])):
        raise GuardError("the record changes the layout of a parameter, which callers rely on")
    shape = static_extents(buffer)
    if len(shape) != len(index_map.initial_indices) or not _keeps_every_element(index_map, shape):
        raise GuardError(f"the index map {index_map} does not fit a buffer of shape {shape}")


def _keeps_every_element(index_map: IndexMap, shape: list[int]) -> bool:
    """True when no two elements of a buffer get one place: by its form, by TVM's proof, or by trying a small buffer."""
    from tunehub_registry.trace_rules import splits_only  # templates have no such step

    if splits_only(export_index_map(index_map), shape):
        return True
    return _is_bijection(index_map, shape) or (math.prod(shape) <= MAX_TRIED and _is_injective(index_map, shape))


def _is_bijection(index_map: IndexMap, shape: list[int]) -> bool:
    import tvm

    ranges = [tvm.ir.Range(tvm.tirx.IntImm("int64", 0), tvm.tirx.IntImm("int64", extent)) for extent in shape]
    try:
        tvm.tirx.IndexMap(index_map.initial_indices, index_map.final_indices, None).inverse(ranges)
        return True
    except Exception:  # TVM has several kinds for "cannot prove"
        return False


def _is_injective(index_map: IndexMap, shape: list[int]) -> bool:
    names = [variable.name for variable in index_map.initial_indices]
    points = dict(zip(names, np.indices(shape, np.int64, sparse=True), strict=True))
    images = np.broadcast_arrays(*[evaluate(e, points) for e in index_map.final_indices], np.empty(shape))[:-1]
    extents = [int(image.max()) + 1 for image in images]
    if any(int(image.min()) < 0 for image in images) or math.prod(extents) > 16 * MAX_TRIED:
        return False
    return np.unique(np.ravel_multi_index([image.ravel() for image in images], extents)).size == math.prod(shape)
