"""Products of few rows of activations with packed weights of 8 bits by tiles of AMX, in integers: 16 rows of weights
are a tile as they lie in memory.

A row of such a tile has 64 numbers, of two groups. Activations are on the right side: a column has those of one row
that one group is multiplied with, and zeros else. So a product of tiles leaves sums of single groups, of 16 outputs ×
(8 rows × 2 groups), which are scaled and added up in vectors; of up to 4 rows, two tiles of weights one after the other
leave them, of (4 rows × 4 groups), and vectors have half as much to do. With a column for all groups, a part of a tile
would be multiplied at a time, as slowly. Weights of 4 bits, which have to be unpacked, are multiplied no faster so.
"""

from __future__ import annotations

import itertools
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

_LEAST, _LEAST_ALONE = 2, 5  # rows of activations, by whether chunks are in pairs: fewer are as fast without
_SPAN = 2  # chunks of a tile of sums, of few of these rows
_EIGHT = 8  # bits
_PART = 20  # tiles of sums that are in memory, at most: what a tile stores is not read at once
_ASKED = 8  # lines of a chunk of the next panel that are asked for beside tiles, the others beside vectors
_TOGETHER = 2  # tiles of outputs for which registers are configured once
_SUMS, _WEIGHTS, _DATA = range(3)  # registers; the last two again for each chunk
_WORD = 4  # bytes
_OF_TILE = TILE * TILE  # words


