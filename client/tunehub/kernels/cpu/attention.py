"""The schedule of :func:`tunehub.kernels.te.attention.attention`: a few queries of a head after the other.

All scores of a task stay in cache, so that their softmax is the plain one; results are divided by sums of weights at
the end (Dao et al. 2022, arXiv 2205.14135).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tunehub.kernels.cpu import amx, dot_product, pairs
from tunehub.kernels.cpu.amx import Matrices
from tunehub.kernels.cpu.base import Machine
from tunehub.kernels.cpu.lane_sums import sum_lanes
from tunehub.kernels.cpu.matrix_functions import BY_PAIRS, BY_WORDS, MatrixProduct, multiply_matrices
from tunehub.kernels.cpu.pair_copies import copy_pairs
from tunehub.kernels.cpu.pairs import LANES
from tunehub.kernels.cpu.word_copies import copy_words
from tunehub.kernels.te.attention import (
    KEYS,
    MASKED,
    MOST,
    NARROW_SCORES,
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
from tunehub.kernels.te.grouped import ATTENTION_WORDS, NARROW, TILES, WORDS, Groups
from tunehub.kernels.te.integer_attention import BEFORE, INSIDE, QUERY_SUMS, WEIGHT_SUMS
from tunehub.tir.nodes import blocks_in, integer, main_module, plain_extent
from tunehub.tir.precision import PRECISION
from tunehub.tir.schedules import open_schedule, unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, Schedule

NAME = "attention"  # in reports
_MOST_ACCUMULATORS = 16  # vectors of them in registers
_GROUPED_SCORES = {**NARROW_SCORES, WORDS[4]: ATTENTION_WORDS}


def is_attention(mod: IRModule) -> bool:
    """Whether ``main`` of ``mod`` is that kernel and nothing else."""
    names = _names(mod)
    return bool(names) and names[-1] == RESULT and {KEYS, WEIGHTED} <= set(names)


def lacks(mod: IRModule, target: Target) -> str | None:
    """Why ``target`` cannot have the instructions that the kernel needs, or None."""
    by = _groups(_names(mod))
    if by is None:
        return None
    if by == WORDS[4]:
        return dot_product.doubt(target, LANES, by.size)
    return amx.doubt(target, NARROW) if by == TILES else pairs.doubt(target)


def schedule_attention(mod: IRModule, machine: Machine) -> Schedule:
    """The schedule: keys copied and tasks done on all threads, what is between in vectors."""
    names = _names(mod)
    by = _groups(names)
    # Step 1. Keys, values and masks are copied in groups of vectors, once for all queries of a head.
    # TVM's own loops, by which schedules are verified, keep in float32 what is rounded within the kernel
    rounds = by is not None and by.kind == NARROW
    schedule = open_schedule(main_module(mod["main"].with_attr(PRECISION, NARROW)) if rounds else mod)
    for name in names:
        if name in (KEYS, VALUES) or name.startswith(OPERAND):
            _copied(schedule, schedule.get_sblock(name), machine, None if name.startswith(OPERAND) else by)
    # Step 2. Tasks: a few queries of a head, with all that is between in their loops: scores, softmax, weighted values.
    *lead, task = _result(schedule, machine)
    if by is None:
        return _wide(schedule, lead, task, machine)
    return _narrow(schedule, lead, task, machine, by, names)


def _groups(names: Sequence[str]) -> Groups | None:
    """How products that are not of float32 are computed."""
    return next((by for by, name in _GROUPED_SCORES.items() if name in names), None)


def _wide(schedule: Schedule, lead: Sequence[LoopRV], task: LoopRV, machine: Machine) -> Schedule:
    weighted = schedule.get_sblock(WEIGHTED)
    copy = schedule.cache_write(weighted, 0, "global")
    inside = (TOTAL, TOTAL + SIDE, WEIGHTS, MOST, MOST + SIDE, MASKED)
    for block in (copy, weighted, *map(schedule.get_sblock, inside)):
        schedule.compute_at(block, task, preserve_unit_loops=True)
    _place_scores(schedule, SCORES)
    schedule.parallel(schedule.fuse(*lead, task))  # decomposing comes later: parallel wants reductions in one block
    _weighted(schedule, weighted, copy, machine)
    _softmax(schedule, machine)
    _scores(schedule, machine)
    return schedule


def _narrow(
    schedule: Schedule, lead: Sequence[LoopRV], task: LoopRV, machine: Machine, by: Groups, names: Sequence[str]
) -> Schedule:
    scores, integers = _GROUPED_SCORES[by], by == WORDS[4]
    for name in (WEIGHTED, *INSIDE, TOTAL, TOTAL + SIDE, WEIGHTS, MOST, MOST + SIDE, MASKED):
        if name in names:
            schedule.compute_at(schedule.get_sblock(name), task, preserve_unit_loops=True)
    if by == TILES:
        schedule.compute_at(schedule.get_sblock(scores), task, preserve_unit_loops=True)
    else:
        _place_scores(schedule, scores)
    for name in (name for name in BEFORE if name in names):
        schedule.compute_at(schedule.get_sblock(name), task, preserve_unit_loops=True)
    task = schedule.fuse(*lead, task)
    schedule.parallel(task)
    for name in (TOTAL, MOST, QUERY_SUMS, WEIGHT_SUMS):
        if name in names:
            _side(schedule, name + SIDE, machine)
        if name in names and name != MOST:
            sum_lanes(schedule, schedule.get_sblock(name))
    for name in (ROUNDED, ROUNDED_WEIGHTS, WEIGHTS, MASKED):
        if name in names:
            _vectors(schedule, schedule.get_sblock(name), machine)
    if by == TILES:
        _by_tiles(schedule, task, schedule.get_sblock(scores))
    else:
        _by_groups(schedule, schedule.get_sblock(scores), BY_WORDS if integers else BY_PAIRS)
    return schedule


def _by_groups(schedule: Schedule, scores: BlockRV, by: MatrixProduct) -> None:
    """Both products, sums in registers: of a group of keys, and of one or two vectors of outputs."""
    row, group, place, step, item = schedule.get_loops(scores)[-5:]
    schedule.reorder(group, row, place, step, item)
    multiply_matrices(schedule, schedule.blockize(row), group, by, rows=(-2, -3), step=-3)
    row, output, group, step, item = schedule.get_loops(schedule.get_sblock(WEIGHTED))[-5:]
    extent = int(schedule.get(output).extent)
    vectors = 2 if extent % (2 * LANES) == 0 and 2 * int(schedule.get(row).extent) <= _MOST_ACCUMULATORS else 1
    part, lanes = schedule.split(output, [None, vectors * LANES])
    schedule.reorder(part, row, lanes, group, step, item)
    multiply_matrices(schedule, schedule.blockize(row), part, by, rows=(-3, -2), step=-3)


def _by_tiles(schedule: Schedule, task: LoopRV, scores: BlockRV) -> None:
    """Both products of all queries of a task at once, by instructions for matrices."""
    row, group, place, *steps = schedule.get_loops(scores)[-6:]
    depth, keys, rows = (int(schedule.get(loop).extent) for loop in (steps[0], place, row))
    groups = plain_extent(schedule.get(group).extent)
    axis = len(schedule.get(scores).iter_vars) - 6  # of rows
    product = Matrices(
        rows=rows,
        images=1,
        blocks=groups,
        lanes=keys,
        weights_stay=False,
        tall=2,
        parts=1,
        reduction=(depth,),
        data_row=(axis, 1),
        data_image=(axis, 0),
        data_steps=(),
        sums_row=axis,
        sums_image=axis,
        sums_block=axis + 1,
    )
    amx.multiply_by_tiles(schedule, schedule.blockize(row), task, product)
    weighted = schedule.get_sblock(WEIGHTED)
    row, output, *steps = schedule.get_loops(weighted)[-6:]
    outputs, inner = (int(schedule.get(loop).extent) for loop in (output, steps[1]))
    sums = replace(
        product, blocks=1, lanes=outputs, reduction=(groups, inner), data_steps=((axis + 1, 1),), sums_block=axis
    )
    amx.multiply_by_tiles(schedule, schedule.blockize(row), task, sums)


def _copied(schedule: Schedule, block: BlockRV, machine: Machine, by: Groups | None) -> None:
    """A copy in groups of keys, on threads; read along what lies side by side."""
    *outer, row, last = schedule.get_loops(block)
    copy = copy_words if by == WORDS[4] else copy_pairs
    if by is not None and copy(schedule, block):
        schedule.parallel(schedule.fuse(*outer))
        return
    node = schedule.get(block)
    (source,) = node.reads
    name = getattr(source.region[-1].min, "name", None)
    if name == node.iter_vars[-2].var.name:
        schedule.reorder(last, row)
    elif name == node.iter_vars[-1].var.name:
        _vectors(schedule, block, machine)
    if outer:
        schedule.parallel(schedule.fuse(*outer))


def _names(mod: IRModule) -> list[str]:
    return [str(block.name_hint) for block in blocks_in(mod["main"].body) if len(block.iter_vars)]


def _result(schedule: Schedule, machine: Machine) -> list[LoopRV]:
    """Tile what is written; returns the loops over tasks."""
    block = schedule.get_sblock(RESULT)
    *lead, row, _ = schedule.get_loops(block)
    rows = int(schedule.get(schedule.get_sblock(MASKED)).iter_vars[-3].dom.extent)
    task, _ = schedule.split(row, [None, rows])
    _vectors(schedule, block, machine)
    return [*lead, task]


def _weighted(schedule: Schedule, block: BlockRV, copy: BlockRV, machine: Machine) -> None:
    """Sums of values: a few rows times two vectors stay in registers."""
    *_, row, output, group, step = schedule.get_loops(block)
    part, vectors, lanes = _in_vectors(schedule, output, machine)
    schedule.reorder(part, group, step, row, vectors, lanes)
    schedule.reverse_compute_at(copy, part, preserve_unit_loops=True)
    unroll_and_vectorize(schedule, [row, vectors, lanes])
    _vectors(schedule, copy, machine)
    initial = schedule.decompose_reduction(block, group)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-3:])


def _place_scores(schedule: Schedule, name: str) -> None:
    """Scores of all queries of a task, a vector or two of keys at a time."""
    *_, row, group, place = schedule.get_loops(schedule.get_sblock(MASKED))
    schedule.reorder(group, row, place)
    schedule.compute_at(schedule.get_sblock(name), group, preserve_unit_loops=True)


def _scores(schedule: Schedule, machine: Machine) -> None:
    block = schedule.get_sblock(SCORES)
    *_, row, _, place, step = schedule.get_loops(block)
    vectors, lanes = schedule.split(place, [None, machine.vector])
    schedule.reorder(step, row, vectors, lanes)
    unroll_and_vectorize(schedule, [row, vectors, lanes])
    _vectors(schedule, schedule.get_sblock(MASKED), machine)
    initial = schedule.decompose_reduction(block, step)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-3:])


def _softmax(schedule: Schedule, machine: Machine) -> None:
    for name in (TOTAL + SIDE, MOST + SIDE):
        _side(schedule, name, machine)
    _vectors(schedule, schedule.get_sblock(WEIGHTS), machine)


def _side(schedule: Schedule, name: str, machine: Machine) -> None:
    block = schedule.get_sblock(name)
    *_, place, step = schedule.get_loops(block)
    vectors, lanes = schedule.split(place, [None, machine.vector])
    schedule.reorder(step, vectors, lanes)
    unroll_and_vectorize(schedule, [vectors, lanes])
    initial = schedule.decompose_reduction(block, step)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-2:])


def _vectors(schedule: Schedule, block: BlockRV, machine: Machine) -> None:
    """Vectors along the innermost loop, where they divide it."""
    lanes = schedule.get_loops(block)[-1]
    if (integer(schedule.get(lanes).extent) or 1) % machine.vector == 0:
        _, lanes = schedule.split(lanes, [None, machine.vector])
        schedule.vectorize(lanes)


def _in_vectors(schedule: Schedule, loop: LoopRV, machine: Machine) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Split a loop in parts of two vectors, or of what divides it."""
    extent = int(schedule.get(loop).extent)
    lanes = next(width for width in (machine.vector, machine.vector // 2, 4, 2, 1) if extent % width == 0)
    vectors = 2 if extent // lanes % 2 == 0 else 1
    part, inner, lane = schedule.split(loop, [None, vectors, lanes])
    return part, inner, lane
