"""Products with few rows without a record: the kernel of :mod:`tunehub.kernels.cuda.low_batch` where it should beat all
else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.low_batch.choice import chosen, seconds
from tunehub.kernels.cuda.low_batch.product import NEEDED, SkinnyExtents, SkinnyProduct, find_product
from tunehub.kernels.cuda.low_batch.schedule import apply
from tunehub.kernels.cuda.low_batch.tile import AnyTile, WgmmaTile
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import check_features
from tunehub.tir.nodes import main_module

NAME, VERSION, ALONE = "skinny", 1, False
_FEW = 8  # rows, up to which no kernel for warpgroups is as fast


@dataclass(frozen=True, kw_only=True, slots=True)
class SkinnySchedule:
    """``mod``: with the function as ``main``, scheduled."""

    mod: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class LowBatchWorkload:
    """``mod``, one PrimFunc ``main`` whose anchor block is ``product``, for ``target``."""

    mod: Any
    target: Any
    product: SkinnyProduct


def match(mod: Any, target: Any) -> LowBatchWorkload | None:
    """A product with few rows."""
    product = find_product(mod)
    return None if product is None else LowBatchWorkload(mod=mod, target=target, product=product)


def candidates(workload: LowBatchWorkload, _device: Any) -> Iterator[KernelCandidate]:
    """The tile that was fastest for as many rows and columns, before all else: each was measured beside other kernels
    (docs/adr/0038), whose costs say less. Raises NoTileError for what is done as fast otherwise, GuardError for GPUs
    before sm_80."""
    extents, target = workload.product.extents, workload.target
    check_features(NEEDED, target)
    _check_others(workload.mod, extents, target)
    tile = chosen(extents, limits_of(target).asked_shared_memory, warpgroups.serves(target))
    yield KernelCandidate(tile=tile, seconds=seconds(extents), compared_s=0.0)


def build(workload: LowBatchWorkload, tile: AnyTile) -> SkinnySchedule:
    """The kernel."""
    scheduled = apply(workload.mod, workload.product, tile)
    if isinstance(tile, WgmmaTile):
        scheduled = main_module(warpgroups.for_own_target(scheduled["main"], workload.target))
    return SkinnySchedule(mod=scheduled)


def _check_others(mod: Any, extents: SkinnyExtents, target: Any) -> None:
    """Raise NoTileError for what others do as fast: one column, of which a single block would read all of x; one row,
    which TVM's own schedule reads at the speed of memory, and many rows on warpgroups."""
    if extents.columns == 1:
        raise NoTileError("TVM's own schedule of a product with a vector has more blocks for one column")
    if extents.weights.group:
        return
    if extents.rows == 1:
        raise NoTileError("TVM's own schedule of a product with a vector reads weights as fast")
    matmul = None if extents.rows <= _FEW else warpgroups.matmul_in(mod)
    if matmul is not None and warpgroups.expected_s(matmul, target) is not None:
        raise NoTileError(f"a kernel for warpgroups is as fast for {extents.rows} rows")