class TileIntegers(Integers):
    """And as tiles: of a block of rows and a chunk a tile [words, columns]. ``tile_factors``: by column, what sums are
    multiplied with; ``tile_begins``: what is added then, so that what is stored for 0 counts nothing."""

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        from tvm import tirx

        super().__init__(product, data, rows, root)
        chunks = self.blocks(1) * product.chunks
        self.tiles = tirx.decl_buffer((chunks * _OF_TILE,), "int32", "tiles")
        self.tile_factors = tirx.decl_buffer((chunks * TILE,), "float32", "tile_factors")
        self.tile_begins = tirx.decl_buffer((chunks * TILE,), "float32", "tile_begins")

    @property
    def buffers(self) -> list[Buffer]:
        return [*super().buffers, self.tiles, self.tile_factors, self.tile_begins]

    def groups(self, span: int) -> int:
        """Of ``span`` chunks, whose sums are in one tile."""
        return span * self.product.lanes // self.product.words_of_group

    def rows_of_block(self, span: int) -> int:
        return TILE // self.groups(span)

    def blocks(self, span: int) -> PrimExpr:
        """Of rows; of the last, the last row may be there several times."""
        from tvm import tirx

        height = self.rows_of_block(span)
        return tirx.floordiv(self.rows.count + (height - 1), height)

    def row(self, block: PrimExpr, row: int, span: int) -> PrimExpr:
        """The number of a block's row."""
        from tvm import tirx

        return tirx.min(block * self.rows_of_block(span) + row, self.rows.count - 1)

    def tile_place(self, block: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        """Where words of a chunk's tile begin."""
        return (block * self.product.chunks + chunk) * _OF_TILE

    def column_place(self, block: PrimExpr, step: PrimExpr, span: int) -> PrimExpr:
        """Where factors of the columns of a tile of sums begin; ``step``: its number."""
        return (block * (self.product.chunks // span) + step) * TILE

    def in_columns(self, span: int) -> Stmt:
        """All of them; tiles of sums have those of ``span`` chunks."""

        def step(at: PrimExpr) -> Stmt:
            def quantised(inner: PrimExpr) -> Stmt:
                return serial("row", self.rows.count, lambda row: self._chunk(row, at * span + inner))

            def block(number: PrimExpr) -> Stmt:
                columns = [self._columns(number, at, inner, span) for inner in range(span)]
                return sequence(self._column_factors(number, at, span), columns)

            return sequence(serial("inner", span, quantised), serial("block", self.blocks(span), block))

        return parallel("step", self.product.chunks // span, step)

    def _column_factors(self, block: PrimExpr, step: PrimExpr, span: int) -> list[Stmt]:
        of_chunk, statements = Vectors(self.groups(1)), []
        first = self.column_place(block, step, span)
        for row, inner in itertools.product(range(self.rows_of_block(span)), range(span)):
            source, chunk = self.row(block, row, span), step * span + inner
            factor, begin = self.groups_of(source, chunk)
            place = of_chunk.ramp(first + row * self.groups(span) + inner * of_chunk.lanes)
            statements.append(store(self.tile_factors, [place], factor))
            statements.append(store(self.tile_begins, [place], of_chunk.cast(begin) * factor))
        return statements

    def _columns(self, block: PrimExpr, step: PrimExpr, inner: int, span: int) -> Stmt:
        """The tile of chunk ``inner`` of a step's."""
        vectors, chunk = self.vectors, step * span + inner
        columns = [vectors.buffer(f"column_{at}", "int32") for at in range(TILE)]
        spare = vectors.buffer("spare", "int32")
        statements = [
            vectors.set(
                each, self._column(block, chunk, (at // self.groups(span), at % self.groups(span)), inner, span)
            )
            for at, each in enumerate(columns)
        ]
        statements += vectors.transposed(columns, spare)
        statements += [
            store(self.tiles, [vectors.ramp(self.tile_place(block, chunk) + at * TILE)], vectors.get(each))
            for at, each in enumerate(columns)
        ]
        return block_of(self.root, sequence(statements), "columns", [*columns, spare])

    def _column(self, block: PrimExpr, chunk: PrimExpr, at: tuple[int, int], inner: int, span: int) -> PrimExpr:
        """Words of a row, but for those of other groups than this column's; ``at``: row and group of the column."""
        from tvm import tirx

        row, group = at
        mine = [
            -1 if lane // self.product.words_of_group + inner * self.groups(1) == group else 0 for lane in range(TILE)
        ]
        mask = tirx.Shuffle([const(each) for each in mine], [const(lane) for lane in range(TILE)])
        words = self.vectors.bits_as(self.bytes(self.row(block, row, span), chunk, 0), "int32")
        return tirx.bitwise_and(words, mask)


class FewTiles(PanelProducts[TileIntegers]):
    """A panel is a tile of outputs, whose sums have those of ``span`` chunks. ``plain`` writes the product of a row of
    weights with one of activations, for where there is no AMX."""

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
        span: int,
    ) -> None:
        from tvm import tirx

        super().__init__(product, weights, result, activations, root)
        self.plain, self.span, self.groups = plain, span, activations.groups(span)
        self.results = tirx.decl_buffer((self._of_part * _OF_TILE,), "int32", "results")

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        fits = product.lanes == TILE and product.rows % TILE == 0 and product.bits == _EIGHT
        return cls.spans(product)[0][0] if fits and product.tiles and product.integers else None

    @classmethod
    def spans(cls, product: PackedProduct) -> list[tuple[int, int]]:
        """Numbers of rows, and the span that is best from there on."""
        return [*([(_LEAST, _SPAN)] if product.chunks % _SPAN == 0 else []), (_LEAST_ALONE, 1)]

    @property
    def across(self) -> int:
        return 1

    @property
    def _steps(self) -> int:
        """Tiles of sums of a panel and a block of rows."""
        return self.product.chunks // self.span

    @property
    def _of_part(self) -> int:
        """Of these; the last part may have fewer."""
        return -(-self._steps // -(-self._steps // _PART))

    def statement(self) -> Stmt:
        together = next(each for each in (_TOGETHER, 1) if self.product.rows // TILE % each == 0)

        def task(at: PrimExpr) -> Stmt:
            begun = amx.whole_tiles()

            def panel(inner: PrimExpr) -> Stmt:
                output = (at * together + inner) * TILE
                blocks = self.activations.blocks(self.span)
                return serial("block", blocks, lambda block: self._block_of(output, block))

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

    def _asked(self, output: PrimExpr, chunk: PrimExpr, lanes: range) -> list[Stmt]:
        """Ask for lines of a chunk of the next panel, and with the first for as many scales as it has, in the order in
        which these lie."""
        weights, scales = self.weights
        asked = [prefetch(weights, self._next(output) + lane, chunk * TILE, cache=2) for lane in lanes]
        count = self.product.groups * TILE // self.product.chunks
        places = range(0, 0 if lanes.start else count, line_of(scales))
        return asked + [prefetch(scales, self._next(output), chunk * count + at, cache=2) for at in places]

    def _block_of(self, output: PrimExpr, block: PrimExpr) -> Stmt:
        """A panel times a block of rows."""
        sums, spare = [self.vectors.buffer(f"sum_{lane}") for lane in range(TILE)], self.vectors.buffer("spare")
        parts = -(-self._steps // self._of_part)
        steps = serial("part", parts, lambda part: self._part(output, block, part, sums))
        of_row, stored = self.groups, []
        for row in range(self.activations.rows_of_block(self.span)):
            groups = [self.vectors.get(each) for each in sums[row * of_row : (row + 1) * of_row]]
            total = sum(groups[1:], groups[0])
            stored.append(self._row_stored(output, self.activations.row(block, row, self.span), [total]))
        statements = sequence(self.vectors.clear(sums), steps, self.vectors.transposed(sums, spare), stored)
        return block_of(self.root, statements, "block", [*sums, spare])

    def _part(self, output: PrimExpr, block: PrimExpr, part: PrimExpr, sums: Sequence[Buffer]) -> Stmt:
        """Of some steps, all tiles first."""
        from tvm import tirx

        steps, size = self._steps, self._of_part
        first = part * size
        count = size if steps % size == 0 else tirx.min(const(size), steps - first)

        def asked(step: PrimExpr, inner: int, lanes: range) -> Stmt:
            return when(block == 0, self._asked(output, (first + step) * self.span + inner, lanes))

        def tiles(at: PrimExpr) -> Stmt:
            multiplied = [
                sequence(asked(at, inner, range(_ASKED)), self._multiplied_tiles(output, block, first + at, inner))
                for inner in range(self.span)
            ]
            stored = pointer_to(self.results, at * _OF_TILE, _WORD)
            return sequence(
                amx.instruction("tilezero", _SUMS),
                multiplied,
                amx.instruction("tilestored64", _SUMS, stored, TILE * _WORD),
            )

        def added(at: PrimExpr) -> Stmt:
            others = [asked(at, inner, range(_ASKED, TILE)) for inner in range(self.span)]
            return sequence(others, self._added(output, block, first + at, at, sums))

        return sequence(serial("tile", count, tiles), serial("step", count, added))

    def _added(
        self, output: PrimExpr, block: PrimExpr, step: PrimExpr, place: PrimExpr, sums: Sequence[Buffer]
    ) -> Stmt:
        """The sums of a step's groups, at a place of ``results``, are scaled."""
        vectors, given, statements = self.vectors, self.activations, []
        groups, column = Vectors(self.groups), given.column_place(block, step, self.span)
        factor, begin = (load(each, vectors.ramp(column)) for each in (given.tile_factors, given.tile_begins))
        for lane, each in enumerate(sums):
            value = vectors.cast(load(self.results, vectors.ramp(place * _OF_TILE + lane * TILE))) * factor + begin
            scales = groups.cast(load(self.weights[1], output + lane, groups.ramp(step * self.groups)))
            scale = vectors.shuffled([scales] * (TILE // self.groups), [at % self.groups for at in range(TILE)])
            statements.append(vectors.add(each, value * scale))
        return sequence(statements)

    def _multiplied_tiles(self, output: PrimExpr, block: PrimExpr, step: PrimExpr, inner: int) -> Stmt:
        """The sums of a chunk's groups are added to those of its step."""
        chunk, own = step * self.span + inner, _DATA * inner
        weights = pointer_to(self.weights[0], output * self.product.words + chunk * TILE, _WORD)
        data = pointer_to(self.activations.tiles, self.activations.tile_place(block, chunk), _WORD)
        return sequence(
            amx.instruction("tileloadd64", _WEIGHTS + own, weights, self.product.words * _WORD),
            amx.instruction("tileloadd64", _DATA + own, data, TILE * _WORD),
            amx.instruction("tdpbusd", _SUMS, _WEIGHTS + own, _DATA + own),
        )
