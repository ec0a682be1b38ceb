"""Schedules of current TVM for products in float32 with a long K on CUDA GPUs without a record: by the sketch of
:mod:`tunehub.kernels.cuda.gemm.split_k.sketch` with the tile that should cost least, where that promises more than any
other form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tunehub.comparison.guess import GUESS_MARGIN, against_guess
from tunehub.kernels.cuda.gemm.cost import default_s
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.split_k.cost import seconds
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile, all_tiles, apply, is_among, matmul_of
from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.guard import check_tiles

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

NAME, VERSION, ALONE = "split_k", 1, False
TEMPLATES = {NAME: SplitTile}
_ATTEMPTS = 3  # tiles that are tried, the likeliest ones
_FEW_COLUMNS = 3  # with so few other tiles took 0.44 and 0.78 times as long, where these promised 0.91 and 0.95


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product in float32 with a long K for its number of results."""
    matmul = matmul_of(mod)
    return None if matmul is None else ProductWorkload(mod=mod, target=target, matmul=matmul)


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The likeliest tiles. Raises NoTileError when none is within bounds, or when TVM's own schedule should take as
    little, within the margin of every guess."""
    matmul, reducing = workload.matmul, reduction_block_of(workload.mod)
    found = likeliest(matmul, _ATTEMPTS, device)
    if not found:
        raise NoTileError(f"no tile of {matmul.extents} is within bounds")
    other_s = None if reducing is None or reducing.problem is None else default_s(reducing.problem, device)
    for tile, expected_s in found:
        against = None if other_s is None else against_guess(expected_s, other_s, launches_s=device.launches.threads)
        if against is not None:
            raise NoTileError(against)
        yield KernelCandidate(tile=tile, seconds=expected_s, compared_s=_compared_s(matmul, expected_s))


def _compared_s(matmul: Matmul, expected_s: float) -> float:
    if matmul.is_batch_with_outer_k:  # other tiles took 0.96 to 2.5 times as long for 18 of these (ADR 44)
        return 0.0
    return expected_s * (GUESS_MARGIN if matmul.extents[2] <= _FEW_COLUMNS else 1.0)


def takes(workload: ProductWorkload, tile: SplitTile) -> bool:
    """Whether it is one of all tiles."""
    return is_among(workload.matmul, tile)


def space(_workload: ProductWorkload, _device: GpuDevice) -> tuple[KernelCandidate, ...]:
    """None: such tiles are measured for functions with open axes."""
    return ()


def build(workload: ProductWorkload, tile: SplitTile) -> Schedule:
    """The schedule. Raises GuardError when a tile writes what others write, and what TVM raises."""
    schedule = apply(workload.mod, workload.matmul, tile)
    check_tiles(schedule.mod["main"])
    return schedule


def promised_s(mod: IRModule, device: GpuDevice) -> float | None:
    """Seconds that the likeliest tile should take on ``device``; None when there is none."""
    matmul = matmul_of(mod)
    found = () if matmul is None else likeliest(matmul, _ATTEMPTS, device)
    return found[0][1] if found else None


@lru_cache(maxsize=256)  # asked for a transfer, for the rule, and for each function that differs in what follows only
def likeliest(matmul: Matmul, count: int, device: GpuDevice) -> tuple[tuple[SplitTile, float], ...]:
    """The ``count`` tiles that should take least on ``device``, in seconds each, the best first."""
    found = all_tiles(matmul)
    expected = seconds(matmul, found, device)
    return tuple((found.tile(int(at)), float(expected[at])) for at in np.argsort(expected, kind="stable")[:count])
