"""Matmuls and convolutions whose weights are packed for AMX (:mod:`tunehub.kernels.te.grouped`).

A task is rows of the result times blocks of outputs with all of the reduction: a product of matrices in place of its
loops (:mod:`tunehub.kernels.cpu.amx`), whose sums lie in memory of the thread until the epilogue has read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, structs

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.amx import Matrices, multiply_by_tiles
from tunehub.kernels.cpu.base import Block, Knobs, Machine, refusing, require, size_of, worth_threads
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.fusion import Surroundings, anchored, finish_rest, gather_epilogue, opened, place_pad
from tunehub.kernels.cpu.tile_pieces import TILE, Piece, pieces_of
from tunehub.kernels.te.grouped import (
    CONV2D_TILES,
    DENSE_INT8,
    DENSE_PAIRS,
    DENSE_TILES,
    PAIRS,
    TILES,
    TILES_INT8,
)
from tunehub.tir.nodes import element_type, symbolic

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, BufferRegion, IRModule, LoopRV, PrimExpr, SBlock, Schedule

_SUM_BYTES = 4
_MOST_ACCUMULATORS = 1 << 14  # of a task: 64 KiB, what the second level of the cache has room for beside operands
_IMAGE_AXES, _REDUCTIONS = 5, 6  # of the data of a convolution, and loops of its reduction
_STEPS_OF_PART = (8, 16, 32)  # of the reduction: their weights stay in the first cache
_VECTOR = 64  # bytes of a vector of sums, and of a row of a tile
_ORDERS: tuple[Literal["outputs", "rows"], ...] = ("outputs", "rows")
_STAYS: tuple[Literal["weights", "data"], ...] = ("weights", "data")
_SIZES = {DENSE_PAIRS: PAIRS.size, DENSE_INT8: TILES_INT8.size}  # of groups
_SHAPES, _MEASURED = 16, 64  # rows and blocks, and choices, that are worth measuring
# Fitted to times of 95 products and convolutions with up to 30 choices each, of two threads on a quiet machine and on
# one with other programs (docs/benchmarks.md): cycles, bytes, bytes a cycle.
_FIRST, _SECOND = 24 << 10, 1700 << 10  # levels of the cache, as far as a task has them for operands or for sums
_LOAD = 0.64  # of a row of a tile, of which one is multiplied in a cycle
_FROM_SECOND, _FROM_OTHERS = 50, 4
_SPILLED = 2.25  # for each vector of sums of a task that has more than stay in the first level
_TASK = 2800
_PADDED, _DATA = 4.7, 0.2  # of what bytes of weights take that were not there: data that cores padded, and others


@dataclass(frozen=True, kw_only=True, slots=True)
class TileWorkload:
    """``lead``: extents before the rows of a task. ``rows``: of the result, or of the image; ``columns`` in each (1 for
    matmuls). ``outputs``: blocks and lanes. ``row_axis``: of rows. ``reduction``: without what a group adds up.
    ``pointwise``: rows of the image follow each other in data as in the result. ``group``: numbers in a group.
    ``stepped``: see :class:`tunehub.kernels.cpu.amx.Matrices`."""

    anchor: str
    lead: tuple[int, ...]
    rows: int
    columns: int
    outputs: tuple[int, int]
    row_axis: int
    reduction: tuple[int, ...]
    pointwise: bool
    weight_bytes: int
    data_bytes: int
    group: int
    around: Surroundings
    stepped: bool = True

    @property
    def flops(self) -> int:
        """Two for each group that is multiplied and added."""
        return 2 * size_of((*self.lead, self.rows, self.columns)) * size_of(self.outputs) * size_of(self.reduction)


class MatrixTileKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``rows`` of the result, or of the image, times ``blocks`` of outputs: a task. ``order``: whether the loop over
    blocks is outside that over rows or inside. ``stays``: in the cache inside a task, while all of the other is read.
    ``tall``: tiles of rows in registers together. ``parts``: of the reduction (its first loop), one after the other for
    all rows. ``parallel``: use the thread pool."""

    rows: Annotated[int, Meta(ge=1, le=1 << 20)]
    blocks: Annotated[int, Meta(ge=1, le=256)]
    order: Literal["outputs", "rows"] = "outputs"
    stays: Literal["weights", "data"] = "weights"
    tall: Annotated[int, Meta(ge=1, le=2)] = 2
    parts: Annotated[int, Meta(ge=1, le=1 << 16)] = 1
    parallel: bool = True


