"""The largest or the least element of each row of a known length on CUDA, of any function of them: as what is quantised
by its own extremes asks for. A block has a row, which its threads read once, by vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.rows.norms import inlined, is_by_place, is_of_rows, row_of
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.guard import check_exact
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_static, parameter_bytes, parameters, reduces
from tunehub.tir.schedules import has_root, open_schedule, root_blocks, root_nodes

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

NAME, VERSION, ALONE = "row_extremes", 1, False
_VECTOR_BYTES = 16  # of a load
_MOST_THREADS = 256
_EXTREMES = ("Max", "Min")  # of which any order gives the same


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtremesTile:
    """``threads`` of a row, which read ``vector`` elements at once."""

    threads: int
    vector: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtremesWorkload:
    """``mod``, whose only block reduces rows of ``length`` elements of ``size`` bytes."""

    mod: IRModule
    length: int
    size: int


def match(mod: IRModule, _target: Target) -> ExtremesWorkload | None:
    """A function of known shapes that computes an extreme of each row of its only large parameter."""
    function = mod["main"]
    if not is_static(function) or not has_root(function):
        return None
    *before, block = root_nodes(mod)
    if not reduces(block) or any(map(reduces, before)):
        return None
    schedule = open_schedule(mod)
    others = root_blocks(schedule)[:-1]
    if type(getattr(block.body, "value", None)).__name__ not in _EXTREMES or not inlined(schedule, others):
        return None
    block = schedule.get(root_blocks(schedule)[-1])
    shape = [integer(axis.dom.extent) or 0 for axis in block.iter_vars]
    row = row_of(function, [block, block], shape) if is_by_place(block) and is_of_rows(block, shape) else None
    if row is None or not any(buffer_of(block.writes[0]).same_as(each) for each in parameters(function)):
        return None
    size = np.dtype(str(buffer_kind(row).dtype)).itemsize
    return ExtremesWorkload(mod=schedule.mod, length=shape[-1], size=size)


def candidates(workload: ExtremesWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The longest vectors that most threads can read alike; none of rows that no warp's threads divide."""
    vectors = [each for each in (16, 8, 4, 2, 1) if each * workload.size <= _VECTOR_BYTES]
    tiles = (ExtremesTile(threads=n, vector=v) for v in vectors for n in range(_MOST_THREADS, 0, -WARP))
    tile = next((each for each in tiles if workload.length % (each.threads * each.vector) == 0), None)
    if tile is not None:
        moved = parameter_bytes(workload.mod["main"])
        yield KernelCandidate(tile=tile, seconds=device.launches.moving + moved / device.bandwidth)


def build(workload: ExtremesWorkload, tile: ExtremesTile) -> Schedule:
    """The schedule. Raises GuardError where a thread writes what others write, and what TVM raises."""
    schedule = open_schedule(workload.mod)
    (block,) = root_blocks(schedule)
    # Step 1. A block of threads for each row.
    *outer, along = schedule.get_loops(block)
    rows = schedule.fuse(*outer)
    schedule.bind(rows, "blockIdx.x")
    # Step 2. Its threads read vectors beside each other, and reduce what they have read in the end.
    parts, inside, vector = schedule.split(along, [None, tile.threads, tile.vector])
    schedule.reorder(inside, parts)
    schedule.bind(inside, "threadIdx.x")
    copy = schedule.cache_read(block, 0, "local")
    schedule.compute_at(copy, parts, preserve_unit_loops=True)
    schedule.vectorize(schedule.get_loops(copy)[-1])
    schedule.unroll(vector)
    check_exact(schedule.mod["main"])
    return schedule
