"""Products of few rows of activations in 8 bits with packed weights of 8 bits, by vectors: of a panel of 16 outputs
some groups at a time get outputs in lanes, in the first cache, and are multiplied with up to eight rows by
``vpdpbusd``, whose sums of a group are whole then.

Per line of weights and with eight rows, that is 15 instructions of vectors: eight products, three to scale sums, and
four to change lanes, which LLVM finds cheap shuffles for. The next panel is asked for in the order in which it lies, as
evenly as there is time: so memory is what eight rows wait for, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cpu.packed_activations import Integers
from tunehub.kernels.cpu.packed_panels import FOLLOWING, ROW, PanelProducts
from tunehub.kernels.cpu.packed_weights import PackedProduct
from tunehub.kernels.cpu.vectors import Vectors, line_of
from tunehub.tir.nodes import integer
from tunehub.tir.statements import block_of, const, either, load, prefetch, sequence, serial, store, when

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, Stmt

_LANES, _BITS, _WORDS = 16, 8, 8  # outputs of a panel; bits of weights; words of a group
_TALLEST = (8, 4, 2)  # rows of tiles, by how many there are
_EARLY = 3  # lines of a group of the next panel that are asked for while lanes are changed, others with products
_PART = 16  # groups of a panel that are in memory at once, at most: 8 kB


class FewBytes(PanelProducts[Integers]):
    """Of two rows and more."""

    HEIGHTS: ClassVar = {_LANES: _TALLEST[-1]}
    TILES = 1
    ACTIVATIONS = Integers

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        fits = product.bits == _BITS and product.integers and not product.tiles
        return super().least_rows(product) if fits else None

    @property
    def across(self) -> int:
        return 1

    def _panel(self) -> Buffer:
        from tvm import tirx

        return tirx.decl_buffer((self._of_part * _WORDS * self.lanes,), "uint32", "panel")

    def _words(self, output: PrimExpr) -> Stmt | None:
        return None

    def _multiplied(self, output: PrimExpr, begin: PrimExpr, end: PrimExpr) -> Stmt:
        """By tiles as tall as rows allow. The last goes over the one before."""
        from tvm import tirx

        def tiles(tall: int) -> Stmt:
            def tile(at: PrimExpr) -> Stmt:
                kept = store(self.place, [const(ROW)], tirx.min(begin + at * tall, end - tall))
                return sequence(kept, self._rows(output, load(self.place, ROW), tall, first=at == 0))

            return serial("tile", tirx.floordiv(end - begin + tall - 1, tall), tile)

        known = integer(self.rows.count)
        if known is not None:
            return tiles(next(each for each in _TALLEST if each <= known))
        chosen = tiles(_TALLEST[-1])
        for tall in reversed(_TALLEST[:-1]):
            chosen = either(end - begin >= tall, tiles(tall), chosen)
        return chosen

    def _rows(self, output: PrimExpr, row: PrimExpr, tall: int, *, first: PrimExpr) -> Stmt:
        """A panel times ``tall`` rows from ``row`` on; with the ``first`` ones the next panel is asked for."""
        from tvm import tirx

        sums = [self.vectors.buffer(f"sum_{m}") for m in range(tall)]
        totals = [self.vectors.buffer(f"total_{m}", "int32") for m in range(tall)]

        def part(at: PrimExpr) -> Stmt:
            begin = at * self._of_part
            count = tirx.min(const(self._of_part), const(self.product.groups) - begin)
            return sequence(
                serial("lanes", count, lambda group: self._in_lanes(output, begin + group, group, first)),
                serial("group", count, lambda group: self._group(row, begin + group, group, (sums, totals), first)),
            )

        parts = serial("part", -(-self.product.groups // self._of_part), part)
        stored = [self._row_stored(output, row + m, [self.vectors.get(each)]) for m, each in enumerate(sums)]
        return block_of(self.root, sequence(self.vectors.clear(sums), parts, stored), "tile", [*sums, *totals])

    @property
    def _of_part(self) -> int:
        """Groups of a panel that are in memory at once."""
        return -(-self.product.groups // -(-self.product.groups // _PART))

    def _asked(self, group: PrimExpr, lines: slice) -> list[Stmt]:
        """Ask for some of as many lines of the next panel as the panel's group has, in the order in which they lie, and
        of scales."""
        weights, scales = self.weights
        following, count = load(self.place, FOLLOWING), _WORDS * self.lanes
        places = range(0, count, line_of(weights))
        asked = [prefetch(weights, following, group * count + at, cache=2) for at in places]
        return [*asked, prefetch(scales, following, group * self.lanes, cache=2)][lines]

    def _panel_place(self, group: PrimExpr, word: int) -> PrimExpr:
        return self.vectors.ramp((group * _WORDS + word) * self.lanes)

    def _in_lanes(self, output: PrimExpr, group: PrimExpr, place: PrimExpr, first: PrimExpr) -> Stmt:
        """Put the words of a group into the panel, as ``place``, outputs in lanes."""
        vectors, half = self.vectors, Vectors(_WORDS)
        words = [vectors.buffer(f"words_{at}", "uint32") for at in range(_WORDS)]
        spare, statements = vectors.buffer("spare", "uint32"), []
        for at, each in enumerate(words):
            rows = [output + at % 4 + 8 * (at // 4) + upper for upper in (0, 4)]
            loaded = [load(self.weights[0], row, half.ramp(group * _WORDS)) for row in rows]
            statements.append(vectors.set(each, vectors.shuffled(loaded, range(self.lanes))))
        for step, lanes in zip((1, 2, 4), _EXCHANGES, strict=True):
            for at in (at for at in range(_WORDS) if not at & step):
                statements += vectors.exchanged(words[at], words[at + step], spare, lanes)
        for at, each in enumerate(words):
            word = at & 4 | (at & 1) << 1 | (at & 2) >> 1
            statements.append(store(self.panel, [self._panel_place(place, word)], vectors.get(each)))
        asked = when(first, self._asked(group, slice(_EARLY)))
        return block_of(self.root, sequence(asked, statements), "lanes", [*words, spare])

    def _group(
        self,
        row: PrimExpr,
        group: PrimExpr,
        place: PrimExpr,
        sums_of: tuple[Sequence[Buffer], Sequence[Buffer]],
        first: PrimExpr,
    ) -> Stmt:
        """The sums of a group in integers, scaled."""
        vectors, given, (sums, totals) = self.vectors, self.activations, sums_of
        statements = [when(first, self._asked(group, slice(_EARLY, None)))]
        for m, each in enumerate(totals):
            statements.append(vectors.set(each, vectors.all(given.group_begin(row + m, group))))
        for word in range(_WORDS):
            numbers = vectors.bits_as(load(self.panel, self._panel_place(place, word)), "uint8", 4)
            for m, each in enumerate(totals):
                data = vectors.bits_as(vectors.all(given.word(row + m, 0, 0, group * _WORDS + word)), "int8", 4)
                statements.append(vectors.set(each, vectors.dot(vectors.get(each), numbers, data)))
        scale = load(self.factors, self.factor_place(group, 0))
        for m, (each, total) in enumerate(zip(sums, totals, strict=True)):
            factor = vectors.all(given.group_factor(row + m, group))
            statements.append(vectors.add(each, vectors.cast(vectors.get(total)) * factor * scale))
        return sequence(statements)


def _places(of_quarter: Sequence[int]) -> tuple[int, ...]:
    """The elements that ``of_quarter`` names, of each quarter of two vectors behind each other; 4 and more: of the
    second."""
    return tuple(4 * quarter + each % 4 + each // 4 * _LANES for quarter in range(4) for each in of_quarter)


def _quarters(of_both: Sequence[int]) -> tuple[int, ...]:
    return tuple(4 * quarter + lane for quarter in of_both for lane in range(4))


_EXCHANGES = (
    (_places((0, 4, 1, 5)), _places((2, 6, 3, 7))),
    (_places((0, 1, 4, 5)), _places((2, 3, 6, 7))),
    (_quarters((0, 2, 4, 6)), _quarters((1, 3, 5, 7))),
)
"""Elements of two vectors behind each other that they hold then: 32 bits of both in turns, 64, and 128."""
