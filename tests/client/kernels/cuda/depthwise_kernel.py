"""A direct kernel for depthwise convolutions (NCHW, float32, float16), by "Add a CUDA kernel" of CONTRIBUTING.md.

A thread has a tile of one channel's results in registers, and reads images through the cache; padding is a condition of
its loads. Nobody has measured it on a GPU: it is an example, and no rule of the client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

from msgspec import Meta

from tunehub.kernels.cuda.gemm.matmul import inline_consumers, inline_producers, own_loops
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.guard import check_tiles
from tunehub.tir.nodes import parameter_bytes
from tunehub.tir.schedules import open_schedule

_MOST_RESULTS = 16  # of a thread
_ROWS, _COLUMNS = (1, 2, 4), (1, 2, 4, 8)
_FEWEST_THREADS, _MOST_THREADS = 32, 256
_WINDOW = 64  # most elements of one
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class DepthwiseTile:
    """A block has so many ``threads``, each of them ``rows`` x ``columns`` results."""

    rows: Annotated[int, Meta(ge=1, le=4)]
    columns: Annotated[int, Meta(ge=1, le=8)]
    threads: Annotated[int, Meta(ge=32, le=256)]


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthwiseWorkload:
    """``mod``, one PrimFunc ``main`` whose block ``name`` adds up ``window`` elements of one channel for each result.

    ``images`` are planes of ``rows`` x ``columns`` results. ``moved``: bytes of all parameters.
    """

    mod: Any
    name: str
    images: int
    rows: int
    columns: int
    window: int
    moved: int

    @property
    def results(self) -> int:
        """How many there are."""
        return self.images * self.rows * self.columns


NAME, VERSION, ALONE = "depthwise", 1, False
TEMPLATES = {NAME: DepthwiseTile}


def match(mod: Any, _target: Any) -> DepthwiseWorkload | None:
    """A convolution of each channel with weights of its own."""
    reducing = reduction_block_of(mod)
    if reducing is None or reducing.problem is None or len(reducing.spatial) != 4 or len(reducing.reduction) != 3:
        return None
    data, weight = ([{term.loop for term in terms} for terms in each.index] for each in reducing.problem.operands)
    if data[1:] != [{1}, {2, 5}, {3, 6}] or weight != [{1}, set(), {5}, {6}] or math.prod(reducing.reduction) > _WINDOW:
        return None
    batch, channels, rows, columns = reducing.spatial
    return DepthwiseWorkload(
        mod=mod,
        name=reducing.name,
        images=batch * channels,
        rows=rows,
        columns=columns,
        window=math.prod(reducing.reduction),
        moved=parameter_bytes(mod["main"]),
    )


def candidates(workload: DepthwiseWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tiles that should take least."""
    found = sorted((_seconds(workload, tile, device), tile) for tile in _tiles(workload))
    if not found:
        raise NoTileError(f"no block of threads divides {workload.results} results")
    return (KernelCandidate(tile=tile, seconds=seconds) for seconds, tile in found[:_ATTEMPTS])


def takes(workload: DepthwiseWorkload, tile: DepthwiseTile) -> bool:
    """Whether it is one of the rule's."""
    return tile in set(_tiles(workload))


def space(workload: DepthwiseWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """All tiles."""
    found = sorted((_seconds(workload, tile, device), tile) for tile in _tiles(workload))
    return (KernelCandidate(tile=tile, seconds=seconds) for seconds, tile in found)


def build(workload: DepthwiseWorkload, tile: DepthwiseTile) -> Any:
    """The schedule. Raises GuardError when a tile writes what others write, and what TVM raises."""
    schedule = open_schedule(workload.mod)
    # Step 1. Results are in registers until all of a window is added; padding is part of the loads.
    block = schedule.get_sblock(workload.name)
    result = schedule.cache_write(block, 0, "local")
    inline_producers(schedule, block)
    inline_consumers(schedule, result)
    # Step 2. A thread for each tile.
    *images, row, column = schedule.get_loops(result)
    (down, i), (across, j) = (schedule.split(loop, [None, size]) for loop, size in _sizes(row, column, tile))
    schedule.reorder(*images, down, across, i, j)
    blocks, threads = schedule.split(schedule.fuse(*images, down, across), [None, tile.threads])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.unroll(i)
    schedule.unroll(j)
    # Step 3. Its sums, straight code: a weight is read once for all results of the tile.
    schedule.compute_at(block, threads, preserve_unit_loops=True)
    loops = own_loops(schedule, block)
    *spatial, channel, down, across = loops
    schedule.reorder(channel, down, across, *spatial)
    for loop in loops:
        schedule.unroll(loop)
    schedule.decompose_reduction(block, channel)
    check_tiles(schedule.mod["main"])
    return schedule


def _sizes(row: Any, column: Any, tile: DepthwiseTile) -> tuple[tuple[Any, int], tuple[Any, int]]:
    return (row, tile.rows), (column, tile.columns)


def _tiles(workload: DepthwiseWorkload) -> Iterator[DepthwiseTile]:
    for rows, columns in product(_ROWS, _COLUMNS):
        divides = workload.rows % rows == 0 and workload.columns % columns == 0
        threads = _threads(workload, rows, columns) if divides else None
        if threads is not None and rows * columns <= _MOST_RESULTS:
            yield DepthwiseTile(rows=rows, columns=columns, threads=threads)


def _threads(workload: DepthwiseWorkload, rows: int, columns: int) -> int | None:
    """Of a block: of the counts that fill warps best, with which blocks begin where rows and images do, or have a part
    of one: TVM does not follow others."""
    across = workload.columns // columns
    image = workload.rows // rows * across
    counts = (
        count
        for count in range(_FEWEST_THREADS, _MOST_THREADS + 1)
        if image * workload.images % count == 0
        and all(count % whole == 0 or whole % count == 0 for whole in (across, image))
    )
    return max(counts, key=lambda count: (count / math.ceil(count / WARP), count), default=None)


def _seconds(workload: DepthwiseWorkload, tile: DepthwiseTile, device: GpuDevice) -> float:
    """A launch, and what takes longer: to move all bytes, or the loads of the busiest multiprocessor, one of a
    warp in a cycle: of each result an element of the window, and of each tile the weights."""
    blocks = math.ceil(workload.results / (tile.rows * tile.columns * tile.threads) / device.multiprocessors)
    loads = blocks * tile.threads / WARP * workload.window * (tile.rows * tile.columns + 1)
    return (
        device.launches.threads[0]
        + device.launches.moving
        + max(workload.moved / device.bandwidth, loads / device.clock)
    )
