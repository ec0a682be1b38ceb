"""Loops for what no other template serves: plain convolutions, windows, products, and reductions of any axes.

Cheap steps are inlined. Each reduction that remains is one of two kinds:

* columns: neighbouring results lie side by side in memory, and so does what they read. A tile of results, ``rows`` of
  one loop times a vector of ``lanes`` of another, stays in registers while the reduction runs;
* dots: neighbours lie side by side along the reduction. ``lanes`` sums of each result run side by side and are joined
  at the end (``rfactor``), which changes the order of additions.

What follows a reduction element by element is computed on its tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tunehub.kernels.cpu.access import nest_of
from tunehub.kernels.cpu.base import FLOAT_BYTES, Block, Knobs, Machine, refusing, require, size_of, worth_threads
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.loop_plan import WIDE, Packing, Stage, inline_cheap, stages_of
from tunehub.kernels.cpu.loop_tiles import tile_choices
from tunehub.tir.nodes import element_type
from tunehub.tir.schedules import open_schedule, root_blocks, unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, PrimExpr, Schedule

_MAX_BLOCKS = 32
_LITTLE = 2048  # steps of a reduction that take no longer than TVM's own loops
_PIECES = 16  # of a reduction that threads share, where there are fewer results
_PREPROC = "meta_schedule.layout_rewrite_preproc"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopsWorkload:
    """``inlined``: names of the steps that are inlined, in this order; ``stages``: what remains."""

    inlined: tuple[str, ...]
    stages: tuple[Stage, ...]
    flops: int
    bytes_moved: int

    @property
    def main(self) -> Stage:
        """The stage with most work: its tile is chosen."""
        return max(self.stages, key=lambda stage: (bool(stage.nest.reductions), stage.nest.iterations))

    @property
    def gains(self) -> bool:
        """False where LLVM makes good code of TVM's own loops, as measured: little work, short windows beside a copy of
        the padded input, steps in the last axis, sums of whole numbers over it, and exp of as many elements.
        """
        nest, kind = self.main.nest, self.main.kind
        maps = [stage.nest for stage in self.stages if stage.kind == "map"]
        window = size_of(nest.reduction) < WIDE and bool(maps)
        whole = kind == "dots" and "int" in nest.dtype and size_of(nest.spatial) > 1
        calls = kind == "columns" and any(each.calls and each.iterations >= nest.iterations for each in maps)
        return kind in ("columns", "dots") and nest.iterations >= _LITTLE and not (window or whole or calls)


class LoopsKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``lanes``: elements side by side; ``rows``: results along the loop ``row`` (counted from the outermost).

    Both are cut where a loop is shorter. ``parallel``: use the thread pool.
    """

    lanes: Annotated[int, Meta(ge=1, le=256)]
    rows: Annotated[int, Meta(ge=1, le=16)] = 1
    row: Annotated[int, Meta(ge=0, le=16)] = 0
    parallel: bool = True


NAME, VERSION, KNOBS = "loops", 1, LoopsKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> LoopsWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None unless its blocks are plain loops and one is a reduction."""
    if not 0 < len(blocks) <= _MAX_BLOCKS or not any(block.reduction for block in blocks):
        return None
    schedule = open_schedule(mod)
    inlined = inline_cheap(schedule)
    nests = [nest_of(schedule, block) for block in root_blocks(schedule)]
    known = [nest for nest in nests if nest is not None]
    if len(known) < len(nests):
        return None
    stages = stages_of(schedule, known)
    if any(stage.nest.results > 1 and stage.kind != "dots" for stage in stages):
        return None
    return LoopsWorkload(
        inlined=inlined,
        stages=stages,
        flops=sum(map(_flops, stages)),
        bytes_moved=FLOAT_BYTES * sum(size_of(shape) for block in blocks for shape in (*block.reads, block.write)),
    )


def knob_space(workload: LoopsWorkload, machine: Machine) -> list[LoopsKnobs]:
    """The choices worth measuring, the default's first."""
    found = {default_knobs(workload, machine): None}
    parallel = _parallel(workload, machine)
    for lanes, row, rows in tile_choices(workload.main, machine)[:12]:
        found.setdefault(LoopsKnobs(lanes=lanes, rows=rows, row=row, parallel=parallel))
    return list(found)


def default_knobs(workload: LoopsWorkload, machine: Machine) -> LoopsKnobs:
    """The choice of a cost model, without measuring."""
    lanes, row, rows = tile_choices(workload.main, machine)[0]
    return LoopsKnobs(lanes=lanes, rows=rows, row=row, parallel=_parallel(workload, machine))


