"""How rows of a product, or rows of an image, are cut into tiles, and which of these are in registers together.

A tile has at most 16 rows, all of one row of the image. Tiles in registers share the weights that are loaded for them:
where a row of the image has fewer tiles than there is room for, those of the next rows may be beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TILE = 16  # rows of a tile, and numbers of 32 bits in a row
_FREE = 3  # tiles of rows that have a register each beside their sums; more take turns, and are alike


@dataclass(frozen=True, slots=True)
class Steps:
    """``count`` groups of ``each`` in a direction, from ``first`` on."""

    first: int
    count: int
    each: int

    def at(self, group: Any, item: int) -> Any:
        """Where an item of a group is."""
        return self.first + group * self.each + item


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Groups of tiles that are alike: in ``images`` rows of the image tiles of ``sizes`` rows, side by side from row
    ``start`` on, ``count`` times."""

    start: int
    count: int
    sizes: tuple[int, ...]
    images: Steps

    @property
    def tiles(self) -> tuple[int, ...]:
        """The rows of all tiles that are in registers together."""
        return self.sizes * self.images.each

    def row(self, group: Any, tile: int) -> Any:
        """The first row of a tile of a group."""
        return group * sum(self.sizes) + self.start + sum(self.sizes[:tile])


def pieces_of(rows: int, images: int, tall: int, together: int) -> Iterator[Piece]:
    """Cut ``images`` times ``rows`` into groups of at most ``tall`` tiles in ``together`` rows of the image at most."""
    for start, count, sizes in _cut(rows, tall):
        beside = min(tall // len(sizes), together, images)
        groups, left = divmod(images, beside)
        yield Piece(start=start, count=count, sizes=sizes, images=Steps(0, groups, beside))
        if left:
            yield Piece(start=start, count=count, sizes=sizes, images=Steps(groups * beside, 1, left))


def _cut(rows: int, tall: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """From which row on how many groups of which tiles: all groups alike where that is possible, else whole ones and
    one for what is left. Tiles that take turns in registers are alike, too."""
    if tall <= _FREE:
        groups = -(-rows // (tall * TILE))
        if rows % groups == 0:
            yield 0, groups, _even(rows // groups)
            return
        whole, rest = divmod(rows, tall * TILE)
        yield 0, whole, (TILE,) * tall
        yield whole * tall * TILE, 1, _even(rest)
        return
    tiles = -(-rows // TILE)
    size = rows // tiles if rows % tiles == 0 else TILE
    groups, more = divmod(rows // size, tall)
    end = groups * tall * size
    if groups:
        yield 0, groups, (size,) * tall
    if more:
        yield end, 1, (size,) * more
    if rows % size:
        yield end + more * size, 1, (rows % size,)


def _even(rows: int) -> tuple[int, ...]:
    """As few tiles as ``rows`` fit, of nearly as many rows each."""
    tiles = -(-rows // TILE)
    size, more = divmod(rows, tiles)
    return (size + 1,) * more + (size,) * (tiles - more)
