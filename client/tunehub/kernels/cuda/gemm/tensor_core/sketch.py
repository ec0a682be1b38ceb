"""A sketch for the tensor cores of NVIDIA GPUs: matmuls, and convolutions as implicit GEMM, in half precision.

The structure is that of TVM's own rule for matrix products (``s_tir/dlight/gpu/matmul.py``, ``MatmulTensorization``):
operands go through shared memory into fragments of 16 × 16 (WMMA), warps hold tiles of accumulators in float32, which
go through shared memory into the epilogue. Unlike there, tiles are free, so that small matmuls fill a large GPU;
an operand lies in shared memory in the order in which memory has it, so that loads are coalesced; and a
convolution's channels and places become rows, columns and K without being copied first. To compute where each
element of a window lies takes several times as long as all multiplications (a 3 × 3 convolution of 512 channels 101 µs
on an H200); so a thread may load whole windows, each at a constant distance from the last (28 µs). K may be split among
groups of warps, whose partial sums are added in shared memory, as :mod:`tunehub.kernels.cuda.gemm.split_k.sketch` does.

Only schedule primitives are used: a trace replays on every supported TVM that has the intrinsics registered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tunehub.kernels.cuda.gemm.matmul import (
    AT_ONCE,
    LOCAL_STAGE,
    SIDE,
    Matmul,
    as_matmul,
    cut_results,
    find_matmul,
    inline_consumers,
    inline_producers,
    is_pipelined,
    own_loops,
    pad_to,
    reduce_partials,
    splits_of,
)
from tunehub.target.gpu_architectures import ASKED_SHARED_BYTES, FEWEST_ASKED_BYTES, SM_80, WARP

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, PortableTrace, Schedule

# TVM's StorageRewrite would put accumulators where operands were, then refuse the pointer for its type; not of these.
_OPERANDS, _ACCUMULATORS = "shared", "shared.dyn"
_SKEW = 8  # elements that a row is longer, so that rows start at different banks
GROUPS = (1, 2, 4)
MOST_WARPS = 16
MOST_FRAGMENTS = 16  # of accumulators that a warp holds
_MOST_WAITING = 128  # elements on their way into shared memory, in registers, two in each
_WINDOWS = (1, 2, 4)  # fragments along each place of a window that are whole_windows at a time


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class TensorTile:
    """The choices of a sketch. A block has ``warps`` (along rows and columns), each of which holds ``fragments`` of
    accumulators; ``k_fragments`` along K are loaded at a time, ``vectors`` elements of A and of B by a thread at once.
    ``pipelined``: the next load is under way while the last is multiplied. ``whole_windows``: a thread loads whole
    windows of one row of A, so that their places are constants in the kernel; otherwise it computes each element's.
    There are ``groups`` of so many warps, each of which adds up ``k_fragments`` of its own of what is loaded at a time.
    """

    warps: tuple[int, int]
    fragments: tuple[int, int]
    k_fragments: int
    vectors: tuple[int, int]
    pipelined: bool = False
    whole_windows: bool = False
    groups: int = 1

    @property
    def block(self) -> tuple[int, int, int]:
        """Rows, columns and K of a block, in elements."""
        return (
            SIDE * self.warps[0] * self.fragments[0],
            SIDE * self.warps[1] * self.fragments[1],
            SIDE * self.k_fragments * self.groups,
        )

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.all_warps

    @property
    def all_warps(self) -> int:
        """Of a block."""
        return math.prod(self.warps) * self.groups


def matmul_of(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod`` (one PrimFunc ``main``) as a matmul that tensor cores take, or None."""
    return find_matmul(mod, "float16")


def tiles(matmul: Matmul) -> Iterator[TensorTile]:
    """Every tile that may suit ``matmul``; a block covers a dimension twice at most, and fits shared memory. No vector
    goes over the end of a row: TVM would load its elements one by one."""
    return _tiles(matmul, runs_of(matmul))


def is_among(matmul: Matmul, tile: TensorTile) -> bool:
    """Whether ``tile`` is one of :func:`tiles`, or as earlier records have them, whose vectors may go over the ends."""
    return any(tile in _tiles(matmul, runs) for runs in (runs_of(matmul), (AT_ONCE, AT_ONCE)))