@refusing
def apply(mod: IRModule, workload: LoopsWorkload, knobs: LoopsKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    spatial = workload.main.nest.spatial
    require(knobs.row < max(1, len(spatial)), f"row: there are {len(spatial)} loops over results")
    require(workload.gains, "this function is no faster than with TVM's own loops")
    # Step 1. Cheap steps are inlined.
    schedule = open_schedule(mod)
    for name in workload.inlined:
        schedule.compute_inline(schedule.get_sblock(name))
    for stage in workload.stages:
        if not stage.nest.extents:  # TVM's rfactor fails beside a block without a loop
            schedule.add_unit_loop(schedule.get_sblock(stage.nest.name))
    # Step 2. Each step that remains by the rule of its kind: a map, columns, dots, or one element after the other.
    for stage in workload.stages:
        rows = knobs.rows if stage is workload.main else 1
        if stage.packing is not None:
            _pack(schedule, stage, stage.packing, parallel=knobs.parallel)
        _RULES[stage.kind](schedule, stage, knobs, rows)
    return schedule


def _flops(stage: Stage) -> int:
    """A rough count of what a stage computes, in operations of vectors: without them it takes as long as with more."""
    return stage.nest.iterations * max(1, stage.nest.operations // 4) * (WIDE if stage.kind == "serial" else 1)


def _parallel(workload: LoopsWorkload, machine: Machine) -> bool:
    return worth_threads(workload.flops, workload.bytes_moved, machine)


def _map(schedule: Schedule, stage: Stage, knobs: LoopsKnobs, _rows: int) -> None:
    """A step without a reduction: outer loops on threads, vectors where neighbours lie side by side."""
    loops = schedule.get_loops(schedule.get_sblock(stage.nest.name))
    if not stage.nest.extents:
        return
    if stage.vector is not None:
        width = min(knobs.lanes, WIDE, stage.nest.extents[stage.vector])
        loops[stage.vector], lanes = schedule.split(loops[stage.vector], [None, width])
        schedule.reorder(*loops, lanes)
        schedule.vectorize(lanes)
        if stage.nest.extents[stage.vector] % width:
            schedule.annotate(loops[stage.vector], "pragma_loop_partition_hint", 1)
    if knobs.parallel:
        outer = loops[:-1] if len(loops) > 1 else loops
        schedule.parallel(schedule.fuse(*outer))


def _serial(schedule: Schedule, stage: Stage, knobs: LoopsKnobs, _rows: int) -> None:
    """A reduction without vectors: each result in a register, results on threads."""
    if not stage.nest.spatial:
        return
    block = schedule.get_sblock(stage.nest.name)
    last = schedule.get_sblock(stage.follower) if stage.follower else schedule.cache_write(block, 0, "global")
    loops = schedule.get_loops(block)
    spatial, reductions = loops[: len(stage.nest.spatial)], loops[len(stage.nest.spatial) :]
    outer = schedule.fuse(*spatial)
    schedule.reverse_compute_at(last, outer, preserve_unit_loops=True)
    if knobs.parallel:
        schedule.parallel(outer)
    schedule.decompose_reduction(block, reductions[0])


def _pack(schedule: Schedule, stage: Stage, packing: Packing, *, parallel: bool) -> None:
    """Copy an operand with one of its axes as the last."""
    block = schedule.get_sblock(stage.nest.name)
    copy = schedule.cache_read(block, packing.operand, "global")
    axis = packing.axis
    schedule.transform_layout(block, ("read", packing.operand), _last(axis))
    if packing.free:
        schedule.annotate(copy, _PREPROC, True)
        return
    loops = schedule.get_loops(copy)
    column = loops.pop(axis)
    if int(schedule.get(column).extent) % WIDE == 0:  # rows of a cache line, and not of the whole axis
        outer, column = schedule.split(column, [None, WIDE])
        loops = [outer, *loops]
    schedule.reorder(*loops, column)
    if parallel and loops:
        schedule.parallel(schedule.fuse(*(loops[:-1] or loops)))


def _last(axis: int) -> Callable[..., list[PrimExpr]]:
    """The layout in which ``axis`` is the last."""
    return lambda *places: [*places[:axis], *places[axis + 1 :], places[axis]]


def _columns(schedule: Schedule, stage: Stage, knobs: LoopsKnobs, rows: int) -> None:
    """A tile of results in registers."""
    count, reduction = len(stage.nest.spatial), stage.nest.reduction
    longest = max(range(len(reduction)), key=reduction.__getitem__)
    tiles = size_of(stage.nest.spatial) // (rows * min(knobs.lanes, stage.length))
    if knobs.parallel and tiles < _PIECES <= reduction[longest] // _PIECES:
        stage = replace(stage, first=stage.vector or 0)
        loops = schedule.get_loops(schedule.get_sblock(stage.nest.name))
        block, piece, loops = _cut(schedule, loops, count + longest)
        spatial, steps, last = [*loops[:count], piece], loops[count:], schedule.cache_write(block, 0, "global")
    else:
        block, spatial, steps, last = _merged(schedule, stage)
    tile, ragged = _tile(schedule, stage, spatial, knobs, rows)
    inner = [spatial[i] for i in ragged]
    outer = [loop for i, loop in enumerate(spatial) if i not in ragged]
    schedule.reorder(*outer, *inner, *steps, *tile)
    shared = schedule.fuse(*outer) if outer else schedule.add_unit_loop(inner[0])
    schedule.reverse_compute_at(last, inner[-1] if inner else shared, preserve_unit_loops=True)
    unroll_and_vectorize(schedule, tile)
    _finish_tile(schedule, stage, last, len(spatial))
    if knobs.parallel:
        schedule.parallel(shared if outer else inner[0])
    initial = schedule.decompose_reduction(block, steps[0])
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-len(tile) :])
    for loop in inner:
        schedule.annotate(loop, "pragma_loop_partition_hint", 1)


