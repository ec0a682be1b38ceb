"""Products with few rows without a record: the kernel of :mod:`tunehub.kernels.cuda.low_batch` where it should beat all
else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.low_batch.choice import chosen, seconds
from tunehub.kernels.cuda.low_batch.product import NEEDED, SkinnyExtents, find_product
from tunehub.kernels.cuda.low_batch.schedule import apply
from tunehub.kernels.cuda.low_batch.tile import WgmmaTile
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import check_features, check_function
from tunehub.tir.nodes import main_module

NAME = "skinny"  # in reports
_FEW = 8  # rows, up to which no kernel for warpgroups is as fast


@dataclass(frozen=True, kw_only=True, slots=True)
class SkinnySchedule:
    """``mod``: with the function as ``main``, scheduled."""

    mod: Any


def by_rule(mod: Any, target: Any) -> tuple[SkinnySchedule, float] | None:
    """A schedule of ``mod``, an IRModule with one PrimFunc ``main`` of known shapes, and the seconds that it should
    take; None when the function has no such product.

    Raises NoTileError for what is done as fast otherwise, GuardError for GPUs before sm_80 and for what would be wrong
    or cannot be launched, or what TVM raises.
    """
    product = find_product(mod)
    if product is None:
        return None
    check_features(NEEDED, target)
    _check_others(mod, product.extents, target)
    tile = chosen(product.extents, limits_of(target).asked_shared_memory, warpgroups.serves(target))
    scheduled = apply(mod, product, tile)
    if isinstance(tile, WgmmaTile):
        scheduled = main_module(warpgroups.for_own_target(scheduled["main"], target))
    check_function(scheduled["main"], mod["main"], target)
    return SkinnySchedule(mod=scheduled), seconds(product.extents)


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
