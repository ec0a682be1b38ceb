"""The schedule of :func:`tunehub.relax.layout.attention.kernel.attention`: a few queries of a head after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunehub.relax.layout.attention.kernel import (
    KEYS,
    MASKED,
    MOST,
    OPERAND,
    RESULT,
    ROUNDED,
    ROUNDED_WEIGHTS,
    SCORES,
    SIDE,
    TOTAL,
    VALUES,
    WEIGHTED,
    WEIGHTS,
)
from tunehub.relax.layout.grouped import ATTENTION_PAIRS
from tunehub.relax.nodes import blocks_in, integer
from tunehub.templates import pairs
from tunehub.templates.base import FLOAT_BYTES, Machine, open_schedule
from tunehub.templates.fusion import unroll_and_vectorize

NAME = "attention"  # in reports
_REGISTER_BYTES = 1024  # of smaller buffers LLVM makes registers (TVM's kMaxStackAlloca)


def is_attention(mod: Any) -> bool:
    """Whether ``main`` of ``mod`` is that kernel and nothing else."""
    names = _names(mod)
    return bool(names) and names[-1] == RESULT and {KEYS, WEIGHTED} <= set(names)


def lacks(mod: Any, target: Any) -> str | None:
    """Why ``target`` cannot have the instruction that the kernel needs, or None."""
    return pairs.doubt(target) if ATTENTION_PAIRS in _names(mod) else None


def schedule_attention(mod: Any, machine: Machine) -> Any:
    """The schedule: keys copied and tasks done on all threads, what is between in vectors."""
    schedule = open_schedule(mod)
    names = _names(mod)
    narrow = ATTENTION_PAIRS in names
    for name in names:
        if name in (KEYS, VALUES) or name.startswith(OPERAND):
            _copied(schedule, schedule.get_sblock(name), machine)
    *lead, task = _result(schedule, machine)
    weighted = schedule.get_sblock(WEIGHTED)
    copy = schedule.cache_write(weighted, 0, "global")
    rounded = (ROUNDED_WEIGHTS,) if narrow else ()
    inside = (*rounded, TOTAL, TOTAL + SIDE, WEIGHTS, MOST, MOST + SIDE, MASKED)
    for block in (copy, weighted, *map(schedule.get_sblock, inside)):
        schedule.compute_at(block, task, preserve_unit_loops=True)
    _place_scores(schedule, ATTENTION_PAIRS if narrow else SCORES)
    if narrow:
        schedule.compute_at(schedule.get_sblock(ROUNDED), task, preserve_unit_loops=True)
    schedule.parallel(schedule.fuse(*lead, task))  # decomposing comes later: parallel wants reductions in one block
    _weighted(schedule, weighted, copy, machine, narrow=narrow)
    for name in (TOTAL + SIDE, MOST + SIDE):
        _side(schedule, name, machine)
    for name in (WEIGHTS, *((ROUNDED, ROUNDED_WEIGHTS) if narrow else ())):
        _vectors(schedule, schedule.get_sblock(name), machine)
    _scores(schedule, machine, narrow=narrow)
    return schedule


def _copied(schedule: Any, block: Any, machine: Machine) -> None:
    """A copy in groups of keys, on threads; read along what lies side by side."""
    *outer, row, last = schedule.get_loops(block)
    node = schedule.get(block)
    (source,) = node.reads
    name = getattr(source.region[-1].min, "name", None)
    if name == node.iter_vars[-2].var.name:
        schedule.reorder(last, row)
    elif name == node.iter_vars[-1].var.name:
        _vectors(schedule, block, machine)
    if outer:
        schedule.parallel(schedule.fuse(*outer))


def _names(mod: Any) -> list[str]:
    return [str(block.name_hint) for block in blocks_in(mod["main"].body) if len(block.iter_vars)]


def _result(schedule: Any, machine: Machine) -> list[Any]:
    """Tile what is written; returns the loops over tasks."""
    block = schedule.get_sblock(RESULT)
    *lead, row, _ = schedule.get_loops(block)
    rows = int(schedule.get(schedule.get_sblock(MASKED)).iter_vars[-3].dom.extent)
    task, _ = schedule.split(row, [None, rows])
    _vectors(schedule, block, machine)
    return [*lead, task]


def _weighted(schedule: Any, block: Any, copy: Any, machine: Machine, *, narrow: bool) -> None:
    """Sums of values: a few rows times one or two vectors stay in registers."""
    row, output, group, step, *item = schedule.get_loops(block)[-4 - narrow :]
    part, vectors, lanes = _in_vectors(schedule, output, machine, int(schedule.get(row).extent))
    inside = (row, vectors, lanes)
    schedule.reorder(part, *(inside if narrow else ()), group, step, *(() if narrow else inside), *item)
    schedule.reverse_compute_at(copy, part, preserve_unit_loops=True)
    _vectors(schedule, copy, machine)
    if narrow:
        pairs.multiply_matrices(schedule, schedule.blockize(row), part, rows=(-3, -2), step=-3)
    else:
        _in_registers(schedule, block, group, inside)


def _place_scores(schedule: Any, name: str) -> None:
    """Scores of all queries of a task, a vector or two of keys at a time."""
    *_, row, group, place = schedule.get_loops(schedule.get_sblock(MASKED))
    schedule.reorder(group, row, place)
    schedule.compute_at(schedule.get_sblock(name), group, preserve_unit_loops=True)


def _scores(schedule: Any, machine: Machine, *, narrow: bool) -> None:
    _vectors(schedule, schedule.get_sblock(MASKED), machine)
    block = schedule.get_sblock(ATTENTION_PAIRS if narrow else SCORES)
    *_, row, group, place, step = schedule.get_loops(block)[: -1 if narrow else None]
    if narrow:
        schedule.reorder(group, row)
        pairs.multiply_matrices(schedule, schedule.blockize(row), group, rows=(-2, -3), step=-3)
        return
    vectors, lanes = schedule.split(place, [None, machine.vector])
    schedule.reorder(step, row, vectors, lanes)
    _in_registers(schedule, block, step, [row, vectors, lanes])


def _in_registers(schedule: Any, block: Any, step: Any, tile: Sequence[Any]) -> None:
    """Sums of a ``tile`` of loops, begun in front of the loop ``step``."""
    unroll_and_vectorize(schedule, tile)
    initial = schedule.decompose_reduction(block, step)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-3:])


def _side(schedule: Any, name: str, machine: Machine) -> None:
    block = schedule.get_sblock(name)
    *_, place, step = schedule.get_loops(block)
    vectors, lanes = schedule.split(place, [None, machine.vector])
    schedule.reorder(step, vectors, lanes)
    unroll_and_vectorize(schedule, [vectors, lanes])
    initial = schedule.decompose_reduction(block, step)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-2:])


def _vectors(schedule: Any, block: Any, machine: Machine) -> None:
    """Vectors along the innermost loop, where they divide it."""
    lanes = schedule.get_loops(block)[-1]
    if (integer(schedule.get(lanes).extent) or 1) % machine.vector == 0:
        _, lanes = schedule.split(lanes, [None, machine.vector])
        schedule.vectorize(lanes)


def _in_vectors(schedule: Any, loop: Any, machine: Machine, rows: int) -> tuple[Any, Any, Any]:
    """Split a loop in parts of two vectors, or of what divides it; sums of ``rows`` of them stay in registers."""
    extent = int(schedule.get(loop).extent)
    lanes = next(width for width in (machine.vector, machine.vector // 2, 4, 2, 1) if extent % width == 0)
    vectors = 2 if extent // lanes % 2 == 0 and 2 * rows * lanes * FLOAT_BYTES < _REGISTER_BYTES else 1
    part, inner, lane = schedule.split(loop, [None, vectors, lanes])
    return part, inner, lane
