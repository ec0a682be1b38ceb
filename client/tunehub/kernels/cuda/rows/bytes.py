"""Functions whose results are bytes on CUDA, or numbers of 16 bits that no vectors hold where they are read: images
that are quantised, padded and brought into another order, parts of rows of odd lengths, rows of several tensors, and
the largest of a window.

A thread computes neighbours along the last axis and writes them at once; TVM's own schedule has a thread for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper.rule import WarpgroupSchedule, has_functions
from tunehub.kernels.cuda.gemm.requantisation import in_fewer_instructions
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.rows.elementwise import is_copy, loads_of
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.guard import check_exact
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    integer,
    is_reduction,
    is_static,
    main_module,
    parameter_bytes,
    parameters,
    reduces,
)
from tunehub.tir.schedules import has_root, open_schedule, root_blocks, root_nodes

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, SBlock, Schedule, ScheduledModule

NAME, VERSION, ALONE = "byte_vectors", 1, False
_BYTES = ("uint8", "int8")
_HALVES = ("float16", "bfloat16")
_VECTORS = (8, 4)  # of neighbours
_OF_WINDOWS, _OF_HALVES = 4, 8
_MOST_WINDOW = 64
_THREADS = 256  # of a block, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteTile:
    """A thread has ``vector`` neighbours."""

    vector: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteWorkload:
    """``mod``, whose results lie side by side along an axis of ``length``, as many as one of ``vectors``; ``reducing``:
    the number of the block that takes the largest, if any."""

    mod: IRModule
    length: int
    vectors: tuple[int, ...]
    reducing: int | None


def match(mod: IRModule, target: Target) -> ByteWorkload | None:
    """A function of known shapes with one such result, without sums."""
    function = mod["main"]
    if not is_static(function) or not has_root(function):
        return None
    blocks = root_nodes(mod)
    given = {hash(each) for each in parameters(function)}
    written = [hash(buffer_of(region)) in given for block in blocks for region in block.writes]
    if not blocks or written != [False] * (len(blocks) - 1) + [True]:
        return None
    result = buffer_kind(buffer_of(blocks[-1].writes[0]))
    windows = [at for at, block in enumerate(blocks) if reduces(block)]
    length = integer(result.shape[-1]) if len(result.shape) else None
    if length is None or len(windows) > 1 or not all(_is_window(blocks[at]) for at in windows):
        return None
    vectors = _vectors(mod, str(result.dtype), length, windowed=bool(windows))
    if not any(length % each == 0 for each in vectors):
        return None
    return ByteWorkload(mod=mod, length=length, vectors=vectors, reducing=windows[0] if windows else None)


def _vectors(mod: IRModule, dtype: str, length: int, *, windowed: bool) -> tuple[int, ...]:
    if dtype in _BYTES:
        return (_OF_WINDOWS,) if windowed else _VECTORS
    served = dtype in _HALVES and (windowed or length == _OF_HALVES or _is_part_of_rows(mod))
    return (_OF_HALVES,) if served else ()


def _is_part_of_rows(mod: IRModule) -> bool:
    """Whether what a thread writes side by side it reads so, though from where no vector begins."""
    from tvm.tirx.analysis import undefined_vars

    schedule = open_schedule(mod)
    *before, last = root_blocks(schedule)
    try:
        _inline(schedule, before)
    except Exception:  # TVM raises many kinds for what it does not move
        return False
    value, along = schedule.get(last).body.value, schedule.get(last).iter_vars[-1].var
    places = [undefined_vars(load.indices[-1]) for load in loads_of(value)]
    return is_copy(value) and bool(places) and all(any(each.same_as(along) for each in place) for place in places)


def _is_window(block: SBlock) -> bool:
    """Whether it takes the largest of a few numbers, the loops over these behind all others."""
    value = getattr(block.body, "value", None)
    kinds = [is_reduction(axis) for axis in block.iter_vars]
    short = str(buffer_kind(buffer_of(block.writes[0])).dtype) in (*_BYTES, *_HALVES)
    extents = [integer(axis.dom.extent) or 0 for axis in block.iter_vars if is_reduction(axis)]
    return type(value).__name__ == "Max" and kinds == sorted(kinds) and short and math.prod(extents) <= _MOST_WINDOW


def candidates(workload: ByteWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The widest vectors."""
    moved = parameter_bytes(workload.mod["main"])
    for vector in (each for each in workload.vectors if workload.length % each == 0):
        seconds = device.launches.moving + moved / device.bandwidth
        yield KernelCandidate(tile=ByteTile(vector=vector), seconds=seconds)


