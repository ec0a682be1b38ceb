"""Expert sketches: register-tiled schedules of convolutions and matmuls as ordinary TensorIR traces.

The structure is that of AutoTVM's x86 templates (``topi/x86/conv2d_avx_*.py``): a tile of accumulators stays in
registers while the reduction runs, vectors lie along one output axis, weights are packed in the order in which the
kernel reads them, padding is inlined or copied once. Here it keeps TVM's NCHW activations: only the accumulators and
the constant weights change their layout, so a record serves any network without layout planning.

A sketch is applied with schedule primitives only, so its trace replays on every supported TVM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tunehub.kernels.cpu.divisors import divisors
from tunehub.tir.schedules import unroll_and_vectorize
from tunehub.tir.versions import COMM_REDUCE, DATA_PAR

if TYPE_CHECKING:
    from tunehub.graph.types import Var
    from tunehub.tir.types import BlockRV, IndexMap, IRModule, LoopRV, PrimExpr, SBlock, Schedule, Trace

_MAX_TILES_IN_REGISTERS = 28
_MAX_ACCUMULATORS = 512
_MAX_TILE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Loops:
    """The loops of a workload's anchor block: extents, and which axes a sketch may vectorise and tile."""

    anchor: str
    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    unpadded: bool
    kind: Literal["conv2d", "depthwise", "matmul"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterTile:
    """The choices of one sketch. Axes are positions among the anchor's spatial loops; sizes are in elements."""

    vector_axis: int
    vector: int
    vectors: int
    tile_axis: int
    tile: int
    reduction_tile: int = 1
    padding: Literal["inline", "root", "tile"] = "inline"
    outer: Literal["vector_first", "tile_first"] = "vector_first"
    fused: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """As :func:`register_tile` finds it in the trace."""
        return self.vectors, self.vector, self.tile


def loops_of(mod: IRModule) -> Loops | None:
    """Describe the anchor block of ``mod`` (one PrimFunc ``main``), or None when no sketch fits it."""
    from tvm.s_tir import Schedule, analysis

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        return None
    kind = _kind(block)
    if kind is None:
        return None
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    names = [schedule.get(child).name_hint for child in schedule.get_child_blocks(schedule.get_sblock("root"))]
    position = names.index(block.name_hint)
    padding = next((schedule.get(schedule.get_sblock(name)) for name in names if name.startswith("pad")), None)
    extents = [(axis.iter_type, int(axis.dom.extent)) for axis in block.iter_vars]
    return Loops(
        anchor=block.name_hint,
        spatial=tuple(extent for sort, extent in extents if sort == DATA_PAR),
        reduction=tuple(extent for sort, extent in extents if sort == COMM_REDUCE),
        producers=tuple(names[:position]),
        consumers=tuple(names[position + 1 :]),
        unpadded=padding is None or _is_copy(padding),
        kind=kind,
    )


def register_tiles(loops: Loops, vector: int) -> list[RegisterTile]:
    """Return the choices of vector and register tile for ``loops``, the other knobs at their defaults.

    ``vector`` is the number of elements in the target's widest vector (16 for AVX-512 and float32).
    """
    found = [knobs for axes in _axes(loops) for knobs in _tiles_on(loops, vector, *axes)]
    return found or [knobs for axes in _axes(loops) for knobs in _tiles_on(loops, vector, *axes, smallest=1)]


def variations(loops: Loops, knobs: RegisterTile) -> Iterator[RegisterTile]:
    """Yield ``knobs`` with one of the remaining choices changed."""
    channels = loops.reduction[0]
    for size in (4, 16, 64):
        if channels % size == 0 and channels > size:
            yield replace(knobs, reduction_tile=size)
    if any(name.startswith("pad") for name in loops.producers):
        yield replace(knobs, padding="root")
        yield replace(knobs, padding="tile")
    if loops.kind != "depthwise":
        yield replace(knobs, outer="tile_first")


def register_tile(trace: Trace) -> tuple[int, int, int] | None:
    """Vectors, elements of a vector, and rows of the register tile in a sketch's portable ``trace``, adapted to another
    function or not); None for the trace of another search. They are the numbers of its first two splits."""
    splits = [inputs[1:] for name, inputs, *_ in trace[0] if name == "Split"][:2]
    numbers = [[factor for factor in factors if isinstance(factor, int)] for factors in splits]
    if [len(found) for found in numbers] != [2, 1] or [len(factors) for factors in splits] != [3, 2]:
        return None
    return numbers[0][0], numbers[0][1], numbers[1][0]


def apart(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    """Factors of two between two register tiles."""
    return sum(abs(math.log2(mine / other)) for mine, other in zip(a, b, strict=True))


def apply(mod: IRModule, loops: Loops, knobs: RegisterTile) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``, up to the point where postprocessing starts.

    TVM raises ScheduleError when the choice does not fit the function.
    """
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    anchor = schedule.get_sblock(loops.anchor)
    last = _epilogue(schedule, loops, anchor)
    tile = _tile_anchor(schedule, loops, knobs, anchor)
    schedule.reverse_compute_at(last, tile.at, preserve_unit_loops=True)
    if knobs.vector_axis != len(loops.spatial) - 1:
        schedule.transform_layout(anchor, ("write", 0), _vector_last(len(loops.spatial), knobs.vector_axis))
    schedule.parallel(tile.outer)  # decomposing comes later: parallel wants the reduction in one block
    _vectorize_epilogue(schedule, last, loops, knobs)
    initial = schedule.decompose_reduction(anchor, tile.reduction)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-3:])
    _place_producers(schedule, loops, knobs, tile.at)
    schedule.enter_postproc()
    return schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class _TiledLoops:
    outer: LoopRV
    at: LoopRV
    reduction: LoopRV


def _kind(block: SBlock) -> Literal["conv2d", "depthwise", "matmul"] | None:
    spatial = sum(axis.iter_type == DATA_PAR for axis in block.iter_vars)
    reduction = sum(axis.iter_type == COMM_REDUCE for axis in block.iter_vars)
    name = block.name_hint
    if name.startswith("conv2d_nchw") and (spatial, reduction) == (4, 3):
        return "conv2d"
    if name.startswith("depthwise_conv2d_nchw") or "depthwise" in name:
        return "depthwise" if (spatial, reduction) == (4, 2) else None
    if name.startswith(("matmul", "T_matmul", "batch_matmul", "NT_matmul")) and spatial >= 2 and reduction == 1:
        return "matmul"
    return None


def _is_copy(block: SBlock) -> bool:
    """True for the padding block of an operator without padding: it copies one element to the same place."""
    value, indices = getattr(block.body, "value", None), getattr(block.body, "indices", None)
    return [str(index) for index in getattr(value, "indices", None) or []] == [str(index) for index in indices or []]


def _axes(loops: Loops) -> list[tuple[int, int, bool]]:
    """Pairs (vector axis, tile axis) worth trying; True: the two innermost loops are fused to one vector axis."""
    last = len(loops.spatial) - 1
    if loops.kind == "matmul":
        return [(last, last - 1, False)]
    if loops.kind == "depthwise":
        return [(3, 2, False)]
    pointwise = loops.reduction[1:] == (1, 1) and loops.unpadded
    return [(1, 3, False), (2, 1, True)] if pointwise else [(1, 3, False)]


def _tiles_on(
    loops: Loops, vector: int, vector_axis: int, tile_axis: int, fused: bool, smallest: int = 4
) -> Iterator[RegisterTile]:
    extent = loops.spatial[2] * loops.spatial[3] if fused else loops.spatial[vector_axis]
    tiles = divisors(loops.spatial[tile_axis], _MAX_TILE)
    for lanes in _lanes(extent, vector, loops.kind):
        for vectors in divisors(extent // lanes, _MAX_TILE):
            if fused and loops.spatial[3] % (vectors * lanes) and (vectors * lanes) % loops.spatial[3]:
                continue  # a vector across rows that ends inside one: its copy out has no constant extent
            for tile in tiles:
                registers = vectors * tile * max(1, -(-lanes // vector))
                if registers > _MAX_TILES_IN_REGISTERS or vectors * tile * lanes > _MAX_ACCUMULATORS or vectors > 8:
                    continue
                if registers < min(smallest, loops.spatial[tile_axis] * extent // lanes):
                    continue
                yield RegisterTile(
                    vector_axis=vector_axis, vector=lanes, vectors=vectors, tile_axis=tile_axis, tile=tile, fused=fused
                )


def _lanes(extent: int, vector: int, kind: str) -> list[int]:
    """Vector lengths for an axis: the machine's if it divides, else the divisors that fill registers best."""
    if extent % vector == 0 and kind != "depthwise":
        return [vector]
    fitting = [d for d in divisors(extent, _MAX_TILE) if vector // 4 <= d <= 4 * vector] or [1]
    fullest = sorted(fitting, key=lambda d: (d / (vector * -(-d // vector)), -d), reverse=True)[:2]
    return list(dict.fromkeys([*fullest, *[d for d in (vector // 2, vector // 4) if extent % d == 0][:1]]))


def _epilogue(schedule: Schedule, loops: Loops, anchor: BlockRV) -> BlockRV:
    """Inline what follows the anchor into the last block; without one, the copy out of the accumulators is it."""
    if not loops.consumers:
        return schedule.cache_write(anchor, 0, "global")
    for name in loops.consumers[:-1]:
        schedule.compute_inline(schedule.get_sblock(name))
    return schedule.get_sblock(loops.consumers[-1])


def _tile_anchor(schedule: Schedule, loops: Loops, knobs: RegisterTile, anchor: BlockRV) -> _TiledLoops:
    all_loops = schedule.get_loops(anchor)
    spatial, reduction = list(all_loops[: len(loops.spatial)]), list(all_loops[len(loops.spatial) :])
    if knobs.fused:
        spatial[2:] = [schedule.fuse(*spatial[2:])]
    outer_vector, vectors, lanes = schedule.split(spatial[knobs.vector_axis], [None, knobs.vectors, knobs.vector])
    outer_tile, tile = schedule.split(spatial[knobs.tile_axis], [None, knobs.tile])
    others = [loop for i, loop in enumerate(spatial) if i not in (knobs.vector_axis, knobs.tile_axis)]
    if knobs.outer == "vector_first":
        head = [*others[:1], outer_vector, *others[1:], outer_tile]
    else:
        head = [*others, outer_tile, outer_vector]
    outer_channel, channel = (
        schedule.split(reduction[0], [None, knobs.reduction_tile]) if knobs.reduction_tile > 1 else (reduction[0], None)
    )
    kernel = reduction[1:]
    inner = [channel] if channel is not None else []
    schedule.reorder(*head, outer_channel, *kernel, *inner, vectors, tile, lanes)
    unroll_and_vectorize(schedule, [vectors, tile, lanes])
    for loop in kernel[1:] if loops.kind == "conv2d" else kernel:
        schedule.unroll(loop)
    outer = schedule.fuse(*head[:-1]) if len(head) > 1 else head[0]
    return _TiledLoops(outer=outer, at=head[-1], reduction=outer_channel)


def _vector_last(rank: int, axis: int) -> IndexMap:
    """The layout of the accumulators: the vector axis is contiguous, so that one store writes one register."""

    def permute(*indices: Var) -> list[PrimExpr]:
        return [*indices[:axis], *indices[axis + 1 :], indices[axis]]

    from tvm.tirx import IndexMap

    return IndexMap.from_func(permute, ndim=rank)


def _vectorize_epilogue(schedule: Schedule, last: BlockRV, loops: Loops, knobs: RegisterTile) -> None:
    inner = schedule.get_loops(last)[-len(loops.spatial) :]
    if knobs.fused:
        schedule.vectorize(inner[-1])
        for loop in inner[:-1]:
            schedule.unroll(loop)
        return
    blocks, lanes = schedule.split(inner[knobs.vector_axis], [None, knobs.vector])
    others = [loop for i, loop in enumerate(inner) if i not in (knobs.vector_axis, knobs.tile_axis)]
    schedule.reorder(*others, blocks, inner[knobs.tile_axis], lanes)
    unroll_and_vectorize(schedule, [blocks, inner[knobs.tile_axis], lanes])


def _place_producers(schedule: Schedule, loops: Loops, knobs: RegisterTile, at: LoopRV) -> None:
    for name in reversed(loops.producers):
        block = schedule.get_sblock(name)
        if knobs.padding == "inline" or not name.startswith("pad"):
            schedule.compute_inline(block)
        elif knobs.padding == "root":
            copied = schedule.get_loops(block)
            schedule.parallel(schedule.fuse(*copied[:-1]))
            schedule.vectorize(copied[-1])
        else:
            schedule.compute_at(block, at, preserve_unit_loops=True)
            schedule.vectorize(schedule.get_loops(block)[-1])
