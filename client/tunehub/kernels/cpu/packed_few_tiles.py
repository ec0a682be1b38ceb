"""Products of few rows of activations with packed weights of 8 bits by tiles of AMX, in integers: 16 rows of weights
are a tile as they lie in memory.

A row of such a tile has 64 numbers, of two groups. Activations are on the right side: a column has those of one row
that one group is multiplied with, and zeros else. So a product of tiles leaves sums of single groups, of 16 outputs ×
(8 rows × 2 groups), which are scaled and added up in vectors. With a column for both groups, half of a tile would be
multiplied at a time, as slowly. Weights of 4 bits, which have to be unpacked, are multiplied no faster so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.instruction import pointer_to
from tunehub.kernels.cpu.packed_activations import Integers
from tunehub.kernels.cpu.packed_panels import PanelProducts
from tunehub.kernels.cpu.packed_weights import PackedProduct
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.kernels.cpu.vectors import Vectors, line_of
from tunehub.tir.statements import (
    block_of,
    const,
    either,
    load,
    loop,
    nest,
    parallel,
    prefetch,
    sequence,
    serial,
    store,
    when,
)
from tunehub.tir.versions import PARALLEL, SERIAL

if TYPE_CHECKING:
    from tunehub.kernels.cpu.packed_weights import Rows
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

_LEAST = 5  # rows of activations: up to 4 are multiplied as fast without, as fast as memory gives weights
_EIGHT = 8  # bits
_PART = 20  # chunks whose sums are in memory, at most: what a tile stores is not read at once
_TOGETHER = 2  # tiles of outputs for which registers are configured once
_SUMS, _WEIGHTS, _DATA = range(3)  # registers
_WORD = 4  # bytes
_OF_TILE = TILE * TILE  # words


class TileIntegers(Integers):
    """And as tiles: of a block of rows and a chunk a tile [words, columns]. ``tile_factors``: by column, what sums are
    multiplied with; ``tile_begins``: what is added then, so that what is stored for 0 counts nothing."""

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        from tvm import tirx

        super().__init__(product, data, rows, root)
        chunks = self.blocks * product.chunks
        self.tiles = tirx.decl_buffer((chunks * _OF_TILE,), "int32", "tiles")
        self.tile_factors = tirx.decl_buffer((chunks * TILE,), "float32", "tile_factors")
        self.tile_begins = tirx.decl_buffer((chunks * TILE,), "float32", "tile_begins")

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, self.tiles, self.tile_factors, self.tile_begins]

    @property
    def groups(self) -> int:
        """Of a chunk."""
        return self.product.lanes // self.product.words_of_group

    @property
    def rows_of_block(self) -> int:
        return TILE // self.groups

    @property
    def blocks(self) -> PrimExpr:
        """Of rows; of the last, the last row may be there several times."""
        from tvm import tirx

        return tirx.floordiv(self.rows.count + (self.rows_of_block - 1), self.rows_of_block)

    def row(self, block: PrimExpr, row: int) -> PrimExpr:
        """The number of a block's row."""
        from tvm import tirx

        return tirx.min(block * self.rows_of_block + row, self.rows.count - 1)

    def column_place(self, block: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        """Where factors of its columns are; a word of each follows the other in its tile."""
        return (block * self.product.chunks + chunk) * TILE

    def arranged(self) -> Stmt:
        def chunk(at: PrimExpr) -> Stmt:
            rows = serial("row", self.rows.count, lambda row: self._chunk(row, at))
            return sequence(rows, serial("block", self.blocks, lambda block: self._columns(block, at)))

        return parallel("chunk", self.product.chunks, chunk)

    def arranged_alone(self) -> Stmt:
        """Without tiles."""
        return super().arranged()

    def _columns(self, block: PrimExpr, chunk: PrimExpr) -> Stmt:
        vectors, statements = self.vectors, []
        columns = [vectors.buffer(f"column_{at}", "int32") for at in range(TILE)]
        spare = vectors.buffer("spare", "int32")
        first = self.column_place(block, chunk)
        statements += [vectors.set(each, self._column(block, chunk, at)) for at, each in enumerate(columns)]
        statements += vectors.transposed(columns, spare)
        statements += [
            store(self.tiles, [vectors.ramp(first * TILE + at * TILE)], vectors.get(each))
            for at, each in enumerate(columns)
        ]
        for at in range(TILE):
            row, group = self.row(block, at // self.groups), chunk * self.groups + at % self.groups
            factor, place = self.group_factor(row, group), first + at
            begin = self.group_begin(row, group).astype("float32") * factor
            statements += [store(self.tile_factors, [place], factor), store(self.tile_begins, [place], begin)]
        return block_of(self.root, sequence(statements), "columns", [*columns, spare])

    def _column(self, block: PrimExpr, chunk: PrimExpr, at: int) -> PrimExpr:
        """Words of a row, but for those of other groups than this column's."""
        from tvm import tirx

        mine = [-1 if lane // self.product.words_of_group == at % self.groups else 0 for lane in range(TILE)]
        mask = tirx.Shuffle([const(each) for each in mine], [const(lane) for lane in range(TILE)])
        words = self.vectors.bits_as(self.bytes(self.row(block, at // self.groups), chunk, 0), "int32")
        return tirx.bitwise_and(words, mask)


class FewTiles(PanelProducts[TileIntegers]):
    """A panel is a tile of outputs. ``plain`` writes the product of a row of weights with one of activations, for where
    there is no AMX."""

    HEIGHTS: ClassVar = {TILE: TILE}
    ACTIVATIONS = TileIntegers
    activations: TileIntegers

    def __init__(
        self,
        product: PackedProduct,
        weights: Sequence[Buffer],
        result: Buffer,
        activations: TileIntegers,
        root: SBlockRealize,
        plain: Callable[[PrimExpr, PrimExpr], Stmt],
    ) -> None:
        from tvm import tirx

        super().__init__(product, weights, result, activations, root)
        self.plain = plain
        self.results = tirx.decl_buffer((self._of_part * _OF_TILE,), "int32", "results")

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        fits = product.lanes == TILE and product.rows % TILE == 0 and product.bits == _EIGHT
        return _LEAST if fits and product.tiles and product.integers else None

    @property
    def across(self) -> int:
        return 1

    @property
    def _of_part(self) -> int:
        """Chunks; the last part may have fewer."""
        return -(-self.product.chunks // -(-self.product.chunks // _PART))

    def statement(self) -> Stmt:
        together = next(each for each in (_TOGETHER, 1) if self.product.rows // TILE % each == 0)

        def task(at: PrimExpr) -> Stmt:
            begun = amx.whole_tiles()

            def panel(inner: PrimExpr) -> Stmt:
                output = (at * together + inner) * TILE
                blocks = serial("block", self.activations.blocks, lambda block: self._block_of(output, block))
                return sequence(self._ahead_of(output), blocks)

            def row(inner: PrimExpr, row: PrimExpr) -> Stmt:
                return self.plain(at * (together * TILE) + inner, row)

            tiles = sequence(serial("tile", together, panel), amx.call_tiles("llvm.x86.tilerelease"))
            plain = nest("output row", [together * TILE, self.rows.count], row, SERIAL)
            return block_of(self.root, either(begun == 0, tiles, plain), "panel", [self.results])

        tasks = self.product.rows // TILE // together
        return loop("task", tasks, task, PARALLEL, annotations={"pragma_import_llvm": amx.IMPORTED})

    def _panel(self) -> Buffer:
        return self.factors  # there is none

    def _next(self, output: PrimExpr) -> PrimExpr:
        from tvm import tirx

        return tirx.min(output + TILE, const(self.product.rows - TILE))

    def _ahead_of(self, output: PrimExpr) -> Stmt:
        """Ask for the next panel's scales."""
        scales, line = self.weights[1], line_of(self.weights[1])

        def asked(lane: PrimExpr, at: PrimExpr) -> Stmt:
            return prefetch(scales, self._next(output) + lane, at * line, cache=2)

        return nest("lane line", [TILE, -(-self.product.groups // line)], asked, SERIAL)

    def _chunk_ahead(self, output: PrimExpr, chunk: PrimExpr) -> list[Stmt]:
        """Ask for a chunk of the next panel."""
        return [prefetch(self.weights[0], self._next(output) + lane, chunk * TILE, cache=2) for lane in range(TILE)]

    def _block_of(self, output: PrimExpr, block: PrimExpr) -> Stmt:
        """A panel times a block of rows."""
        sums, spare = [self.vectors.buffer(f"sum_{lane}") for lane in range(TILE)], self.vectors.buffer("spare")
        parts = -(-self.product.chunks // self._of_part)
        steps = serial("part", parts, lambda part: self._part(output, block, part, sums))
        of_row, stored = self.activations.groups, []
        for row in range(self.activations.rows_of_block):
            groups = [self.vectors.get(each) for each in sums[row * of_row : (row + 1) * of_row]]
            total = sum(groups[1:], groups[0])
            stored.append(self._row_stored(output, self.activations.row(block, row), [total]))
        statements = sequence(self.vectors.clear(sums), steps, self.vectors.transposed(sums, spare), stored)
        return block_of(self.root, statements, "block", [*sums, spare])

    def _part(self, output: PrimExpr, block: PrimExpr, part: PrimExpr, sums: Sequence[Buffer]) -> Stmt:
        """Of some chunks, all tiles first."""
        from tvm import tirx

        chunks, size = self.product.chunks, self._of_part
        first = part * size
        count = size if chunks % size == 0 else tirx.min(const(size), chunks - first)

        def tile(at: PrimExpr) -> Stmt:
            asked = when(block == 0, self._chunk_ahead(output, first + at))
            return sequence(asked, self._multiplied_tiles(output, block, first + at, at))

        added = serial("chunk", count, lambda at: self._added(output, block, first + at, at, sums))
        return sequence(serial("tile", count, tile), added)

    def _added(
        self, output: PrimExpr, block: PrimExpr, chunk: PrimExpr, place: PrimExpr, sums: Sequence[Buffer]
    ) -> Stmt:
        """The sums of a chunk's groups, at a place of ``results``, are scaled."""
        vectors, given, statements = self.vectors, self.activations, []
        groups, column = Vectors(given.groups), given.column_place(block, chunk)
        factor, begin = (load(each, vectors.ramp(column)) for each in (given.tile_factors, given.tile_begins))
        for lane, each in enumerate(sums):
            value = vectors.cast(load(self.results, vectors.ramp(place * _OF_TILE + lane * TILE))) * factor + begin
            scales = groups.cast(load(self.weights[1], output + lane, groups.ramp(chunk * given.groups)))
            scale = vectors.shuffled([scales] * (TILE // given.groups), [at % given.groups for at in range(TILE)])
            statements.append(vectors.add(each, value * scale))
        return sequence(statements)

    def _multiplied_tiles(self, output: PrimExpr, block: PrimExpr, chunk: PrimExpr, place: PrimExpr) -> Stmt:
        """The sums of a chunk's groups, put into ``results``, [chunks of a part, outputs, columns]."""
        line, stride = TILE * _WORD, self.product.words * _WORD
        weights = pointer_to(self.weights[0], output * self.product.words + chunk * TILE, _WORD)
        data = pointer_to(self.activations.tiles, self.activations.column_place(block, chunk) * TILE, _WORD)
        to = pointer_to(self.results, place * _OF_TILE, _WORD)
        return sequence(
            amx.instruction("tilezero", _SUMS),
            amx.instruction("tileloadd64", _WEIGHTS, weights, stride),
            amx.instruction("tileloadd64", _DATA, data, line),
            amx.instruction("tdpbusd", _SUMS, _WEIGHTS, _DATA),
            amx.instruction("tilestored64", _SUMS, to, line),
        )
