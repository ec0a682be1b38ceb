"""Which tile serves a product with few rows: the fastest on an H200 for as many rows and columns (docs/adr/0038)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.cuda.skinny.product import SkinnyExtents
from tunehub.cuda.skinny.shared_memory import fits
from tunehub.cuda.skinny.tile import AnyTile, SkinnyTile, StagedTile

_ROWS = 8  # of x in an instruction
_ONE_WAVE = 2 * 16 * MULTIPROCESSORS  # columns of a block of two tiles on each multiprocessor
_MANY_COLUMNS = 1 << 14
_DEEP, _LONG_SLICE, _LEAST_SLICE = 1 << 13, 256, 64  # of K
_LAUNCH_S, _BYTES_PER_S = 2e-6, 4e12  # of an H200

# Tiles, warps along columns and K, stages and depth, by the most rows, for columns of one wave, of two, more, and many;
# None: a tile without operands in shared memory is faster.
_Choices: TypeAlias = "dict[int, tuple[tuple[int, int, int, int, int] | None, ...]]"
_STAGED: dict[int, _Choices] = {
    4: {
        1: ((2, 1, 8, 2, 128), *[(1, 1, 8, 2, 256)] * 3),
        4: ((2, 1, 8, 2, 128), *[(2, 1, 4, 2, 256)] * 3),
        8: ((2, 1, 8, 2, 128), *[(2, 1, 8, 1, 256)] * 3),
        16: ((2, 1, 8, 2, 128), *[(2, 1, 4, 2, 256)] * 3),
        32: ((2, 1, 8, 2, 128), (2, 2, 4, 2, 128), (2, 1, 4, 2, 128), (4, 2, 2, 2, 128)),
        64: ((2, 1, 4, 2, 128), (2, 2, 4, 2, 128), (2, 4, 2, 3, 128), (2, 4, 2, 3, 128)),
    },
    8: {
        8: ((2, 1, 8, 2, 128), (2, 1, 4, 2, 128), (2, 1, 4, 2, 128), (2, 1, 8, 2, 128)),
        16: (None,) * 4,
        32: ((2, 1, 8, 2, 128), (1, 2, 4, 2, 128), (1, 2, 4, 2, 128), None),
        64: ((1, 2, 4, 2, 128), *[(2, 2, 4, 2, 64)] * 3),
    },
    16: {32: (None,) * 4, 64: ((2, 2, 2, 4, 64),) * 4},
}


def chosen(extents: SkinnyExtents, asked: int) -> AnyTile:
    """The tile for a product, where a block can ask for ``asked`` bytes of shared memory."""
    wanted = _staged(extents)
    smaller = () if wanted is None else _from(wanted)
    return next((tile for tile in smaller if fits(extents, tile, asked)), None) or _of_registers(extents)


def _staged(extents: SkinnyExtents) -> StagedTile | None:
    """The tile with operands in shared memory, where it was faster than one without; not where scales of a slice would
    not start at whole words."""
    waves = (_ONE_WAVE, 2 * _ONE_WAVE, _MANY_COLUMNS - 1)
    place = sum(extents.columns > most for most in waves)
    choices = _STAGED[extents.weights.bits]
    found = choices[min(most for most in choices if extents.rows <= most)][place]
    if found is None or extents.depth % (2 * extents.weights.group or 1):
        return None
    tiles, along, deep, stages, depth = found
    if extents.weights.bits == 4 and extents.rows <= _ROWS and extents.depth >= _DEEP:
        depth = _LONG_SLICE
    return StagedTile(tiles=tiles, warps=(along, deep), stages=stages, depth=depth)


def _from(tile: StagedTile) -> Iterator[StagedTile]:
    """``tile`` and those with less in shared memory at a time."""
    for depth in (tile.depth, tile.depth // 2, tile.depth // 4):
        for stages in range(tile.stages, 0, -1):
            if depth >= _LEAST_SLICE:
                yield replace(tile, depth=depth, stages=stages)


def _of_registers(extents: SkinnyExtents) -> SkinnyTile:
    one_wave, many = extents.columns <= _ONE_WAVE, extents.columns > _MANY_COLUMNS
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
