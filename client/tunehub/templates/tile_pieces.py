"""How rows of a product, or rows of an image, are cut into tiles, and which of these are in registers together.

A tile has at most 16 rows, all of one row of the image. Tiles in registers share the weights that are loaded for them:
where a row of the image has fewer tiles than there is room for, those of the next rows are beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TILE = 16  # rows of a tile, and numbers of 32 bits in a row


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
    """Groups of tiles that are alike: ``rows`` in each tile, in ``images`` rows of the image, and ``tiles`` side by
    side in each, from row ``start`` on."""

    rows: int
    start: int
    images: Steps
    tiles: Steps


def pieces_of(rows: int, images: int, tall: int) -> list[Piece]:
    """Cut ``images`` times ``rows`` into groups of at most ``tall`` tiles. All tiles are alike where that is possible,
    else whole ones and one for what is left."""
    count = -(-rows // TILE)
    if rows % count == 0:
        return list(_grouped(0, count, rows // count, images, tall))
    whole, rest = divmod(rows, TILE)
    return [*_grouped(0, whole, TILE, images, tall), *_grouped(whole * TILE, 1, rest, images, tall)]


def _grouped(start: int, count: int, rows: int, images: int, tall: int) -> Iterator[Piece]:
    whole, rest = divmod(count, tall)
    if whole:
        yield Piece(rows=rows, start=start, images=Steps(0, images, 1), tiles=Steps(0, whole, tall))
    if not rest:
        return
    start += whole * tall * rows
    together = min(tall // rest, images)
    groups, left = divmod(images, together)
    yield Piece(rows=rows, start=start, images=Steps(0, groups, together), tiles=Steps(0, 1, rest))
    if left:
        yield Piece(rows=rows, start=start, images=Steps(groups * together, 1, left), tiles=Steps(0, 1, rest))
