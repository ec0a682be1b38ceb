"""Schedules of current TVM for the tensor cores of CUDA GPUs without a record: products and convolutions of operands in
half precision, added up in float32, by the sketch of :mod:`tunehub.kernels.cuda.gemm.tensor_core.sketch` with the tile
that should cost least, where that promises to beat TVM's own schedule."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING

from tunehub.comparison.guess import against_guess
from tunehub.kernels.cuda.gemm.half_default import default_s
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.rule import FURTHER, NoTileError, spread
from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, apply, is_among, matmul_of, tiles
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.headers import missing_for_tensor_cores
from tunehub.tir.guard import check_tiles
from tunehub.tir.intrinsics import import_intrinsics

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

NAME, VERSION, ALONE = "tensor_cores", 1, False
TEMPLATES = {NAME: TensorTile}
_ATTEMPTS = 3  # tiles that are tried, the likeliest ones


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product or a convolution of operands in float16."""
    matmul = matmul_of(mod)
    return None if matmul is None else ProductWorkload(mod=mod, target=target, matmul=matmul)


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The likeliest tiles. Raises NoTileError when none is within bounds, when TVM's own schedule should take as
    little, within the margin of every guess, or when CUDA's headers for tensor cores are missing."""
    matmul = workload.matmul
    check_headers()
    found, other_s = ranked(matmul, _ATTEMPTS, device), default_s(matmul, device)
    if not found:
        raise NoTileError(f"no tile of {matmul.extents} is within bounds")
    first_s = _first_s(matmul, workload.target)
    for tile in found:
        expected_s = seconds(matmul, tile, device)
        against = against_guess(expected_s, other_s, launches_s=device.launches.tensor_cores)
        if against is not None:
            raise NoTileError(against)
        yield KernelCandidate(tile=tile, seconds=expected_s, compared_s=max(expected_s, first_s))


def _first_s(matmul: Matmul, target: Target) -> float:
    """Seconds before which these tiles are no choice: of windows of images with channels last, a kernel for warpgroups,
    where there is one, comes first. Six took 1.2 to 3.3 times as long, up to four times what they promise; of 188 such
    records all but one are for warpgroups."""
    has_windows = matmul.runs[0] < matmul.extents[-1]
    return (warpgroups.expected_s(matmul, target) if has_windows else None) or 0.0


def takes(workload: ProductWorkload, tile: TensorTile) -> bool:
    """Whether it is one of all tiles."""
    return is_among(workload.matmul, tile)


def space(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The best tiles, and some behind them."""
    for tile in spread(ranked(workload.matmul, FURTHER, device)):
        yield KernelCandidate(tile=tile, seconds=seconds(workload.matmul, tile, device))


def build(workload: ProductWorkload, tile: TensorTile) -> Schedule:
    """The schedule. The first one in a process takes 3 s, in which TVM registers its intrinsics."""
    return checked(workload.mod, workload.matmul, tile)


def check_headers() -> None:
    """Raise NoTileError when CUDA's headers for tensor cores are missing."""
    missing = missing_for_tensor_cores()
    if missing is not None:
        raise NoTileError(str(missing))


def checked(mod: IRModule, matmul: Matmul, tile: TensorTile) -> Schedule:
    """The schedule of ``mod`` by ``tile``. Raises GuardError when a tile writes what others write, and what TVM
    raises."""
    import_intrinsics("tvm.s_tir.tensor_intrin.cuda")
    schedule = apply(mod, matmul, tile)
    check_tiles(schedule.mod["main"])
    return schedule


def ranked(matmul: Matmul, count: int, device: GpuDevice) -> list[TensorTile]:
    """The ``count`` tiles that should take least on ``device``, the best first."""
    return nsmallest(count, tiles(matmul), key=lambda tile: (seconds(matmul, tile, device), tile))
