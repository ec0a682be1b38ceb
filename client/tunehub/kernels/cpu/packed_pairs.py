"""Products of many rows of activations with packed weights in pairs of bfloat16: a panel of weights becomes pairs, with
their scales in them, which ``vdpbf16ps`` of AVX512-BF16 multiplies, twice as many in a step as of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cpu import pairs
from tunehub.kernels.cpu.packed_activations import Pairs
from tunehub.kernels.cpu.packed_panels import PanelProducts
from tunehub.kernels.cpu.packed_weights import GROUP, numbers_of
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import block_of, load, sequence, serial, store, unrolled

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, Stmt

_PAIRS = GROUP // 2  # of a group
_UNROLLED = 4  # of them


class PairPanels(PanelProducts[Pairs]):
    """The panel: pairs of bfloat16, [groups, across, pairs of a group, lanes] words."""

    HEIGHTS: ClassVar = {pairs.LANES: 12}
    ACTIVATIONS = Pairs
    IN_TILES = True

    @property
    def pragmas(self) -> dict[str, object]:
        return {"pragma_import_llvm": pairs.IMPORTED}

    def _panel(self) -> Buffer:
        from tvm import tirx

        return tirx.decl_buffer((self.product.groups * self.across * _PAIRS * self.lanes,), "uint32", "panel")

    def panel_place(self, group: PrimExpr, across: Index, pair: Index) -> PrimExpr:
        """Of a pair of the first of as many outputs as there are lanes."""
        return ((group * self.across + across) * _PAIRS + pair) * self.lanes

    def _unpacked(self, chunk: PrimExpr, word: int, across: Index, words: Buffer) -> list[Stmt]:
        product, vectors = self.product, self.vectors
        of_group, in_word = product.words_of_group, product.in_word // 2
        group, first = chunk * (self.lanes // of_group) + word // of_group, word % of_group * in_word
        scale = load(self.factors, self.factor_place(group, across))

        def number(at: int) -> PrimExpr:
            return numbers_of(product, vectors, words, at) * scale

        return [self.paired(group, across, first + at, number(2 * at), number(2 * at + 1)) for at in range(in_word)]

    def paired(self, group: PrimExpr, across: Index, pair: Index, low: PrimExpr, high: PrimExpr) -> Stmt:
        """Two numbers of a row, in floats, of as many outputs as there are lanes, put into the panel."""
        place = self.vectors.ramp(self.panel_place(group, across, pair))
        return store(self.panel, [place], self.vectors.half_words(low, high))

    def _tile(self, output: PrimExpr, row: PrimExpr, tall: int) -> Stmt:
        sums, vectors = self._tile_of("sum", tall), self.vectors
        weights = [vectors.buffer(f"weight_{across}", "int32") for across in range(self.across)]
        flat = [each for line in sums for each in line]

        def step(group: PrimExpr, pair: PrimExpr) -> Stmt:
            places = [self.panel_place(group, across, pair) for across in range(self.across)]
            taken = [
                vectors.set(each, vectors.bits_as(load(self.panel, vectors.ramp(place)), "int32"))
                for each, place in zip(weights, places, strict=True)
            ]
            added = []
            for m, line in enumerate(sums):
                data = vectors.all(self.activations.pair(row + m, group * _PAIRS + pair))
                added += [
                    vectors.set(each, pairs.pair_products(vectors.get(each), data, vectors.get(weight)))
                    for each, weight in zip(line, weights, strict=True)
                ]
            return sequence(taken, added)

        def steps(group: PrimExpr) -> Stmt:
            def part(at: PrimExpr) -> Stmt:
                return unrolled("inner", _UNROLLED, lambda inner: step(group, at * _UNROLLED + inner))

            count = GROUP if self.product.plain else self.product.words_of_group
            return sequence(self.asked(group * count, count), serial("part", _PAIRS // _UNROLLED, part))

        body = serial("group", self.product.groups, steps)
        statements = sequence(vectors.clear(flat), body, self._stored(output, row, sums))
        return block_of(self.root, statements, "tile", [*flat, *weights])


class PlainPairs(PairPanels):
    """With weights that are floats."""

    def _scales(self, output: PrimExpr) -> Stmt | None:
        return None

    def _words(self, output: PrimExpr) -> Stmt:
        """Numbers of bfloat16 are pairs as they lie; a group has as many as there are lanes."""
        from tvm import tirx

        if str(buffer_kind(self.weights[0]).dtype) == "bfloat16":

            def stored(at: PrimExpr, across: PrimExpr, taken: Sequence[Buffer]) -> list[Stmt]:
                places = [self.vectors.ramp(self.panel_place(at, across, pair)) for pair in range(_PAIRS)]
                return [
                    store(self.panel, [place], self.vectors.get(each))
                    for place, each in zip(places, taken, strict=True)
                ]

            return self._transposed(output, self.product.groups, "uint32", stored)
        halves = GROUP // self.lanes

        def used(at: PrimExpr, across: PrimExpr, taken: Sequence[Buffer]) -> list[Stmt]:
            group, first = tirx.floordiv(at, halves), tirx.floormod(at, halves) * (self.lanes // 2)
            numbers = [self.vectors.get(each) for each in taken]
            return [
                self.paired(group, across, first + pair, *numbers[2 * pair : 2 * pair + 2])
                for pair in range(self.lanes // 2)
            ]

        return self._transposed(output, self.product.depth // self.lanes, "float32", used)
