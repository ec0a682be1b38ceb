"""The schedule of :func:`tunehub.relax.layout.attention.attention`: a few queries of a head after the other."""

from __future__ import annotations

from typing import Any

from tunehub.relax.layout.attention import (
    KEYS,
    MASKED,
    MOST,
    OPERAND,
    QUERIES,
    RESULT,
    SCORES,
    SIDE,
    TOTAL,
    VALUES,
    WEIGHTED,
    WEIGHTS,
)
from tunehub.relax.nodes import blocks_in, integer
from tunehub.templates.base import Machine, open_schedule
from tunehub.templates.fusion import unroll_and_vectorize

NAME = "attention"  # in reports


def is_attention(mod: Any) -> bool:
    """Whether ``main`` of ``mod`` is that kernel and nothing else."""
    names = _names(mod)
    return bool(names) and names[-1] == RESULT and {KEYS, SCORES, WEIGHTED} <= set(names)


def schedule_attention(mod: Any, machine: Machine) -> Any:
    """The schedule: keys copied and tasks done on all threads, what is between in vectors."""
    schedule = open_schedule(mod)
    for name in _names(mod):
        if name in (KEYS, VALUES) or name.startswith(OPERAND):
            _copied(schedule, schedule.get_sblock(name), machine)
    *lead, task = _result(schedule, machine)
    weighted = schedule.get_sblock(WEIGHTED)
    copy = schedule.cache_write(weighted, 0, "global")
    inside = (TOTAL, TOTAL + SIDE, WEIGHTS, MOST, MOST + SIDE, MASKED)
    for block in (copy, weighted, *map(schedule.get_sblock, inside)):
        schedule.compute_at(block, task, preserve_unit_loops=True)
    _place_scores(schedule)
    schedule.parallel(schedule.fuse(*lead, task))  # decomposing comes later: parallel wants reductions in one block
    _weighted(schedule, weighted, copy, machine)
    for name in (TOTAL + SIDE, MOST + SIDE):
        _side(schedule, name, machine)
    _vectors(schedule, schedule.get_sblock(WEIGHTS), machine)
    _scores(schedule, machine)
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
    task, _ = schedule.split(row, [None, QUERIES])
    _vectors(schedule, block, machine)
    return [*lead, task]


def _weighted(schedule: Any, block: Any, copy: Any, machine: Machine) -> None:
    """Sums of values: a few rows times two vectors stay in registers."""
    *_, row, output, group, step = schedule.get_loops(block)
    part, vectors, lanes = _in_vectors(schedule, output, machine)
    schedule.reorder(part, group, step, row, vectors, lanes)
    schedule.reverse_compute_at(copy, part, preserve_unit_loops=True)
    unroll_and_vectorize(schedule, [row, vectors, lanes])
    _vectors(schedule, copy, machine)
    initial = schedule.decompose_reduction(block, group)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-3:])


def _place_scores(schedule: Any) -> None:
    """Scores of all queries of a task, two vectors of keys at a time."""
    *_, row, group, place = schedule.get_loops(schedule.get_sblock(MASKED))
    schedule.reorder(group, row, place)
    schedule.compute_at(schedule.get_sblock(SCORES), group, preserve_unit_loops=True)


def _scores(schedule: Any, machine: Machine) -> None:
    block = schedule.get_sblock(SCORES)
    *_, row, _, place, step = schedule.get_loops(block)
    vectors, lanes = schedule.split(place, [None, machine.vector])
    schedule.reorder(step, row, vectors, lanes)
    unroll_and_vectorize(schedule, [row, vectors, lanes])
    _vectors(schedule, schedule.get_sblock(MASKED), machine)
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


def _in_vectors(schedule: Any, loop: Any, machine: Machine) -> tuple[Any, Any, Any]:
    """Split a loop in parts of two vectors, or of what divides it."""
    extent = int(schedule.get(loop).extent)
    lanes = next(width for width in (machine.vector, machine.vector // 2, 4, 2, 1) if extent % width == 0)
    vectors = 2 if extent // lanes % 2 == 0 else 1
    part, inner, lane = schedule.split(loop, [None, vectors, lanes])
    return part, inner, lane
