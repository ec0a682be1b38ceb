"""Which tiles of low-batch GEMMs records may name, and which are worth measuring. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tunehub.kernels.cuda.low_batch.choice import chosen, divides, lies_in_words
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.shared_memory import fits
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.kernels.devices.device import GpuDevice

_FOUR, _HALF = 4, 16  # bits of a weight
_MOST_WARPS, _MOST_TILES, _MOST_STAGES, _MOST_AHEAD = 16, 4, 4, 4
_SLICES, _SLICES_OF_WARPGROUPS = (64, 128, 256), (128, 256)
_GROUPS = _CLUSTERS = (1, 2, 4)
# Tiles of 16 columns, warps along columns and K, and depth, of two stages: each was the fastest of all for some product
# of a language model with weights of 4 bits. The last ones hold x in registers, too.
_WORTH = (
    (2, 1, 7, 128), (2, 1, 8, 128), (2, 1, 12, 128), (2, 1, 16, 128), (2, 2, 4, 128), (2, 3, 4, 128), (2, 4, 4, 128),
    (3, 1, 8, 128), (3, 2, 4, 128), (4, 1, 4, 256), (4, 2, 4, 128), (1, 1, 8, 256),
)  # fmt: skip
_WORTH_HELD = ((3, 1, 4, 128), (3, 2, 2, 128))


def allows(extents: LowBatchExtents, tile: AnyTile, asked: int, warpgroups: bool) -> bool:
    """Whether the kernels have ``tile`` for a product, where a block can ask for ``asked`` bytes of shared memory;
    ``warpgroups``: the GPU and TVM have these."""
    if extents.weights.group and extents.weights.bfloat and not isinstance(tile, DirectTile):
        return False
    if isinstance(tile, WgmmaTile):
        return warpgroups and _is_of_warpgroups(extents, tile) and fits(extents, tile, asked)
    if len(tile.warps) != 2 or min(tile.tiles, *tile.warps) < 1:
        return False
    if math.prod(tile.warps) > _MOST_WARPS or tile.tiles > _MOST_TILES:
        return False
    kind = _is_direct(tile) if isinstance(tile, DirectTile) else _is_staged(extents, tile)
    return kind and fits(extents, tile, asked)


def worth_measuring(extents: LowBatchExtents, asked: int, warpgroups: bool, device: GpuDevice) -> Iterator[AnyTile]:
    """The rule's own tile on ``device``, and those that were the fastest for other products."""
    own = chosen(extents, asked, device, warpgroups)
    yield own
    shapes = [(*each, False) for each in _WORTH] + [(*each, True) for each in _WORTH_HELD]
    for tiles, along, deep, depth, held in shapes:
        tile = StagedTile(tiles=tiles, warps=(along, deep), stages=2, depth=depth, held=held)
        if tile != own and allows(extents, tile, asked, warpgroups):
            yield tile


def _is_direct(tile: DirectTile) -> bool:
    return 1 <= tile.unroll <= _MOST_AHEAD and 1 <= tile.depth <= _MOST_AHEAD


def _is_staged(extents: LowBatchExtents, tile: StagedTile) -> bool:
    depth = tile.depth in (_SLICES[:2] if extents.weights.bits == _HALF else _SLICES)
    held = not tile.held or extents.weights.bits == _FOUR
    return depth and held and 1 <= tile.stages <= _MOST_STAGES and lies_in_words(extents)


def _is_of_warpgroups(extents: LowBatchExtents, tile: WgmmaTile) -> bool:
    depth = tile.depth in (_SLICES_OF_WARPGROUPS[:1] if extents.weights.bits == _HALF else _SLICES_OF_WARPGROUPS)
    known = tile.groups in _GROUPS and tile.cluster in _CLUSTERS and tile.stages in (3, 4)
    return depth and known and lies_in_words(extents) and (tile.cluster == 1 or divides(extents, tile))
