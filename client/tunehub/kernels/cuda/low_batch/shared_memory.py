"""The shared memory of a block of the kernels for low-batch GEMMs, as their sources count it."""

from __future__ import annotations

from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.target.gpu_architectures import FEWEST_ASKED_BYTES, WARP

_ROWS = 8  # of an instruction
_FLOAT = 4  # bytes
_VECTOR = 16  # bytes
_LANE_X = {16: 16, 8: 32, 4: 64}  # bytes of x that lanes read at once, by bits of a weight
_BANKS, _SHIFT = 32, 4  # rows of the result start at different banks
_BUFFERS, _ATOM = 3, 1 << 10  # of x for warpgroups; bytes of rows that are swizzled together
_MOST_ELEMENTS = (48 << 10) // _FLOAT  # that any GPU gives a block


def row_tiles(extents: LowBatchExtents) -> int:
    """Tiles of as many rows as an instruction has."""
    return -(-extents.rows // _ROWS)


def stride(tile: AnyTile) -> int:
    """Elements from one row of a block's results to the next."""
    return tile.columns + (_SHIFT - tile.columns) % _BANKS


def room(extents: LowBatchExtents, tile: DirectTile) -> int:
    """Elements beside the results."""
    return _MOST_ELEMENTS - extents.rows * stride(tile)


def pool_bytes(extents: LowBatchExtents, tile: StagedTile | WgmmaTile) -> int:
    """Of what the kernel's source asks for: slices of the operands, later accumulators. Where results make it more than
    a block gets unasked it is as much as is asked for."""
    row = tile.depth * extents.weights.bits // 8
    scales = tile.depth // extents.weights.group * 2 if extents.weights.group else 0
    filled = row + -(-scales // _VECTOR) * _VECTOR
    weights = filled + (_VECTOR if filled % (2 * _VECTOR) == 0 else 0)
    wide = tile.depth * 2
    if isinstance(tile, WgmmaTile):
        data = _BUFFERS * wide * row_tiles(extents) * _ROWS
        slices = data + tile.stages * tile.together * weights
        found = _ATOM + max(slices, tile.threads // WARP * row_tiles(extents) * WARP * _VECTOR)
    else:
        data = wide + _LANE_X[extents.weights.bits] - wide % (_BANKS * _FLOAT)
        slices = tile.warps[1] * tile.stages * (tile.columns * weights + (0 if tile.held else extents.rows * data))
        found = max(slices, tile.threads * tile.tiles * row_tiles(extents) * _VECTOR)
    return max(found, FEWEST_ASKED_BYTES) if found + _results(extents, tile) > FEWEST_ASKED_BYTES else found


def fits(extents: LowBatchExtents, tile: AnyTile, asked: int) -> bool:
    """Whether a block has the shared memory that it takes, where ``asked`` bytes can be asked for."""
    if _results(extents, tile) > FEWEST_ASKED_BYTES:
        return False
    if not isinstance(tile, DirectTile):
        return pool_bytes(extents, tile) + _results(extents, tile) <= asked
    return room(extents, tile) >= tile.columns * _ROWS * tile.warps[1]


def _results(extents: LowBatchExtents, tile: AnyTile) -> int:
    return _FLOAT * extents.rows * stride(tile)