def runs_of(matmul: Matmul) -> tuple[int, int]:
    """How many elements of A and of B a thread may load at once as their rows lie: at most eight."""
    own = 1 if matmul.rows_first else math.gcd(AT_ONCE, matmul.runs[0])
    return own, math.gcd(AT_ONCE, matmul.runs[1], 0 if matmul.k_last else matmul.columns[-1].extent)


def apply(mod: IRModule, matmul: Matmul, tile: TensorTile) -> Schedule:
    """The schedule of ``mod`` by ``tile``. TVM raises where a primitive does not take its place."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    # Step 1. An implicit GEMM whose extents tiles divide; padding is zero.
    last = ("columns", "k") if matmul.k_last else ("k", "columns")
    dimensions = (("batch", "rows", "k"), ("batch", *last), ("batch", "rows", "columns"))
    main = as_matmul(schedule, matmul, dimensions, ("batch", "rows", "columns", "k"))
    pad_to(schedule, main, matmul.extents[1:], tile.block)
    # Step 2. Blocks of threads, warps, fragments; K split among groups of warps where the tile has some.
    blocks, result = _split_k(schedule, main, matmul, tile) if tile.groups > 1 else (_tiled(schedule, main, tile), None)
    # Step 3. Operands through shared memory into fragments, accumulators back through it.
    loads = [_loaded(schedule, blocks, matmul, tile, number) for number in (0, 1)]
    for load in loads:
        inline_producers(schedule, load)
    fragments = [_fragments(schedule, blocks, number) for number in (0, 1)]
    stored, store = _stored(schedule, blocks) if result is None else (result, _kept(schedule, blocks))
    # Step 4. WMMA, accumulators zeroed before the mainloop.
    start = schedule.decompose_reduction(blocks.outer, blocks.depth)
    _tensorize(schedule, blocks, matmul, fragments, store, start)
    # Step 5. Epilogue.
    inline_consumers(schedule, stored)
    if result is None:
        _written(schedule, stored, matmul)
    else:
        schedule.vectorize(schedule.get_loops(result)[-1])
    return schedule


def tile_of(trace: PortableTrace) -> TensorTile | None:
    """The tile that a portable trace of this sketch was made with; None for another trace."""
    splits = splits_of(trace)
    lengths = [len(split) for split in splits]
    plain, divided = lengths[:6] == [1, 1, 1, 2, 2, 1], [*lengths[:4], *lengths[5:8]] == [2, 1, 1, 1, 3, 3, 2]
    at = 6 if plain else 8  # of the split of the first load
    whole_windows = lengths[at : at + 3] == [1, 2, 3]
    if not (plain or divided) or not (whole_windows or lengths[at : at + 2] == [3, 3]):
        return None
    rows, columns, (k, *_) = splits[at - 3 : at]
    return TensorTile(
        warps=(rows[0], columns[0]),
        fragments=(rows[1], columns[1]),
        k_fragments=k,
        vectors=(1 if whole_windows else splits[at][2], splits[at + 1 + whole_windows][2]),
        pipelined=is_pipelined(trace),
        whole_windows=whole_windows,
        groups=1 if plain else splits[0][0],
    )


class _Blocks(NamedTuple):
    """The multiplications of one fragment, the block around them, and the loops of a warp and of the reduction."""

    inner: BlockRV
    outer: BlockRV
    warp: LoopRV
    depth: LoopRV
    step: LoopRV


# -- the sketch, step by step


def _tiled(schedule: Schedule, main: BlockRV, tile: TensorTile) -> _Blocks:
    *batch, i, j, k = schedule.get_loops(main)
    i, i_inner = schedule.split(i, [None, SIDE])
    j, j_inner = schedule.split(j, [None, SIDE])
    k, k_inner = schedule.split(k, [None, SIDE])
    schedule.reorder(i, j, k, i_inner, j_inner, k_inner)
    outer = schedule.blockize(i_inner)
    i_block, i_warp, i = schedule.split(i, [None, tile.warps[0], tile.fragments[0]])
    j_block, j_warp, j = schedule.split(j, [None, tile.warps[1], tile.fragments[1]])
    depth, step = schedule.split(k, [None, tile.k_fragments])
    schedule.reorder(i_block, j_block, i_warp, j_warp, depth, step, i, j)
    schedule.bind(schedule.fuse(i_block, j_block), "blockIdx.x")
    warp = schedule.fuse(i_warp, j_warp)
    schedule.bind(warp, "threadIdx.y")
    if batch:
        schedule.bind(batch[0], "blockIdx.y")
    schedule.unroll(i)
    schedule.unroll(j)
    _stage(schedule, depth, step, tile)
    return _Blocks(inner=main, outer=outer, warp=warp, depth=depth, step=step)


def _split_k(schedule: Schedule, total: BlockRV, matmul: Matmul, tile: TensorTile) -> tuple[_Blocks, BlockRV]:
    """As :func:`_tiled`, for a block that makes the accumulators of each group of warps; ``total`` reduces these from
    now on, in front of the other block that is returned, which writes results."""
    *_, k = schedule.get_loops(total)
    _, group, _ = schedule.split(k, [None, tile.groups, SIDE * tile.k_fragments])
    partial = schedule.rfactor(group, 0)
    schedule.set_scope(partial, 0, _ACCUMULATORS)
    result = schedule.cache_write(total, 0, "local")
    grid, *loops = cut_results(schedule, result, tile.block)
    for block in (total, partial):
        schedule.compute_at(block, grid, preserve_unit_loops=True)
    if matmul.columns_first:
        loops.reverse()
        schedule.reorder(*loops)
    rows, columns, _ = tile.block
    row, vector = (rows, 1) if matmul.columns_first else (columns, math.gcd(4, rows * columns // tile.threads))
    reduce_partials(schedule, total, loops, row, vector, (tile.all_warps, WARP))
    return _tiled_group(schedule, partial, tile), result


def _tiled_group(schedule: Schedule, partial: BlockRV, tile: TensorTile) -> _Blocks:
    group, *batch, i, j, depth, k = own_loops(schedule, partial)
    i_warp, i, i_inner = schedule.split(i, [tile.warps[0], tile.fragments[0], SIDE])
    j_warp, j, j_inner = schedule.split(j, [tile.warps[1], tile.fragments[1], SIDE])
    step, k_inner = schedule.split(k, [tile.k_fragments, SIDE])
    schedule.reorder(*batch, group, i_warp, j_warp, depth, step, i, j, i_inner, j_inner, k_inner)
    warp = schedule.fuse(group, i_warp, j_warp)
    schedule.bind(warp, "threadIdx.y")
    outer = schedule.blockize(i_inner)
    schedule.unroll(i)
    schedule.unroll(j)
    _stage(schedule, depth, step, tile)
    return _Blocks(inner=partial, outer=outer, warp=warp, depth=depth, step=step)


def _stage(schedule: Schedule, depth: LoopRV, step: LoopRV, tile: TensorTile) -> None:
    if tile.pipelined:
        schedule.annotate(depth, "software_pipeline_order", [0, 3, 1, 4, 5, 2, 6])
        schedule.annotate(depth, "software_pipeline_stage", [0, 0, 0, 0, 0, 1, 1])
        schedule.annotate(step, "software_pipeline_order", [0, 1, 2])
        schedule.annotate(step, "software_pipeline_stage", [0, 0, 1])


def _loaded(schedule: Schedule, blocks: _Blocks, matmul: Matmul, tile: TensorTile, number: int) -> BlockRV:
    """The block that brings an operand into shared memory, all threads together."""
    load = schedule.cache_read(blocks.outer, number, _OPERANDS)
    schedule.compute_at(load, blocks.depth)
    row, column = schedule.get_loops(load)[-2:]
    if number == 0 and tile.whole_windows:
        _gather(schedule, row, column, tile)
    else:
        if number == 0 and matmul.rows_first:
            schedule.reorder(column, row)
            row, column = column, row
        fused = schedule.fuse(row, column)
        _, warp, lane, vector = schedule.split(fused, [None, tile.all_warps, WARP, tile.vectors[number]])
        schedule.bind(warp, "threadIdx.y")
        schedule.bind(lane, "threadIdx.x")
        schedule.vectorize(vector)
    schedule.storage_align(load, 0, -2, SIDE, _SKEW)
    if tile.pipelined:
        schedule.annotate(load, LOCAL_STAGE, 1)
        schedule.annotate(load, "double_buffer_scope", 0)
    return load


def _gather(schedule: Schedule, row: LoopRV, column: LoopRV, tile: TensorTile) -> None:
    """Threads side by side load rows side by side; what a thread loads are windows in a row, without a loop."""
    part, own = schedule.split(column, [_gathering(tile), None])
    schedule.reorder(own, part, row)
    _, warp, lane = schedule.split(schedule.fuse(part, row), [None, tile.all_warps, WARP])
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    schedule.unroll(own)


def _gathering(tile: TensorTile) -> int:
    """How many threads load one row of A."""
    return tile.threads // tile.block[0]


def _fragments(schedule: Schedule, blocks: _Blocks, number: int) -> BlockRV:
    read = schedule.cache_read(blocks.outer, number, f"wmma.matrix_{'ab'[number]}")
    schedule.compute_at(read, blocks.step)
    return read


def _kept(schedule: Schedule, blocks: _Blocks) -> BlockRV:
    """The block that stores the accumulators of a group from fragments into shared memory."""
    store = schedule.cache_write(blocks.outer, 0, "wmma.accumulator")
    schedule.reverse_compute_at(store, blocks.warp)
    _cut(schedule, store)
    return store


def _stored(schedule: Schedule, blocks: _Blocks) -> tuple[BlockRV, BlockRV]:
    """The blocks that take accumulators from fragments into shared memory, and from there on."""
    stored = schedule.cache_write(blocks.outer, 0, _ACCUMULATORS)
    schedule.storage_align(stored, 0, -2, SIDE, _SKEW // 2)
    store = _kept(schedule, blocks)
    schedule.reverse_compute_at(stored, blocks.warp)
    return stored, store


def _cut(schedule: Schedule, block: BlockRV) -> LoopRV:
    """Cut the last two loops of a block into fragments; the loop of a fragment's rows."""
    row, column = schedule.get_loops(block)[-2:]
    row, row_inner = schedule.split(row, [None, SIDE])
    column, column_inner = schedule.split(column, [None, SIDE])
    schedule.reorder(row, column, row_inner, column_inner)
    schedule.unroll(row)
    schedule.unroll(column)
    return row_inner


