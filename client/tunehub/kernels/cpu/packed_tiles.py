"""Products of many rows of activations with packed weights by tiles of AMX, in bfloat16: a panel of weights becomes
tiles, with their scales in them, so that sums stay in tiles' registers for all of the reduction.

With 8-bit tiles, sums of each group of 32 would leave them to be scaled: three times as long as such a product takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.instruction import pointer_to
from tunehub.kernels.cpu.packed_pairs import PairPanels, PlainPairs
from tunehub.kernels.cpu.packed_panels import NEXT, ROW
from tunehub.kernels.cpu.packed_weights import GROUP
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.tir.statements import block_of, const, either, load, nest, sequence, serial, store
from tunehub.tir.versions import SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, Stmt

_TALL = 2  # tiles of rows in registers together
_PAIRS = GROUP // 2  # of a row of a tile: its 64 bytes
_WORD, _NARROW = 4, 2  # bytes
_DATA, _WEIGHTS = 4, 6  # the first registers with them, behind those with sums
_BLOCK_ROWS, _BLOCK_BYTES = 128, 1 << 20  # at least


class TilePanels(PairPanels):
    """The panel is as :class:`PairPanels` has it."""

    HEIGHTS: ClassVar = {TILE: TILE}
    TILES = 1
    IN_TILES = False

    @property
    def pragmas(self) -> dict[str, object]:
        return {"pragma_import_llvm": amx.IMPORTED}

    @property
    def rows_of_block(self) -> int:
        """As many as a second cache has room for: unpacking takes as long as the products of 100 rows."""
        return max(_BLOCK_ROWS, _BLOCK_BYTES // (self.product.depth * _NARROW))

    def _panel(self) -> Buffer:
        from tvm import tirx

        self.results = tirx.decl_buffer((_TALL * TILE * self.across * TILE,), "float32", "tiles")
        return super()._panel()

    def _buffers(self) -> list[Buffer]:
        return [*super()._buffers(), self.results]

    def _multiplied(self, output: PrimExpr, begin: PrimExpr, end: PrimExpr) -> Stmt:
        from tvm import tirx

        begun = amx.whole_tiles()

        def tiles(at: PrimExpr) -> Stmt:
            places = [
                store(self.place, [const(each)], tirx.min(begin + (at * _TALL + tile) * TILE, end - TILE))
                for tile, each in enumerate((ROW, NEXT))
            ]
            rows = [load(self.place, each) for each in (ROW, NEXT)]
            return sequence(places, self._sums(rows), self._results(output, rows))

        count = tirx.floordiv(end - begin + _TALL * TILE - 1, _TALL * TILE)
        by_tiles = sequence(serial("tiles", count, tiles), amx.call_tiles("llvm.x86.tilerelease"))
        plain = serial("row", end - begin, lambda row: self._plain(output, begin + row))
        return either(begun == 0, by_tiles, plain)

    def _sums(self, rows: Sequence[PrimExpr]) -> Stmt:
        """Of two tiles of rows and those across, put into ``results``, [rows, across, lanes]."""
        places = [(m, n) for m in range(_TALL) for n in range(self.across)]
        depth = self.product.depth

        def step(group: PrimExpr) -> Stmt:
            panel = [pointer_to(self.panel, self.panel_place(group, n, 0), _WORD) for n in range(self.across)]
            data = [pointer_to(self.activations.numbers, row * depth + group * GROUP, _NARROW) for row in rows]
            return sequence(
                [amx.instruction("tileloadd64", _WEIGHTS + n, each, TILE * _WORD) for n, each in enumerate(panel)],
                [amx.instruction("tileloadd64", _DATA + m, each, depth * _NARROW) for m, each in enumerate(data)],
                [amx.instruction("tdpbf16ps", _TALL * m + n, _DATA + m, _WEIGHTS + n) for m, n in places],
            )

        line = self.across * TILE
        stored = [
            amx.instruction(
                "tilestored64",
                _TALL * m + n,
                pointer_to(self.results, const(m * TILE * line + n * TILE), _WORD),
                line * _WORD,
            )
            for m, n in places
        ]
        zeros = [amx.instruction("tilezero", _TALL * m + n) for m, n in places]
        return sequence(zeros, serial("group", self.product.groups, step), stored)

    def _results(self, output: PrimExpr, rows: Sequence[PrimExpr]) -> Stmt:
        """Of two tiles of rows."""
        from tvm import tirx

        def row(m: PrimExpr, at: PrimExpr) -> Stmt:
            line = (m * TILE + at) * (self.across * TILE)
            values = [load(self.results, self.vectors.ramp(line + n * TILE)) for n in range(self.across)]
            return self._row_stored(output, tirx.Select(m == 0, *rows) + at, values)

        return nest("tile row", [_TALL, TILE], row, SERIAL)

    def _plain(self, output: PrimExpr, row: PrimExpr) -> Stmt:
        """The same of a row where there is no AMX."""
        from tvm import tirx

        vectors, numbers = self.vectors, self.activations.numbers
        sums = [vectors.buffer(f"sum_{n}") for n in range(self.across)]

        def data(number: PrimExpr) -> PrimExpr:
            bits = tirx.Cast("uint32", load(numbers, row * self.product.depth + number)) << const(16, "uint32")
            return vectors.all(tirx.reinterpret("float32", bits))

        def pair(group: PrimExpr, at: PrimExpr) -> Stmt:
            first, added = group * GROUP + at * 2, []
            for n, each in enumerate(sums):
                words = load(self.panel, vectors.ramp(self.panel_place(group, n, at)))
                halves = vectors.floats_of(words)
                added += [vectors.add(each, data(first + item) * half) for item, half in enumerate(halves)]
            return sequence(added)

        steps = nest("group pair", [self.product.groups, _PAIRS], pair, SERIAL)
        stored = self._row_stored(output, row, [vectors.get(each) for each in sums])
        return block_of(self.root, sequence(vectors.clear(sums), steps, stored), "plain", sums)


class PlainTiles(PlainPairs, TilePanels):
    """With weights that are floats."""
