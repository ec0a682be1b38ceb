"""Schedules of current TVM (0.25 and newer) for CUDA without a record: convolutions, matmuls, mean windows.

The form is that of MetaSchedule's tiles for CUDA (``meta_schedule/schedule_rule/multi_level_tiling.cc``), for which
the costs of :mod:`tunehub.kernels.cuda.gemm.cost` were measured. Producers of the
reduction are inlined where its operands are loaded, its epilogue where results are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cuda.gemm.cost import Operand, Problem, Term, matrix_shape
from tunehub.kernels.cuda.gemm.matmul import AT_ONCE, INT8, SIDE
from tunehub.kernels.cuda.gemm.rule import FURTHER, UNROLLED, NoTileError, Tile, is_within, ranked, spread, tile_for
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import LaunchLimits
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import check_exact, check_tiles
from tunehub.tir.index_expressions import evaluate
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_reduction, parameters, reduces
from tunehub.tir.schedules import open_schedule, root_blocks
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import (
        BlockRV,
        Buffer,
        BufferLoad,
        IRModule,
        LoopRV,
        Number,
        PrimExpr,
        SBlock,
        Schedule,
        Stmt,
    )

NAME, VERSION, ALONE = "cuda_tiles", 1, False
TEMPLATES = {NAME: Tile}
_TYPES = ("float32", "float16")  # of operands and result; matmuls in the latter are for tensor cores
_SUMS_OF_BYTES = "int32"
_PROBES = 4  # random places at which terms are held to the index that they were found in
_FEW_COLUMNS = 64  # up to which TVM's own rule for products in half precision has no tensor cores
_MOST_RESULTS = 200_000  # of products in bfloat16 that are not narrow; half a million took TVM's own schedule 0.6 times
WINDOW = 64  # most elements of a window
_WINDOW_THREADS = (32, 256)  # of a block: fewest, most
FEWEST_WINDOWS = 4096  # with fewer, several threads for each are better


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionBlock:
    """The reduction block ``name``, with extents of its ``spatial`` and ``reduction`` loops, and ``problem`` if it
    multiplies two operands: ``places`` are theirs among the regions that the block reads, ``einsum`` says that each of
    their indices is one loop's, as TVM's ``pad_einsum`` wants them. ``is_compared``: with other kernels' promises."""

    name: str
    problem: Problem | None
    places: tuple[int, int]
    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    einsum: bool
    is_compared: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionWorkload:
    """``mod`` with the reduction block ``reducing``, and what the GPU can launch."""

    mod: IRModule
    reducing: ReductionBlock
    limits: LaunchLimits


def match(mod: IRModule, target: Target) -> ReductionWorkload | None:
    """A function with one reduction, in floats or of products of 8 bits."""
    reducing = reduction_block_of(mod, narrow=True)
    return None if reducing is None else ReductionWorkload(mod=mod, reducing=reducing, limits=limits_of(target))