NAME, VERSION, KNOBS = "matrix_tiles", 1, MatrixTileKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> TileWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when its anchor is not such a product."""
    found = anchored(blocks, (DENSE_TILES, CONV2D_TILES), ("float32", "int32"))
    if found is None:
        return None
    block, around = found
    return _described(block, around)


def rows_of(mod: IRModule, blocks: tuple[Block, ...]) -> TileWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``) where it is a product whose weights are packed for instructions for
    vectors, and lie in memory as those for matrices want them; else None."""
    found = anchored(blocks, (DENSE_PAIRS,)) or anchored(blocks, (DENSE_INT8,), ("int32",))
    if found is None or len(found[0].reduction) != len(("groups", "item")) or found[1].pad is not None:
        return None
    block, around = found
    groups, size = block.reduction
    if size != _SIZES[block.name] or groups % TILES.steps or around.operands or block.spatial[-1] % TILE:
        return None
    reduction = (groups // TILES.steps, TILES.steps, size)
    return _described(replace(block, name=DENSE_TILES, reduction=reduction), around, anchor=block.name)


def _described(block: Block, around: Surroundings, anchor: str | None = None) -> TileWorkload:
    """``anchor``: its name in the function, where weights have no axis for the groups of a step."""
    reduction, lead = block.reduction[:-1], block.spatial[:1]
    rank = 5 if block.name == CONV2D_TILES else len(block.spatial) - 1
    data, group = next(shape for shape in block.reads if len(shape) == rank), block.reduction[-1]
    if block.name == CONV2D_TILES:
        _, outer, rows, columns, lanes = block.spatial
        row_axis = 2
        pointwise = reduction[1:3] == (1, 1) and around.pad is None and data[2:4] == (rows, columns)
    else:
        *before, outer, lanes = block.spatial
        lengths = [axis for axis, extent in enumerate(before) if extent > 1]
        row_axis = lengths[-1] if lengths else len(before) - 1
        rows, columns, pointwise = before[row_axis], 1, True
        lead = (*before[:row_axis], *before[row_axis + 1 :])
    return TileWorkload(
        anchor=anchor or block.name,
        lead=lead,
        rows=rows,
        columns=columns,
        outputs=(outer, lanes),
        row_axis=row_axis,
        reduction=reduction,
        pointwise=pointwise,
        weight_bytes=_SUM_BYTES * outer * lanes * size_of(reduction),
        data_bytes=_SUM_BYTES * size_of(data) // group,
        group=group,
        around=around,
        stepped=anchor is None,
    )


def knob_space(workload: TileWorkload, machine: Machine) -> list[MatrixTileKnobs]:
    """The choices worth measuring, the best by the model first, which is the default."""
    parallel = _parallel(workload, machine)
    found = [
        MatrixTileKnobs(rows=rows, blocks=blocks, order=order, stays=stays, tall=tall, parts=parts, parallel=parallel)
        for rows, blocks in _shapes(workload, machine)
        for tall in _tall(workload)
        for parts in _parts(workload)
        for stays in _STAYS
        for order in _ORDERS
    ]
    return sorted(found, key=lambda knobs: _cost(workload, knobs, machine))[:_MEASURED]


def _one_tile(workload: TileWorkload) -> bool:
    """Whether a row of the image is no longer than a tile."""
    return not workload.pointwise and workload.columns <= TILE


def _tall(workload: TileWorkload) -> tuple[int, ...]:
    """Tiles of rows in registers together."""
    return (1,) if _one_tile(workload) else (1, 2)


def _parts(workload: TileWorkload) -> list[int]:
    """Parts of the reduction."""
    whole, inner = workload.reduction[0], math.prod(workload.reduction[1:-1])
    most = [max(1, whole * inner // steps) for steps in _STEPS_OF_PART]
    return sorted({1, *(max(each for each in divisors(whole) if each <= part) for part in most)})


def default_knobs(workload: TileWorkload, machine: Machine) -> MatrixTileKnobs:
    """The choice of a cost model, without measuring."""
    return knob_space(workload, machine)[0]


def lacks(workload: TileWorkload, target: Target) -> str | None:
    """Why ``target`` cannot have the instructions for ``workload``, or None."""
    return amx.doubt(target, "bfloat16" if workload.group == TILES.size else "uint8")


@refusing
def apply(mod: IRModule, workload: TileWorkload, knobs: MatrixTileKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    _check(workload, knobs)
    # Step 1. Producers are inlined; all that follows is one block, the epilogue.
    schedule, anchor = opened(mod, workload.anchor, workload.around)
    matrices = _matrices(schedule, anchor, workload, knobs)
    last = gather_epilogue(schedule, workload.around, anchor)
    # Step 2. Tasks of rows times blocks of outputs, among threads; the epilogue after each.
    head, inside = _tile(schedule, anchor, workload, knobs)
    block = schedule.blockize(inside)
    task = schedule.fuse(*head)
    schedule.reverse_compute_at(last, task, preserve_unit_loops=True)
    if knobs.parallel:
        schedule.parallel(task)
    *_, innermost = schedule.get_loops(last)
    if int(schedule.get(innermost).extent) % TILE == 0:
        schedule.vectorize(schedule.split(innermost, [None, TILE])[1])
    # Step 3. Tiles of AMX in place of the loops inside of a task: zero, load, multiply, store.
    multiply_by_tiles(schedule, block, task, matrices)
    place_pad(schedule, workload.around.pad, "whole", task, parallel=knobs.parallel)
    finish_rest(schedule, workload.around, parallel=knobs.parallel)
    return schedule


def _check(workload: TileWorkload, knobs: MatrixTileKnobs) -> None:
    outer, lanes = workload.outputs
    require(workload.rows % knobs.rows == 0, f"rows: {knobs.rows} does not divide {workload.rows}")
    require(outer % knobs.blocks == 0, f"blocks: {knobs.blocks} does not divide {outer}")
    require(workload.reduction[0] % knobs.parts == 0, f"parts: {knobs.parts} do not divide {workload.reduction[0]}")
    sums = knobs.rows * workload.columns * knobs.blocks * lanes
    smallest = knobs.rows == 1 and knobs.blocks == 1
    require(
        sums <= _MOST_ACCUMULATORS or smallest, f"rows, blocks: {sums} sums in a task, at most {_MOST_ACCUMULATORS}"
    )
    require(lanes % TILE == 0, f"vectors of {TILE} do not divide {lanes}")
    require(not workload.around.operands, "instructions read operands that are in memory")


def _tile(
    schedule: Schedule, anchor: BlockRV, workload: TileWorkload, knobs: MatrixTileKnobs
) -> tuple[list[LoopRV], LoopRV]:
    """Split rows and blocks; returns the loops around tasks and the outermost inside one."""
    loops = list(schedule.get_loops(anchor))
    summed = len(workload.reduction) + workload.stepped
    spatial, reduction = loops[:-summed], loops[-summed:]
    block_axis = 1 if workload.anchor == CONV2D_TILES else len(spatial) - 2
    task, row = schedule.split(spatial[workload.row_axis], [None, knobs.rows])
    outer, block = schedule.split(spatial[block_axis], [None, knobs.blocks])
    columns = [spatial[3]] if workload.anchor == CONV2D_TILES else []
    taken = {workload.row_axis, block_axis, len(spatial) - 1, *([3] if columns else [])}
    lead = [loop for axis, loop in enumerate(spatial) if axis not in taken]
    head = [*lead, outer, task] if knobs.order == "outputs" else [*lead, task, outer]
    schedule.reorder(*head, block, row, *columns, spatial[-1], *reduction)
    return head, block


def _matrices(schedule: Schedule, anchor: BlockRV, workload: TileWorkload, knobs: MatrixTileKnobs) -> Matrices:
    """What a task computes; steps come from the indices with which the anchor reads its data."""
    described = partial(
        Matrices,
        blocks=knobs.blocks,
        lanes=workload.outputs[1],
        weights_stay=knobs.stays == "weights",
        tall=knobs.tall,
        parts=knobs.parts,
        reduction=workload.reduction[:-1],
    )
    if workload.anchor != CONV2D_TILES:
        axis = workload.row_axis
        return described(
            rows=knobs.rows, images=1, data_row=(axis, 1), data_image=(axis, 0), data_steps=(),
            sums_row=axis, sums_image=axis, sums_block=len(workload.lead) + 1, stepped=workload.stepped,
        )  # fmt: skip
    (down, by_row), (right, by_column) = (_steps(schedule, anchor, axis) for axis in (2, 3))
    joined = workload.pointwise
    return described(
        rows=knobs.rows * workload.columns if joined else workload.columns, images=1 if joined else knobs.rows,
        data_row=(3, right), data_image=(2, down), data_steps=((1, 1), (2, by_row), (3, by_column)),
        sums_row=3, sums_image=2, sums_block=1, data_block=_data_block(schedule, anchor),
    )  # fmt: skip


def _data_block(schedule: Schedule, anchor: BlockRV) -> Callable[[PrimExpr, PrimExpr], PrimExpr] | None:
    """The block of channels of the data that a block of outputs reads at a step of the first loop; None where that is
    the step itself."""
    from tvm import tirx

    block = schedule.get(anchor)
    index = _data_of(block).region[1].min
    variables = [block.iter_vars[1].var, block.iter_vars[-_REDUCTIONS].var]
    if index.same_as(variables[1]) or isinstance(index, tirx.IntImm):
        return None
    places = tirx.IndexMap(variables, [index], None)

    def place(*given: PrimExpr) -> PrimExpr:
        kinds = map(element_type, variables)
        return places.map_indices([tirx.Cast(kind, each) for kind, each in zip(kinds, given, strict=True)])[0]

    return place


def _data_of(block: SBlock) -> BufferRegion:
    """The region of data that a convolution reads."""
    return next(each for each in block.reads if len(each.region) == _IMAGE_AXES)


def _steps(schedule: Schedule, anchor: BlockRV, axis: int) -> tuple[int, int]:
    """How far apart in ``axis`` of the data neighbours of the result are, and of the kernel."""
    block = schedule.get(anchor)
    variables = [block.iter_vars[place].var for place in (axis, axis - 1 - _REDUCTIONS)]
    found = symbolic().detect_linear_equation(_data_of(block).region[axis].min, variables)
    require(len(found) > 1, "data are read otherwise than by a convolution")
    return int(found[0]), int(found[1])


def _shapes(workload: TileWorkload, machine: Machine) -> list[tuple[int, int]]:
    """Rows and blocks of a task, the best by the model first."""
    outer, lanes = workload.outputs
    found = [
        (rows, blocks)
        for rows in divisors(workload.rows, workload.rows)
        for blocks in divisors(outer, min(outer, 256))
        if rows * workload.columns * blocks * lanes <= _MOST_ACCUMULATORS
    ] or [(1, 1)]

    def cost(shape: tuple[int, int]) -> float:
        plain = MatrixTileKnobs(rows=shape[0], blocks=shape[1], tall=1, parts=_parts(workload)[-1])
        others = (structs.replace(plain, stays=stays, order=order) for stays in _STAYS for order in _ORDERS)
        return min(_cost(workload, knobs, machine) for knobs in others)

    return sorted(found, key=cost)[:_SHAPES]


def _cost(workload: TileWorkload, knobs: MatrixTileKnobs, machine: Machine) -> float:
    """Cycles of the core that has most tasks."""
    cores = machine.cores if knobs.parallel else 1
    over_rows, over_blocks = _tasks(workload, knobs)
    most = -(-over_rows * over_blocks // cores)
    vectors = _sum_bytes(workload, knobs) // _VECTOR
    spilled = _SPILLED * vectors if vectors * _VECTOR > _FIRST else 0
    by_height = machine.rates.two_tiles if knobs.tall > 1 else 1.0
    task = _multiplications(workload, knobs) + _from_second(workload, knobs) / _FROM_SECOND + spilled
    others = _from_others(workload, knobs, most, cores) / _FROM_OTHERS
    return by_height * (most * (task + _TASK * knobs.parallel) + others)


def _tasks(workload: TileWorkload, knobs: MatrixTileKnobs) -> tuple[int, int]:
    """How many there are over rows, and over blocks of outputs."""
    return size_of(workload.lead) * (workload.rows // knobs.rows), workload.outputs[0] // knobs.blocks


def _sum_bytes(workload: TileWorkload, knobs: MatrixTileKnobs) -> int:
    """Bytes of the sums of a task."""
    return _SUM_BYTES * knobs.rows * workload.columns * knobs.blocks * workload.outputs[1]


def _vectors(workload: TileWorkload, knobs: MatrixTileKnobs) -> tuple[int, int]:
    """Vectors of sums in a row of a task, and how many of them are in registers together."""
    vectors = knobs.blocks * workload.outputs[1] // TILE
    return vectors, 1 + (vectors % 2 == 0)


def _pieces(workload: TileWorkload, knobs: MatrixTileKnobs) -> tuple[int, tuple[Piece, ...]]:
    """Images of a task, and the pieces of each."""
    if workload.pointwise:
        return 1, pieces_of(knobs.rows * workload.columns, knobs.tall)
    return knobs.rows, pieces_of(workload.columns, knobs.tall)


def _multiplications(workload: TileWorkload, knobs: MatrixTileKnobs) -> float:
    """Cycles of the tiles of a task that are multiplied, or loaded from the first level, whichever is more."""
    (vectors, together), (images, pieces) = _vectors(workload, knobs), _pieces(workload, knobs)
    cycles = 0.0
    for piece in pieces:
        rows = sum(piece.sizes)
        cycles += piece.count * max(together * rows, _LOAD * (together * TILE + rows))
    return images * vectors / together * math.prod(workload.reduction[:-1]) * cycles


def _from_second(workload: TileWorkload, knobs: MatrixTileKnobs) -> float:
    """Bytes that a task reads from the second level of the cache: what does not stay in the first, each time anew."""
    (vectors, together), (images, pieces) = _vectors(workload, knobs), _pieces(workload, knobs)
    steps, groups = math.prod(workload.reduction[:-1]), images * sum(piece.count for piece in pieces)
    window = math.prod(workload.reduction[1:3]) if workload.anchor == CONV2D_TILES else 1
    weights, data = vectors * steps * TILE * _VECTOR, knobs.rows * workload.columns * steps * _VECTOR / window
    passes, sums = vectors / together, _sum_bytes(workload, knobs)
    if knobs.stays == "weights":
        part = weights / passes / knobs.parts
        again = sums / passes + part > _FIRST
        read = weights * (1 if part <= _FIRST else groups) + data * (1 if data <= _FIRST else passes)
    else:
        again = sums > _FIRST
        tiles = sum(pieces[0].sizes) * steps * _VECTOR / knobs.parts
        read = weights * (1 if weights / knobs.parts <= _FIRST else groups) + data * (1 if tiles <= _FIRST else passes)
    return read + 2 * (knobs.parts - 1) * sums * again


def _from_others(workload: TileWorkload, knobs: MatrixTileKnobs, most: int, cores: int) -> float:
    """Bytes that a core with ``most`` tasks reads from where others left them, as if all were weights: what the outer
    loop goes along once, unless there is but one, the rest in each of its steps unless it stays in the second level."""
    over_rows, over_blocks = _tasks(workload, knobs)
    share, data = most / (over_rows * over_blocks), _PADDED if workload.around.pad is not None else _DATA
    along, around = (workload.weight_bytes, workload.data_bytes)
    price, again, steps = (1.0, data, over_blocks)
    if knobs.order == "rows":
        along, around, price, again, steps = around, along, data, 1.0, over_rows
    if steps == 1:
        return price * along + again * around * share
    times = -(-steps // cores) if around > _SECOND else 1
    return price * along * share + again * around * times


def _parallel(workload: TileWorkload, machine: Machine) -> bool:
    gain = machine.rates.tiles if workload.group == TILES.size else machine.rates.byte_tiles
    return worth_threads(workload.flops / gain, workload.weight_bytes, machine)