def _cut(schedule: Schedule, loops: list[LoopRV], at: int) -> tuple[BlockRV, LoopRV, list[LoopRV]]:
    """Cut one of the ``loops`` of a reduction in pieces that threads share, where there are few results.

    Returns the block that adds up each piece, its loop over pieces, which is the outermost, and the others. Another
    block joins the pieces.
    """
    extent = int(schedule.get(loops[at]).extent)
    pieces = next((d for d in divisors(extent, 2 * _PIECES) if d >= _PIECES), _PIECES)
    piece, _ = schedule.split(loops[at], [pieces, None])
    block = schedule.rfactor(piece, -1)
    loops = schedule.get_loops(block)
    piece = loops.pop(at)
    schedule.reorder(piece, *loops)
    return block, piece, loops


def _merged(schedule: Schedule, stage: Stage) -> tuple[BlockRV, list[LoopRV], list[LoopRV], BlockRV]:
    """Make one loop of those from ``first`` to ``vector``, in the block and in what follows it.

    Returns the block, its loops over results and over the reduction, and what is computed on its tiles: the follower,
    or a copy. Fusing loops would not do: a tile of a copy is a box in its buffer, larger than a piece of a fused
    loop.
    """
    block, first, end = schedule.get_sblock(stage.nest.name), stage.first, (stage.vector or 0) + 1
    last = schedule.get_sblock(stage.follower) if stage.follower else schedule.cache_write(block, 0, "global")
    if stage.nest.write[end - 1] != 1:  # sums in vectors lie side by side, wherever the results go
        schedule.transform_layout(block, ("write", 0), _last(end - 1))
    if first < end - 1:
        from tvm.tirx import IndexMap

        def merge(*axes: PrimExpr) -> list[PrimExpr]:
            place = axes[first]
            for axis, extent in zip(axes[first + 1 : end], stage.nest.extents[first + 1 : end], strict=True):
                place = place * extent + axis
            return [*axes[:first], place, *axes[end:]]

        dtype, results = _index_type(schedule, block), len(stage.nest.spatial)
        schedule.transform_layout(block, ("write", 0), IndexMap.from_func(merge, ndim=results, index_dtype=dtype))
        for each, axes in ((block, len(stage.nest.extents)), (last, results)):
            schedule.transform_block_layout(each, IndexMap.from_func(merge, ndim=axes, index_dtype=dtype))
    loops, count = schedule.get_loops(block), len(stage.nest.spatial) - (end - 1 - first)
    return block, loops[:count], loops[count:], last


def _index_type(schedule: Schedule, block: BlockRV) -> str:
    """The type of the loops around a block: int32 in tensor expressions, int64 in functions of Relax."""
    return element_type(schedule.get(schedule.get_loops(block)[0]).extent)


