"""Attention of prompts by tiles of AMX (:mod:`tunehub.kernels.cpu.amx`) in bfloat16: FlashAttention-2 (Dao 2023, arXiv
2307.08691), 32 queries and 64 keys at a time. Scores have a row for each key, so that row_max and row_sum of sixteen
queries are vectors, and weights of two keys are the words that a tile of weights has. Keys are copied as words of two
numbers, values with words of two keys, once for all queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.instruction import pointer_to
from tunehub.kernels.cpu.paged_attention.cached import (
    BLOCK,
    KEYS,
    LANES,
    LEAST,
    MASKED,
    TWICE,
    VALUES,
    VECTORS,
    AttentionOverKeys,
)
from tunehub.kernels.cpu.paged_attention.prefill import found_tile
from tunehub.tir.statements import block_of, const, either, load, loop, nest, sequence, serial, store, when
from tunehub.tir.versions import PARALLEL, SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

QUERIES, TOGETHER = 2 * LANES, 4 * BLOCK  # queries and keys of a step
_VECTORS = (0, 1)  # of queries
_STEP = TWICE.lanes  # numbers that an instruction adds up: 16 words
_WORD = 4  # bytes
_CHAINS = 4  # of maxima and sums, side by side
_DATA, _WEIGHTS = 4, 6  # the first registers with them, behind those with sums


def prefill_by_tiles(attention: AttentionOverKeys, root: SBlockRealize) -> tuple[list[Stmt], list[Buffer]]:
    """The statements, and memory for keys and values; threads share heads of keys and tiles of queries, short and long
    ones in turns."""
    from tvm import tirx

    rows = attention.buffers["queries"].shape[0].astype("int32") * attention.group
    tiles, cached = tirx.floordiv(rows, QUERIES) + attention.sequences, CachedWords(attention)

    def task(at: PrimExpr) -> Stmt:
        tile = in_turns(tirx.floordiv(at, attention.key_heads), tiles)
        return TiledQueries(cached, root, tirx.floormod(at, attention.key_heads)).found(tile)

    imported = {"pragma_import_llvm": amx.IMPORTED}
    tasks = loop("task", tiles * attention.key_heads, task, PARALLEL, annotations=imported)
    return [cached.copied(root), tasks], [cached.keys, cached.values]


def in_turns(nth: PrimExpr, tiles: PrimExpr) -> PrimExpr:
    """The tile that comes as ``nth``: short and long ones, first and last, in turns."""
    from tvm import tirx

    half = tirx.floordiv(nth, 2)
    return tirx.Select(tirx.floormod(nth, 2) == 0, half, tiles - 1 - half)


class CachedWords:
    """Keys [block, head, key, words of its numbers], values [block, head, halves of keys, numbers, words of keys]."""

    def __init__(self, attention: AttentionOverKeys) -> None:
        from tvm import tirx

        self.attention: Any = attention
        buffers = attention.buffers
        self.of_block = TOGETHER // BLOCK if attention.in_pages else TOGETHER  # what the table counts
        rows = (buffers["values"] if attention.in_pages else buffers["keys"]).shape[0].astype("int32")
        self.blocks = tirx.floordiv(rows, self.of_block) + attention.sequences
        self.words = TOGETHER * attention.depth // 2  # of a block of a head
        count = self.blocks * (attention.key_heads * self.words)
        self.keys, self.values = (tirx.decl_buffer((count,), "uint32", name) for name in ("words", "pairs"))

    def first(self, sequence_: PrimExpr) -> PrimExpr:
        """The first block of a sequence: those of the ones before have room, whatever their lengths."""
        from tvm import tirx

        return tirx.floordiv(load(self.attention.buffers["table"], sequence_), self.of_block) + sequence_

    def place(self, block: PrimExpr, head: PrimExpr) -> PrimExpr:
        """Where the words of a block begin."""
        return (block * self.attention.key_heads + head) * self.words

    def copied(self, root: SBlockRealize) -> Stmt:
        """All of them."""
        from tvm import tirx

        heads = self.attention.key_heads

        def task(at: PrimExpr) -> Stmt:
            return self._found(root, tirx.floordiv(at, heads), tirx.floormod(at, heads))

        return loop("copy", self.blocks * heads, task, PARALLEL)

    def _found(self, root: SBlockRealize, block: PrimExpr, head: PrimExpr) -> Stmt:
        """The block of whichever sequence has it."""
        from tvm import tirx

        firsts, keys = (tirx.decl_buffer((TOGETHER,), "int32", name) for name in ("firsts", "of_block"))
        taken = [VECTORS.buffer(f"taken_{at}", "uint32") for at in range(LANES)]
        spare = VECTORS.buffer("spare", "uint32")

        def copy(at: PrimExpr) -> Stmt:
            own, last = block - self.first(at), self.attention.length(at) - 1

            def key(each: PrimExpr) -> Stmt:
                place = tirx.min(own * TOGETHER + each, last)  # behind the last key that again
                first = self.attention.first(at, tirx.floordiv(place, BLOCK))
                return sequence(store(firsts, [each], first), store(keys, [each], tirx.floormod(place, BLOCK)))

            return when(
                tirx.all(own >= 0, own * TOGETHER <= last),
                serial("key", TOGETHER, key),
                self._keys(firsts, keys, block, head),
                self._values(firsts, keys, block, head, (taken, spare)),
            )

        return block_of(root, serial("sequence", self.attention.sequences, copy), "copy", [firsts, keys, *taken, spare])

    def _keys(self, firsts: Buffer, keys: Buffer, block: PrimExpr, head: PrimExpr) -> Stmt:
        attention, vectors = self.attention, self.attention.vectors // 2

        def vector(key: PrimExpr, at: PrimExpr) -> Stmt:
            words = attention.row_words(KEYS, load(firsts, key), head, load(keys, key), at)
            place = self.place(block, head) + (key * vectors + at) * LANES
            return store(self.keys, [VECTORS.ramp(place)], words)

        return nest("key vector", [TOGETHER, vectors], vector, SERIAL)

    def _values(
        self, firsts: Buffer, keys: Buffer, block: PrimExpr, head: PrimExpr, own: tuple[list[Buffer], Buffer]
    ) -> Stmt:
        attention, (taken, spare) = self.attention, own

        def vector(half: PrimExpr, at: PrimExpr) -> Stmt:
            def value(key: PrimExpr) -> PrimExpr:
                return attention.row(VALUES, load(firsts, key), head, load(keys, key), at)

            pairs = [half * _STEP + 2 * pair for pair in range(LANES)]
            loaded = [
                VECTORS.set(each, VECTORS.half_words(value(pair), value(pair + 1)))
                for each, pair in zip(taken, pairs, strict=True)
            ]
            first = self.place(block, head) + (half * attention.depth + at * LANES) * LANES
            stored = [
                store(self.values, [VECTORS.ramp(first + n * LANES)], VECTORS.get(each)) for n, each in enumerate(taken)
            ]
            return sequence(loaded, VECTORS.transposed(taken, spare), stored)

        return nest("half vector", [TOGETHER // _STEP, attention.vectors], vector, SERIAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class _TiledProduct:
    """``sums`` [rows, queries] in float32 of ``data``, words from ``first`` on, with ``weights`` [words, queries]. Of
    data, rows are ``row`` words apart, and ``steps`` of 16 words ``step``. ``added`` to sums: else these begin at 0."""

    sums: Buffer
    data: Buffer
    first: PrimExpr
    weights: Buffer
    rows: int
    row: int
    steps: int
    step: int
    added: bool

    def by_tiles(self) -> Stmt:
        """Two tiles of rows and two of queries at a time."""
        tile = QUERIES * _WORD

        def pointer(buffer: Buffer, place: PrimExpr | int) -> PrimExpr:
            return pointer_to(buffer, const(place) if isinstance(place, int) else place, _WORD)

        def rows(pair: PrimExpr) -> Stmt:
            first = pair * (2 * LANES)
            sums = [
                (register, pointer(self.sums, (first + m * LANES) * QUERIES + n * LANES), tile)
                for register, (m, n) in enumerate((m, n) for m in (0, 1) for n in _VECTORS)
            ]
            begun = [
                amx.instruction("tileloadd64", *each) if self.added else amx.instruction("tilezero", each[0])
                for each in sums
            ]
            steps = [self._step(pointer, first, step) for step in range(self.steps)]
            return sequence(begun, *steps, [amx.instruction("tilestored64", *each) for each in sums])

        return serial("rows", self.rows // (2 * LANES), rows)

    def _step(self, pointer: Callable[[Buffer, PrimExpr | int], PrimExpr], first: PrimExpr, step: int) -> list[Stmt]:
        begin = self.first + step * self.step
        data = [pointer(self.data, begin + (first + m * LANES) * self.row) for m in (0, 1)]
        weights = [pointer(self.weights, step * LANES * QUERIES + n * LANES) for n in _VECTORS]
        return [
            *(amx.instruction("tileloadd64", _DATA + m, each, self.row * _WORD) for m, each in enumerate(data)),
            *(amx.instruction("tileloadd64", _WEIGHTS + n, each, QUERIES * _WORD) for n, each in enumerate(weights)),
            *(amx.instruction("tdpbf16ps", 2 * m + n, _DATA + m, _WEIGHTS + n) for m in (0, 1) for n in _VECTORS),
        ]

    def plain(self) -> Stmt:
        """The same where there is no AMX."""

        def row(at: PrimExpr, vector: PrimExpr) -> Stmt:
            place = VECTORS.ramp(at * QUERIES + vector * LANES)

            def word(step: PrimExpr, each: PrimExpr) -> Stmt:
                data = VECTORS.all(load(self.data, self.first + at * self.row + step * self.step + each))
                words = load(self.weights, VECTORS.ramp((step * LANES + each) * QUERIES + vector * LANES))
                products = (
                    one * other for one, other in zip(VECTORS.floats_of(data), VECTORS.floats_of(words), strict=True)
                )
                return store(self.sums, [place], load(self.sums, place) + next(products) + next(products))

            begun = None if self.added else store(self.sums, [place], VECTORS.all(0.0))
            return sequence(begun, nest("step word", [self.steps, LANES], word, SERIAL))

        return nest("row vector", [self.rows, len(_VECTORS)], row, SERIAL)


class TiledQueries:
    """Queries of heads that share the keys of ``head``, and what is done with a block of keys."""

    LEAST: ClassVar = LEAST  # that row_max is at least

    def __init__(self, cached: CachedWords, root: SBlockRealize, head: PrimExpr) -> None:
        from tvm import tirx

        def memory(name: str, count: int, dtype: str = "float32") -> Buffer:
            return tirx.decl_buffer((count,), dtype, name)

        self.attention: Any = cached.attention
        self.cached, self.root, self.head = cached, root, head
        depth = self.attention.depth
        self.place = memory("place", 3, "int32")  # the sequence, the tile among its own, and whether there is no AMX
        self.seen = memory("seen", QUERIES, "int32")
        self.outputs, self.rows = memory("outputs", depth * QUERIES), memory("rows", LANES * depth)
        self.scores = memory("scores", TOGETHER * QUERIES)
        self.weights = memory("weights", TOGETHER // 2 * QUERIES, "uint32")
        self.queries = memory("queries", depth // 2 * QUERIES, "uint32")
        self.words = memory("words", LANES * depth // 2, "uint32")
        self.largest, self.total, self.before = (memory(name, QUERIES) for name in ("largest", "total", "before"))
        self.most, self.sums = ([VECTORS.buffer(f"{name}_{at}") for at in range(_CHAINS)] for name in ("most", "sum"))
        self.exponents = [VECTORS.buffer(f"exponent_{at}") for at in range(_CHAINS)]
        self.spare = VECTORS.buffer("spare")
        self.turned = {
            kind: ([VECTORS.buffer(f"{kind}_{at}", kind) for at in range(LANES)], VECTORS.buffer(f"{kind}_spare", kind))
            for kind in ("uint32", "float32")
        }

    def found(self, tile: PrimExpr) -> Stmt:
        """The tile with this number among those of all sequences, where there are so many."""
        begun = amx.whole_tiles()
        attended = self._attended(load(self.place, 0))
        released = when(load(self.place, 2) == 0, amx.call_tiles("llvm.x86.tilerelease"))
        body = sequence(
            found_tile(self.attention, self.place, tile, QUERIES),
            when(load(self.place, 1) < 0, store(self.place, [2], begun), attended, released),
        )
        return self._in_block(body, self.seen)

    def _in_block(self, body: Stmt, *more: Buffer) -> Stmt:
        """``body`` with the memory of a tile, and ``more``."""
        memory = [self.place, self.outputs, self.rows, self.scores, self.weights, self.queries, self.words, *more]
        vectors = [self.largest, self.total, self.before, *self.most, *self.sums, *self.exponents, self.spare]
        turned = [each for buffers, spare in self.turned.values() for each in (*buffers, spare)]
        return block_of(self.root, body, "attention", [*memory, *vectors, *turned])

    def _attended(self, at: PrimExpr) -> Stmt:
        """What ``place`` says: the sequence, and the tile less the number of its tiles."""
        from tvm import tirx

        attention, starts = self.attention, self.attention.buffers["starts"]
        begin = load(starts, at)
        rows = (load(starts, at + 1) - begin) * attention.group
        first = (load(self.place, 1) + tirx.floordiv(rows + QUERIES - 1, QUERIES)) * QUERIES
        length = attention.length(at)
        blocks = tirx.floordiv(load(self.seen, QUERIES - 1), TOGETHER) + 1

        def clear(each: PrimExpr) -> Stmt:
            return store(self.outputs, [VECTORS.ramp(each * LANES)], VECTORS.all(0.0))

        def begun(vector: PrimExpr) -> Stmt:
            lanes = VECTORS.ramp(vector * LANES)
            return sequence(
                store(self.largest, [lanes], VECTORS.all(self.LEAST)), store(self.total, [lanes], VECTORS.all(0.0))
            )

        return sequence(
            # Step 1. Queries of the tile as words, transposed; row_max, row_sum and outputs begin.
            serial("vector", len(_VECTORS), lambda vector: self._queries(vector, begin, rows, first, length)),
            serial("vector", len(_VECTORS), begun),
            serial("each", attention.depth * len(_VECTORS), clear),
            # Step 2. Block by block of keys and values: scores, online softmax, outputs.
            serial("block", blocks, lambda block: self._block(at, block)),
            # Step 3. Outputs divided by row_sum.
            serial("vector", len(_VECTORS), lambda vector: self._results(vector, begin, rows, first)),
        )

    def _queries(self, vector: PrimExpr, begin: PrimExpr, rows: PrimExpr, first: PrimExpr, length: PrimExpr) -> Stmt:
        """Sixteen of them, and the last keys that they see; behind the last query that again."""
        from tvm import tirx

        attention, group, width = self.attention, self.attention.group, self.attention.depth // 2

        def lane(at: PrimExpr) -> Stmt:
            row = tirx.min(first + vector * LANES + at, rows - 1)
            query, head = tirx.floordiv(row, group), self.head * group + tirx.floormod(row, group)
            behind = tirx.floordiv(rows, group) - 1 - query
            seen = length - 1 - tirx.Select(attention.causal > 0, behind, const(0))
            words = [
                store(
                    self.words,
                    [VECTORS.ramp(at * width + each * LANES)],
                    attention.query_words(begin + query, head, const(each)),
                )
                for each in range(width // LANES)
            ]
            return sequence(store(self.seen, [vector * LANES + at], seen), words)

        return sequence(serial("lane", LANES, lane), self._words_turned(vector))

    def _words_turned(self, vector: PrimExpr) -> Stmt:
        """Words of sixteen queries as those that tiles read: of each number all queries."""
        width = self.attention.depth // 2

        def turn(each: PrimExpr) -> Stmt:
            return self._turned(
                self.words,
                lambda at: each * LANES + at * width,
                self.queries,
                lambda at: (each * LANES + at) * QUERIES + vector * LANES,
            )

        return serial("each", width // LANES, turn)

    def _turned(
        self,
        source: Buffer,
        place: Callable[[int], PrimExpr],
        into: Buffer,
        target: Callable[[int], PrimExpr],
    ) -> Stmt:
        """Sixteen vectors become those of their first numbers, of their second ones and so on."""
        buffers, spare = self.turned[str(source.dtype)]
        return sequence(
            [VECTORS.set(each, load(source, VECTORS.ramp(place(at)))) for at, each in enumerate(buffers)],
            VECTORS.transposed(buffers, spare),
            [store(into, [VECTORS.ramp(target(at))], VECTORS.get(each)) for at, each in enumerate(buffers)],
        )

    def _block(self, at: PrimExpr, block: PrimExpr) -> Stmt:
        scores, outputs = self._products(self.cached.place(self.cached.first(at) + block, self.head))
        return sequence(
            self._multiplied(scores),
            when(block * TOGETHER + (TOGETHER - 1) > load(self.seen, 0), self._masked(block)),
            self._weighted_values(outputs),
        )

    def _products(self, first: PrimExpr) -> tuple[_TiledProduct, _TiledProduct]:
        """Of keys and queries, and of values and weights, of the block whose words begin at ``first``."""
        cached, depth = self.cached, self.attention.depth
        scores = _TiledProduct(
            sums=self.scores, data=cached.keys, first=first, weights=self.queries, rows=TOGETHER, row=depth // 2,
            steps=depth // _STEP, step=LANES, added=False,
        )  # fmt: skip
        outputs = _TiledProduct(
            sums=self.outputs, data=cached.values, first=first, weights=self.weights, rows=depth, row=LANES,
            steps=TOGETHER // _STEP, step=depth * LANES, added=True,
        )  # fmt: skip
        return scores, outputs

    def _weighted_values(self, outputs: _TiledProduct) -> Stmt:
        """Scores become weights, and weighted values are added to outputs."""
        return sequence(
            serial("vector", len(_VECTORS), self._softmax),
            nest("number vector", [self.attention.depth, len(_VECTORS)], self._corrected, SERIAL),
            self._multiplied(outputs),
        )

    def _multiplied(self, product: _TiledProduct) -> Stmt:
        return either(load(self.place, 2) == 0, product.by_tiles(), product.plain())

    def _masked(self, block: PrimExpr) -> Stmt:
        """Scores of keys that queries do not see."""
        from tvm import tirx

        def score(key: PrimExpr, vector: PrimExpr) -> Stmt:
            place = VECTORS.ramp(key * QUERIES + vector * LANES)
            seen = VECTORS.all(block * TOGETHER + key) <= load(self.seen, VECTORS.ramp(vector * LANES))
            return store(self.scores, [place], tirx.Select(seen, load(self.scores, place), VECTORS.all(MASKED)))

        return nest("key vector", [TOGETHER, len(_VECTORS)], score, SERIAL)

    def _softmax(self, vector: PrimExpr) -> Stmt:
        """Scores of sixteen queries become weights; what outputs are corrected by is put into ``before``."""
        from tvm import tirx

        lanes, spare = VECTORS.ramp(vector * LANES), self.spare
        most, total = self.most[0], self.sums[0]

        def score(key: PrimExpr) -> PrimExpr:
            return load(self.scores, VECTORS.ramp(key * QUERIES + vector * LANES)) * VECTORS.all(self.attention.scale)

        def larger(at: PrimExpr) -> Stmt:
            return sequence(
                [
                    VECTORS.set(each, tirx.max(VECTORS.get(each), score(at * _CHAINS + n)))
                    for n, each in enumerate(self.most)
                ]
            )

        def weighted(at: PrimExpr) -> Stmt:
            return self._weighted(at, vector, score)

        return sequence(
            [VECTORS.set(each, load(self.largest, lanes)) for each in self.most],
            serial("keys", TOGETHER // _CHAINS, larger),
            [VECTORS.set(most, tirx.max(VECTORS.get(most), VECTORS.get(each))) for each in self.most[1:]],
            VECTORS.set(self.exponents[0], load(self.largest, lanes) - VECTORS.get(most)),
            VECTORS.exp2(self.exponents[0], spare),
            store(self.before, [lanes], VECTORS.get(self.exponents[0])),
            store(self.largest, [lanes], VECTORS.get(most)),
            VECTORS.clear(self.sums),
            serial("keys", TOGETHER // _CHAINS, weighted),
            [VECTORS.add(total, VECTORS.get(each)) for each in self.sums[1:]],
            store(self.total, [lanes], load(self.total, lanes) * load(self.before, lanes) + VECTORS.get(total)),
        )

    def _weighted(self, at: PrimExpr, vector: PrimExpr, score: Callable[[PrimExpr], PrimExpr]) -> Stmt:
        """Of four keys."""
        statements: list[Stmt] = []
        for n, (each, total) in enumerate(zip(self.exponents, self.sums, strict=True)):
            statements += [
                VECTORS.set(each, score(at * _CHAINS + n) - VECTORS.get(self.most[0])),
                *VECTORS.exp2(each, self.spare),
                VECTORS.add(total, VECTORS.get(each)),
            ]
        for n in range(0, _CHAINS, 2):
            place = (at * (_CHAINS // 2) + n // 2) * QUERIES + vector * LANES
            word = VECTORS.half_words(*(VECTORS.get(each) for each in self.exponents[n : n + 2]))
            statements.append(store(self.weights, [VECTORS.ramp(place)], word))
        return sequence(statements)

    def _corrected(self, number: PrimExpr, vector: PrimExpr) -> Stmt:
        place = VECTORS.ramp(number * QUERIES + vector * LANES)
        return store(self.outputs, [place], load(self.outputs, place) * load(self.before, VECTORS.ramp(vector * LANES)))

    def _results(self, vector: PrimExpr, begin: PrimExpr, rows: PrimExpr, first: PrimExpr) -> Stmt:
        """Of sixteen queries."""
        from tvm import tirx

        attention, depth, group = self.attention, self.attention.depth, self.attention.group

        def turn(each: PrimExpr) -> Stmt:
            return self._turned(
                self.outputs,
                lambda at: (each * LANES + at) * QUERIES + vector * LANES,
                self.rows,
                lambda at: each * LANES + at * depth,
            )

        def lane(at: PrimExpr) -> Stmt:
            row = first + vector * LANES + at
            head = self.head * group + tirx.floormod(row, group)
            values = [load(self.rows, VECTORS.ramp(at * depth + each * LANES)) for each in range(attention.vectors)]
            largest, total = (load(each, vector * LANES + at) for each in (self.largest, self.total))
            written = attention.stored(begin + tirx.floordiv(row, group), head, values, largest, total)
            return when(row < rows, written)

        return sequence(serial("each", attention.vectors, turn), serial("lane", LANES, lane))
