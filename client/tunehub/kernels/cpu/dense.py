"""Matmuls: with packed constant weights (``tunehub_dense``), and batched ones of two activations (``matmul``).

The structure is that of :mod:`tunehub.kernels.cpu.conv2d`: accumulators of ``columns`` rows of the result times
``blocks`` vectors of outputs stay in registers while the reduction runs (``topi/x86/dense.py``, ``dense_pack``; the
micro-kernel of Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication"). Packed weights ``[N/o,
K, o]`` come from :func:`tunehub.kernels.te.weights.pack_dense_weight`; the second operand of a plain ``matmul`` is read
as it is, which suits vectors along its last axis.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from tunehub.kernels.cpu import dot_product, pairs
from tunehub.kernels.cpu.base import FLOAT_BYTES, Block, Knobs, Machine, refusing, require, size_of, worth_threads
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.fusion import (
    Surroundings,
    anchored,
    finish_rest,
    gather_epilogue,
    opened,
)
from tunehub.kernels.cpu.instruction import set_groups_apart
from tunehub.kernels.cpu.register_tile import cost, tiles, uneven, workspace
from tunehub.kernels.te.blocked import DENSE
from tunehub.kernels.te.grouped import DENSE_INT8, DENSE_PAIRS
from tunehub.tir.nodes import buffer_of
from tunehub.tir.schedules import open_schedule, unroll_and_vectorize
from tunehub.tir.statements import prefetch, when

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, SBlock, Schedule, Stmt

_MATMULS = ("matmul", "T_batch_matmul_NN", "T_matmul_NN")
_MAX_UNROLLED, _MEASURED_TILES = 256, 12
_LINE = 64  # bytes
_WEIGHT_LOADS = 2.2  # as Rates has them: by which tiles of 8 x 3, 6 x 4 and 12 x 2 come in the order of their times
_KEPT_BYTES = 1 << 20  # of weights: 0.6 MB are read faster again for each 28 rows, 1.2 MB for 14 took twice as long


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseWorkload:
    """``lead``: extents of the batch axes; ``rows`` of the result in each; ``outputs``: N, ``depth``: K.

    ``packed``: blocks of weights and outputs in one; None when both operands are plain. ``group``: products that one
    instruction adds up; 1 for float32. ``depth`` counts groups.
    """

    anchor: str
    lead: tuple[int, ...]
    rows: int
    outputs: int
    depth: int
    packed: tuple[int, int] | None
    weight_bytes: int
    around: Surroundings
    group: int = 1

    @property
    def paired(self) -> bool:
        """True when groups are pairs of bfloat16 (:mod:`tunehub.kernels.cpu.pairs`)."""
        return self.anchor == DENSE_PAIRS

    @property
    def of_bytes(self) -> bool:
        """True when an instruction multiplies a line of weights, four bytes of 16 outputs."""
        return self.anchor == DENSE_INT8 and self.packed is not None and self.packed[1] * self.group == _LINE

    @property
    def length(self) -> int:
        """The rows that tiles may share: all of them where rows are in one axis only.

        A tile over two axes would have an epilogue on the box around it, which other tiles write, too.
        """
        return size_of(self.lead) if self.merged and self.rows == 1 else self.rows

    @property
    def merged(self) -> bool:
        """True when the batch axes and the rows are one loop: one of them at most is longer than 1."""
        return self.packed is not None and sum(extent > 1 for extent in (*self.lead, self.rows)) <= 1

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-add, or group of them."""
        return 2 * size_of(self.lead) * self.rows * self.outputs * self.depth

    def outer(self, lanes: int) -> int:
        """The number of vectors of ``lanes`` outputs."""
        return -(-self.outputs // lanes)

    def lanes(self, machine: Machine) -> int:
        """Outputs in one vector of sums: the weights' block, or what divides a plain operand's last axis.

        Where nothing near the machine's vector does, the operand is filled up with zeros.
        """
        if self.packed:
            return self.packed[1]
        fitting = max(divisors(self.outputs, machine.vector))
        return fitting if 2 * fitting >= min(machine.vector, self.outputs) else machine.vector


class DenseKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``columns`` × ``blocks`` of ``lanes`` outputs: the register tile. ``row``: rows in a task of the thread pool.

    ``order``: whether the loop over outputs is outside that over rows or inside. ``step``: steps of the reduction
    that are unrolled. ``parallel``: use the thread pool.
    """

    columns: Annotated[int, Meta(ge=1, le=32)]
    blocks: Annotated[int, Meta(ge=1, le=16)]
    lanes: Annotated[int, Meta(ge=1, le=64)]
    row: Annotated[int, Meta(ge=1, le=1 << 20)]
    order: Literal["outputs", "rows"] = "outputs"
    step: Annotated[int, Meta(ge=1, le=16)] = 1
    parallel: bool = True


NAME, VERSION, KNOBS = "dense", 2, DenseKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> DenseWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when its anchor is not such a matmul."""
    found = anchored(blocks, (DENSE, DENSE_PAIRS, *_MATMULS)) or anchored(blocks, (DENSE_INT8,), ("int32",))
    if found is None or (found[1].pad and found[0].name != DENSE_INT8):
        return None
    return _describe(mod, *found)


def knob_space(workload: DenseWorkload, machine: Machine) -> list[DenseKnobs]:
    """The choices worth measuring, the default's first."""
    found = {default_knobs(workload, machine): None}
    lanes, parallel = workload.lanes(machine), _parallel(workload, machine)
    orders: tuple[Literal["outputs", "rows"], ...] = ("outputs", "rows")
    for row, columns, blocks in _choices(workload, machine)[:_MEASURED_TILES]:
        for order in orders:
            for step in [d for d in (1, 4) if workload.depth % d == 0 and d * columns * blocks <= _MAX_UNROLLED]:
                knobs = DenseKnobs(
                    columns=columns, blocks=blocks, lanes=lanes, row=row, order=order, step=step, parallel=parallel
                )
                found.setdefault(knobs)
    return list(found)


def default_knobs(workload: DenseWorkload, machine: Machine) -> DenseKnobs:
    """The choice of a cost model, without measuring."""
    lanes = workload.lanes(machine)
    row, columns, blocks = _choices(workload, machine)[0]
    return DenseKnobs(
        columns=columns,
        blocks=blocks,
        lanes=lanes,
        row=row,
        order="rows" if workload.outputs % lanes and size_of(workload.lead) > 1 else "outputs",
        parallel=_parallel(workload, machine),
    )


def lacks(workload: DenseWorkload, target: Target) -> str | None:
    """Why ``target`` cannot have the instruction for ``workload``, or None."""
    if workload.group == 1 or workload.packed is None:
        return None
    return pairs.doubt(target) if workload.paired else dot_product.doubt(target, workload.packed[1], workload.group)


@refusing
def apply(mod: IRModule, workload: DenseWorkload, knobs: DenseKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    _check(workload, knobs)
    # Step 1. Producers are inlined; all that follows is one block, the epilogue.
    schedule, anchor = opened(mod, workload.anchor, workload.around)
    around = _filled_up(schedule, anchor, workload, knobs)
    last = gather_epilogue(schedule, around, anchor)
    if workload.group > 1:
        anchor = set_groups_apart(schedule, anchor, lanes=-3)
    # Step 2. Register tiles, outer loops among threads; the epilogue reads a tile while it is in registers.
    outer, at, reduction = _tile(schedule, anchor, workload, knobs)
    schedule.reverse_compute_at(last, at, preserve_unit_loops=True)
    if knobs.parallel:
        schedule.parallel(outer)
    _vectorize_epilogue(schedule, last, knobs, packed=workload.packed is not None)
    # Step 3. Accumulators zeroed before the reduction; multiply-adds of vectors, or the instruction for groups.
    _accumulate(schedule, anchor, (at, reduction), knobs, workload)
    # Step 4. Operands that are filled up; code of its own for the last rows.
    if workload.around.pad is not None:
        _widened(schedule, schedule.get_sblock(workload.around.pad), knobs)
    if knobs.row % knobs.columns:
        schedule.annotate(at, "pragma_loop_partition_hint", 1)
    finish_rest(schedule, workload.around, parallel=knobs.parallel)
    return schedule


def _accumulate(
    schedule: Schedule, anchor: BlockRV, loops: tuple[LoopRV, LoopRV], knobs: DenseKnobs, workload: DenseWorkload
) -> None:
    """``loops``: over tiles, and that of the reduction."""
    at, reduction = loops
    begun = schedule.decompose_reduction(anchor, reduction)
    if workload.group > 1:
        if workload.paired:
            pairs.multiply_in_pairs(schedule, anchor, at)
        else:
            before = functools.partial(_next_panel, workload=workload, knobs=knobs)
            dot_product.multiply_integers(schedule, anchor, knobs.lanes, workload.group, before)
        (begun,) = schedule.get_child_blocks(begun)
    unroll_and_vectorize(schedule, schedule.get_loops(begun)[-3:])


def _next_panel(block: SBlock, *, workload: DenseWorkload, knobs: DenseKnobs) -> Stmt | None:
    """What a step of a tile asks memory for: a line of the weights that all tiles of rows are multiplied with next, as
    evenly as there is time. None where several tasks share weights, and where tiles are too few."""
    from tvm import tirx

    tiles = -(-workload.length // knobs.columns)
    whole = knobs.order == "outputs" and knobs.row == workload.length == size_of(workload.lead) * workload.rows
    if not (workload.of_bytes and whole and tiles >= knobs.blocks):
        return None
    weights = next(buffer for buffer in map(buffer_of, block.reads) if buffer.dtype == "int8")
    *rows, outer, _, step, _ = block.iter_vars
    row, outer, step = next(each for each in rows if int(each.dom.extent) == workload.length).var, outer.var, step.var
    line = tirx.floordiv((tirx.floordiv(row, knobs.columns) * workload.depth + step) * knobs.blocks, tiles)
    panel = tirx.min(outer + knobs.blocks, workload.outer(knobs.lanes) - knobs.blocks)
    asked = prefetch(weights, panel, line, 0, 0, cache=2)
    first = tirx.all(tirx.floormod(row, knobs.columns) == 0, tirx.floormod(outer, knobs.blocks) == 0)
    return when(first, asked)


def _describe(mod: IRModule, block: Block, around: Surroundings) -> DenseWorkload | None:
    grouped = block.name in (DENSE_INT8, DENSE_PAIRS)
    if len(block.reduction) != 1 + grouped or len(block.spatial) < 2:
        return None
    packed = grouped or block.name == DENSE
    depth, group = (*block.reduction, 1)[:2]
    if packed:
        *lead, rows, outer, lanes = block.spatial
        outputs = outer * lanes
    else:
        *lead, rows, outputs = block.spatial
        if not _reads_rows(mod, block.name):
            return None
    return DenseWorkload(
        anchor=block.name,
        lead=tuple(lead),
        rows=rows,
        outputs=outputs,
        depth=depth,
        packed=(outer, lanes) if packed else None,
        weight_bytes=FLOAT_BYTES * outputs * depth * (1 if packed else size_of(tuple(lead))),
        around=around,
        group=group,
    )


def _reads_rows(mod: IRModule, name: str) -> bool:
    """True when the right operand's last index is the result's: vectors of it lie side by side."""
    schedule = open_schedule(mod)
    block = schedule.get(schedule.get_sblock(name))
    last = [region.region[-1].min for region in block.reads]
    return any(getattr(index, "name", None) == block.iter_vars[-2].var.name for index in last[1:])


def _check(workload: DenseWorkload, knobs: DenseKnobs) -> None:
    lanes = workload.packed[1] if workload.packed else knobs.lanes
    fits = knobs.lanes == lanes if workload.packed else lanes <= workload.outputs
    require(fits, f"lanes: {knobs.lanes} does not fit {workload.outputs} outputs")
    outer = workload.outer(lanes)
    require(outer % knobs.blocks == 0, f"blocks: {knobs.blocks} does not divide {outer}")
    require(workload.length % knobs.row == 0, f"row: {knobs.row} does not divide {workload.length}")
    require(knobs.columns <= knobs.row, f"columns: {knobs.columns} is more than a task of {knobs.row} rows")
    require(_ends_with_tasks(workload, knobs.row, knobs.columns), f"columns: {knobs.columns} ends inside a task")
    require(workload.depth % knobs.step == 0, f"step: {knobs.step} does not divide {workload.depth}")
    unrolled = knobs.columns * knobs.blocks * knobs.step
    require(unrolled <= _MAX_UNROLLED, f"columns, blocks, step: {unrolled} multiply-adds, at most {_MAX_UNROLLED}")


def _filled_up(schedule: Schedule, anchor: BlockRV, workload: DenseWorkload, knobs: DenseKnobs) -> Surroundings:
    """Copy a plain right operand whose last axis ``lanes`` does not divide, with zeros behind it.

    Returns what is around the anchor then: the product is cut off in front of the epilogue.
    """
    if workload.outputs % knobs.lanes == 0:
        return workload.around
    axes = len(schedule.get(anchor).iter_vars)
    schedule.pad_einsum(anchor, [1] * (axes - 2) + [knobs.lanes, 1])
    (cut,) = schedule.get_consumers(anchor)
    for copy in schedule.get_producers(anchor):
        *outer, last = schedule.get_loops(copy)
        _, lanes = schedule.split(last, [None, knobs.lanes])
        schedule.vectorize(lanes)
        if knobs.parallel and len(outer) > 1:
            schedule.parallel(schedule.fuse(*outer))
    return replace(workload.around, consumers=(str(schedule.get(cut).name_hint), *workload.around.consumers))


def _tile(
    schedule: Schedule, anchor: BlockRV, workload: DenseWorkload, knobs: DenseKnobs
) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Tile the anchor; returns the loop for the thread pool, that of the tiles, and the reduction's."""
    loops = list(schedule.get_loops(anchor))
    *rows, outputs, k = loops if not workload.packed else _packed_loops(loops, grouped=workload.group > 1)
    lead = [] if workload.merged else rows[:-1]
    row = schedule.fuse(*rows) if workload.merged and len(rows) > 1 else rows[-1]
    if workload.packed:
        outer, *lane = outputs
        outer, block = schedule.split(outer, [None, knobs.blocks])
    else:
        outer, block, *lane = schedule.split(outputs, [None, knobs.blocks, knobs.lanes])
    task, column = schedule.split(row, [None, knobs.row])
    outer_column, column = schedule.split(column, [None, knobs.columns])
    outer_k, step = schedule.split(k, [None, knobs.step])
    head = _head(workload, lead, outer, task) if knobs.order == "outputs" else [*lead, task, outer]
    schedule.reorder(*head, outer_column, outer_k, step, block, column, *lane)
    if workload.of_bytes and knobs.columns > knobs.blocks:  # the fewer operands stay in registers
        schedule.reorder(column, block)
    for loop in (step, block, column):
        schedule.unroll(loop)
    if workload.group == 1:
        schedule.vectorize(*lane)
    if head[-1] is outer and workload.outputs % knobs.lanes:  # the last vectors, cut off, get code of their own
        schedule.annotate(head.pop(), "pragma_loop_partition_hint", 1)
    return schedule.fuse(*head), outer_column, outer_k


def _head(workload: DenseWorkload, lead: list[LoopRV], outer: LoopRV, task: LoopRV) -> list[LoopRV]:
    """Loops over batch axes, blocks of outputs and tasks. Packed weights are those of all rows: what the second cache
    does not keep beside the rows is read once, not for each part of the batch."""
    once = workload.packed is not None and workload.weight_bytes > _KEPT_BYTES
    return [outer, *lead, task] if once else [*lead, outer, task]


def _packed_loops(loops: list[LoopRV], *, grouped: bool) -> list[LoopRV | Sequence[LoopRV]]:
    """Rows, blocks with their lanes, and the reduction; groups have their lanes in a block of their own."""
    if grouped:
        *rows, outer, k = loops
        return [*rows, (outer,), k]
    *rows, outer, lane, k = loops
    return [*rows, (outer, lane), k]


def _vectorize_epilogue(schedule: Schedule, last: BlockRV, knobs: DenseKnobs, *, packed: bool) -> None:
    axes = schedule.get(last).iter_vars
    if packed and int(axes[-1].dom.extent) % (knobs.blocks * knobs.lanes):
        return  # a condition on each output: as one loop, LLVM has it compiled in half of the time
    *_, column, outputs = schedule.get_loops(last)[-len(axes) :]
    block, lane = schedule.split(outputs, [None, knobs.lanes])
    schedule.reorder(block, column, lane)
    unroll_and_vectorize(schedule, [block, column, lane])


def _widened(schedule: Schedule, block: BlockRV, knobs: DenseKnobs) -> None:
    """The copy of the data in 16 bits."""
    *outer, last = schedule.get_loops(block)
    lanes = max(divisors(int(schedule.get(last).extent), knobs.lanes))
    schedule.vectorize(schedule.split(last, [None, lanes])[1])
    if knobs.parallel and outer:
        schedule.parallel(schedule.fuse(*outer))


def _rows(workload: DenseWorkload) -> list[int]:
    """Rows of a task: all, or a divisor that still fills register tiles."""
    return [row for row in divisors(workload.length, workload.length) if row >= 24] or [workload.length]


def _ends_with_tasks(workload: DenseWorkload, row: int, columns: int) -> bool:
    """True when no tile of a task is a remainder but at the end of all rows: the epilogue runs on the whole tile, and
    its rows beyond a task are those of the next."""
    return row == workload.length or row % columns == 0


def _choices(workload: DenseWorkload, machine: Machine) -> list[tuple[int, int, int]]:
    """Rows of a task, columns and blocks of a tile: the best by the model first."""
    machine, lanes = _loading(workload, machine), workload.lanes(machine)
    vectors, rows = workload.outer(lanes), size_of(workload.lead) * workload.rows
    found = [
        (row, c, b)
        for row in _rows(workload)
        for c, b in tiles(row, vectors, lanes, machine, fewest=workload.of_bytes)
        if _ends_with_tasks(workload, row, c)
    ]

    def seconds(choice: tuple[int, int, int]) -> tuple[float, int]:
        row, columns, blocks = choice
        steps = workload.depth * (-(-row // columns) if workload.of_bytes else 1)
        more = workspace(columns * blocks * lanes, steps) / (columns * blocks)
        each = (cost(choice, lanes, machine) + more) * uneven(max(1, rows // row) * (vectors // blocks), machine)
        return each, -row if workload.of_bytes else 0

    return sorted(found, key=seconds)


def _loading(workload: DenseWorkload, machine: Machine) -> Machine:
    """``machine`` as tiles of ``workload`` are chosen for. Lines of bytes are multiplied so fast that loads count."""
    return machine if workload.group == 1 else machine.with_cache(_WEIGHT_LOADS if workload.of_bytes else None)


def _parallel(workload: DenseWorkload, machine: Machine) -> bool:
    return worth_threads(workload.flops, workload.weight_bytes, machine)