def _tensorize(
    schedule: Schedule, blocks: _Blocks, matmul: Matmul, fragments: Sequence[BlockRV], store: BlockRV, start: BlockRV
) -> None:
    kind = f"{SIDE}x{SIDE}x{SIDE}"
    transposed = "_trans" if matmul.k_last else ""
    names = (f"wmma_load_{kind}_f16_a_{_OPERANDS}", f"wmma_load_{kind}_f16_b{transposed}_{_OPERANDS}")
    for block, name in zip(fragments, names, strict=True):
        schedule.tensorize(_cut(schedule, block), name)
    (first,) = schedule.get_child_blocks(start)
    schedule.tensorize(schedule.get_loops(first)[-2], f"wmma_fill_{kind}_f32")
    schedule.tensorize(schedule.get_loops(store)[-2], f"wmma_store_{kind}_f32_{_ACCUMULATORS.replace('.', '_')}")
    schedule.tensorize(schedule.get_loops(blocks.inner)[-3], f"wmma_sync_{kind}_f16f16f32{transposed}")


def _written(schedule: Schedule, stored: BlockRV, matmul: Matmul) -> None:
    """The accumulators of a warp, and their epilogue, by its lanes."""
    row, column = schedule.get_loops(stored)[-2:]
    if matmul.columns_first:
        schedule.reorder(column, row)
        row, column = column, row
    _, lane, vector = schedule.split(schedule.fuse(row, column), [None, WARP, 1 if matmul.columns_first else 4])
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(vector)


