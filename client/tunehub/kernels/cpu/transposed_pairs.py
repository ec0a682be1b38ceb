"""Activations of products by tiles of AMX whose rows are rows of weights: the words of pairs that the other operand's
tiles have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.packed_activations import Activations
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.tir.statements import block_of, sequence, serial, store

if TYPE_CHECKING:
    from tunehub.kernels.cpu.packed_weights import PackedProduct, Rows
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

TILE_WORDS = TILE * TILE


class TransposedPairs(Activations):
    """In bfloat16, tiles of 16 rows and a group of numbers: [tiles, groups, pairs of numbers, rows] words. What lies
    behind the last row is that row again. Of numbers in several parts a group has as many tiles."""

    PARTS = 1

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        from tvm import tirx

        super().__init__(product, data, rows, root)
        self.tiles = tirx.floordiv(rows.count + (TILE - 1), TILE)
        self.words = tirx.decl_buffer((self.tiles * (product.groups * self.PARTS * TILE_WORDS),), "uint32", "pairs")

    @property
    def buffers(self) -> list[Buffer]:
        return [self.words]

    def place(self, tile: PrimExpr, group: PrimExpr) -> PrimExpr:
        """Where the words of a tile begin."""
        return (tile * self.product.groups + group) * (self.PARTS * TILE_WORDS)

    def row(self, tile: PrimExpr, at: int) -> list[PrimExpr]:
        """Indices of a row of a tile, or of the last of all."""
        from tvm import tirx

        return self.rows.place(tirx.min(tile * TILE + at, self.rows.count - 1))

    def tile(self, at: PrimExpr) -> Stmt:
        """All groups of a tile are transposed."""
        return serial("group", self.product.groups, lambda group: self._transposed(at, group))

    def _loaded(self, tile: PrimExpr, group: PrimExpr, taken: Sequence[Buffer]) -> tuple[list[Stmt], list[Buffer]]:
        """Words of a group of each row of a tile are ``taken``; and the buffers that this needs."""
        raise NotImplementedError

    def _transposed(self, tile: PrimExpr, group: PrimExpr) -> Stmt:
        vectors = self.vectors
        taken = [vectors.buffer(f"taken_{at}", "uint32") for at in range(TILE)]
        spare = vectors.buffer("spare", "uint32")
        loaded, own = self._loaded(tile, group, taken)
        stored = [
            store(self.words, [vectors.ramp(self.place(tile, group) + at * TILE)], vectors.get(each))
            for at, each in enumerate(taken)
        ]
        body = sequence(loaded, vectors.transposed(taken, spare), stored)
        return block_of(self.root, body, "turn", [*taken, *own, spare])
