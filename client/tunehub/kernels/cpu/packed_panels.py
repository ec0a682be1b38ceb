"""Products of many rows of activations with packed weights: a panel of weights is unpacked once for a block of rows,
with outputs in the lanes of vectors, and multiplied by a micro-kernel that keeps a tile of results in registers (the
loops around the micro-kernel of Goto and van de Geijn 2008, where packing is unpacking).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tunehub.kernels.cpu.packed_activations import Activations, Floats, Integers
from tunehub.kernels.cpu.packed_weights import PackedProduct, numbers_of
from tunehub.kernels.cpu.vectors import Vectors, line_of
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import block_of, const, load, loop, nest, prefetch, sequence, serial, store, unrolled
from tunehub.tir.versions import PARALLEL, SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, SBlockRealize, Stmt

_ACROSS = 2  # vectors of outputs in a panel
_ROWS_OF_BLOCK = 512  # for which a panel is unpacked once
_FEW_PANELS, _ROWS_OF_FEW = 64, 256  # that threads share: then more blocks of rows
_FEW_ROWS = 6  # from which on unpacking takes less than adding up the lanes of each group for each row
_UNROLLED = 4  # steps of a reduction in floats
_LINE_WORDS = 16  # of a line of a cache
_KEPT = 8  # of what is done, in memory: TVM takes a minute for expressions of them
_OUTPUT, _BEGIN, _END, _GROUP, FOLLOWING, _AHEAD, ROW, NEXT = range(_KEPT)
_LOW_BITS = 0x0F0F0F0F
_Given = TypeVar("_Given", bound=Activations)


class PanelProducts(Generic[_Given]):
    """Writes them: ``weights``, words and scales, times ``activations``."""

    HEIGHTS: ClassVar[dict[int, int]]  # rows of a tile, by the lanes of vectors
    TILES = 2  # for which a panel is worth it
    IN_TILES = False  # whether the next panel's weights are asked for while tiles are multiplied, not while unpacking
    ACTIVATIONS: type[_Given]

    def __init__(
        self,
        product: PackedProduct,
        weights: Sequence[Buffer],
        result: Buffer,
        activations: _Given,
        root: SBlockRealize,
    ) -> None:
        from tvm import tirx

        self.product, self.rows, self.activations, self.root = product, activations.rows, activations, root
        self.weights, self.result = weights, result
        self.vectors, self.lanes = Vectors(product.lanes), product.lanes
        self.factors = tirx.decl_buffer((product.groups * self.across * self.lanes,), "float32", "panel_scales")
        self.panel, self.place = self._panel(), tirx.decl_buffer((_KEPT,), "int32", "place")

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        """That this is for, or None: not for such weights."""
        fits = product.rows % product.lanes == 0 and (product.plain or product.groups >= product.lanes)
        return cls.TILES * cls.HEIGHTS[product.lanes] if fits and product.lanes in cls.HEIGHTS else None

    @property
    def across(self) -> int:
        """Vectors of outputs in a panel."""
        return _ACROSS if self.product.rows % (_ACROSS * self.lanes) == 0 else 1

    @property
    def pragmas(self) -> dict[str, object]:
        """Of the loop over panels."""
        return {}

    @property
    def rows_of_block(self) -> int:
        """For which a panel is unpacked once, and for up to twice as many."""
        few = self.product.rows < _FEW_PANELS * self.across * self.lanes
        return _ROWS_OF_FEW if few else _ROWS_OF_BLOCK

    def statement(self) -> Stmt:
        """All of them, of at least ``least_rows``; threads share panels of blocks of rows."""
        from tvm import tirx

        count, outputs = self.rows.count, self.across * self.lanes
        blocks = tirx.max(tirx.floordiv(count, self.rows_of_block), 1)
        height = tirx.floordiv(count + blocks - 1, blocks)
        panels = self.product.rows // outputs

        def task(at: PrimExpr) -> Stmt:
            begin = tirx.floordiv(at, panels) * height
            first = tirx.floormod(at, panels) * outputs
            places = {
                _OUTPUT: first,
                FOLLOWING: tirx.min(first + outputs, const(self.product.rows - outputs)),
                _BEGIN: begin,
                _END: tirx.min(begin + height, count),
            }
            stores = [store(self.place, [const(each)], value) for each, value in places.items()]
            return block_of(self.root, sequence(stores, self._block()), "panel", self._buffers())

        return loop("panel", blocks * panels, task, PARALLEL, annotations=self.pragmas)

    def _buffers(self) -> list[Buffer]:
        """Memory of a task."""
        return [*([] if self.product.plain else [self.factors]), self.panel, self.place]

    def _block(self) -> Stmt:
        """A panel's products with a block of rows."""
        output, begin, end = (load(self.place, at) for at in (_OUTPUT, _BEGIN, _END))
        return sequence(self._scales(output), self._words(output), self._multiplied(output, begin, end))

    def _multiplied(self, output: PrimExpr, begin: PrimExpr, end: PrimExpr) -> Stmt:
        """The panel times the rows from ``begin`` up to ``end``. The last tile goes over the one before."""
        from tvm import tirx

        tall = self.HEIGHTS[self.lanes]

        def tile(at: PrimExpr) -> Stmt:
            row = store(self.place, [const(ROW)], tirx.min(begin + at * tall, end - tall))
            ahead = tirx.min(at, self.across - 1) * self.lanes + load(self.place, FOLLOWING)
            ask = store(self.place, [const(_AHEAD)], ahead) if self.IN_TILES else None
            return sequence(row, ask, self._tile(output, load(self.place, ROW), tall))

        return serial("tile", tirx.floordiv(end - begin + tall - 1, tall), tile)

    def _scales(self, output: PrimExpr) -> Stmt | None:
        """Scales of a panel, [groups, across, lanes]; the last vectors go over those before."""
        from tvm import tirx

        vectors, last = self.vectors, self.product.groups - self.lanes
        taken, spare = [vectors.buffer(f"scale_{lane}") for lane in range(self.lanes)], vectors.buffer("spare")

        def part(across: PrimExpr, at: PrimExpr) -> Stmt:
            group = load(self.place, _GROUP)
            first = output + across * self.lanes
            return sequence(
                store(self.place, [const(_GROUP)], tirx.min(at * self.lanes, const(last))),
                [
                    vectors.set(each, vectors.cast(load(self.weights[1], first + lane, vectors.ramp(group))))
                    for lane, each in enumerate(taken)
                ],
                vectors.transposed(taken, spare),
                [
                    store(self.factors, [self.factor_place(group + at, across)], vectors.get(each))
                    for at, each in enumerate(taken)
                ],
            )

        parts = -(-self.product.groups // self.lanes)
        body = nest("across groups", [self.across, parts], part, SERIAL)
        return block_of(self.root, body, "scales", [*taken, spare])

    def _words(self, output: PrimExpr) -> Stmt:
        """All words of a panel unpacked."""

        def unpacked(chunk: PrimExpr, across: PrimExpr, words: Sequence[Buffer]) -> list[Stmt]:
            return [sequence(self._unpacked(chunk, word, across, each)) for word, each in enumerate(words)]

        return self._transposed(output, self.product.chunks, "uint32", unpacked)

    def _transposed(
        self,
        output: PrimExpr,
        count: int,
        dtype: str,
        used: Callable[[PrimExpr, PrimExpr, Sequence[Buffer]], list[Stmt]],
    ) -> Stmt:
        """``used`` of ``count`` vectors of a panel's weights, each with those of as many outputs as there are lanes,
        which have outputs in their lanes then."""
        taken = [self.vectors.buffer(f"taken_{lane}", dtype) for lane in range(self.lanes)]
        spare = self.vectors.buffer("spare", dtype)

        def part(at: PrimExpr, across: PrimExpr) -> Stmt:
            first = output + across * self.lanes
            loads = [self.vectors.set(each, self._taken(first + lane, at, dtype)) for lane, each in enumerate(taken)]
            ahead = None if self.IN_TILES else self._ahead(across, at, dtype)
            return sequence(loads, ahead, self.vectors.transposed(taken, spare), used(at, across, taken))

        body = nest("vector across", [count, self.across], part, SERIAL)
        return block_of(self.root, body, "unpack", [*taken, spare])

    def _taken(self, row: PrimExpr, at: PrimExpr, dtype: str) -> PrimExpr:
        """Vector ``at`` of a row of weights, whose bits are of 32-bit words or which become floats."""
        place = Vectors(self._elements(dtype)).ramp(at * self._elements(dtype))
        loaded = load(self.weights[0], row, place)
        return self.vectors.cast(loaded) if dtype == "float32" else self.vectors.bits_as(loaded, dtype)

    def _elements(self, dtype: str) -> int:
        """Of the weights in a vector of ``dtype``."""
        return self.lanes if dtype == "float32" else self.lanes * line_of(self.weights[0]) // _LINE_WORDS

    def _ahead(self, across: PrimExpr, at: PrimExpr, dtype: str) -> Stmt:
        """Ask for this vector of the next panel's rows."""
        next_, place = load(self.place, FOLLOWING) + across * self.lanes, at * self._elements(dtype)
        return unrolled("lane", self.lanes, lambda lane: prefetch(self.weights[0], next_ + lane, place, cache=2))

    def asked(self, first: PrimExpr, count: int) -> list[Stmt]:
        """Ask for ``count`` elements from ``first`` on of as many rows of the next panel as there are lanes: the first
        tiles ask for other ones each."""
        row, line = load(self.place, _AHEAD), min(count, line_of(self.weights[0]))
        places = [(lane, at) for lane in range(self.lanes) for at in range(0, count, line)]
        return [prefetch(self.weights[0], row + lane, first + at, cache=2) for lane, at in places]

    def factor_place(self, group: PrimExpr, across: Index) -> PrimExpr:
        return self.vectors.ramp((group * self.across + across) * self.lanes)

    def _row_stored(self, output: PrimExpr, row: PrimExpr, values: Sequence[PrimExpr]) -> Stmt:
        """Vectors of results of a row."""
        dtype, place = str(buffer_kind(self.result).dtype), self.rows.place(row)
        return sequence(
            [
                store(
                    self.result,
                    [*place, self.vectors.ramp(output + across * self.lanes)],
                    value if dtype == "float32" else self.vectors.cast(value, dtype),
                )
                for across, value in enumerate(values)
            ]
        )

    def _stored(self, output: PrimExpr, row: PrimExpr, sums: Sequence[Sequence[Buffer]]) -> list[Stmt]:
        """A tile of results."""
        return [
            self._row_stored(output, row + m, [self.vectors.get(each) for each in line]) for m, line in enumerate(sums)
        ]

    def _tile_of(self, name: str, tall: int, dtype: str = "float32") -> list[list[Buffer]]:
        """Vectors of a tile."""
        return [[self.vectors.buffer(f"{name}_{m}_{n}", dtype) for n in range(self.across)] for m in range(tall)]

    def _panel(self) -> Buffer:
        """Memory for a panel of weights."""
        raise NotImplementedError

    def _unpacked(self, chunk: PrimExpr, word: int, across: Index, words: Buffer) -> list[Stmt]:
        """Word number ``word`` of a chunk, of a vector of outputs, put into the panel."""
        raise NotImplementedError

    def _tile(self, output: PrimExpr, row: PrimExpr, tall: int) -> Stmt:
        """The products of a panel with ``tall`` rows in registers."""
        raise NotImplementedError


class BytePanels(PanelProducts[Integers]):
    """With activations in 8 bits: sums of a group in integers, and then in floats. The panel: bytes of a group in the
    order of activations, [groups, steps, across, lanes] words."""

    HEIGHTS: ClassVar = {16: 6, 8: 3}
    ACTIVATIONS = Integers
    IN_TILES = True

    @property
    def _steps(self) -> int:
        """Words of bytes of a group."""
        return self.product.words_of_group * len(self.product.byte_vectors)

    def _panel(self) -> Buffer:
        from tvm import tirx

        words = self.product.groups * self._steps * self.across * self.lanes
        return tirx.decl_buffer((words,), "uint32", "panel")

    def _place(self, group: PrimExpr, step: Index, across: Index) -> PrimExpr:
        return self.vectors.ramp(((group * self._steps + step) * self.across + across) * self.lanes)

    def _unpacked(self, chunk: PrimExpr, word: int, across: Index, words: Buffer) -> list[Stmt]:
        from tvm import tirx

        of_group, vectors = self.product.words_of_group, self.vectors
        group, at = chunk * (self.lanes // of_group) + word // of_group, word % of_group
        if self.product.bits != 4:
            return [store(self.panel, [self._place(group, at, across)], vectors.get(words))]
        mask, value = vectors.all(_LOW_BITS, "uint32"), vectors.get(words)
        parts = (tirx.bitwise_and(value, mask), tirx.bitwise_and(value >> vectors.all(4, "uint32"), mask))
        return [
            store(self.panel, [self._place(group, vector * of_group + at, across)], part)
            for vector, part in enumerate(parts)
        ]

    def _tile(self, output: PrimExpr, row: PrimExpr, tall: int) -> Stmt:
        sums, totals = self._tile_of("sum", tall), self._tile_of("total", tall, "int32")
        weights = [self.vectors.buffer(f"weight_{across}", "uint32") for across in range(self.across)]
        flat = [each for line in sums for each in line]
        of_chunk = self.product.lanes // self.product.words_of_group

        def chunk(at: PrimExpr) -> Stmt:
            groups = serial("group", of_chunk, lambda inner: self._group(row, at, inner, sums, totals, weights))
            return sequence(self.asked(at * self.lanes, self.lanes), groups)

        body = serial("chunk", self.product.chunks, chunk)
        statements = sequence(self.vectors.clear(flat), body, self._stored(output, row, sums))
        return block_of(self.root, statements, "tile", [*flat, *weights, *(each for line in totals for each in line)])

    def _group(
        self,
        row: PrimExpr,
        chunk: PrimExpr,
        inner: PrimExpr,
        sums: Sequence[Sequence[Buffer]],
        totals: Sequence[Sequence[Buffer]],
        weights: Sequence[Buffer],
    ) -> Stmt:
        vectors, of_group = self.vectors, self.product.words_of_group
        group, statements = chunk * (self.lanes // of_group) + inner, []
        for m, line in enumerate(totals):
            begin = vectors.all(self.activations.group_begin(row + m, group))
            statements += [vectors.set(each, begin) for each in line]

        def step(vector: PrimExpr, at: PrimExpr) -> Stmt:
            place = vector * of_group + at
            taken = [
                vectors.set(each, load(self.panel, self._place(group, place, across)))
                for across, each in enumerate(weights)
            ]
            added = []
            for m, line in enumerate(totals):
                word = self.activations.word(row + m, chunk, vector, inner * of_group + at)
                data = vectors.bits_as(vectors.all(word), "int8", 4)
                for each, weight in zip(line, weights, strict=True):
                    numbers = vectors.bits_as(vectors.get(weight), "uint8", 4)
                    added.append(vectors.set(each, vectors.dot(vectors.get(each), numbers, data)))
            return sequence(taken, added)

        statements.append(nest("vector word", [len(self.product.byte_vectors), of_group], step))
        for m, (line, whole) in enumerate(zip(sums, totals, strict=True)):
            factor = vectors.all(self.activations.group_factor(row + m, group))
            for across, (each, total) in enumerate(zip(line, whole, strict=True)):
                scale = load(self.factors, self.factor_place(group, across))
                statements.append(vectors.add(each, vectors.cast(vectors.get(total)) * factor * scale))
        return sequence(statements)


class FewBytePanels(BytePanels):
    """Of few rows: two tiles of four, which have these in common where they are fewer than eight."""

    HEIGHTS: ClassVar = {16: 4}

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        return None if super().least_rows(product) is None else _FEW_ROWS


class FloatPanels(PanelProducts[Floats]):
    """With activations in float32. The panel: weights in the order of activations, [depth, across, lanes]."""

    HEIGHTS: ClassVar = {16: 12, 8: 6}
    ACTIVATIONS = Floats

    def _panel(self) -> Buffer:
        from tvm import tirx

        return tirx.decl_buffer((self.product.depth * self.across * self.lanes,), "float32", "panel")

    def _place(self, step: PrimExpr, across: Index) -> PrimExpr:
        return self.vectors.ramp((step * self.across + across) * self.lanes)

    def _unpacked(self, chunk: PrimExpr, word: int, across: Index, words: Buffer) -> list[Stmt]:
        of_group, in_word = self.product.words_of_group, self.product.in_word
        group = chunk * (self.lanes // of_group) + word // of_group
        scale = load(self.factors, self.factor_place(group, across))
        return [
            store(
                self.panel,
                [self._place(chunk * (self.lanes * in_word) + at * self.lanes + word, across)],
                numbers_of(self.product, self.vectors, words, at) * scale,
            )
            for at in range(in_word)
        ]

    def _tile(self, output: PrimExpr, row: PrimExpr, tall: int) -> Stmt:
        sums, vectors = self._tile_of("sum", tall), self.vectors
        weights = [vectors.buffer(f"weight_{across}") for across in range(self.across)]
        flat = [each for line in sums for each in line]

        def step(part: PrimExpr, inner: PrimExpr) -> Stmt:
            at = part * _UNROLLED + inner
            taken = [
                vectors.set(each, load(self.panel, self._place(at, across))) for across, each in enumerate(weights)
            ]
            added = []
            for m, line in enumerate(sums):
                data = vectors.all(self.activations.element(row + m, at))
                added += [
                    vectors.add(each, data * vectors.get(weight)) for each, weight in zip(line, weights, strict=True)
                ]
            return sequence(taken, added)

        def steps(part: PrimExpr) -> Stmt:
            return unrolled("inner", _UNROLLED, lambda inner: step(part, inner))

        body = serial("step", self.product.depth // _UNROLLED, steps)
        statements = sequence(vectors.clear(flat), body, self._stored(output, row, sums))
        return block_of(self.root, statements, "tile", [*flat, *weights])


class PlainPanels(FloatPanels):
    """With weights that are floats."""

    def _scales(self, output: PrimExpr) -> Stmt | None:
        return None

    def _words(self, output: PrimExpr) -> Stmt:
        def used(at: PrimExpr, across: PrimExpr, taken: Sequence[Buffer]) -> list[Stmt]:
            return [
                store(self.panel, [self._place(at * self.lanes + step, across)], self.vectors.get(each))
                for step, each in enumerate(taken)
            ]

        return self._transposed(output, self.product.depth // self.lanes, "float32", used)
