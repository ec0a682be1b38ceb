"""Split-K within a block, a sketch for GPUs in float32: matmuls, and convolutions as implicit GEMM.

A matmul of few results has too few threads to wait for memory where each has its own results: 128 × 768 results, 16 of
a thread, are 192 warps for all multiprocessors of a large GPU. Here a block's threads are in groups, each of which
accumulates its part of every step, so that there are as many times the warps (CUTLASS calls it sliced-K). Partial sums
go through shared memory at the end (``rfactor``) and are reduced by all threads, which then compute the epilogue: one
kernel, no workspace and no atomic additions, as split-K among blocks has them (Osama et al., "Stream-K", 2023).

Operands lie in shared memory in the order in which memory has them, so that loads are coalesced and
become vectors, or, where a convolution has windows, whole windows of one thread, whose places are constants in the
kernel (computing each element's place takes longer than all multiplications). An operand along K has longer rows, so
that threads that read different rows meet different banks; along the other operand a thread has its results in vectors
of four, with those of its neighbours in between. A result whose neighbours in memory are rows (a convolution in NCHW)
is taken the other way round.

Only schedule primitives are used: a trace replays on every supported TVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from tunehub.kernels.cuda.gemm.cost import Array
from tunehub.kernels.cuda.gemm.matmul import (
    LOCAL_STAGE,
    Axis,
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
from tunehub.target.gpu_architectures import BANKS, REGISTERS, REGISTERS_OF_A_THREAD, SM_80, WARP

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, PortableTrace, Schedule

GROUPS = (2, 4, 8, 16)
DEPTHS = (4, 8, 16, 32)  # K of a group between two loads
WINDOWS = (1, 2, 4)  # the same in windows, where an operand has any
FEWEST_THREADS, MOST_THREADS = 128, SM_80.threads  # of a block
MOST_ACCUMULATORS, FEWEST_ACCUMULATORS = 64, 4  # of a thread
_OTHER_REGISTERS = 32  # of a thread: addresses and counters
_VECTOR = 4  # elements that are read and written at once
_FLOAT = 4  # bytes
_SKEW = 4
_MOST_STRAIGHT = 512  # multiplications of a thread without a loop around them
_MOST_WASTE = 1.2  # how much larger the extents may be with padding
_MOST_RESULTS, _MOST_OF_BATCH = 1 << 23, 1 << 26  # of one product and of all: with more nothing was measured
_FEWEST_K = 64


class Side(NamedTuple):
    """An operand: ``number`` 0 is A, 1 is B. ``extent`` of the results along it; ``along``: its neighbours in memory
    are along K; ``run``: so many of them lie behind each other. ``window``: so much of K are the places of one
    window; 1 where there are none."""

    number: int
    extent: int
    along: bool
    run: int
    window: int = 1


Number = TypeVar("Number", int, Array)


class _BlockShape(Generic[Number]):
    """What follows from the numbers of one tile, or from the arrays of many."""

    __slots__ = ()
    groups: Number
    threads: tuple[Number, Number]
    sums: tuple[Number, Number]
    depth: Number

    @property
    def block(self) -> tuple[Number, Number, Number]:
        """Results along the two sides and K of a block, in elements."""
        slow, fast = (count * own for count, own in zip(self.threads, self.sums, strict=True))
        return slow, fast, self.groups * self.depth

    @property
    def block_threads(self) -> Number:
        """Threads of a block."""
        return self.groups * self.threads[0] * self.threads[1]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SplitTile(_BlockShape[int]):
    """The choices of a sketch, (slow, fast) where there are two: along the results whose neighbours are far apart in
    memory, and along those whose neighbours are neighbours.

    A block has ``groups`` of ``threads``, each of which holds so many accumulators (``sums``, as records call them);
    ``depth`` of K of each group are loaded at a time; a thread loads ``vectors`` of neighbours at once: one vector, or
    the places of whole windows. ``pipelined``: the next load is under way while the last is multiplied.
    """

    groups: int
    threads: tuple[int, int]
    sums: tuple[int, int]
    depth: int
    vectors: tuple[int, int]
    pipelined: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitTiles(_BlockShape[Array]):
    """Many tiles at once: each number of :class:`SplitTile` is an array of one for each tile."""

    groups: Array
    threads: tuple[Array, Array]
    sums: tuple[Array, Array]
    depth: Array
    vectors: tuple[Array, Array]
    pipelined: Array

    def __len__(self) -> int:
        return len(self.groups)

    def at(self, rows: Array) -> SplitTiles:
        """Some of the tiles."""
        return SplitTiles(**self._each(lambda column: column[rows]))

    def tile(self, row: int) -> SplitTile:
        """One of them."""
        return SplitTile(**self._each(lambda column: column[row].item()))

    def _each(self, taken: Callable[[Array], Array]) -> dict[str, Any]:
        columns = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: tuple(map(taken, own)) if isinstance(own, tuple) else taken(own) for name, own in columns}


def matmul_of(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod`` (one PrimFunc ``main``) as a matmul in float32 with a long K for its number of
    results, or None."""
    matmul = find_matmul(mod, "float32")
    if matmul is None:
        return None
    batch, rows, columns, k = matmul.extents
    few = rows * columns <= _MOST_RESULTS and batch * rows * columns <= _MOST_OF_BATCH
    return matmul if few and k >= _FEWEST_K else None


