"""Products of activations with weights of 4 or 8 bits in groups, as functions for CPUs that arrive scheduled: each
weight is read from memory as it lies, and becomes a number in registers.

* In float32, numbers are taken from words by shifts and, where a vector has 16 lanes and numbers 4 bits, by a table.
* In integers, by ``vpdpbusd``, with activations in 8 bits; sums of a group are exact.

Threads share rows of weights; a few of these are multiplied with up to eight rows of activations at a time, so that
memory is read once. With one row of activations, rows of weights are read one after the other. Rows are asked for
ahead, into the second cache: into the first, or not asked for, memory gives half as much of several at once (Zen 4),
and of single ones 25 of 34 GB/s (a Xeon with AMX, two threads). Of many rows, see
:mod:`tunehub.kernels.cpu.packed_panels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tunehub.kernels.cpu import pairs
from tunehub.kernels.cpu.packed_activations import Floats, Integers, Pairs, in_buffer
from tunehub.kernels.cpu.packed_few_bytes import FewBytes
from tunehub.kernels.cpu.packed_few_tiles import FewTiles, TileIntegers
from tunehub.kernels.cpu.packed_pairs import PairPanels, PlainPairs
from tunehub.kernels.cpu.packed_panels import BytePanels, FewBytePanels, FloatPanels, PanelProducts, PlainPanels
from tunehub.kernels.cpu.packed_tiles import PlainTiles, TilePanels
from tunehub.kernels.cpu.packed_weights import GROUP, PackedProduct, numbers_of
from tunehub.kernels.cpu.split_tiles import SplitFloatTiles
from tunehub.kernels.cpu.unpacked_tiles import UnpackedTiles
from tunehub.kernels.cpu.vectors import Vectors, line_of
from tunehub.kernels.cpu.weight_tiles import WeightTiles
from tunehub.tir.nodes import buffer_kind, integer, parameters
from tunehub.tir.statements import (
    block_of,
    const,
    either,
    f32,
    load,
    loop,
    prefetch,
    sequence,
    serial,
    store,
    with_root,
)
from tunehub.tir.versions import PARALLEL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc, Stmt, Tensor

_HEIGHTS = {16: 4, 8: 2, 4: 2}  # rows of weights that are multiplied together, by lanes
_WIDTHS = (4, 2, 1)  # rows of activations that they are multiplied with
_MANY_REGISTERS = 16  # lanes of vectors of which a CPU has 32
_CHAINS = 4  # sums of a row that do not wait for each other
_CHAIN = "chain"  # their name
_TOGETHER = 8  # blocks of rows of weights that are multiplied with a block of activations, one after the other
_AHEAD, _LINE = 8192, 64  # bytes that are asked for ahead of a single row's, and of a line of a cache
_LOW_BITS = 0x0F0F0F0F
# A number that LLVM does not know: it would unroll a row, and ask for all that is ahead at once.
_COUNT = "tunehub_count"
_COUNTED = f"""
define i32 @{_COUNT}(i32 %number) alwaysinline {{
  %unknown = call i32 asm "", "=r,0"(i32 %number)
  ret i32 %unknown
}}
"""
_OPAQUE = 8  # TVM's OpPatternKind


def product_function(product: PackedProduct, shape: Sequence[Index], data: str, scales: str, result: str) -> PrimFunc:
    """The function of data ``shape`` [..., K], words uint32 [N, K * bits / 32], scales [N, K / 32] and the result
    [..., N], with these types; extents of the shape but for the last may be open. Of a plain product, it has weights
    [N, K] of the type ``scales`` in their place; of one that is gated, all in bfloat16, the result is [..., N / 2]."""
    from tvm import te

    depth = product.depth if product.plain else product.words
    given = [
        te.placeholder(shape, data, name="data"),
        te.placeholder((product.rows, depth), scales if product.plain else "uint32", name="words"),
    ]
    if not product.plain:
        given.append(te.placeholder((product.rows, product.groups), scales, name="scales"))
    function = te.create_prim_func([*given, _computed(product, given, result)])
    function = function.with_body(_writer(product, scales)(product, function).body()).without_attr("global_symbol")
    return function.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": _OPAQUE})


def _writer(product: PackedProduct, weights: str) -> type[_ProductWriter]:
    """Of a product whose scales, or weights, are ``weights``. Where there is AMX, ``vdpbf16ps`` is slower for a row
    than products in float32: a step's read 23.1 and 26.2 GB/s (a Xeon)."""
    if product.plain:
        in_pairs = product.pairs and not product.tiles and weights == "bfloat16"
        return _PairProducts if in_pairs else _PlainProducts
    return _ByteProducts if product.integers else _FloatProducts


