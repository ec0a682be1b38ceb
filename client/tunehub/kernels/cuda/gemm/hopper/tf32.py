"""Products and convolutions of operands in single precision on tensor cores, which take them as TF32: rounded to 11
bits, as half precision has, with the exponents of single precision. Sums are in float32. Served only where that is
asked for (``precision="tf32"``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.cost import tf32_seconds
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, suits, tiles
from tunehub.kernels.cuda.gemm.matmul import Matmul, find_matmul
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.nodes import main_module
from tunehub.tir.precision import PRECISION

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

NAME, VERSION, ALONE = "tensor_cores_tf32", 1, False
_HALVES = 2  # of a number


def rounded(values: Any) -> Any:
    """An array in float32 as TF32 has its numbers, to nearest; what is not finite stays."""
    cut = (values.view("uint32") + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view("float32")
    return np.where(np.isfinite(values), cut, values)


def matmul_in(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod``, one PrimFunc ``main``, as a product whose operands can be TF32; None for others."""
    matmul = find_matmul(mod, "float32")
    return matmul if matmul is not None and matmul.k_last and suits(as_halves(matmul)) else None


def as_halves(matmul: Matmul) -> Matmul:
    """What takes as long in half precision: twice as much of K, of which instructions take the same bytes."""
    *others, last = matmul.k
    return replace(
        matmul,
        k=(*others, last._replace(extent=_HALVES * last.extent)),
        runs=(_HALVES * matmul.runs[0], _HALVES * matmul.runs[1]),
    )


def expected(matmul: Matmul, device: GpuDevice) -> tuple[float, WarpgroupTile] | None:
    """The seconds that the best tile should take, and that tile; None where none suits."""
    halves = as_halves(matmul)
    return min(((tf32_seconds(halves, tile, device), tile) for tile in tiles(halves)), default=None)


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product of operands in float32 that lie as warpgroups take them."""
    matmul = matmul_in(mod) if warpgroups.serves(target) else None
    return None if matmul is None else ProductWorkload(mod=mod, target=target, matmul=matmul)


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tile that should cost least."""
    best = expected(workload.matmul, device)
    if best is not None:
        yield KernelCandidate(tile=best[1], seconds=best[0])


def build(workload: ProductWorkload, tile: WarpgroupTile) -> warpgroups.WarpgroupSchedule:
    """The kernel. Raises ValueError where operands cannot be copied as they lie, or what TVM raises."""
    schedule = warpgroups.by_tile(workload.mod, workload.matmul, tile, workload.target)
    return warpgroups.WarpgroupSchedule(main_module(schedule.mod["main"].with_attr(PRECISION, "tf32")))