def sides(matmul: Matmul) -> tuple[Side, Side]:
    """The slow and the fast side of ``matmul``."""
    _, rows, columns, _ = matmul.extents
    run = _whole(matmul.runs[0], matmul.rows, matmul.rows_first)
    found = (
        Side(0, rows, not matmul.rows_first, run, matmul.window if matmul.rows_first else 1),
        Side(1, columns, matmul.k_last, _whole(matmul.runs[1], matmul.columns, not matmul.k_last)),
    )
    return (found[1], found[0]) if matmul.columns_first else found


def blocks_of(matmul: Matmul, tile: _BlockShape[Number]) -> Number:
    """How many blocks the kernel of a tile has, or those of many."""
    (slow, fast), (rows, columns, _) = sides(matmul), tile.block
    blocks: Number = matmul.extents[0] * -(-slow.extent // rows) * -(-fast.extent // columns)
    return blocks


def all_tiles(matmul: Matmul) -> SplitTiles:
    """Every tile that may suit ``matmul``: padding is little, and shared memory and registers suffice."""
    both = sides(matmul)
    slow, fast = (list(_cuts(side.extent)) for side in both)
    cuts = [(a, b, c, d) for a, c in slow for b, d in fast if FEWEST_ACCUMULATORS <= c * d <= MOST_ACCUMULATORS]
    rows = [(g, depth, later) for g in GROUPS for depth in _depths(both) for later in (0, 1)]
    if not cuts:
        rows = []
    each = np.repeat(np.array(cuts or [(1, 1, 1, 1)], dtype=np.int64), len(rows), axis=0)
    own = np.tile(np.array(rows or [(1, 1, 0)], dtype=np.int64), (len(cuts), 1))[: len(each)]
    one = np.ones(len(each), dtype=np.int64)
    found = SplitTiles(
        groups=own[:, 0],
        threads=(each[:, 0], each[:, 1]),
        sums=(each[:, 2], each[:, 3]),
        depth=own[:, 1],
        vectors=(one, one),
        pipelined=own[:, 2].astype(bool),
    )
    count = found.block_threads
    even = (each[:, 2] * each[:, 3]) % found.groups == 0  # every thread reduces as many partial sums
    found = found.at((count % WARP == 0) & (count >= FEWEST_THREADS) & (count <= MOST_THREADS) & even)
    found = _vectorised(both, found)
    return found.at(_suit(found, matmul))


def is_among(matmul: Matmul, tile: SplitTile) -> bool:
    """Whether ``tile`` is one of :func:`all_tiles`."""
    found = all_tiles(matmul)
    return any(found.tile(row) == tile for row in range(len(found)))


def apply(mod: IRModule, matmul: Matmul, tile: SplitTile) -> Schedule:
    """The schedule of ``mod`` by ``tile``. TVM raises where a primitive does not take its place."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    both = sides(matmul)
    # Step 1. An implicit GEMM whose extents tiles divide; padding is zero.
    total = _as_matmul(schedule, matmul, both)
    pad_to(schedule, total, (both[0].extent, both[1].extent, matmul.extents[3]), tile.block)
    # Step 2. Split K among groups of threads; their partial sums meet in shared memory, in the same kernel.
    partial = _split_k(schedule, total, tile)
    result, kept = _placed(schedule, total, partial, matmul, tile)
    _shared(schedule, kept, both, tile)
    # Step 3. Mainloop: accumulators in registers, operands through shared memory, loads by vectors.
    depth = _accumulated(schedule, partial, both, tile)
    for side, vector in zip(both, tile.vectors, strict=True):
        _loaded(schedule, partial, depth, side, tile, vector)
    start = schedule.decompose_reduction(partial, depth)
    for loop in schedule.get_loops(start)[-4:]:
        schedule.unroll(loop)
    # Step 4. Epilogue.
    inline_consumers(schedule, result)
    schedule.vectorize(schedule.get_loops(result)[-1])
    return schedule


def tile_of(trace: PortableTrace) -> SplitTile | None:
    """The tile that a portable trace of this sketch was made with; None for another trace."""
    if not any(instruction[0] == "RFactor" for instruction in trace[0]):
        return None
    splits = splits_of(trace)
    if [len(split) for split in splits] not in [[3, 1, 1, 1, rows, 3, 3, 3, 3, 1, 2, 1, 2] for rows in (1, 2)]:
        return None
    (groups, parts, straight), _, _, _, _, slow, fast, *_ = splits
    return SplitTile(
        groups=groups,
        threads=(slow[1], fast[1]),
        sums=(slow[0] * slow[2], fast[0] * fast[2]),
        depth=parts * straight,
        vectors=(splits[9][0], splits[11][0]),
        pipelined=is_pipelined(trace),
    )


def shared_memory(matmul: Matmul, tile: Any) -> Any:
    """Bytes of shared memory that a block of ``tile`` (or each of many) takes: TVM puts partial sums where an operand
    was."""
    slow, fast, k = tile.block
    one, other = (
        extent * _row(k) if side.along else k * extent for side, extent in zip(sides(matmul), (slow, fast), strict=True)
    )
    partial = tile.groups * slow * fast
    return _FLOAT * (np.maximum(np.maximum(one, other), partial) + np.minimum(one, other))


def registers(matmul: Matmul, tile: Any) -> Any:
    """About how many registers a thread of ``tile`` (or each of many) needs."""
    both = sides(matmul)
    k = np.gcd(tile.depth, _VECTOR)
    held = sum(own * (k if side.along else 1) for side, own in zip(both, tile.sums, strict=True))
    return tile.sums[0] * tile.sums[1] + held + tile.pipelined * sum(waiting(tile)) + _OTHER_REGISTERS


def waiting(tile: Any) -> tuple[Array, Array]:
    """How many elements of each side a thread of ``tile`` (or each of many) loads at a time."""
    slow, fast, k = tile.block
    a, b = (
        vector * -(-extent * k // (vector * tile.block_threads))
        for extent, vector in zip((slow, fast), tile.vectors, strict=True)
    )
    return a, b


# -- the sketch, step by step


def _as_matmul(schedule: Schedule, matmul: Matmul, both: tuple[Side, Side]) -> BlockRV:
    names = ("rows", "columns")
    order = ("batch", *(names[side.number] for side in both))
    operands = [
        ("batch", names[side.number], "k") if side.along else ("batch", "k", names[side.number])
        for side in sorted(both)
    ]
    return as_matmul(schedule, matmul, (*operands, order), (*order, "k"))


def _split_k(schedule: Schedule, total: BlockRV, tile: SplitTile) -> BlockRV:
    """The block with the groups' partial sums; ``total`` reduces these from now on."""
    k = schedule.get_loops(total)[-1]
    straight = _straight(tile)
    _, group, _, _ = schedule.split(k, [None, tile.groups, tile.depth // straight, straight])
    return schedule.rfactor(group, 0)


def _placed(
    schedule: Schedule, total: BlockRV, partial: BlockRV, matmul: Matmul, tile: SplitTile
) -> tuple[BlockRV, BlockRV]:
    """Cut results into blocks, and bring all into one kernel; the block that writes results, and the one that brings
    partial sums into shared memory."""
    result = schedule.cache_write(total, 0, "local")
    grid, *loops = cut_results(schedule, result, tile.block)
    schedule.compute_at(total, grid, preserve_unit_loops=True)
    kept = schedule.cache_write(partial, 0, "local")
    schedule.set_scope(kept, 0, "shared")
    schedule.compute_at(kept, grid, preserve_unit_loops=True)
    schedule.compute_at(partial, grid, preserve_unit_loops=True)
    threads = (tile.groups, math.prod(tile.threads))
    reduce_partials(schedule, total, loops, tile.block[1], _result_vector(matmul, tile), threads)
    return result, kept


def _spread(
    schedule: Schedule, loops: Sequence[LoopRV], both: Sequence[Side], tile: SplitTile
) -> list[tuple[LoopRV, LoopRV, LoopRV]]:
    """Cut the loops over a block's results, slow and fast, into three: a thread's, over threads, a thread's again."""
    return [
        tuple(schedule.split(loop, [own // width, threads, width]))
        for loop, own, threads, width in zip(loops, tile.sums, tile.threads, _widths(both, tile.sums), strict=True)
    ]


def _bind(schedule: Schedule, group: LoopRV, threads: Sequence[LoopRV]) -> None:
    schedule.bind(group, "threadIdx.y")
    schedule.bind(schedule.fuse(*threads), "threadIdx.x")


def _shared(schedule: Schedule, kept: BlockRV, both: Sequence[Side], tile: SplitTile) -> None:
    """Store the partial sums of all threads in shared memory."""
    group, *_, slow, fast = own_loops(schedule, kept)
    (slow, slow_thread, slow_own), (fast, fast_thread, fast_own) = _spread(schedule, (slow, fast), both, tile)
    schedule.reorder(group, slow_thread, fast_thread, slow, slow_own, fast, fast_own)
    _bind(schedule, group, (slow_thread, fast_thread))
    for loop in (slow, slow_own, fast):
        schedule.unroll(loop)
    schedule.vectorize(fast_own)


def _accumulated(schedule: Schedule, partial: BlockRV, both: Sequence[Side], tile: SplitTile) -> LoopRV:
    """Accumulate in registers; the loop over loads."""
    group, *_, slow, fast, depth, part, step = own_loops(schedule, partial)
    (slow, slow_thread, slow_own), (fast, fast_thread, fast_own) = _spread(schedule, (slow, fast), both, tile)
    own = (slow, slow_own, fast, fast_own)
    schedule.reorder(group, slow_thread, fast_thread, depth, part, step, *own)
    _bind(schedule, group, (slow_thread, fast_thread))
    for loop in (step, *own):
        schedule.unroll(loop)
    if tile.pipelined:
        schedule.annotate(depth, "software_pipeline_order", [0, 3, 1, 4, 2])
        schedule.annotate(depth, "software_pipeline_stage", [0, 0, 0, 0, 1])
    return depth


def _loaded(schedule: Schedule, partial: BlockRV, depth: LoopRV, side: Side, tile: SplitTile, length: int) -> None:
    """Load an operand into shared memory, all threads together, ``length`` elements each; what is computed of
    parameters before is computed here."""
    load = schedule.cache_read(partial, side.number, "shared")
    schedule.compute_at(load, depth, preserve_unit_loops=True)
    inline_producers(schedule, load)
    slow, fast = schedule.get_loops(load)[-2:]
    if side.window > 1:
        slow, own = schedule.split(slow, [None, length])
        schedule.reorder(own, slow, fast)
        _unroll(schedule, own, tile)
        elements = schedule.fuse(slow, fast)
    else:
        elements, own = schedule.split(schedule.fuse(slow, fast), [None, length])
        schedule.vectorize(own)
    _, group, thread = schedule.split(elements, [None, tile.groups, math.prod(tile.threads)])
    schedule.bind(group, "threadIdx.y")
    schedule.bind(thread, "threadIdx.x")
    if side.along:
        schedule.storage_align(load, 0, -2, BANKS, _SKEW)
    if tile.pipelined:
        schedule.annotate(load, LOCAL_STAGE, 1)


def _unroll(schedule: Schedule, loop: LoopRV, tile: SplitTile) -> None:
    """Make straight code of a loop around a load; TVM stages loads in serial loops only, and unrolls these later."""
    if tile.pipelined:
        schedule.annotate(loop, "pragma_auto_unroll_max_step", _MOST_STRAIGHT)
        schedule.annotate(loop, "pragma_unroll_explicit", 1)
    else:
        schedule.unroll(loop)


# -- which tiles suit


def _widths(both: Sequence[Side], sums: Sequence[int]) -> list[int]:
    """How many neighbouring results of a side a thread has: as many as it reads at once."""
    return [1 if side.along else math.gcd(own, _VECTOR) for side, own in zip(both, sums, strict=True)]


def _result_vector(matmul: Matmul, tile: SplitTile) -> int:
    """How many results a thread writes at once. Of images of 7 x 7 one: four would not always be neighbours in memory,
    and TVM then computes the place of each."""
    own = math.prod(tile.sums) // tile.groups
    return math.gcd(_VECTOR, matmul.result_run, sides(matmul)[1].extent, tile.block[1], own)


def _whole(run: int, axes: Sequence[Axis], spatial: bool) -> int:
    """The part of a ``run`` along ``axes`` that no vector goes over the end of: TVM takes an index apart where a row of
    an image ends, if a block holds whole rows, and then loads the elements of a vector one by one."""
    return math.gcd(run, axes[-1].extent) if spatial else run


def _cuts(extent: int) -> Iterator[tuple[int, int]]:
    """Pairs (threads, accumulators of a thread) along a side of ``extent`` results, with little padding."""
    for threads in range(1, WARP + 1):
        for own in (1, 2, 4, 7, 8):
            size = threads * own
            padded = math.ceil(extent / size) * size
            plain = threads.bit_count() == 1 and own != 7
            if padded <= (_MOST_WASTE if plain else 1) * extent:
                yield threads, own


def _vectorised(both: Sequence[Side], tiles: SplitTiles) -> SplitTiles:
    """The tiles with the longest vectors: what is loaded begins at a multiple of these."""
    slow, fast, k = tiles.block

    def longest(side: Side, size: Array) -> Array:
        if side.window > 1:
            return _windows(side, size, tiles)
        return np.gcd(math.gcd(_VECTOR, side.run), k if side.along else size)

    a, b = (longest(side, size) for side, size in zip(both, (slow, fast), strict=True))
    return replace(tiles, vectors=(a, b))


def _windows(side: Side, size: Array, tiles: SplitTiles) -> Array:
    """K of one row of places that a thread loads: whole windows, as few as keep all threads busy once."""
    count = tiles.block[2] // side.window
    most = np.ones_like(count)
    for parts in range(1, int(count.max(initial=0)) + 1):
        most = np.where((count % parts == 0) & (parts * size <= tiles.block_threads), parts, most)
    return np.asarray(count // most * side.window)


def _depths(both: Sequence[Side]) -> tuple[int, ...]:
    window = max(side.window for side in both)
    return tuple(window * count for count in WINDOWS) if window > 1 else DEPTHS


def _straight(tile: SplitTile) -> int:
    """How much of K is straight code, in which the elements of four can be read at once."""
    most = max(_VECTOR, _MOST_STRAIGHT // math.prod(tile.sums))
    fitting = (k for k in range(1, most + 1) if tile.depth % k == 0)
    return max(fitting, key=lambda k: (k % _VECTOR == 0, k))


def _suit(tiles: SplitTiles, matmul: Matmul) -> Array:
    """Which of ``tiles`` suit."""
    *_, k = matmul.extents
    depth = tiles.block[2]
    rounds = -(-k // depth)
    # There is a next load, and little of the last one is padding.
    loads = (rounds >= 1 + tiles.pipelined) & (rounds * depth <= _MOST_WASTE * k)
    most = np.minimum(REGISTERS_OF_A_THREAD, REGISTERS // tiles.block_threads)
    return np.asarray(
        loads & (registers(matmul, tiles) <= most) & (shared_memory(matmul, tiles) <= SM_80.shared_memory)
    )


def _row(k: Array | int) -> Any:
    """Elements from one row of ``k`` to the next in shared memory."""
    return k + (_SKEW - k) % BANKS