def _computed(product: PackedProduct, given: Sequence[Tensor], dtype: str) -> Tensor:
    """What the function computes, as a tensor expression."""
    from tvm import te, tirx

    data, words, *scales = given
    k = te.reduce_axis((0, product.depth), name="k")

    def weight(row: PrimExpr) -> PrimExpr:
        if product.plain:
            return words[row, k].astype("float32")
        shift = (k % product.in_word * product.bits).astype("uint32")
        number = (words[row, k // product.in_word] >> shift) & tirx.const(2**product.bits - 1, "uint32")
        return (number.astype("float32") - f32(product.zero)) * scales[0][row, k // GROUP].astype("float32")

    def element(*at: PrimExpr) -> PrimExpr:
        return te.sum(data(*at[:-1], k).astype("float32") * weight(at[-1]), axis=k)

    wide = te.compute((*data.shape[:-1], product.rows), element, name="packed_product")
    if product.gated:
        half = product.rows // 2

        def gated(*at: PrimExpr) -> PrimExpr:
            return (wide(*at) * tirx.sigmoid(wide(*at)) * wide(*at[:-1], at[-1] + half)).astype(dtype)

        return te.compute((*data.shape[:-1], half), gated, name="gated")
    return wide if dtype == "float32" else te.compute(wide.shape, lambda *at: wide(*at).astype(dtype), name="rounded")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ProductTile:
    """Rows of weights from ``first`` on, times rows of activations from ``row`` on: ``sums`` by the number of both.
    ``own``: vectors that a chunk has beside, by name."""

    first: PrimExpr
    row: PrimExpr
    sums: Mapping[tuple[int, int], Buffer]
    own: dict[str, Buffer] = field(default_factory=dict)


class _ProductWriter:
    """Writes the statements of a function."""

    ACTIVATIONS: type[Floats] | type[Integers] | type[Pairs]
    PANELS: type[PanelProducts[Any]]
    PAIRS: type[PanelProducts[Any]] = PairPanels
    TILES: type[PanelProducts[Any]] | type[UnpackedTiles] = TilePanels
    FEW: type[PanelProducts[Any]] | None = None
    IMPORTED: ClassVar[str] = _COUNTED  # by the loop over few rows
    EIGHT: ClassVar = True  # rows together: LLVM keeps some of their sums in memory
    activations: Floats | Integers | Pairs

    def __init__(self, product: PackedProduct, function: PrimFunc) -> None:
        self.product, self.root = product, function.body
        self.data, *self.weights, self.result = parameters(function)
        self.vectors, self.rows = Vectors(product.lanes), in_buffer(self.data)
        self.activations = self.ACTIVATIONS(product, self.data, self.rows, self.root)

    @property
    def _widths(self) -> tuple[int, ...]:
        """Of tiles, each for what those before leave."""
        widths = (8, *_WIDTHS) if self.EIGHT and self.product.lanes == _MANY_REGISTERS else _WIDTHS
        panels, leasts = self._panels_kind, [self._least_of_few()]
        if issubclass(panels, WeightTiles) and integer(self.rows.count) is None:
            leasts.append(panels.least_rows(self.product))
        return tuple(each for each in widths if all(least is None or each < least for least in leasts))

    def body(self) -> Stmt:
        """All of them, by panels of weights where rows are many."""
        panels = self._panels()
        if panels is not None and self.product.gated:
            statements = [panels.activations.arranged(), panels.statement()]
            return with_root(self.root, statements, panels.activations.buffers)
        if panels is None:
            return with_root(self.root, [self._arranged_few()], self.activations.buffers)
        shared = panels.activations is self.activations
        many = panels.statement() if shared else sequence(panels.activations.arranged(), panels.statement())
        few = self._few() if shared else self._arranged_few()
        known = integer(self.rows.count) is not None
        chosen = many if known else either(self.rows.count >= panels.least_rows(self.product), many, few)
        statements = [self.activations.arranged(), chosen] if shared else [chosen]
        own = [] if shared else panels.activations.buffers
        return with_root(self.root, statements, [*own, *([] if known and not shared else self.activations.buffers)])

    @property
    def _panels_kind(self) -> type[PanelProducts[Any]] | type[UnpackedTiles] | type[WeightTiles]:
        """What many rows are multiplied by."""
        product, given = self.product, [self.data, *self.weights]
        narrow = product.plain and all(str(buffer_kind(each).dtype) == "bfloat16" for each in given)
        if product.tiles and narrow and WeightTiles.least_rows(product) is not None:
            return WeightTiles
        if product.split and SplitFloatTiles.least_rows(product) is not None:
            return SplitFloatTiles
        in_pairs = product.pairs and not product.wide
        return self.TILES if product.tiles else self.PAIRS if in_pairs else self.PANELS

    def _panels(self) -> PanelProducts[Any] | UnpackedTiles | WeightTiles | None:
        """Those of many rows, None where they never are so many."""
        kind: Any = self._panels_kind
        least, count = kind.least_rows(self.product), integer(self.rows.count)
        if least is None or (count is not None and count < least):
            return None
        activations = self.activations
        if kind.ACTIVATIONS is not type(activations):
            activations = kind.ACTIVATIONS(self.product, self.data, self.rows, self.root)
        panels: PanelProducts[Any] | UnpackedTiles | WeightTiles = kind(
            self.product, self.weights, self.result, activations, self.root
        )
        return panels

    def _least_of_few(self) -> int | None:
        """Rows from which on a few are multiplied by panels; None where they never are."""
        count, least = integer(self.rows.count), None if self.FEW is None else self.FEW.least_rows(self.product)
        return least if count is None or (least is not None and count >= least) else None

    def _arranged_few(self) -> Stmt:
        """And activations before."""
        return sequence(self.activations.arranged(), self._few())

    def _few(self) -> Stmt:
        """The products of rows that are not many."""
        least = self._least_of_few()
        if least is None or self.FEW is None:
            return self._products()
        panels = self.FEW(self.product, self.weights, self.result, self.activations, self.root).statement()
        known = integer(self.rows.count) is not None
        return panels if known else either(self.rows.count >= least, panels, self._products())

    def _products(self) -> Stmt:
        from tvm import tirx

        most = _divisor(self.product.rows, _HEIGHTS[self.product.lanes])
        together = most * (1 if self.rows.are_one else _divisor(self.product.rows // most, _TOGETHER))

        def tiles(part: PrimExpr, row: PrimExpr, wide: int) -> Stmt:
            height = 1 if wide == 1 else most

            def tile(at: PrimExpr) -> Stmt:
                counted = wide == 1 and self.IMPORTED == _COUNTED
                return self._tile(part * together + at * height, row, height, wide, counted=counted)

            return serial("block", together // height, tile)

        def part(at: PrimExpr) -> Stmt:
            if self.rows.are_one:
                return tiles(at, const(0), 1)
            begin, left, statements = const(0), self.rows.count, []
            for wide in self._widths:

                def some(row: PrimExpr, first: PrimExpr = begin, wide: int = wide) -> Stmt:
                    return tiles(at, first + row * wide, wide)

                count = tirx.floordiv(left, wide)
                statements.append(serial("rest" if wide == 1 else "rows", count, some))
                begin, left = begin + count * wide, tirx.floormod(left, wide)
            return sequence(statements)

        pragmas = {"pragma_import_llvm": self.IMPORTED}
        return loop("part", self.product.rows // together, part, PARALLEL, annotations=pragmas)

    def _tile(self, first: PrimExpr, row: PrimExpr, height: int, wide: int, *, counted: bool = False) -> Stmt:
        """``height`` rows of weights from ``first`` on, times ``wide`` rows of activations from ``row`` on;
        ``counted``: chunks by ``_COUNT``."""
        from tvm import tirx

        sums = {(m, n): self.vectors.buffer(f"sum_{m}_{n}") for m in range(wide) for n in range(height)}
        tile = _ProductTile(first=first, row=row, sums=sums)

        def step(at: PrimExpr) -> Stmt:
            return sequence(self._ahead(first, height, at), self._chunk(tile, at))

        chunks: Any = self.product.chunks
        count = tirx.call_extern("int32", _COUNT, const(chunks)) if counted else chunks
        steps = sequence(self._scales_ahead(first, height), serial("chunk", count, step))
        chains = [each for name, each in tile.own.items() if name.startswith(_CHAIN)]
        begun = self.vectors.clear([*sums.values(), *chains])
        added = [self.vectors.add(sums[0, 0], self.vectors.get(each)) for each in chains]
        statements = [*begun, steps, *added, *self._results(tile)]
        return block_of(self.root, sequence(statements), "products", [*sums.values(), *tile.own.values()])

    def _results(self, tile: _ProductTile) -> list[Stmt]:
        """The totals of lanes: of as many sums as there are lanes at once, where a vector has those of whole rows."""
        dtype, vectors = str(buffer_kind(self.result).dtype), self.vectors
        first, row, sums = tile.first, tile.row, tile.sums
        height, lanes = 1 + max(n for _, n in sums), vectors.lanes
        if height == 1 or lanes % height or len(sums) % lanes:
            return [
                store(self.result, [*self.rows.place(row + m), first + n], vectors.total(each).astype(dtype))
                for (m, n), each in sums.items()
            ]
        statements, listed = [], list(sums.values())
        for begin in range(0, len(sums), lanes):
            statements += vectors.sums_of(listed[begin : begin + lanes])
            for at in range(0, lanes, height):
                place = self.rows.place(row + (begin + at) // height)
                value = vectors.shuffled([vectors.get(listed[begin])], range(at, at + height))
                ramp = Vectors(height).ramp(first)
                statements.append(store(self.result, [*place, ramp], Vectors(height).cast(value, dtype)))
        return statements

    def _ahead(self, first: PrimExpr, height: int, chunk: PrimExpr) -> list[Stmt]:
        """Ask for this chunk of the next rows, of single ones for what lies ``_AHEAD`` bytes behind."""
        from tvm import tirx

        weights = self.weights[0]
        count = self.product.lanes * (self.product.in_word if self.product.plain else 1)
        lines = range(0, count, min(count, line_of(weights)))
        if height == 1:
            place = chunk * count + _AHEAD // _LINE * line_of(weights)
            return [prefetch(weights, first, place + at, cache=2) for at in lines]
        next_ = tirx.min(first + height, const(self.product.rows - height))
        return [prefetch(weights, next_ + n, chunk * count + at, cache=2) for n in range(height) for at in lines]

    def _scales_ahead(self, first: PrimExpr, height: int) -> list[Stmt]:
        """Of a single row's scales."""
        if height > 1 or self.product.plain:
            return []
        scales, rows = self.weights[1], -(-_AHEAD * 8 // (self.product.depth * self.product.bits))
        places = range(0, self.product.groups, line_of(scales))
        return [prefetch(scales, first + rows, const(at), cache=2) for at in places]

    def _chunk(self, tile: _ProductTile, chunk: PrimExpr) -> Stmt:
        """The products of a chunk, added up in the accumulators of a tile."""
        raise NotImplementedError

    def _own(self, tile: _ProductTile, name: str, count: int, dtype: str = "float32") -> list[Buffer]:
        return [tile.own.setdefault(f"{name}_{n}", self.vectors.buffer(f"{name}_{n}", dtype)) for n in range(count)]

    def _chunk_words(self, row: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        return load(self.weights[0], row, self.vectors.ramp(chunk * self.product.lanes))

    def _scale(self, row: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        """Of the words of a chunk, by lane."""
        from tvm import tirx

        product, vectors = self.product, self.vectors
        lanes, of_group = product.lanes, product.words_of_group
        if lanes <= of_group:
            place = tirx.floordiv(chunk * lanes, const(of_group))
            return vectors.all(tirx.Cast("float32", load(self.weights[1], row, place)))
        groups = Vectors(lanes // of_group)
        loaded = groups.cast(load(self.weights[1], row, groups.ramp(chunk * groups.lanes)))
        return vectors.shuffled([loaded] * of_group, [lane // of_group for lane in range(lanes)])


class _FloatProducts(_ProductWriter):
    """With activations in float32."""

    ACTIVATIONS = Floats
    PANELS = FloatPanels
    EIGHT = False  # LLVM takes twelve seconds
    activations: Floats

    def _chunk(self, tile: _ProductTile, chunk: PrimExpr) -> Stmt:
        wide, height = (1 + max(each) for each in zip(*tile.sums, strict=True))
        vectors = self.vectors
        words, scales = self._own(tile, "words", height, "uint32"), self._own(tile, "scale", height)
        statements = [vectors.set(words[n], self._chunk_words(tile.first + n, chunk)) for n in range(height)]
        statements += [vectors.set(scales[n], self._scale(tile.first + n, chunk)) for n in range(height)]
        data = [
            [self.activations.number(tile.row + m, chunk, at) for at in range(self.product.in_word)]
            for m in range(wide)
        ]
        if wide == 1:
            parts = self._own(tile, "part", _CHAINS)
            statements += vectors.clear(parts)
            for at, x in enumerate(data[0]):
                statements.append(vectors.add(parts[at % _CHAINS], numbers_of(self.product, vectors, words[0], at) * x))
            total = sum((vectors.get(each) for each in parts[1:]), vectors.get(parts[0]))
            return sequence([*statements, vectors.add(tile.sums[0, 0], total * vectors.get(scales[0]))])
        (weight,) = self._own(tile, "weight", 1)
        for at in range(self.product.in_word):
            for n in range(height):
                statements.append(
                    vectors.set(weight, numbers_of(self.product, vectors, words[n], at) * vectors.get(scales[n]))
                )
                statements += [vectors.add(tile.sums[m, n], vectors.get(weight) * data[m][at]) for m in range(wide)]
        return sequence(statements)


class _PlainProducts(_ProductWriter):
    """With weights that are floats."""

    ACTIVATIONS = Floats
    PANELS, PAIRS, TILES = PlainPanels, PlainPairs, PlainTiles
    activations: Floats

    def _chunk(self, tile: _ProductTile, chunk: PrimExpr) -> Stmt:
        wide, height = (1 + max(each) for each in zip(*tile.sums, strict=True))
        vectors, statements = self.vectors, []
        weights, chains = self._own(tile, "weight", height), self._own(tile, _CHAIN, _CHAINS if wide == 1 else 0)
        for at in range(self.product.in_word):
            place = vectors.ramp((chunk * self.product.in_word + at) * self.product.lanes)
            for n, weight in enumerate(weights):
                statements.append(vectors.set(weight, vectors.cast(load(self.weights[0], tile.first + n, place))))
            for (m, n), each in tile.sums.items():
                into = chains[at % _CHAINS] if chains else each
                product = vectors.get(weights[n]) * self.activations.number(tile.row + m, chunk, at)
                statements.append(vectors.add(into, product))
        return sequence(statements)


class _PairProducts(_ProductWriter):
    """With weights and activations in bfloat16, whose pairs lie side by side along K."""

    ACTIVATIONS = Pairs
    PANELS, PAIRS, TILES = PlainPanels, PlainPairs, PlainTiles
    IMPORTED = pairs.IMPORTED
    activations: Pairs

    def _chunk(self, tile: _ProductTile, chunk: PrimExpr) -> Stmt:
        height, statements = 1 + max(n for _, n in tile.sums), []
        vectors, weights = self.vectors, self._own(tile, "weight", height, "int32")
        chains = self._own(tile, _CHAIN, _CHAINS if len(tile.sums) == 1 else 0)
        count = 2 * vectors.lanes
        for at in range(self.product.in_word // 2):
            first = (chunk * (self.product.in_word // 2) + at) * count
            for n, weight in enumerate(weights):
                words = load(self.weights[0], tile.first + n, Vectors(count).ramp(first))
                statements.append(vectors.set(weight, vectors.bits_as(words, "int32")))
            for (m, n), each in tile.sums.items():
                into, data = chains[at % _CHAINS] if chains else each, self.activations.words(tile.row + m, first)
                value = pairs.pair_products(vectors.get(into), vectors.get(weights[n]), data)
                statements.append(vectors.set(into, value))
        return sequence(statements)


class _ByteProducts(_ProductWriter):
    """With activations in 8 bits."""

    ACTIVATIONS = Integers
    PANELS = BytePanels
    FEW: type[PanelProducts[Any]] | None = FewBytePanels
    activations: Integers
    TILES = UnpackedTiles

    def __init__(self, product: PackedProduct, function: PrimFunc) -> None:
        super().__init__(product, function)
        if FewTiles.least_rows(product) is not None:
            self.FEW = FewTiles
            self.activations = TileIntegers(product, self.data, self.rows, self.root)
        elif FewBytes.least_rows(product) is not None:
            self.FEW = FewBytes

    def _arranged_few(self) -> Stmt:
        given, count = self.activations, integer(self.rows.count)
        if not isinstance(given, TileIntegers):
            return super()._arranged_few()
        chosen = sequence(given.arranged(), self._products())
        for least, span in FewTiles.spans(self.product):
            if count is None or count >= least:
                few = FewTiles(self.product, self.weights, self.result, given, self.root, self._single, span)
                tiles = sequence(given.in_columns(span), few.statement())
                chosen = tiles if count is not None else either(self.rows.count >= least, tiles, chosen)
        return chosen

    def _single(self, output: PrimExpr, row: PrimExpr) -> Stmt:
        return self._tile(output, row, 1, 1)

    def _chunk(self, tile: _ProductTile, chunk: PrimExpr) -> Stmt:
        height = 1 + max(n for _, n in tile.sums)
        vectors, statements = self.vectors, []
        scales = self._own(tile, "scale", height)
        weights = [self._own(tile, f"bytes_{n}", len(self.product.byte_vectors), "uint32") for n in range(height)]
        for n in range(height):
            statements += self._bytes(weights[n], self._chunk_words(tile.first + n, chunk))
            statements.append(vectors.set(scales[n], self._scale(tile.first + n, chunk)))
        for (m, n), each in tile.sums.items():
            value = self.activations.begin(tile.row + m, chunk)
            for vector, weight in enumerate(weights[n]):
                numbers = vectors.bits_as(vectors.get(weight), "uint8", 4)
                value = vectors.dot(value, numbers, self.activations.bytes(tile.row + m, chunk, vector))
            factor = vectors.get(scales[n]) * self.activations.factor(tile.row + m, chunk)
            statements.append(vectors.add(each, vectors.cast(value) * factor))
        return sequence(statements)

    def _bytes(self, weights: Sequence[Buffer], words: PrimExpr) -> list[Stmt]:
        """Numbers as bytes."""
        from tvm import tirx

        vectors = self.vectors
        if len(weights) == 1:
            return [vectors.set(weights[0], words)]
        low, high = weights
        mask = vectors.all(_LOW_BITS, "uint32")
        shifted = vectors.get(high) >> vectors.all(4, "uint32")
        return [
            vectors.set(high, words),
            vectors.set(low, tirx.bitwise_and(vectors.get(high), mask)),
            vectors.set(high, tirx.bitwise_and(shifted, mask)),
        ]


def _divisor(count: int, most: int) -> int:
    """The largest power of 2 up to ``most``, one itself, that divides ``count``."""
    while count % most:
        most //= 2
    return most