# -- which tiles suit


def _tiles(matmul: Matmul, runs: tuple[int, int]) -> Iterator[TensorTile]:
    """Every tile with vectors of at most ``runs``."""
    kind = replace(matmul, name="", batch=(), rows=(), columns=(), k=(), result_run=0)
    return (tile for tile in _of_kind(kind, runs) if _suits(tile, *matmul.extents[1:]))


@lru_cache(maxsize=256)  # products of a language model differ in their extents alone
def _of_kind(kind: Matmul, runs: tuple[int, int]) -> tuple[TensorTile, ...]:
    """The tiles of products of any extents; ``kind``: one without."""
    plain = (replace(each, groups=groups) for each in _plain(kind) for groups in GROUPS)
    return tuple(tile for each in plain if (tile := _vectorised(kind, each, runs)) is not None)


def _plain(matmul: Matmul) -> Iterator[TensorTile]:
    """Tiles that load one element at a time."""
    sizes, gathers = (1, 2, 4, 8), matmul.window > 1 and matmul.rows_first
    for warps in ((a, b) for a in sizes for b in sizes if a * b <= MOST_WARPS):
        for fragments in ((a, b) for a in (1, 2, 4) for b in (1, 2, 4) if a * b <= MOST_FRAGMENTS):
            plain = TensorTile(warps=warps, fragments=fragments, k_fragments=1, vectors=(1, 1))
            for k in (1, 2, 4, 8, 16):
                yield from (
                    replace(plain, k_fragments=k, pipelined=pipelined) for pipelined in (False, True)[: min(k, 2)]
                )
            for windows in _WINDOWS if gathers else ():
                yield replace(plain, k_fragments=windows * matmul.window, whole_windows=True)