def build(workload: ByteWorkload, tile: ByteTile) -> ScheduledModule:
    """The schedule. Raises GuardError where a thread writes what others write, and what TVM raises."""
    schedule = open_schedule(workload.mod)
    blocks = root_blocks(schedule)
    if workload.reducing is None:
        *before, last = blocks
        _inline(schedule, before)
        written = schedule.cache_write(last, 0, "local")
        thread = _threads(schedule, written, tile.vector)
        schedule.compute_at(last, thread, preserve_unit_loops=True)
        schedule.unroll(schedule.get_loops(last)[-1])
    else:
        _windows(schedule, blocks, workload.reducing, tile.vector)
    check_exact(schedule.mod["main"])
    if not has_functions():
        return schedule
    return WarpgroupSchedule(main_module(in_fewer_instructions(schedule.mod["main"])))


def _windows(schedule: Schedule, blocks: list[BlockRV], at: int, vector: int) -> None:
    """What is before the largest is read by vectors into registers, what follows is computed of these."""
    before, window, after = blocks[:at], blocks[at], blocks[at + 1 :]
    if after:
        *between, written = after
        _inline(schedule, between)
        schedule.set_scope(window, 0, "local")
    else:
        written = schedule.cache_write(window, 0, "local")
    read = schedule.cache_read(window, 0, "local")
    _inline(schedule, before)
    thread = _threads(schedule, written, vector)
    schedule.compute_at(window, thread, preserve_unit_loops=True)
    schedule.compute_at(read, thread, preserve_unit_loops=True)
    schedule.vectorize(schedule.get_loops(read)[-1])
    own = list(schedule.get_loops(window)[-len(schedule.get(window).iter_vars) :])
    count = sum(is_reduction(axis) for axis in schedule.get(window).iter_vars)
    spatial, reduced = own[:-count], own[-count:]
    schedule.reorder(*reduced, *spatial)
    start = schedule.decompose_reduction(window, reduced[0])
    for loop in (*schedule.get_loops(start)[-1:], *reduced, *spatial, *schedule.get_loops(read)[2:-1]):
        schedule.unroll(loop)


def _inline(schedule: Schedule, blocks: list[BlockRV]) -> None:
    for block in blocks:
        schedule.compute_inline(block)


def _threads(schedule: Schedule, written: BlockRV, vector: int) -> LoopRV:
    """Give each thread a vector of what is ``written``; the loop over threads."""
    *outer, along = schedule.get_loops(written)
    parts, lanes = schedule.split(along, [None, vector])
    extents = [integer(schedule.get(loop).extent) or 1 for loop in (*outer, parts)]
    blocks, thread = schedule.split(schedule.fuse(*outer, parts), [None, _threads_of(extents)])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(lanes)
    return thread


def _threads_of(extents: Sequence[int]) -> int:
    """As many as fill warps and make blocks begin where rows do, or parts of them; others where none do."""
    total, rows = math.prod(extents), [math.prod(extents[at:]) for at in range(len(extents))]
    dividing = [count for count in range(WARP, _THREADS + 1, WARP) if total % count == 0]
    whole = [count for count in dividing if all(row % count == 0 or count % row == 0 for row in rows)]
    return max(whole or dividing or [_THREADS])
