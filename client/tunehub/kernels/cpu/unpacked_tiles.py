"""Products of many rows of activations with packed weights by tiles of AMX, in bfloat16: a tile has rows of weights,
which are unpacked as they lie, with their scales in them, so that sums stay in tiles' registers for all of the
reduction.

Activations, of which there are fewer, are transposed: tiles of their pairs have rows in lanes, and so have results,
until they are stored. Sums in integers of 8 bits would leave registers to be scaled group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.instruction import pointer_to
from tunehub.kernels.cpu.packed_weights import GROUP, PackedProduct
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.kernels.cpu.transposed_pairs import TILE_WORDS, TransposedPairs
from tunehub.kernels.cpu.vectors import Vectors
from tunehub.tir.nodes import buffer_kind
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
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

_TALL = 2  # tiles of weights, and of activations, in registers together
_OUTPUTS = _TALL * TILE
_LEAST = 17  # rows: of fewer, unpacking takes longer than products in integers
_LEAST_OF_MANY, _MANY = 29, 4096  # that of 4 bits, and of so many outputs
_WORD = 4  # bytes
_WEIGHTS, _DATA = 4, 6  # the first registers with them, behind those with sums
_BLOCK_TILES, _BLOCK_BYTES = 8, 5 << 18  # of activations that stay in a second cache, tiles at least
_KEPT = 6  # of what is done, in memory: TVM takes a minute for expressions of them
_OUTPUT, _FOLLOWING, _BEGIN, _PAIRS, _ASKED, _REFUSED = range(_KEPT)


def numbers_of_words(product: PackedProduct) -> tuple[list[int], list[int]]:
    """Which numbers of a group are the lower and the upper halves of its words of pairs, in weights and activations."""
    if product.bits != 4:
        return list(range(TILE)), list(range(TILE, GROUP))
    words = product.words_of_group
    low = [product.in_word * (lane % words) + lane // words for lane in range(TILE)]
    return low, [each + product.in_word // 2 for each in low]


class RoundedPairs(TransposedPairs):
    """Rounded, in the order in which words of weights have their numbers."""

    def arranged(self) -> Stmt:
        return parallel("tile", self.tiles, self.tile)

    def _loaded(self, tile: PrimExpr, group: PrimExpr, taken: Sequence[Buffer]) -> tuple[list[Stmt], list[Buffer]]:
        vectors, halves = self.vectors, numbers_of_words(self.product)
        given = [vectors.buffer(f"given_{at}") for at in range(GROUP // TILE)]
        statements: list[Stmt] = []
        for at, each in enumerate(taken):
            for half, one in enumerate(given):
                numbers = load(self.data, *self.row(tile, at), vectors.ramp(group * GROUP + half * TILE))
                statements.append(vectors.set(one, vectors.cast(numbers)))
            pair = [vectors.shuffled([vectors.get(one) for one in given], lanes) for lanes in halves]
            statements.append(vectors.set(each, vectors.half_words(*pair)))
        return statements, given


class UnpackedTiles:
    """Writes them: ``weights``, words and scales, times ``activations``."""

    ACTIVATIONS = RoundedPairs

    def __init__(
        self,
        product: PackedProduct,
        weights: Sequence[Buffer],
        result: Buffer,
        activations: RoundedPairs,
        root: SBlockRealize,
    ) -> None:
        from tvm import tirx

        self.product, self.activations, self.root, self.result = product, activations, root, result
        self.weights, self.vectors = weights, Vectors(TILE)
        self.panel = tirx.decl_buffer((product.groups * _TALL * TILE_WORDS,), "uint32", "panel")
        self.sums = tirx.decl_buffer((_TALL * _TALL * TILE_WORDS,), "float32", "sums")
        self.kept = tirx.decl_buffer((_KEPT,), "int32", "place")

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        """That this is for, or None: not for such weights."""
        fits = product.rows % _OUTPUTS == 0 and product.lanes == TILE and not product.plain
        many = product.bits == 4 and product.integers and product.rows >= _MANY
        return (_LEAST_OF_MANY if many else _LEAST) if fits else None

    def statement(self) -> Stmt:
        """All of them; threads share panels of weights of blocks of rows."""
        from tvm import tirx

        tiles, panels = self.activations.tiles, self.product.rows // _OUTPUTS
        most = max(_BLOCK_TILES, _BLOCK_BYTES // (self.product.depth * (_WORD // 2) * TILE))
        parts = _TALL * tirx.floordiv(tiles + (most - 1), most)
        height = _TALL * tirx.floordiv(tiles + parts - 1, parts)

        def task(at: PrimExpr) -> Stmt:
            begin, first = tirx.floordiv(at, panels) * height, tirx.floormod(at, panels) * _OUTPUTS
            kept = {
                _OUTPUT: first,
                _FOLLOWING: tirx.min(first + _OUTPUTS, const(self.product.rows - _OUTPUTS)),
                _BEGIN: begin,
                _PAIRS: tirx.floordiv(tirx.min(height, tiles - begin) + 1, _TALL),
                _ASKED: tirx.floordiv(self._get(_PAIRS) + (_OUTPUTS - 1), self._get(_PAIRS)),
                _REFUSED: amx.whole_tiles(),
            }
            stores = [store(self.kept, [const(each)], value) for each, value in kept.items()]
            released = when(self._get(_REFUSED) == 0, amx.call_tiles("llvm.x86.tilerelease"))
            body = sequence(stores, self._unpacked(), serial("pair", self._get(_PAIRS), self._pair), released)
            return block_of(self.root, body, "panel", [self.panel, self.sums, self.kept])

        pragmas = {"pragma_import_llvm": amx.IMPORTED}
        return loop("panel", tirx.floordiv(tiles + height - 1, height) * panels, task, PARALLEL, annotations=pragmas)

    def _get(self, at: int) -> PrimExpr:
        return load(self.kept, const(at))

    def _panel_place(self, group: PrimExpr, output: PrimExpr) -> PrimExpr:
        """Of the words of a row: [groups, outputs, words]."""
        return (group * _OUTPUTS + output) * TILE

    def _unpacked(self) -> Stmt:
        """A panel of weights in bfloat16."""
        of_chunk = self.product.lanes // self.product.words_of_group

        def row(chunk: PrimExpr, output: PrimExpr) -> Stmt:
            groups = [chunk * of_chunk + at for at in range(of_chunk)]
            return sequence(
                [
                    store(self.panel, [self.vectors.ramp(self._panel_place(each, output))], self._words(each, output))
                    for each in groups
                ]
            )

        return nest("chunk output", [self.product.chunks, _OUTPUTS], row, SERIAL)

    def _words(self, group: PrimExpr, output: PrimExpr) -> PrimExpr:
        """Pairs of a row's group."""
        row, vectors = self._get(_OUTPUT) + output, self.vectors
        scale = vectors.all(load(self.weights[1], row, group).astype("float32"))
        return vectors.half_words(*(each * scale for each in self._numbers(row, group)))

    def _numbers(self, row: PrimExpr, group: PrimExpr) -> list[PrimExpr]:
        """Those of the lower halves, and of the upper, in float32."""
        from tvm import tirx

        product, vectors, words = self.product, self.vectors, self.product.words_of_group
        if product.bits != 4:
            places = [Vectors(words // 2).ramp(group * words + half * (words // 2)) for half in range(2)]
            loaded = [vectors.cast(tirx.reinterpret("uint8x16", load(self.weights[0], row, each))) for each in places]
            return [each - vectors.all(float(product.zero)) for each in loaded]
        given = load(self.weights[0], row, Vectors(words).ramp(group * words))
        spread = vectors.shuffled([given] * (TILE // words), [lane % words for lane in range(TILE)])
        table = vectors.cast(vectors.ramp(-product.zero))
        shifts = [[4 * (lane // words) + 16 * half for lane in range(TILE)] for half in range(2)]
        lanes = [const(lane) for lane in range(TILE)]
        moved = [spread >> tirx.Shuffle([const(each, "uint32") for each in line], lanes) for line in shifts]
        return [vectors.permuted(table, vectors.bits_as(each, "int32")) for each in moved]

    def _pair(self, pair: PrimExpr) -> Stmt:
        """The panel times a pair of tiles of rows."""
        first = self._get(_BEGIN) + _TALL * pair
        products = either(self._get(_REFUSED) == 0, self._products(pair, first), self._plain(first))
        return sequence(products, serial("tile", _TALL, lambda at: self._results(first + at, at)))

    def _products(self, pair: PrimExpr, first: PrimExpr) -> Stmt:
        """Sums in memory: [tiles of rows, outputs, rows of a tile]. Lines of the next panel are asked for beside, as
        many in each pair."""
        from tvm import tirx

        second = tirx.min(first + 1, self.activations.tiles - 1)
        of_chunk = self.product.lanes // self.product.words_of_group

        def asked(chunk: PrimExpr, at: PrimExpr) -> Stmt:
            row = tirx.min(pair * self._get(_ASKED) + at, const(_OUTPUTS - 1))
            return prefetch(self.weights[0], self._get(_FOLLOWING) + row, chunk * self.product.lanes, cache=2)

        def chunk(at: PrimExpr) -> Stmt:
            lines = serial("line", self._get(_ASKED), lambda line: asked(at, line))
            return sequence(lines, [self._step(at * of_chunk + each, (first, second)) for each in range(of_chunk)])

        places = [(tile, half) for tile in range(_TALL) for half in range(_TALL)]
        zeros = [amx.instruction("tilezero", at) for at in range(len(places))]
        stored = [
            amx.instruction(
                "tilestored64",
                _TALL * half + tile,
                pointer_to(self.sums, const((_TALL * tile + half) * TILE_WORDS), _WORD),
                TILE * _WORD,
            )
            for tile, half in places
        ]
        return sequence(zeros, serial("chunk", self.product.chunks, chunk), stored)

    def _step(self, group: PrimExpr, tiles: Sequence[PrimExpr]) -> Stmt:
        """Of a group: weights and activations are loaded, and each multiplied with each."""

        def loaded(register: int, buffer: Buffer, place: PrimExpr) -> Stmt:
            return amx.instruction("tileloadd64", register, pointer_to(buffer, place, _WORD), TILE * _WORD)

        def product(half: int, tile: int) -> Stmt:
            return amx.instruction("tdpbf16ps", _TALL * half + tile, _WEIGHTS + half, _DATA + tile)

        given, places = self.activations, [self._panel_place(group, const(half * TILE)) for half in range(_TALL)]
        return sequence(
            loaded(_WEIGHTS, self.panel, places[0]),
            loaded(_DATA, given.words, given.place(tiles[0], group)),
            product(0, 0),
            loaded(_DATA + 1, given.words, given.place(tiles[1], group)),
            product(0, 1),
            loaded(_WEIGHTS + 1, self.panel, places[1]),
            product(1, 0),
            product(1, 1),
        )

    def _plain(self, first: PrimExpr) -> Stmt:
        """The same where there is no AMX."""
        from tvm import tirx

        vectors, total, last = self.vectors, self.vectors.buffer("total"), self.activations.tiles - 1

        def line(tile: PrimExpr, output: PrimExpr) -> Stmt:
            def word(group: PrimExpr, at: PrimExpr) -> Stmt:
                place = self.activations.place(tirx.min(first + tile, last), group) + at * TILE
                data = vectors.floats_of(load(self.activations.words, vectors.ramp(place)))
                weights = vectors.floats_of(vectors.all(load(self.panel, self._panel_place(group, output) + at)))
                return vectors.add(total, data[0] * weights[0] + data[1] * weights[1])

            steps = nest("group word", [self.product.groups, TILE], word, SERIAL)
            place = vectors.ramp((tile * _OUTPUTS + output) * TILE)
            return sequence(vectors.clear([total]), steps, store(self.sums, [place], vectors.get(total)))

        return block_of(self.root, nest("tile output", [_TALL, _OUTPUTS], line, SERIAL), "plain", [total])

    def _results(self, tile: PrimExpr, at: PrimExpr) -> Stmt:
        """Of a tile of rows, which has outputs in lanes then; none of a tile behind the last."""
        vectors, dtype = self.vectors, str(buffer_kind(self.result).dtype)
        taken, spare = [vectors.buffer(f"taken_{lane}") for lane in range(TILE)], vectors.buffer("spare")

        def part(half: PrimExpr) -> Stmt:
            places = [(at * _OUTPUTS + half * TILE + lane) * TILE for lane in range(TILE)]
            loaded = [
                vectors.set(each, load(self.sums, vectors.ramp(place)))
                for each, place in zip(taken, places, strict=True)
            ]
            stored = []
            for row, each in enumerate(taken):
                value = vectors.get(each) if dtype == "float32" else vectors.cast(vectors.get(each), dtype)
                place = self.activations.row(tile, row)
                stored.append(store(self.result, [*place, vectors.ramp(self._get(_OUTPUT) + half * TILE)], value))
            return sequence(loaded, vectors.transposed(taken, spare), stored)

        body = block_of(self.root, serial("half", _TALL, part), "results", [*taken, spare])
        return when(tile < self.activations.tiles, body)