def _tile(
    schedule: Schedule, stage: Stage, spatial: list[LoopRV], knobs: LoopsKnobs, rows: int
) -> tuple[list[LoopRV], list[int]]:
    """Split the loops of a tile; in ``spatial`` the outer parts take their place. Also says which have remainders."""
    sizes = {stage.first: (stage.length, min(knobs.lanes, stage.length))}
    if rows > 1 and not stage.first <= knobs.row <= (stage.vector or 0):
        row = knobs.row if knobs.row < stage.first else knobs.row - ((stage.vector or 0) - stage.first)
        extent = stage.nest.extents[knobs.row]
        sizes = {row: (extent, min(rows, extent)), **sizes}
    tile = []
    for i, (_, size) in sizes.items():
        spatial[i], inside = schedule.split(spatial[i], [None, size])
        tile.append(inside)
    return tile, sorted(i for i, (extent, size) in sizes.items() if extent % size)


def _dots(schedule: Schedule, stage: Stage, knobs: LoopsKnobs, rows: int) -> None:
    """Several sums of each result side by side along the reduction."""
    assert stage.vector is not None
    count = len(stage.nest.spatial)
    total, parts, pieces, loops = _side_by_side(schedule, stage, knobs, size_of(stage.nest.spatial) // rows)
    spatial, steps, tile = loops[:count], loops[count:-1], loops[-1:]
    if rows > 1 and stage.nest.extents[knobs.row] % rows == 0:
        spatial[knobs.row], inside = schedule.split(spatial[knobs.row], [None, rows])
        tile = [inside, *tile]
    schedule.reorder(*pieces, *spatial, *steps, *tile)
    outer = schedule.fuse(*pieces, *spatial) if pieces or spatial else schedule.add_unit_loop(steps[0])
    schedule.reverse_compute_at(total, outer, preserve_unit_loops=True)
    if stage.follower is not None and not pieces:
        schedule.reverse_compute_at(schedule.get_sblock(stage.follower), outer, preserve_unit_loops=True)
    if knobs.parallel:
        schedule.parallel(outer)
    unroll_and_vectorize(schedule, tile)
    initial = schedule.decompose_reduction(parts, steps[0])
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-len(tile) :])


def _side_by_side(
    schedule: Schedule, stage: Stage, knobs: LoopsKnobs, tiles: int
) -> tuple[BlockRV, BlockRV, list[LoopRV], list[LoopRV]]:
    """Keep several sums of each result side by side; where ``tiles`` are few, threads share the reduction.

    Returns the block that joins them, that which computes them, its loop over pieces of the reduction, if threads share
    those, and its other loops: over results, over the reduction, and over the sums side by side.
    """
    total, pieces = schedule.get_sblock(stage.nest.name), []
    loops = schedule.get_loops(total)
    loops[stage.first : (stage.vector or 0) + 1] = [schedule.fuse(*loops[stage.first : (stage.vector or 0) + 1])]
    at = _to_cut(stage, [int(schedule.get(loop).extent) for loop in loops])
    if knobs.parallel and tiles < _PIECES and at is not None:
        total, piece, loops = _cut(schedule, loops, at)
        pieces = [piece]
    length = int(schedule.get(loops[stage.first]).extent)
    _, lanes = schedule.split(loops[stage.first], [None, min(knobs.lanes, length)])
    parts = schedule.rfactor(lanes, -1)
    loops = schedule.get_loops(parts)
    pieces = [loops.pop(0) for _ in pieces]
    lanes = loops.pop(stage.first + 1)
    if length % min(knobs.lanes, length):
        schedule.annotate(loops[stage.first], "pragma_loop_partition_hint", 1)
    return total, parts, pieces, [*loops, lanes]


def _to_cut(stage: Stage, extents: list[int]) -> int | None:
    """The loop of a reduction that threads share: the longest but that in vectors, or that one if it is long."""
    others = [i for i in range(len(stage.nest.spatial), len(extents)) if i != stage.first and extents[i] >= _PIECES]
    if others:
        return max(others, key=extents.__getitem__)
    return stage.first if extents[stage.first] >= _PIECES * _PIECES else None


def _finish_tile(schedule: Schedule, stage: Stage, last: BlockRV, count: int) -> None:
    """Vectors in what follows a tile, along the ``count`` loops of its own."""
    if stage.vector is None or stage.nest.write[stage.vector] != 1:
        return
    loops = schedule.get_loops(last)[-count:]
    vector = loops.pop(stage.first)
    schedule.reorder(*loops, vector)
    unroll_and_vectorize(schedule, [*loops, vector])


_RULES = {"map": _map, "columns": _columns, "dots": _dots, "serial": _serial}
