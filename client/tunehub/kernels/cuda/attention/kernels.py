"""The kernel that a tile of attention means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.attention.bulk import BulkKernel
from tunehub.kernels.cuda.attention.clusters import ClusterKernel
from tunehub.kernels.cuda.attention.copying import CopyingKernel
from tunehub.kernels.cuda.attention.kernel import AttentionKernel, AttentionTile
from tunehub.kernels.cuda.attention.spec import Attention
from tunehub.kernels.cuda.attention.warpgroups import WarpgroupKernel

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc


def kernel_of(attention: Attention, tile: AttentionTile, multiprocessors: int) -> PrimFunc:
    """The function of ``attention`` as a kernel by ``tile``, for a GPU with so many ``multiprocessors``."""
    if tile.bulk:
        return BulkKernel(attention, tile, multiprocessors).function()
    if tile.warpgroups:
        return (CopyingKernel if tile.copying else WarpgroupKernel)(attention, tile).function()
    return (ClusterKernel if tile.cluster > 1 else AttentionKernel)(attention, tile).function()
