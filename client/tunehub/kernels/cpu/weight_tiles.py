"""Products with weights in bfloat16 by tiles of AMX whose rows are rows of weights, as these lie in memory: nothing of
them is unpacked or transposed. Activations, of which there are fewer, are copied as the words of pairs that the other
operand's tiles have, and results come with rows of activations in lanes; while a pair of tiles is multiplied, those of
the pair before are transposed, rounded and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

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
OUTPUTS = _TALL * TILE
_LEAST = 2  # rows of activations: of one, AVX-512 adds up products as fast as memory gives weights
_WORD, _NARROW = 4, 2  # bytes
_WEIGHTS, _DATA = 4, 6  # the first registers with them, behind those with sums
_LOG2_E = 1.4426950408889634
_PANELS, _LEAST_TASKS = (8, 4, 2), 14  # panels of a task, which gets memory and registers once, and tasks
_AHEAD = 5  # steps of the reduction that weights are asked for before, when they are read first
_KEPT = 5  # of what is done, in memory: TVM takes a minute for expressions of them
_OUTPUT, _FOLLOWING, _BEGIN, _COUNT, _REFUSED = range(_KEPT)


class TilePairs(TransposedPairs):
    """As they are."""

    def arranged(self) -> Stmt:
        return either(self.tiles == 1, self.tile(const(0)), parallel("tile", self.tiles, self.tile))

    def _loaded(self, tile: PrimExpr, group: PrimExpr, taken: Sequence[Buffer]) -> tuple[list[Stmt], list[Buffer]]:
        vectors, numbers = self.vectors, Vectors(GROUP).ramp(group * GROUP)
        loaded = [
            vectors.set(each, vectors.bits_as(load(self.data, *self.row(tile, at), numbers), "uint32"))
            for at, each in enumerate(taken)
        ]
        return loaded, []


class WeightTiles:
    """Writes them: ``weights``, [N, K] in bfloat16, times ``activations``. Of a gated product the tiles of a panel are
    rows of gate and those of up."""

    ACTIVATIONS: ClassVar[type[TransposedPairs]] = TilePairs
    TOGETHER: ClassVar = _TALL  # tiles of activations that are multiplied together
    PARTS: ClassVar = 1  # of a tile of activations
    BLOCK_TILES: ClassVar = 4  # of activations that stay in a second cache, at least
    BLOCK_BYTES: ClassVar = 5 << 17  # of them

    def __init__(
        self,
        product: PackedProduct,
        weights: Sequence[Buffer],
        result: Buffer,
        activations: TransposedPairs,
        root: SBlockRealize,
    ) -> None:
        from tvm import tirx

        self.product, self.activations, self.root, self.result = product, activations, root, result
        (self.weights,), self.vectors = weights, Vectors(TILE)
        self.sums = tirx.decl_buffer((_TALL * _TALL * TILE_WORDS,), "float32", "sums")
        self.kept = tirx.decl_buffer((_KEPT,), "int32", "place")
        # of a panel, and how many rows its second tile of weights is behind the first
        self.outputs, self.apart = (TILE, product.rows // _TALL) if product.gated else (OUTPUTS, TILE)

    @classmethod
    def least_rows(cls, product: PackedProduct) -> int | None:
        """That this is for, or None: not for such weights."""
        fits = product.rows % OUTPUTS == 0 and product.lanes == TILE
        return (1 if product.gated else _LEAST) if fits else None

    def statement(self) -> Stmt:
        """All of them; threads share panels of weights of blocks of rows."""
        from tvm import tirx

        tiles, depth, tall = self.activations.tiles, self.product.depth, self.TOGETHER
        most = max(self.BLOCK_TILES, self.BLOCK_BYTES // (depth * _NARROW * TILE * self.PARTS))
        parts = tall * tirx.floordiv(tiles + (most - 1), const(most))
        height = tall * tirx.floordiv(tiles + parts - 1, parts)
        panels = self.product.rows // OUTPUTS
        together = next((each for each in _PANELS if panels % each == 0 and panels >= each * _LEAST_TASKS), 1)
        tasks = panels // together

        def task(at: PrimExpr) -> Stmt:
            begin = tirx.floordiv(at, tasks) * height
            pairs = tirx.floordiv(tirx.min(height, tiles - begin) + (tall - 1), const(tall))
            begun = self._kept({_BEGIN: begin, _COUNT: pairs, _REFUSED: amx.whole_tiles()})

            def panel(inner: PrimExpr) -> Stmt:
                first = (tirx.floormod(at, tasks) * together + inner) * self.outputs
                following = tirx.min(first + self.outputs, const((panels - 1) * self.outputs))
                pair = nest("pair half", [self._get(_COUNT) + 1, _TALL], self._half, SERIAL)
                return sequence(self._kept({_OUTPUT: first, _FOLLOWING: following}), pair)

            released = when(self._get(_REFUSED) == 0, amx.call_tiles("llvm.x86.tilerelease"))
            body = sequence(begun, serial("panel", together, panel), released)
            return block_of(self.root, body, "panels", [self.sums, self.kept])

        pragmas = {"pragma_import_llvm": amx.IMPORTED}
        return loop("task", tirx.floordiv(tiles + height - 1, height) * tasks, task, PARALLEL, annotations=pragmas)

    def _kept(self, values: dict[int, PrimExpr]) -> list[Stmt]:
        return [store(self.kept, [const(each)], value) for each, value in values.items()]

    def _get(self, at: int) -> PrimExpr:
        return load(self.kept, const(at))

    def _half(self, pair: PrimExpr, half: PrimExpr) -> Stmt:
        """The results of a tile of the pair before, and half of this pair's products; behind the last pair none."""
        first = self._get(_BEGIN) + self.TOGETHER * pair
        before = first - self.TOGETHER + half
        there = (pair > 0) & (before < self.activations.tiles) & (half < self.TOGETHER)
        by_tiles = sequence(
            when(half == 0, [amx.instruction("tilezero", at) for at in range(_TALL * _TALL)]),
            either(pair == 0, self._steps(first, half, self._ahead), self._steps(first, half)),
            when(half == _TALL - 1, self._kept_sums()),
        )
        plain = when(half == _TALL - 1, self._plain(first))
        products = either(self._get(_REFUSED) == 0, by_tiles, plain)
        if self.product.gated:
            results = when((pair > 0) & (half == 0), self._gated_results(before))
        else:
            results = when(there, self._results(before, half))
        return sequence(results, when(pair < self._get(_COUNT), products))

    def _ahead(self, group: PrimExpr) -> list[Stmt]:
        """Ask for weights some steps ahead, which may be in the next panel."""
        from tvm import tirx

        ahead = min(_AHEAD, self.product.groups)
        behind = group + ahead - self.product.groups
        row = tirx.Select(behind < 0, self._get(_OUTPUT), self._get(_FOLLOWING))
        place = tirx.Select(behind < 0, group + ahead, behind) * GROUP
        rows = [row + tile * self.apart + at for tile in range(_TALL) for at in range(TILE)]
        return [prefetch(self.weights, each, place) for each in rows]

    def _steps(self, first: PrimExpr, half: PrimExpr, asked: Callable[[PrimExpr], list[Stmt]] = lambda _: []) -> Stmt:
        """Half of the reduction of a pair of tiles from ``first`` on, after what is ``asked`` for in a step."""
        groups = self.product.groups
        begin = half * (groups // _TALL)

        def step(at: PrimExpr) -> Stmt:
            return sequence(asked(begin + at), self._step(first, begin + at))

        return serial("step", groups // _TALL + half * (groups % _TALL), step)

    def _step(self, first: PrimExpr, group: PrimExpr) -> list[Stmt]:
        """A group's products of a pair of tiles from ``first`` on."""
        from tvm import tirx

        second = self.activations.place(tirx.min(first + 1, self.activations.tiles - 1), group)
        return [
            self._weights_loaded(group, 0),
            self._data_loaded(self.activations.place(first, group), 0),
            self._multiplied(0, 0),
            self._data_loaded(second, 1),
            self._multiplied(0, 1),
            self._weights_loaded(group, 1),
            self._multiplied(1, 0),
            self._multiplied(1, 1),
        ]

    def _weights_loaded(self, group: PrimExpr, at: int) -> Stmt:
        place = (self._get(_OUTPUT) + at * self.apart).astype("int64") * self.product.depth + group * GROUP
        pointer = pointer_to(self.weights, place, _NARROW)
        return amx.instruction("tileloadd64", _WEIGHTS + at, pointer, self.product.depth * _NARROW)

    def _data_loaded(self, place: PrimExpr, at: int) -> Stmt:
        pointer = pointer_to(self.activations.words, place, _WORD)
        return amx.instruction("tileloadd64", _DATA + at, pointer, TILE * _WORD)

    def _multiplied(self, one: int, other: int) -> Stmt:
        """The products of a tile of weights and one of activations, added to their sums."""
        return amx.instruction("tdpbf16ps", _TALL * one + other, _WEIGHTS + one, _DATA + other)

    def _kept_sums(self) -> list[Stmt]:
        """Sums in memory: [tiles of activations, rows of weights, rows of a tile]."""
        return [
            amx.instruction(
                "tilestored64",
                _TALL * one + other,
                pointer_to(self.sums, const((_TALL * other + one) * TILE_WORDS), _WORD),
                TILE * _WORD,
            )
            for one in range(_TALL)
            for other in range(_TALL)
        ]

    def _plain(self, first: PrimExpr) -> Stmt:
        """The same where there is no AMX."""
        from tvm import tirx

        vectors, total = self.vectors, self.vectors.buffer("total")
        last = self.activations.tiles - 1

        def line(tile: PrimExpr, output: PrimExpr) -> Stmt:
            def pair(group: PrimExpr, at: PrimExpr) -> Stmt:
                place = self.activations.place(tirx.min(first + tile, last), group) + at * TILE
                number, halves = group * GROUP + at * 2, self._halves(place)
                return sequence(
                    [vectors.add(total, half * self._weight(output, number + item)) for item, half in enumerate(halves)]
                )

            steps = nest("group pair", [self.product.groups, GROUP // 2], pair, SERIAL)
            place = vectors.ramp((tile * OUTPUTS + output) * TILE)
            return sequence(vectors.clear([total]), steps, store(self.sums, [place], vectors.get(total)))

        return block_of(self.root, nest("tile output", [self.TOGETHER, OUTPUTS], line, SERIAL), "plain", [total])

    def _halves(self, place: PrimExpr) -> Sequence[PrimExpr]:
        """The lower and the upper numbers of a vector of words of activations."""
        return self.vectors.floats_of(load(self.activations.words, self.vectors.ramp(place)))

    def _weight(self, output: PrimExpr, number: PrimExpr) -> PrimExpr:
        from tvm import tirx

        row = tirx.floordiv(output, TILE) * self.apart + tirx.floormod(output, TILE)
        value = load(self.weights, self._get(_OUTPUT) + row, number)
        return self.vectors.all(tirx.Cast("float32", value))

    def _results(self, tile: PrimExpr, half: PrimExpr) -> Stmt:
        """Of a tile of activations, with rows of weights in lanes."""
        vectors, dtype = self.vectors, str(buffer_kind(self.result).dtype)
        taken, spare = [vectors.buffer(f"taken_{at}") for at in range(TILE)], vectors.buffer("spare")

        def line(at: int) -> PrimExpr:
            return self._sum(half, at)

        def stored(first: int, values: Sequence[Buffer]) -> list[Stmt]:
            statements = vectors.transposed(values, spare)
            for at, each in enumerate(values):
                value, wide = self._as_result(vectors.get(each), dtype)
                place = [*self.activations.row(tile, at), Vectors(wide).ramp(self._get(_OUTPUT) + first)]
                statements.append(store(self.result, place, value))
            return statements

        if dtype == "bfloat16":  # rows of weights in pairs: words
            words = [vectors.half_words(line(2 * at), line(2 * at + 1)) for at in range(TILE)]
            values = [vectors.bits_as(each, "float32") for each in words]
            body = [*map(vectors.set, taken, values), *stored(0, taken)]
        else:
            body = []
            for first in range(0, OUTPUTS, TILE):
                body += [vectors.set(each, line(first + at)) for at, each in enumerate(taken)]
                body += stored(first, taken)
        return block_of(self.root, sequence(body), "results", [*taken, spare])

    def _sum(self, tile: PrimExpr, output: int) -> PrimExpr:
        """Of an output of a panel, for a tile of a pair."""
        return load(self.sums, self.vectors.ramp((tile * OUTPUTS + output) * TILE))

    def _gated_results(self, tile: PrimExpr) -> Stmt:
        """SiLU(gate) · up in bfloat16 of two tiles of activations: words of both are transposed together."""
        from tvm import tirx

        vectors, half = self.vectors, Vectors(TILE // _TALL)
        words = tirx.decl_buffer((TILE_WORDS,), "uint32", "words")
        gated, spare = [vectors.buffer(name) for name in ("low", "high")], vectors.buffer("spare")
        taken = [vectors.buffer(f"taken_{at}", "uint32") for at in range(TILE)]
        extra, last = vectors.buffer("extra", "uint32"), tile + 1 < self.activations.tiles

        def pair(at: PrimExpr, number: PrimExpr) -> Stmt:
            found = [self._gated(each, at * OUTPUTS + number * 2 + item, spare) for item, each in enumerate(gated)]
            value = vectors.half_words(*map(vectors.get, gated))
            return sequence(*found, store(words, [vectors.ramp((at * half.lanes + number) * TILE)], value))

        def stored(at: int) -> list[Stmt]:
            values = [load(words, half.ramp(row * TILE + at * half.lanes)) for row in range(TILE)]
            places = [[*self.activations.row(tile + at, row), vectors.ramp(self._get(_OUTPUT))] for row in range(TILE)]
            return [
                store(self.result, place, tirx.reinterpret(f"bfloat16x{TILE}", value))
                for place, value in zip(places, values, strict=True)
            ]

        loaded = [vectors.set(each, load(words, vectors.ramp(at * TILE))) for at, each in enumerate(taken)]
        transposed = [store(words, [vectors.ramp(at * TILE)], vectors.get(each)) for at, each in enumerate(taken)]
        body = sequence(
            nest("tile number", [tirx.min(_TALL, self.activations.tiles - tile), half.lanes], pair, SERIAL),
            loaded,
            vectors.transposed(taken, extra),
            transposed,
            stored(0),
            when(last, stored(1)),
        )
        return block_of(self.root, body, "results", [words, *gated, spare, *taken, extra])

    def _gated(self, into: Buffer, line: PrimExpr, spare: Buffer) -> list[Stmt]:
        """A vector of results; ``line``: of sums, that of gate. With powers of numbers up to 0 nothing overflows."""
        from tvm import tirx

        vectors = self.vectors
        gate, up = (load(self.sums, vectors.ramp((line + at) * TILE)) for at in (0, TILE))
        power, zero, one = vectors.get(into), vectors.all(0.0), vectors.all(1.0)
        value = gate * up * tirx.Select(gate >= zero, one, power) / (one + power)
        return [
            vectors.set(into, tirx.min(gate, zero - gate) * vectors.all(_LOG2_E)),
            *vectors.exp2(into, spare),
            vectors.set(into, value),
        ]

    def _as_result(self, value: PrimExpr, dtype: str) -> tuple[PrimExpr, int]:
        """A vector of results, and how many it has."""
        from tvm import tirx

        if dtype == "bfloat16":
            return tirx.reinterpret(f"bfloat16x{OUTPUTS}", value), OUTPUTS
        return (value if dtype == "float32" else self.vectors.cast(value, dtype)), TILE
