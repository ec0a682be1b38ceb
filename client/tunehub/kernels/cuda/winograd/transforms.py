"""Schedules of the transforms of Winograd's algorithm: a thread has a tile of one channel, in half precision of two
neighbours, all in registers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cuda.gemm.matmul import inline_producers, own_loops
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic.schedule import SizedFunction
from tunehub.kernels.cuda.winograd import half_kernels as half
from tunehub.kernels.cuda.winograd.cost import transform_s
from tunehub.kernels.cuda.winograd.kernels import RESULT, ROWS, SUMS, TAKEN, TRANSFORMED
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.guard import check_function, check_tiles
from tunehub.tir.nodes import blocks_in, buffer_shapes, main_module
from tunehub.tir.parts import statements_of
from tunehub.tir.schedules import open_schedule

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, LoopRV, Schedule

NAME, VERSION, ALONE = "winograd", 1, False
HALF_VECTOR = 2  # channels of a thread in half precision
_OWN = {TRANSFORMED, RESULT, half.TRANSFORMED, half.RESULT}
_MOST_THREADS = 128  # of a block; fewer where there are few tiles, so that all multiprocessors have some


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformWorkload:
    """``mod`` whose blocks have these ``names``, for ``target``."""

    mod: IRModule
    names: list[str]
    target: Target


def match(mod: IRModule, target: Target) -> TransformWorkload | None:
    """A transform that :mod:`tunehub.kernels.cuda.winograd` made."""
    names = _names(mod)
    return TransformWorkload(mod=mod, names=names, target=target) if _OWN & {*names} else None


def candidates(workload: TransformWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The only one. Whatever others promise, it is first: their threads would compute a tile once for each of its
    results."""
    buffers = buffer_shapes(workload.mod["main"])
    moved = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in buffers)
    yield KernelCandidate(tile=None, seconds=transform_s(moved, device), compared_s=0.0)


def build(workload: TransformWorkload, _tile: None) -> Schedule:
    """The schedule. Raises GuardError where a thread writes what others write, or what TVM raises."""
    schedule = _scheduled(workload.mod, workload.names, device_of(workload.target))
    check_tiles(schedule.mod["main"])
    return schedule


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> SizedFunction | None:
    """For an open batch a piece of the grid for each image. Raises NotPiecesError, too."""
    names = _names(mod)
    whole = open_function(mod["main"]) if _OWN & {*names} else None
    if whole is None:
        return None
    piece = _scheduled(whole.piece(1), names, device_of(target)).mod["main"]
    check_tiles(piece)
    found = main_module(whole.over(piece, 1))
    check_function(found["main"], mod["main"], target)
    return SizedFunction(mod=found)


def _names(mod: IRModule) -> list[str]:
    return [str(block.name_hint) for each in statements_of(mod["main"]) for block in blocks_in(each)]


def _scheduled(mod: IRModule, names: list[str], device: GpuDevice) -> Schedule:
    schedule = open_schedule(mod)
    if TRANSFORMED in names:
        _image(schedule, device)
    elif RESULT in names:
        _result(schedule, names, device)
    elif half.TRANSFORMED in names:
        _half_image(schedule, device)
    else:
        _half_result(schedule, names, device)
    return schedule


def _image(schedule: Schedule, device: GpuDevice) -> None:
    """``V = Bᵀ d B``: a thread has a tile of a channel in registers."""
    block = schedule.get_sblock(TRANSFORMED)
    *image, place, channel, tile = schedule.get_loops(block)
    schedule.reorder(*image, channel, tile, place)
    thread = _bind(schedule, [*image, channel, tile], device)
    schedule.unroll(place)
    for name in (ROWS, TAKEN):
        _in_registers(schedule, name, thread)
    inline_producers(schedule, schedule.get_sblock(TAKEN))


def _half_image(schedule: Schedule, device: GpuDevice) -> None:
    block = schedule.get_sblock(half.TRANSFORMED)
    place, tile, channel = schedule.get_loops(block)
    channel, own = schedule.split(channel, [None, HALF_VECTOR])
    schedule.reorder(tile, channel, place, own)
    thread = _bind(schedule, [tile, channel], device)
    schedule.unroll(place)
    schedule.vectorize(own)
    for name in (half.ROWS, half.TAKEN):
        _in_registers(schedule, name, thread, vectors=True)
    inline_producers(schedule, schedule.get_sblock(half.TAKEN))


def _half_result(schedule: Schedule, names: list[str], device: GpuDevice) -> None:
    *others, last = names
    _inline(schedule, others, (half.SUMS, half.RESULT))
    block, tile = schedule.get_sblock(last), _extents(schedule, half.SUMS)[1]
    image, row, column, channel = schedule.get_loops(block)
    (down, i), (across, j) = (schedule.split(loop, [None, tile]) for loop in (row, column))
    channel, own = schedule.split(channel, [None, HALF_VECTOR])
    schedule.reorder(image, down, across, channel, i, j, own)
    thread = _bind(schedule, [image, down, across, channel], device)
    schedule.unroll(i)
    schedule.unroll(j)
    schedule.vectorize(own)
    for name in (half.RESULT, half.SUMS):
        _in_registers(schedule, name, thread, vectors=True)


def _result(schedule: Schedule, names: list[str], device: GpuDevice) -> None:
    *others, last = names
    _inline(schedule, others, (SUMS, RESULT))
    block, tile = schedule.get_sblock(last), _extents(schedule, SUMS)[-2]
    image, channel, row, column = schedule.get_loops(block)
    even = int(schedule.get(column).extent) % tile == 0
    (down, i), (across, j) = (schedule.split(loop, [None, tile]) for loop in (row, column))
    schedule.reorder(channel, image, down, across, i, j)
    thread = _bind(schedule, [channel, image, down, across], device)
    schedule.unroll(i)
    (schedule.vectorize if even else schedule.unroll)(j)
    for name in (RESULT, SUMS):
        _in_registers(schedule, name, thread)


def _inline(schedule: Schedule, names: list[str], kept: tuple[str, ...]) -> None:
    for name in names:
        if name not in kept:
            schedule.compute_inline(schedule.get_sblock(name))


def _bind(schedule: Schedule, loops: list[LoopRV], device: GpuDevice) -> LoopRV:
    """A thread for each iteration of ``loops``."""
    fused = schedule.fuse(*loops)
    count = int(schedule.get(fused).extent) // device.multiprocessors
    threads = min(_MOST_THREADS, max(WARP, 1 << max(count, 1).bit_length() - 1))
    block, thread = schedule.split(fused, [None, threads])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return thread


def _in_registers(schedule: Schedule, name: str, thread: LoopRV, *, vectors: bool = False) -> None:
    block = schedule.get_sblock(name)
    schedule.compute_at(block, thread, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    *loops, last = own_loops(schedule, block)
    for loop in loops:
        schedule.unroll(loop)
    (schedule.vectorize if vectors else schedule.unroll)(last)


def _extents(schedule: Schedule, name: str) -> list[int]:
    return [int(axis.dom.extent) for axis in schedule.get(schedule.get_sblock(name)).iter_vars]
