"""The choices of the kernel for products with few rows, and which are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.cuda.skinny.product import SkinnyExtents
from tunehub.target.gpu_architectures import WARP

_SIDE = 16  # columns of an instruction
_ROWS = 8  # of x in an instruction
_FEW_COLUMNS = 2 * MULTIPROCESSORS * _SIDE  # of as many blocks as there may be at a time
_MANY_COLUMNS = 1 << 14
_LAUNCH_S, _BYTES_PER_S = 2e-6, 4e12  # of an H200


@dataclass(frozen=True, kw_only=True, slots=True)
class SkinnyTile:
    """A block has ``warps`` along columns and along K. A warp has ``tiles`` of 16 columns; in a step it multiplies
    ``unroll`` chunks of K, 4 vectors of 16 bytes beside each other of a row of weights. It has loaded ``depth`` steps
    before they are needed."""

    tiles: int
    warps: tuple[int, int]
    unroll: int
    depth: int

    @property
    def columns(self) -> int:
        """Of a block."""
        return _SIDE * self.tiles * self.warps[0]

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * math.prod(self.warps)


def chosen(extents: SkinnyExtents) -> SkinnyTile:
    """The tile for a product: the one that was fastest on an H200 for as many rows and columns (docs/adr/0038)."""
    one_wave, many = extents.columns <= _FEW_COLUMNS, extents.columns > _MANY_COLUMNS
    few = extents.rows <= _ROWS
    if extents.weights.bits == 16 and extents.rows <= 2 * _ROWS:
        return _tile(1, 1, 8, 4, 1) if few and one_wave else _tile(1, 1, 8, 2, 2)
    if extents.weights.bits == 16 and extents.rows <= 4 * _ROWS:
        return _tile(1, 2, 8, 2, 2) if one_wave else _tile(2, 1, 8, 1, 2)
    if extents.weights.bits == 4 and few and not many:
        return _tile(1, 1, 16, 1, 2) if one_wave else _tile(1, 1, 8, 1, 2)
    if extents.weights.bits == 8 and extents.rows <= 2 * _ROWS:
        return _tile(1, 1, 8, 2, 2) if one_wave else _tile(1, 2, 8, 1, 2) if many else _tile(1, 1, 8, 1, 2)
    if extents.rows <= 2 * _ROWS:
        return _tile(2, 1, 4, 1, 2) if many and not few else _tile(2, 1, 8, 1, 1)
    return _tile(2, 2, 4, 1, 1)


def _tile(tiles: int, along: int, deep: int, unroll: int, depth: int) -> SkinnyTile:
    return SkinnyTile(tiles=tiles, warps=(along, deep), unroll=unroll, depth=depth)


def seconds(extents: SkinnyExtents) -> float:
    """What a product should take: its weights come from memory once."""
    weights = extents.columns * extents.depth * extents.weights.bytes_of_weight
    return _LAUNCH_S + weights / _BYTES_PER_S
