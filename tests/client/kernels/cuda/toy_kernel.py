"""A kernel as CONTRIBUTING.md has it: a matrix product in float32 with a thread for each result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from tunehub.kernels.cuda.gemm.matmul import Matmul, find_matmul
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.nodes import blocks_in
from tunehub.tir.schedules import open_schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyTile:
    """``threads`` of a block."""

    threads: Annotated[int, Meta(ge=32, le=1024)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyWorkload:
    """``mod``, one PrimFunc ``main`` that is nothing but ``matmul``."""

    mod: Any
    matmul: Matmul


NAME, VERSION, ALONE = "toy", 1, False
TEMPLATES = {NAME: ToyTile}
TIMES = {"toy": 1.0}  # of what it should take: tests make it faster and slower


def match(mod: Any, _target: Any) -> ToyWorkload | None:
    """A product in float32 with nothing fused to it."""
    matmul = find_matmul(mod, "float32")
    alone = sum(bool(block.iter_vars) for block in blocks_in(mod["main"].body)) == 1
    return ToyWorkload(mod=mod, matmul=matmul) if matmul is not None and alone else None


def candidates(workload: ToyWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """Every result reads a row and a column from memory."""
    batch, rows, columns, k = workload.matmul.extents
    seconds = TIMES[NAME] * (device.launches.moving + 8 * batch * rows * columns * k / device.bandwidth)
    for threads in (256, 128):
        yield KernelCandidate(tile=ToyTile(threads=threads), seconds=seconds)


def takes(_workload: ToyWorkload, tile: ToyTile) -> bool:
    """Whole warps."""
    return tile.threads % 32 == 0


def space(workload: ToyWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """Those of the rule."""
    return candidates(workload, device)


def build(workload: ToyWorkload, tile: ToyTile) -> Any:
    """The schedule."""
    # Step 1. A thread for each result.
    schedule = open_schedule(workload.mod)
    block = schedule.get_sblock(workload.matmul.name)
    *spatial, k = schedule.get_loops(block)
    blocks, threads = schedule.split(schedule.fuse(*spatial), [None, tile.threads])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    # Step 2. The sum begins with 0.
    schedule.decompose_reduction(block, k)
    return schedule
