"""Attention of many queries: FlashAttention-2 (Dao 2023, arXiv 2307.08691), with a tile of sixteen queries in the lanes
of vectors.

Queries of a tile are of one sequence and of heads that share keys; they are transposed once. Of a block of keys and
values each element is multiplied with all of them, so that neither products nor the softmax add up across lanes.
Blocks that no query of a tile sees are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cpu import pairs
from tunehub.kernels.cpu.paged_attention.cached import (
    BLOCK,
    KEYS,
    LANES,
    LEAST,
    MASKED,
    VALUES,
    VECTORS,
    AttentionOverKeys,
)
from tunehub.tir.statements import block_of, const, load, loop, nest, sequence, serial, store, when
from tunehub.tir.versions import PARALLEL, SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

_HALF, _LOW, _HIGH = 16, 0x0000FFFF, 0xFFFF0000  # of a word


def prefill(attention: AttentionOverKeys, root: SBlockRealize) -> tuple[list[Stmt], list[Buffer]]:
    """The statements, and no memory; threads share heads of keys and tiles of queries, short and long ones in turns."""
    from tvm import tirx

    rows = attention.buffers["queries"].shape[0].astype("int32") * attention.group
    tiles = tirx.floordiv(rows, LANES) + attention.sequences

    def task(at: PrimExpr) -> Stmt:
        nth = tirx.floordiv(at, attention.key_heads)
        half = tirx.floordiv(nth, 2)
        tile = tirx.Select(tirx.floormod(nth, 2) == 0, half, tiles - 1 - half)
        kind = _PairTile if attention.pairs else _PagedTile
        return kind(attention, root, tirx.floormod(at, attention.key_heads)).found(tile)

    imported = {"pragma_import_llvm": pairs.IMPORTED} if attention.pairs else {}
    return [loop("task", tiles * attention.key_heads, task, PARALLEL, annotations=imported)], []


def found_tile(attention: AttentionOverKeys, place: Buffer, tile: PrimExpr, height: int) -> Stmt:
    """The sequence that has the tile of that number, each of ``height`` rows, and the tile less its number of tiles,
    put into ``place``; the latter is at least 0 where there are not so many."""
    from tvm import tirx

    starts = attention.buffers["starts"]

    def search(at: PrimExpr) -> Stmt:
        rows = (load(starts, at + 1) - load(starts, at)) * attention.group
        left = load(place, 1)
        own = tirx.floordiv(rows + height - 1, height)
        return when(left >= 0, sequence(store(place, [0], at), store(place, [1], left - own)))

    first = store(place, [0], const(-1)), store(place, [1], tile)
    return sequence(*first, serial("sequence", attention.sequences, search))


class QueryTile:
    """Sixteen queries of ``depth`` elements, of heads that share the keys of ``head``, and what is done with a block of
    keys; ``pairs``: in pairs of bfloat16."""

    KEYS: ClassVar = BLOCK  # that one step of weighted values has

    def __init__(self, depth: int, root: SBlockRealize, head: PrimExpr, *, pairs: bool = False) -> None:
        from tvm import tirx

        def memory(name: str, count: int, dtype: str = "float32") -> Buffer:
            return tirx.decl_buffer((count,), dtype, name)

        self.depth, self.root, self.head = depth, root, head
        elements = depth * LANES
        kind, in_word = ("uint32", 2) if pairs else ("float32", 1)
        self.place = memory("place", 2, "int32")  # the sequence, and the tile among its own
        self.block = memory("block", 2, "int32")  # where it begins, and the last key that counts
        self.outputs = memory("outputs", elements)
        self.queries, self.keys, self.values = (
            memory(name, elements // in_word, kind) for name in ("queries", "keys", "values")
        )
        self.weights = memory("weights", BLOCK * LANES // in_word, kind)
        self.largest, self.total, self.before = (VECTORS.buffer(name) for name in ("largest", "total", "before"))
        self.scores = [VECTORS.buffer(f"score_{key}") for key in range(BLOCK)]
        self.spare = VECTORS.buffer("spare")
        self.sums = [VECTORS.buffer(f"sum_{at}") for at in range(LANES)]

    def _scores(self) -> Stmt:
        """Of all queries with each key."""
        steps = self.depth * self.KEYS // BLOCK

        def element(each: PrimExpr) -> Stmt:
            query = load(self.queries, _at(each))
            return sequence(
                [
                    VECTORS.set(score, self._added(score, load(self.keys, each + key * steps), query))
                    for key, score in enumerate(self.scores)
                ]
            )

        return sequence(VECTORS.clear(self.scores), serial("element", steps, element))

    def _softmax(self, block: PrimExpr) -> Stmt:
        """Scores become weights; what they are corrected by is put into ``before``."""
        from tvm import tirx

        statements, most = [], VECTORS.get(self.largest)
        for key, score in enumerate(self.scores):
            statements.append(VECTORS.set(score, self._shown(block, key)))
            most = tirx.max(most, VECTORS.get(score))
        statements += [
            VECTORS.set(self.before, VECTORS.get(self.largest)),
            VECTORS.set(self.largest, most),
            VECTORS.set(self.before, self._exponent(VECTORS.get(self.before) - VECTORS.get(self.largest))),
            *VECTORS.exp2(self.before, self.spare),
            VECTORS.set(self.total, VECTORS.get(self.total) * VECTORS.get(self.before)),
        ]
        for key, score in enumerate(self.scores):
            statements += [
                VECTORS.set(score, self._exponent(VECTORS.get(score) - VECTORS.get(self.largest))),
                *VECTORS.exp2(score, self.spare),
                VECTORS.add(self.total, VECTORS.get(score)),
                *self._weighted(key),
            ]
        return sequence(statements)

    def _shown(self, block: PrimExpr, key: int) -> PrimExpr:
        """The scores of a key, of queries that see it."""
        raise NotImplementedError

    def _exponent(self, value: PrimExpr) -> PrimExpr:
        """Of 2, of a score less the largest: they are scaled for that."""
        return value

    def _weighted(self, key: int) -> list[Stmt]:
        """The weights of a key put into memory."""
        return [store(self.weights, [VECTORS.ramp(key * LANES)], VECTORS.get(self.scores[key]))]

    def _outputs(self) -> Stmt:
        """Weighted values are added to outputs."""
        depth = self.depth

        def vector(at: PrimExpr) -> Stmt:
            def key(each: PrimExpr) -> Stmt:
                weight = load(self.weights, _at(each))
                return sequence(
                    [
                        VECTORS.set(total, self._added(total, load(self.values, each * depth + at * LANES + n), weight))
                        for n, total in enumerate(self.sums)
                    ]
                )

            def place(element: int) -> PrimExpr:
                return _at(self._element(at, element))

            corrected = [
                VECTORS.set(total, load(self.outputs, place(element)) * VECTORS.get(self.before))
                for element, total in enumerate(self.sums)
            ]
            stored = [
                store(self.outputs, [place(element)], VECTORS.get(total)) for element, total in enumerate(self.sums)
            ]
            return sequence(corrected, serial("key", self.KEYS, key), stored)

        return serial("vector", self.depth // LANES, vector)

    def _added(self, total: Buffer, number: PrimExpr, queries: PrimExpr) -> PrimExpr:
        """``total`` and the products of what is in memory with a vector of queries or weights."""
        return VECTORS.get(total) + VECTORS.all(number) * queries

    def _element(self, vector: PrimExpr, at: int) -> PrimExpr:
        """Of an output, whose values are at this place of a vector of them."""
        return vector * LANES + at


class _PagedTile(QueryTile):
    """One of a sequence in a cache."""

    def __init__(self, attention: AttentionOverKeys, root: SBlockRealize, head: PrimExpr) -> None:
        from tvm import tirx

        super().__init__(attention.depth, root, head, pairs=attention.pairs)
        self.attention = attention
        self.seen = tirx.decl_buffer((LANES,), "int32", "seen")

    def found(self, tile: PrimExpr) -> Stmt:
        """The tile with this number among those of all sequences, where there are so many."""
        place = self.place
        behind = found_tile(self.attention, place, tile, LANES)
        buffers = [place, self.block, self.queries, self.outputs, self.keys, self.values, self.weights, self.seen]
        vectors = [self.largest, self.total, self.before, self.spare, *self.scores, *self.sums]
        body = sequence(behind, when(load(place, 1) < 0, self._attended(load(place, 0))))
        return block_of(self.root, body, "attention", [*buffers, *vectors])

    def _attended(self, at: PrimExpr) -> Stmt:
        """What ``place`` says: the sequence, and the tile less the number of its tiles."""
        from tvm import tirx

        attention, starts = self.attention, self.attention.buffers["starts"]
        begin = load(starts, at)
        rows = (load(starts, at + 1) - begin) * attention.group
        first = (load(self.place, 1) + tirx.floordiv(rows + LANES - 1, LANES)) * LANES
        length = attention.length(at)
        blocks = tirx.floordiv(load(self.seen, LANES - 1), BLOCK) + 1
        return sequence(
            # Step 1. Queries of the tile, transposed; row_max, row_sum and outputs begin.
            serial("lane", LANES, lambda lane: self._query(lane, begin, rows, first, length)),
            VECTORS.set(self.largest, VECTORS.all(LEAST)),
            VECTORS.set(self.total, VECTORS.all(0.0)),
            serial("element", attention.depth, lambda each: store(self.outputs, [_at(each)], VECTORS.all(0.0))),
            # Step 2. Block by block of keys and values: scores, online softmax, outputs.
            serial("block", blocks, lambda block: self._block(at, block, length)),
            # Step 3. Outputs divided by row_sum.
            serial("lane", LANES, lambda lane: self._result(lane, begin, rows, first)),
        )

    def _query(self, lane: PrimExpr, begin: PrimExpr, rows: PrimExpr, first: PrimExpr, length: PrimExpr) -> Stmt:
        """A query in its lane, and the last key that it sees; behind the last query that again."""
        from tvm import tirx

        attention, group = self.attention, self.attention.group
        row = tirx.min(first + lane, rows - 1)
        query = tirx.floordiv(row, group)
        behind = tirx.floordiv(rows, group) - 1 - query
        seen = length - 1 - tirx.Select(attention.causal > 0, behind, const(0))
        head = self.head * group + tirx.floormod(row, group)
        stores = [
            store(self.queries, [VECTORS.ramp(vector * LANES * LANES + lane, LANES)], value)
            for vector, value in enumerate(self._query_vectors(begin + query, head))
        ]
        return sequence(store(self.seen, [lane], seen), stores)

    def _query_vectors(self, row: PrimExpr, head: PrimExpr) -> list[PrimExpr]:
        return [self.attention.query(row, head, const(vector)) for vector in range(self.attention.vectors)]

    def _block(self, at: PrimExpr, block: PrimExpr, length: PrimExpr) -> Stmt:
        first, last = (load(self.block, each) for each in (0, 1))
        found = (
            store(self.block, [0], self.attention.first(at, block)),
            store(self.block, [1], length - 1 - block * BLOCK),
        )
        return sequence(found, self._copies(first, last), self._scores(), self._softmax(block), self._outputs())

    def _copies(self, first: PrimExpr, last: PrimExpr) -> list[Stmt]:
        """The keys and values of the block at ``first``."""
        return [
            self.attention.copied(kind, into, first, self.head, last)
            for kind, into in ((KEYS, self.keys), (VALUES, self.values))
        ]

    def _shown(self, block: PrimExpr, key: int) -> PrimExpr:
        """The scores of a key, of queries that see it."""
        from tvm import tirx

        seen = VECTORS.all(block * BLOCK + key) <= load(self.seen, VECTORS.ramp(0))
        return tirx.Select(seen, VECTORS.get(self.scores[key]), VECTORS.all(MASKED))

    def _result(self, lane: PrimExpr, begin: PrimExpr, rows: PrimExpr, first: PrimExpr) -> Stmt:
        from tvm import tirx

        group, row = self.attention.group, first + lane
        head = self.head * group + tirx.floormod(row, group)
        values = [
            load(self.outputs, VECTORS.ramp(vector * LANES * LANES + lane, LANES))
            for vector in range(self.attention.vectors)
        ]
        largest, total = load(self.largest, lane), load(self.total, lane)
        written = self.attention.stored(begin + tirx.floordiv(row, group), head, values, largest, total)
        return when(row < rows, written)


class _PairTile(_PagedTile):
    """In pairs of bfloat16: of neighbours of a query and a key, of weights and values of two keys."""

    KEYS: ClassVar = BLOCK // 2

    def _query_vectors(self, row: PrimExpr, head: PrimExpr) -> list[PrimExpr]:
        return [self.attention.query_words(row, head, const(vector)) for vector in range(self.attention.vectors // 2)]

    def _copies(self, first: PrimExpr, last: PrimExpr) -> list[Stmt]:
        """Keys as they are; of two values the lower numbers of words, and then the higher ones."""
        from tvm import tirx

        attention, vectors = self.attention, self.attention.vectors // 2

        def words(kind: int, key: PrimExpr, vector: PrimExpr) -> PrimExpr:
            return attention.row_words(kind, first, self.head, tirx.min(key, last), vector)

        def key(at: PrimExpr, vector: PrimExpr) -> Stmt:
            return store(self.keys, [VECTORS.ramp((at * vectors + vector) * LANES)], words(KEYS, at, vector))

        def values(pair: PrimExpr, vector: PrimExpr) -> Stmt:
            one, other = (words(VALUES, pair * 2 + at, vector) for at in (0, 1))
            place = (pair * vectors + vector) * (2 * LANES)
            half, low, high = VECTORS.all(_HALF, "uint32"), *(VECTORS.all(each, "uint32") for each in (_LOW, _HIGH))
            even = tirx.bitwise_or(tirx.bitwise_and(one, low), other << half)
            odd = tirx.bitwise_or(one >> half, tirx.bitwise_and(other, high))
            return sequence(
                [store(self.values, [VECTORS.ramp(place + at * LANES)], each) for at, each in enumerate((even, odd))]
            )

        return [
            nest("key vector", [BLOCK, vectors], key, SERIAL),
            nest("pair vector", [BLOCK // 2, vectors], values, SERIAL),
        ]

    def _scores(self) -> Stmt:
        scaled = [VECTORS.set(each, VECTORS.get(each) * VECTORS.all(self.attention.scale)) for each in self.scores]
        return sequence(super()._scores(), scaled)

    def _weighted(self, key: int) -> list[Stmt]:
        if key % 2 == 0:
            return []
        word = VECTORS.half_words(*(VECTORS.get(self.scores[each]) for each in (key - 1, key)))
        return [store(self.weights, [VECTORS.ramp(key // 2 * LANES)], word)]

    def _added(self, total: Buffer, number: PrimExpr, queries: PrimExpr) -> PrimExpr:
        words = [VECTORS.bits_as(each, "int32") for each in (VECTORS.all(number), queries)]
        return pairs.pair_products(VECTORS.get(total), *words)

    def _element(self, vector: PrimExpr, at: int) -> PrimExpr:
        from tvm import tirx

        if not self.attention.are_neighbours:
            return super()._element(vector, at)
        return tirx.floordiv(vector, 2) * (2 * LANES) + at * 2 + tirx.floormod(vector, 2)


def _at(element: PrimExpr) -> PrimExpr:
    """Of all queries of a tile."""
    return VECTORS.ramp(element * LANES)
