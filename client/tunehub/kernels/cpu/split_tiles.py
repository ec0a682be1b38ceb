"""Products of activations in float32 with weights in bfloat16, which checkpoints have, by tiles of AMX: a number of 24
bits is the sum of three of 8, and the products of these with weights are exact. Sums are in float32, 32 products at a
time, so that they are closer than one sum for all of a row would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.packed_weights import GROUP, PackedProduct
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.kernels.cpu.transposed_pairs import TILE_WORDS, TransposedPairs
from tunehub.kernels.cpu.weight_tiles import OUTPUTS, WeightTiles
from tunehub.tir.statements import block_of, const, load, parallel, sequence, serial, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, Stmt

_PARTS = 3
_HIGH_HALF, _POWER = 0xFFFF0000, 0x7F800000  # bits of a number in float32: those of a bfloat16, of the power of 2
_LEAST = 5  # rows: fewer are multiplied in vectors while memory gives the weights


class SplitPairs(TransposedPairs):
    """Numbers in float32 as sums of three in bfloat16, which is exact but for parts below 2 ** -126: [tiles, groups,
    parts, pairs of numbers, rows] words."""

    PARTS = _PARTS

    def arranged(self) -> Stmt:
        return parallel("tile group", self.tiles * self.product.groups, self._group)

    def _group(self, at: PrimExpr) -> Stmt:
        from tvm import tirx

        groups = const(self.product.groups)
        return self._transposed(tirx.floordiv(at, groups), tirx.floormod(at, groups))

    def _transposed(self, tile: PrimExpr, group: PrimExpr) -> Stmt:
        from tvm import tirx

        vectors, halves = self.vectors, (range(0, GROUP, 2), range(1, GROUP, 2))
        rest = tirx.decl_buffer((len(halves) * TILE * TILE,), "float32", "rest")
        taken, spare = (
            [vectors.buffer(f"taken_{at}", "uint32") for at in range(TILE)],
            vectors.buffer("spare", "uint32"),
        )
        given = [vectors.buffer(f"given_{at}") for at in range(len(halves))]

        def loaded(row: int) -> list[Stmt]:
            first = [load(self.data, *self.row(tile, row), vectors.ramp(group * GROUP + at * TILE)) for at in (0, 1)]
            values = [vectors.get(each) for each in given]
            return [
                *map(vectors.set, given, first),
                *(
                    store(rest, [vectors.ramp((2 * row + at) * TILE)], vectors.shuffled(values, half))
                    for at, half in enumerate(halves)
                ),
            ]

        def part(at: PrimExpr) -> Stmt:
            place = self.place(tile, group) + at * TILE_WORDS
            stored = [
                store(self.words, [vectors.ramp(place + row * TILE)], vectors.get(each))
                for row, each in enumerate(taken)
            ]
            return sequence(
                [each for row, word in enumerate(taken) for each in self._part(rest, row, word)],
                vectors.transposed(taken, spare),
                stored,
            )

        body = sequence([each for row in range(TILE) for each in loaded(row)], serial("part", _PARTS, part))
        return block_of(self.root, body, "split", [rest, *given, *taken, spare])

    def _part(self, rest: Buffer, row: int, word: Buffer) -> list[Stmt]:
        """The upper bits of what is left of a row's numbers, as a word, and what is left then; of infinity nothing."""
        from tvm import tirx

        vectors = self.vectors
        mask, zero, power = vectors.all(_HIGH_HALF, "uint32"), vectors.all(0.0), vectors.all(_POWER, "uint32")
        places = [vectors.ramp((2 * row + at) * TILE) for at in (0, 1)]
        left = [load(rest, place) for place in places]
        upper = [tirx.bitwise_and(vectors.bits_as(each, "uint32"), mask) for each in left]
        statements = [vectors.set(word, tirx.bitwise_or(upper[0] >> vectors.all(16, "uint32"), upper[1]))]
        for place, each, bits in zip(places, left, upper, strict=True):
            value = each - vectors.bits_as(bits, "float32")
            whole = tirx.bitwise_and(bits, power) == power
            statements.append(store(rest, [place], tirx.Select(whole, zero, value)))
        return statements


class SplitFloatTiles(WeightTiles):
    """With activations in float32, each the sum of three parts: products are those of float32, and sums are in float32.
    Those of the upper parts and those of the others are added up apart."""

    ACTIVATIONS = SplitPairs
    TOGETHER, PARTS = 1, _PARTS
    BLOCK_TILES, BLOCK_BYTES = 1, 5 << 18

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        return None if product.gated or super().least_rows(product) is None else _LEAST

    def _step(self, first: PrimExpr, group: PrimExpr) -> list[Stmt]:
        upper, middle, lower = (self.activations.place(first, group) + at * TILE_WORDS for at in range(_PARTS))
        return [
            self._weights_loaded(group, 0),
            self._data_loaded(middle, 1),
            self._multiplied(0, 1),
            self._data_loaded(upper, 0),
            self._multiplied(0, 0),
            self._weights_loaded(group, 1),
            self._multiplied(1, 1),
            self._multiplied(1, 0),
            self._data_loaded(lower, 1),
            self._multiplied(0, 1),
            self._multiplied(1, 1),
        ]

    def _halves(self, place: PrimExpr) -> Sequence[PrimExpr]:
        parts = [super(SplitFloatTiles, self)._halves(place + at * TILE_WORDS) for at in range(_PARTS)]
        return [sum(rest, first) for first, *rest in zip(*parts, strict=True)]

    def _plain(self, first: PrimExpr) -> Stmt:
        zeros = [
            store(self.sums, [self.vectors.ramp((OUTPUTS + at) * TILE)], self.vectors.all(0.0)) for at in range(OUTPUTS)
        ]
        return sequence(super()._plain(first), zeros)

    def _sum(self, tile: PrimExpr, output: int) -> PrimExpr:
        return super()._sum(const(0), output) + super()._sum(const(1), output)