def _vectorised(matmul: Matmul, tile: TensorTile, runs: tuple[int, int]) -> TensorTile | None:
    """The tile with the longest vectors, in ``runs``, with which all threads load alike; None when there are too many
    threads, or when these do not gather whole windows."""
    rows, columns, depth = tile.block
    if tile.whole_windows and (tile.threads % rows or depth % (_gathering(tile) * matmul.window)):
        return None
    lengths = (depth, depth if matmul.k_last else columns)
    found = []
    longest = map(min, _longest(matmul, tile), runs)
    for size, along, most in zip((rows * depth, columns * depth), lengths, longest, strict=True):
        fitting = [v for v in (8, 4, 2, 1) if v <= most and along % v == 0 and size % (tile.threads * v) == 0]
        if not fitting:
            return None
        found.append(fitting[0])
    return replace(tile, vectors=(found[0], found[1]))


def _longest(matmul: Matmul, tile: TensorTile) -> tuple[int, int]:
    """The most elements of A and of B that a thread may load at once. Of windows that are loaded ahead TVM may not see
    that they lie behind each other in B, and it writes no code that compiles for eight indices at once."""
    apart = tile.pipelined and matmul.k_last and matmul.window % AT_ONCE != 0 and matmul.window > 1
    return 1 if matmul.rows_first else AT_ONCE, AT_ONCE // 2 if apart else AT_ONCE


def _suits(tile: TensorTile, rows: int, columns: int, k: int) -> bool:
    for size, extent in zip(tile.block, (rows, columns, k), strict=True):
        if size >= 2 * max(extent, SIDE):
            return False
    if tile.all_warps > MOST_WARPS:
        return False
    if tile.pipelined and (tile.block[2] >= k or _waiting(tile) > _MOST_WAITING):
        return False  # there is no next load, or it takes too many registers
    accumulators, total = _accumulator_bytes(tile), shared_memory(tile)
    return total <= SM_80.shared_memory or (accumulators >= FEWEST_ASKED_BYTES and total <= ASKED_SHARED_BYTES)


def _waiting(tile: TensorTile) -> int:
    """How many elements of the next load a thread holds."""
    rows, columns, depth = tile.block
    return (rows + columns) * depth // tile.threads


def shared_memory(tile: TensorTile) -> int:
    """Bytes of shared memory that a block of ``tile`` takes at most."""
    rows, columns, depth = tile.block
    operands = 2 * (rows * (depth + _SKEW) + max(columns * (depth + _SKEW), depth * (columns + _SKEW)))
    return operands * (2 if tile.pipelined else 1) + _accumulator_bytes(tile)


def _accumulator_bytes(tile: TensorTile) -> int:
    """Of dynamic shared memory, which accumulators are in."""
    rows, columns, _ = tile.block
    return 4 * tile.groups * rows * columns
