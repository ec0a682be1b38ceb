"""How rows of a product, or of a row of an image, are cut into tiles of at most 16 rows.

One or two tiles are in registers together, and share the weights that are loaded for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.tir.types import Index

TILE = 16  # rows of a tile, and numbers of 32 bits in a row


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Groups of tiles that are alike: tiles of ``sizes`` rows, side by side from row ``start`` on, ``count`` times."""

    start: int
    count: int
    sizes: tuple[int, ...]

    def row(self, group: Index, tile: int) -> Index:
        """The first row of a tile of a group."""
        return group * sum(self.sizes) + self.start + sum(self.sizes[:tile])


def pieces_of(rows: int, tall: int) -> tuple[Piece, ...]:
    """Cut ``rows`` into groups of ``tall`` tiles, all alike where that is possible, else with what is left behind."""
    most = tall * TILE
    groups = -(-rows // most)
    if rows % groups == 0:
        return (Piece(start=0, count=groups, sizes=_even(rows // groups)),)
    whole, rest = divmod(rows, most)
    return (
        Piece(start=0, count=whole, sizes=(TILE,) * tall),
        Piece(start=whole * most, count=1, sizes=_even(rest)),
    )


def _even(rows: int) -> tuple[int, ...]:
    """As few tiles as ``rows`` fit, of nearly as many rows each."""
    tiles = -(-rows // TILE)
    size, more = divmod(rows, tiles)
    return (size + 1,) * more + (size,) * (tiles - more)