def candidates(workload: ReductionWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tile that should cost least; a thread for each result (no tile) where windows are small and many, behind all
    other rules if they are the rows of a norm. Raises NoTileError when TVM's own schedule should be as good."""
    reducing, limits = workload.reducing, workload.limits
    if reducing.problem is not None:
        tile = best_tile(reducing, limits, device)
        yield KernelCandidate(tile=tile, seconds=tile.expected_s, compared_s=None if reducing.is_compared else math.inf)
    elif math.prod(reducing.reduction) <= WINDOW and math.prod(reducing.spatial) >= FEWEST_WINDOWS:
        yield KernelCandidate(tile=None, seconds=None, compared_s=math.inf if _is_norm(workload) else None)
    else:
        raise NoTileError("several threads for each result are better, as TVM has them")


def _is_norm(workload: ReductionWorkload) -> bool:
    """Whether there are more results than windows."""
    results = (integer(extent) or 0 for extent in buffer_kind(parameters(workload.mod["main"])[-1]).shape)
    return math.prod(results) > math.prod(workload.reducing.spatial)


def takes(workload: ReductionWorkload, tile: Tile) -> bool:
    """Whether it keeps the bounds of the rule's own."""
    problem, limits = workload.reducing.problem, workload.limits
    return problem is not None and is_within(problem, tile, shared_memory=limits.shared_memory, threads=limits.threads)


def space(workload: ReductionWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The best tiles, and some behind them; none of products in half precision."""
    reducing, limits = reduction_block_of(workload.mod), workload.limits
    if reducing is None or reducing.problem is None:
        return
    problem, covering = reducing.problem, (False, True) if reducing.einsum else (False,)
    bounds = {"shared_memory": limits.shared_memory, "threads": limits.threads, "count": FURTHER}
    found = [tile for each in covering for tile in ranked(problem, device, covering=each, **bounds)]
    by_loops = {(tile.virtual, tile.threads, tile.inner, tile.step): tile for tile in found}
    for tile in spread(sorted(by_loops.values(), key=lambda tile: tile.expected_s)[:FURTHER]):
        yield KernelCandidate(tile=tile, seconds=tile.expected_s)


def build(workload: ReductionWorkload, tile: Tile | None) -> Schedule:
    """The schedule. Raises GuardError when a tile writes what other tiles write, and what TVM raises."""
    if tile is not None:
        return checked_tiles(workload.mod, workload.reducing, tile)
    schedule = one_thread_each(workload.mod, workload.reducing)
    check_exact(schedule.mod["main"])
    return schedule


def best_tile(reducing: ReductionBlock, limits: LaunchLimits, device: GpuDevice) -> Tile:
    """The tile that should cost least, of a ``problem``. Raises NoTileError as :func:`tile_for`."""
    assert reducing.problem is not None
    bounds = {"shared_memory": limits.shared_memory, "threads": limits.threads}
    return tile_for(reducing.problem, device, **bounds, covering=reducing.einsum)


def is_narrow(columns: int, k: int) -> bool:
    """Whether tensor cores would mostly multiply zeros, or load elements of few columns one by one."""
    return columns < SIDE or (columns <= _FEW_COLUMNS and k % AT_ONCE != 0)


def reduction_block_of(mod: IRModule, *, narrow: bool = False) -> ReductionBlock | None:
    """Describe a function with one reduction, in floats or of products of 8 bits, and elementwise blocks before and
    after it. ``narrow``: also products in half precision that are :func:`is_narrow`, and in bfloat16 with few results,
    for which the sketch for tensor cores has nothing."""
    schedule = open_schedule(mod)
    blocks = _blocks_of(schedule)
    adding = [at for at, block in enumerate(blocks) if reduces(block)]
    names = [str(block.name_hint) for block in blocks]
    if len(adding) != 1 or len(set(names)) != len(names) or not _writes_only_last(mod, blocks):
        return None
    (at,) = adding
    block = blocks[at]
    extents = [integer(axis.dom.extent) for axis in block.iter_vars]
    kinds = [is_reduction(axis) for axis in block.iter_vars]
    summand = _summand(block)
    if summand is None or not all(extents) or kinds != sorted(kinds) or not _is_flat(schedule, block):
        return None
    spatial = tuple(int(e or 0) for e, is_sum in zip(extents, kinds, strict=True) if not is_sum)
    reduction = tuple(int(e or 0) for e, is_sum in zip(extents, kinds, strict=True) if is_sum)
    found = ReductionBlock(
        name=names[at], problem=None, places=(0, 0), spatial=spatial, reduction=reduction, einsum=False
    )
    if type(summand).__name__ in LOADS:
        return found if _type(buffer_of(block.writes[0])) in _TYPES else None
    return _with_problem(found, block, summand, narrow=narrow)


def checked_tiles(mod: IRModule, reducing: ReductionBlock, tile: Tile) -> Schedule:
    """:func:`tiled`. Raises GuardError when a tile writes what other tiles write."""
    schedule = tiled(mod, reducing, tile)
    (check_tiles if _goes_beyond(tile, reducing) else check_exact)(schedule.mod["main"])
    return schedule


def tiled(mod: IRModule, reducing: ReductionBlock, tile: Tile, *, symbolic: bool = False) -> Schedule:
    """The schedule by ``tile``: blocks, virtual threads, threads; operands in shared memory, accumulators in registers.

    ``symbolic``: loops of ``mod`` have unknown extents, and ``reducing`` describes an instance.
    """
    # Step 1. Extents that tiles divide: rows and columns beyond the ends are zeros.
    schedule = open_schedule(mod)
    anchor = schedule.get_sblock(reducing.name)
    if symbolic or _goes_beyond(tile, reducing):
        schedule.pad_einsum(anchor, list(tile.lengths))
    before, after = _around(schedule, reducing)
    result = _result(schedule, anchor, after)
    # Step 2. Spatial loops: (block, virtual thread, thread, inner); reduction loops: (step, inside of it).
    loops, count = schedule.get_loops(anchor), len(reducing.spatial)
    sizes = list(zip(tile.virtual, tile.threads, tile.inner, strict=True))
    blocks, virtual, threads, inner = _cut(schedule, loops[:count], reducing.spatial, sizes, symbolic=symbolic)
    steps = [(step,) for step in tile.step]
    outer, inside = _cut(schedule, loops[count:], reducing.reduction, steps, symbolic=symbolic)
    if symbolic:
        blocks.sort(key=lambda loop: integer(schedule.get(loop).extent) is None)
    schedule.reorder(*blocks, *virtual, *threads, *outer, *inside, *inner)
    # Step 3. Accumulators are a thread's own; operands of a step go through shared memory, loaded by all threads.
    bound = _bind(schedule, [] if symbolic else blocks, virtual, threads)
    if symbolic:
        _bind_open(schedule, blocks)
    schedule.reverse_compute_at(result, bound, preserve_unit_loops=True)
    for place in reducing.places:
        _stage(schedule, anchor, place, outer[-1], math.prod(tile.threads))
    # Step 4. Producers into the loads, straight code, accumulators zeroed before the first step.
    _inline(schedule, before)
    _unroll(schedule, anchor)
    schedule.decompose_reduction(anchor, outer[0])
    return schedule


def _cut(
    schedule: Schedule,
    loops: Sequence[LoopRV],
    extents: Sequence[int],
    sizes: Sequence[Sequence[int]],
    *,
    symbolic: bool,
) -> list[list[LoopRV]]:
    """Each loop in levels, the outermost over tiles, the others of ``sizes``. The loops of each level."""
    levels = [
        schedule.split(loop, [None if symbolic else -(-extent // math.prod(inner)), *inner], preserve_unit_iters=True)
        for loop, extent, inner in zip(loops, extents, sizes, strict=True)
    ]
    return [list(level) for level in zip(*levels, strict=True)]


def one_thread_each(mod: IRModule, reducing: ReductionBlock) -> Schedule:
    """The schedule with a thread for each result, which reduces all of it. Raises NoTileError when blocks of threads
    would leave a remainder."""
    count = _threads_without_remainder(reducing.spatial)
    schedule = open_schedule(mod)
    anchor = schedule.get_sblock(reducing.name)
    before, after = _around(schedule, reducing)
    result = _result(schedule, anchor, after)
    loops = schedule.get_loops(anchor)[: len(reducing.spatial)]
    blocks, threads = schedule.split(schedule.fuse(*loops), [None, count])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.reverse_compute_at(result, threads, preserve_unit_loops=True)
    _inline(schedule, before)
    _unroll(schedule, anchor)
    schedule.decompose_reduction(anchor, schedule.get_loops(anchor)[2])
    return schedule


def _threads_without_remainder(spatial: Sequence[int]) -> int:
    """The number of threads that fills warps best. Not one that makes blocks of whole rows or planes: for these TVM
    divides by zero when it lowers the epilogue (0.25 to 0.27)."""
    fewest, most = _WINDOW_THREADS
    results = math.prod(spatial)
    whole = {math.prod(spatial[axis:]) for axis in range(len(spatial))}
    found = [count for count in range(fewest, most + 1) if results % count == 0 and count not in whole]
    if not found:
        raise NoTileError(f"no block of {fewest} to {most} threads divides {results} results")
    return max(found, key=lambda count: (count / -(-count // fewest), count))


def _goes_beyond(tile: Tile, reducing: ReductionBlock) -> bool:
    """Whether the last tile of some loop goes beyond its end."""
    extents = (*reducing.spatial, *reducing.reduction)
    return any(extent % length for extent, length in zip(extents, tile.lengths, strict=True))


def _around(schedule: Schedule, reducing: ReductionBlock) -> tuple[list[BlockRV], list[BlockRV]]:
    """The blocks before the reduction, and those after it."""
    blocks = root_blocks(schedule)
    at = [str(schedule.get(block).name_hint) for block in blocks].index(reducing.name)
    return blocks[:at], blocks[at + 1 :]


def _result(schedule: Schedule, anchor: BlockRV, after: Sequence[BlockRV]) -> BlockRV:
    """The block that writes the results from a thread's accumulators."""
    if not after:
        return schedule.cache_write(anchor, 0, "local")
    *between, last = after
    _inline(schedule, between)
    schedule.set_scope(anchor, 0, "local")
    return last


def _inline(schedule: Schedule, blocks: Iterable[BlockRV]) -> None:
    for block in blocks:
        schedule.compute_inline(block)


def _bind(schedule: Schedule, blocks: list[LoopRV], virtual: list[LoopRV], threads: list[LoopRV]) -> LoopRV:
    """Bind each level as one loop; returns that of the threads."""
    for level, tag in ((blocks, "blockIdx.x"), (virtual, "vthread.x"), (threads, "threadIdx.x")):
        if level:
            bound = schedule.fuse(*level, preserve_unit_iters=True)
            schedule.bind(bound, tag)
    return bound


def _bind_open(schedule: Schedule, blocks: list[LoopRV]) -> None:
    """Bind blocks so that none is found by dividing by an unknown extent, which takes longer than a short sum: of
    the unknown ones, which are last, the last along x, the others along y, and all known ones along z."""
    known = [loop for loop in blocks if integer(schedule.get(loop).extent) is not None]
    unknown = blocks[len(known) :]
    for level, tag in ((unknown[-1:], "blockIdx.x"), (unknown[:-1], "blockIdx.y"), (known, "blockIdx.z")):
        if level:
            schedule.bind(schedule.fuse(*level, preserve_unit_iters=True), tag)


def _stage(schedule: Schedule, anchor: BlockRV, place: int, step: LoopRV, threads: int) -> None:
    """Load what all threads of a block need of an operand in one step into shared memory, together."""
    loaded = schedule.cache_read(anchor, place, "shared")
    schedule.compute_at(loaded, step, preserve_unit_loops=True)
    dimensions = len(schedule.get(loaded).iter_vars)
    elements = schedule.fuse(*schedule.get_loops(loaded)[-dimensions:])
    schedule.bind(schedule.split(elements, [None, threads])[1], "threadIdx.x")


def _unroll(schedule: Schedule, anchor: BlockRV) -> None:
    outermost = schedule.get_loops(anchor)[0]
    schedule.annotate(outermost, "pragma_auto_unroll_max_step", UNROLLED)
    schedule.annotate(outermost, "pragma_unroll_explicit", 1)


# -- reading a function


def _blocks_of(schedule: Schedule) -> list[Stmt]:
    try:
        return [schedule.get(block) for block in root_blocks(schedule)]
    except Exception:  # TVM raises several kinds: sorting and the like have no blocks
        return []


def _writes_only_last(mod: IRModule, blocks: list[SBlock]) -> bool:
    """True when the last block alone writes a parameter, and each block one buffer."""
    own = parameters(mod["main"])
    written = [any(buffer_of(block.writes[0]).same_as(each) for each in own) for block in blocks]
    return all(len(block.writes) == 1 for block in blocks) and written == [False] * (len(blocks) - 1) + [True]


def _is_flat(schedule: Schedule, block: SBlock) -> bool:
    """True when a block has one loop for each of its axes."""
    loops = schedule.get_loops(schedule.get_sblock(str(block.name_hint)))
    return [integer(schedule.get(loop).extent) for loop in loops] == [integer(a.dom.extent) for a in block.iter_vars]


def _summand(block: SBlock) -> PrimExpr | None:
    """What a block adds to its result in each step, from zero on; None when it does something else."""
    store, start = block.body, getattr(block.init, "value", None)
    if type(store).__name__ != "BufferStore" or type(store.value).__name__ != "Add":
        return None
    zero: Number = getattr(start, "value", None)
    target = buffer_of(block.writes[0])
    own = store.value.a
    if type(start).__name__ not in ("FloatImm", "IntImm") or float(zero) != 0 or type(own).__name__ not in LOADS:
        return None
    if not buffer_of(own).same_as(target) or _type(target) not in (*_TYPES, _SUMS_OF_BYTES):
        return None
    spatial = [str(axis.var) for axis in block.iter_vars if not is_reduction(axis)]
    return store.value.b if [str(index) for index in store.indices] == spatial else None


def _with_problem(reducing: ReductionBlock, block: SBlock, summand: PrimExpr, *, narrow: bool) -> ReductionBlock | None:
    """``reducing`` with the two operands that it multiplies; None when these are not read in a simple way.

    Operands in half precision may have accumulators in float32 where they are no matrices, which tensor cores take, or
    ``narrow`` ones and small ones in bfloat16. Operands of 8 bits have them in int32.
    """
    factors = [summand.a, summand.b] if type(summand).__name__ == "Mul" else []
    loads = [each.value if type(each).__name__ == "Cast" else each for each in factors]
    if len(loads) != 2 or any(type(load).__name__ not in LOADS for load in loads):
        return None
    target = buffer_of(block.writes[0])
    types = {_type(buffer_of(load)) for load in loads}
    wide = _type(target) == "float32" and types in ({"float16"}, {"bfloat16"})
    of_bytes = _type(target) == _SUMS_OF_BYTES and types <= {*INT8}
    if types != {_type(target)} and not wide and not of_bytes:
        return None
    regions = [buffer_of(region) for region in block.reads if not buffer_of(region).same_as(target)]
    places = [next((at for at, each in enumerate(regions) if each.same_as(buffer_of(load))), -1) for load in loads]
    operands = [_operand(load, block) for load in loads]
    if sorted(places) != [0, 1] or any(operand is None for operand in operands):
        return None
    first, second = operands
    assert first is not None and second is not None
    problem = Problem(spatial=reducing.spatial, reduction=reducing.reduction, operands=(first, second))
    shape = None if types == {"float32"} or of_bytes else matrix_shape(problem)
    if shape is not None and not (narrow and wide and _suits(types, shape, problem)):
        return None
    einsum = all(type(index).__name__ in ("Var", "IntImm") for load in loads for index in load.indices)
    # No product in bfloat16 that is not narrow was measured beside kernels for warpgroups, which then come first.
    compared = shape is None or is_narrow(shape[-1], problem.summands)
    return replace(reducing, problem=problem, places=(places[0], places[1]), einsum=einsum, is_compared=compared)


def _suits(types: set[str], shape: tuple[int, int, int], problem: Problem) -> bool:
    """Whether plain tiles may serve a product of a ``shape`` in half precision."""
    return is_narrow(shape[-1], problem.summands) or (types == {"bfloat16"} and problem.results <= _MOST_RESULTS)


def _operand(load: BufferLoad, block: SBlock) -> Operand | None:
    shape = [integer(extent) for extent in buffer_kind(buffer_of(load)).shape]
    extents = {str(axis.var.name): int(axis.dom.extent) for axis in block.iter_vars}
    if not all(shape) or len(extents) != len(block.iter_vars):
        return None
    try:
        index = tuple(tuple(_terms(each, extents)) for each in load.indices)
    except (KeyError, AttributeError, _NotLinear):  # an index that is loaded, or no sum of terms
        return None
    return Operand(shape=tuple(int(extent or 0) for extent in shape), index=index)


class _NotLinear(ValueError):
    """An index that is no sum of terms."""


def _terms(index: PrimExpr, extents: Mapping[str, int]) -> Iterator[Term]:
    """The terms of an index, found by trying each loop alone. Raises _NotLinear for what is no sum of them."""
    origin = dict.fromkeys(extents, np.asarray(0))
    start = int(evaluate(index, origin))
    found = []
    for loop, (name, extent) in enumerate(extents.items()):
        values = np.broadcast_to(evaluate(index, {**origin, name: np.arange(extent)}), (extent,)) - start
        changed = np.flatnonzero(values)
        if len(changed):
            divisor = int(changed[0])
            term = Term(loop=loop, scale=int(values[divisor]), divisor=divisor)
            if term.scale < 1 or not np.array_equal(values, term.scale * (np.arange(extent) // divisor)):
                raise _NotLinear
            found.append(term)
    random = np.random.default_rng(0)
    points = {name: random.integers(0, extent, _PROBES) for name, extent in extents.items()}
    places = list(points.values())
    expected = start + sum(term.scale * (places[term.loop] // term.divisor) for term in found)
    if not np.array_equal(np.broadcast_to(evaluate(index, points), (_PROBES,)), np.broadcast_to(expected, (_PROBES,))):
        raise _NotLinear
    yield from found


def _type(buffer: Buffer) -> str:
    return str(buffer_kind(buffer).dtype)
