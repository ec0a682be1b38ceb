"""Low-batch GEMMs without a record: the kernel of :mod:`tunehub.kernels.cuda.low_batch` where it should beat all
else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.low_batch.choice import chosen, seconds
from tunehub.kernels.cuda.low_batch.product import NEEDED, LowBatchExtents, LowBatchProduct, find_product
from tunehub.kernels.cuda.low_batch.recorded import allows, worth_measuring
from tunehub.kernels.cuda.low_batch.schedule import apply
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import GuardError, check_features
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

NAME, VERSION, ALONE = "low_batch", 1, False
TEMPLATES = {NAME: StagedTile, "low_batch_direct": DirectTile, "low_batch_warpgroups": WgmmaTile}
FEW = 8  # rows, up to which no kernel for warpgroups is as fast


@dataclass(frozen=True, kw_only=True, slots=True)
class LowBatchSchedule:
    """``mod``: with the function as ``main``, scheduled."""

    mod: IRModule


@dataclass(frozen=True, kw_only=True, slots=True)
class LowBatchWorkload:
    """``mod``, one PrimFunc ``main`` whose anchor block is ``product``, for ``target``."""

    mod: IRModule
    target: Target
    product: LowBatchProduct


def match(mod: IRModule, target: Target) -> LowBatchWorkload | None:
    """A low-batch GEMM."""
    product = find_product(mod)
    return None if product is None else LowBatchWorkload(mod=mod, target=target, product=product)


def candidates(workload: LowBatchWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tile that was fastest for as many rows and columns, before all else: each was measured beside other kernels
    (docs/adr/0038), whose costs say less. Raises NoTileError for what is done as fast otherwise, GuardError for GPUs
    before sm_80."""
    extents, target = workload.product.extents, workload.target
    check_features(NEEDED, target)
    _check_others(workload.mod, extents, target)
    asked, has_warpgroups = _limits(target)
    tile = chosen(extents, asked, device, has_warpgroups)
    yield KernelCandidate(tile=tile, seconds=seconds(extents, device), compared_s=0.0)


def takes(workload: LowBatchWorkload, tile: AnyTile) -> bool:
    """Whether the kernels have such a tile for it."""
    return allows(workload.product.extents, tile, *_limits(workload.target))


def space(workload: LowBatchWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The rule's tile, and those that were the fastest for other products; none of what is done as fast otherwise."""
    try:
        (own,) = candidates(workload, device)
    except (NoTileError, GuardError):
        return
    for tile in worth_measuring(workload.product.extents, *_limits(workload.target), device):
        yield replace(own, tile=tile)


def build(workload: LowBatchWorkload, tile: AnyTile) -> LowBatchSchedule:
    """The kernel. Raises GuardError for GPUs before sm_80."""
    check_features(NEEDED, workload.target)
    scheduled = apply(workload.mod, workload.product, tile)
    if isinstance(tile, WgmmaTile):
        scheduled = main_module(warpgroups.for_own_target(scheduled["main"], workload.target))
    return LowBatchSchedule(mod=scheduled)


def _limits(target: Target) -> tuple[int, bool]:
    return limits_of(target).asked_shared_memory, warpgroups.serves(target)


def _check_others(mod: IRModule, extents: LowBatchExtents, target: Target) -> None:
    """Raise NoTileError for what others do as fast: one column, of which a single block would read all of x; one row,
    which TVM's own schedule reads at the speed of memory, and many rows on warpgroups."""
    if extents.columns == 1:
        raise NoTileError("TVM's own schedule of a product with a vector has more blocks for one column")
    if extents.weights.packed:
        return
    if extents.rows == 1:
        raise NoTileError("TVM's own schedule of a product with a vector reads weights as fast")
    matmul = None if extents.rows <= FEW else warpgroups.matmul_in(mod)
    if matmul is not None and warpgroups.expected_s(matmul, target) is not None:
        raise NoTileError(f"a kernel for warpgroups is as fast for {extents.rows} rows")
