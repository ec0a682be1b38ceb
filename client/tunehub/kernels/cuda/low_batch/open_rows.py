"""Products with an open number of rows, up to 32 of them, with quantised weights up to 64: a kernel of
:mod:`tunehub.kernels.cuda.low_batch` for each range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.low_batch.choice import chosen
from tunehub.kernels.cuda.low_batch.product import MOST_ROWS, LowBatchExtents, find_product, has_low_batch
from tunehub.kernels.cuda.low_batch.schedule import apply
from tunehub.kernels.cuda.low_batch.taken_apart import TakenApart, taken_apart
from tunehub.kernels.cuda.low_batch.tile import AnyTile, WgmmaTile
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.cuda.pieces import NotPiecesError, RowBlocks
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import GuardError, check_function

if TYPE_CHECKING:
    from tunehub.target.types import Target

_LENGTHS = (8, 16, 32)  # rows that a kernel is for; each has registers for as many
_MORE_OF_QUANTISED = (MOST_ROWS,)


def quantised_apart(whole: OpenFunction) -> TakenApart | None:
    """``whole`` as the making of its quantised weights and a product; None where it has none. Raises
    NotPiecesError."""
    product = find_product(whole.piece(_LENGTHS[0]))
    if product is None or not product.made_by:
        return None
    return taken_apart(whole.function, product.made_by[0], product.extents.weights)


def few_rows(whole: OpenFunction, target: Target, count: int | None = None) -> list[SizeBranch]:
    """Branches of the function for its first sizes, ``count`` at most; none where its open axis is not the rows of such
    a product, or where a kernel is not to be had. Raises what TVM raises."""
    if not has_low_batch(target):
        return []
    first = find_product(whole.piece(_LENGTHS[0]))
    second = find_product(whole.piece(_LENGTHS[1]))
    if first is None or second is None or (first.extents.rows, second.extents.rows) != _LENGTHS[:2]:
        return []
    branches, asked, device = [], limits_of(target).asked_shared_memory, device_of(target)
    has_warpgroups = warpgroups.serves(target)
    lengths = (*_LENGTHS, *(_MORE_OF_QUANTISED if first.extents.weights.packed else ()))
    for length in lengths[:count]:
        piece = whole.piece(length)
        product = find_product(piece)
        if product is None:
            break
        tile = chosen(product.extents, asked, device, has_warpgroups)
        try:
            made = whole.over(apply(piece, product, tile)["main"], length, _clusters(product.extents, tile))
            check_function(made, whole.function, target)
        except (GuardError, NotPiecesError):
            break
        if isinstance(tile, WgmmaTile):
            made = warpgroups.for_own_target(made, target)
        branches.append(SizeBranch(up_to=length, function=made))
    return branches


def _clusters(extents: LowBatchExtents, tile: AnyTile) -> RowBlocks | None:
    """What blocks compute that are neighbours in the grid, as those of a cluster have to be."""
    if not isinstance(tile, WgmmaTile):
        return None
    beside = -(-extents.columns // tile.columns)
    return RowBlocks(rows=extents.rows, of_one=1, beside=beside, outer=True)
