"""Products with an unknown number of rows: those of a matrix, or the pixels of images, of which one has so many.

A block computes some rows. The kernel is made for a piece of the fewest places along the open axis that end where
blocks do, and the grid has the blocks that the size needs (:class:`tunehub.kernels.cuda.pieces.RowBlocks`), as
that of a fixed size has: what a tile should take at a size is what it should take in a static function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.open_function import OpenFunction

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule

_LENGTHS = (2, 3)  # of pieces that show what a function computes


@dataclass(frozen=True, slots=True)
class OpenMatmul:
    """``two``: the product of a piece of two; the first of the axes of its rows is the open one."""

    two: Matmul

    @property
    def of_one(self) -> int:
        """Rows of one place along the open axis."""
        return math.prod(axis.extent for axis in self.two.rows[1:])

    def at(self, size: int) -> Matmul:
        """The product of a size."""
        first, *others = self.two.rows
        return replace(self.two, rows=(first._replace(extent=size), *others))

    def length(self, rows: int) -> int:
        """Of the shortest piece that blocks of ``rows`` divide."""
        return rows // math.gcd(rows, self.of_one)


def open_matmul(
    whole: OpenFunction, find: Callable[[IRModule], Matmul | None], *, batched: bool = False
) -> OpenMatmul | None:
    """The product that ``find`` sees in pieces of ``whole``, if the open axis is the first of its rows; ``batched``:
    also a batch of products as Winograd's algorithm has them. Raises NotPiecesError."""
    first, second = (find(whole.piece(length)) for length in _LENGTHS)
    if first is None or (first.batch and not (batched and first.is_batch_with_outer_k)):
        return None
    found = OpenMatmul(first)
    return found if (first, second) == tuple(map(found.at, _LENGTHS)) else None
