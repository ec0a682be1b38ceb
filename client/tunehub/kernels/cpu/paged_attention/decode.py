"""Attention of one query of each sequence: vectors lie along the depth of heads, and those of heads that share keys are
computed together, a page at a time. Keys of a sequence are divided into ``parts`` where there are more threads than
heads of keys; their results are merged behind (flash-decoding, Dao et al. 2023, with the online softmax of Milakov and
Gimelshein 2018, arXiv 1805.02867).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from tunehub.kernels.cpu.vectors import line_of
from tunehub.tir.statements import block_of, const, load, parallel, prefetch, sequence, serial, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

_CHAINS = 2  # of weighted values: multiply-adds wait four steps for each other


def decode(attention: AttentionOverKeys, root: SBlockRealize, parts: int) -> tuple[list[Stmt], list[Buffer]]:
    """The statements, and memory for results of parts."""
    from tvm import tirx

    if parts == 1:
        return [_tasks(attention, root, 1, None)], []
    results = attention.sequences * (attention.heads * parts)
    partial = tirx.decl_buffer((results * (attention.depth + 2 * LANES),), "float32", "partial")
    return [_tasks(attention, root, parts, partial), _merged(attention, root, parts, partial)], [partial]


def _tasks(attention: AttentionOverKeys, root: SBlockRealize, parts: int, partial: Buffer | None) -> Stmt:
    from tvm import tirx

    def task(at: PrimExpr) -> Stmt:
        part, pair = tirx.floormod(at, parts), tirx.floordiv(at, parts)
        head, which = tirx.floormod(pair, attention.key_heads), tirx.floordiv(pair, attention.key_heads)
        return _Heads(attention, which, head).attended(root, part, parts, partial)

    return parallel("task", attention.sequences * (attention.key_heads * parts), task)


def _place(attention: AttentionOverKeys, which: PrimExpr, head: PrimExpr, part: PrimExpr, parts: int) -> PrimExpr:
    """Where the result of a part lies: values, the largest score and the sum, the latter in all lanes each."""
    return ((which * attention.heads + head) * parts + part) * (attention.depth + 2 * LANES)


class _Heads:
    """Of queries that share keys, of one sequence."""

    def __init__(self, attention: AttentionOverKeys, which: PrimExpr, head: PrimExpr) -> None:
        from tvm import tirx

        self.attention, self.which, self.head = attention, which, head
        of_lanes, vectors = attention.group * LANES, range(attention.vectors)

        def vectors_of_heads(name: str) -> Buffer:
            return tirx.decl_buffer((of_lanes,), "float32", name)

        # TVM has a call for memory of 1 KB and more, to get it and to free it: so there is none.
        self.queries = [vectors_of_heads(f"query_{at}") for at in vectors]
        self.outputs = [vectors_of_heads(f"output_{at}") for at in vectors]
        self.largest, self.total = map(vectors_of_heads, ("largest", "total"))
        self.block = tirx.decl_buffer((2,), "int32", "block")  # its page, and the last key that counts
        self.weights = tirx.decl_buffer((LANES,), "float32", "weights")
        self.scores = [VECTORS.buffer(f"score_{key}") for key in range(BLOCK)]
        self.most, self.before, self.spare = (VECTORS.buffer(name) for name in ("most", "before", "spare"))
        self.sums = [[VECTORS.buffer(f"sum_{at}_{part}") for at in vectors] for part in range(_CHAINS)]
        self.copies = [
            [tirx.decl_buffer((attention.depth,), "float32", f"{name}_{key}") for key in range(BLOCK)]
            for name in ("key", "value")
        ]
        self.copied = attention.group > 1 and attention.dtype != "float32"

    def attended(self, root: SBlockRealize, part: PrimExpr, parts: int, partial: Buffer | None) -> Stmt:
        """Over the keys of a part."""
        from tvm import tirx

        length = self.attention.length(self.which)
        blocks = tirx.floordiv(length + BLOCK - 1, BLOCK)
        of_part = tirx.floordiv(blocks + parts - 1, parts)
        first = part * of_part
        count = tirx.max(tirx.min(of_part, blocks - first), const(0))
        statements = [
            serial("head", self.attention.group, self._begin),
            serial("block", count, lambda block: self._block(first + block, first + count - 1, length)),
            serial("head", self.attention.group, lambda row: self._end(row, part, parts, partial)),
        ]
        memory = [self.block, *self.queries, *self.outputs, self.largest, self.total, self.weights]
        memory += [each for copies in self.copies for each in copies] if self.copied else []
        vectors = [*self.scores, *(each for sums in self.sums for each in sums), self.most, self.before, self.spare]
        return block_of(root, sequence(statements), "attention", [*memory, *vectors])

    def _begin(self, row: PrimExpr) -> Stmt:
        attention, lanes = self.attention, VECTORS.ramp(row * LANES)
        statements = []
        for at, (queries, outputs) in enumerate(zip(self.queries, self.outputs, strict=True)):
            query = attention.query(self.which, self.head * attention.group + row, const(at))
            statements += [store(queries, [lanes], query), store(outputs, [lanes], VECTORS.all(0.0))]
        begin = [store(self.largest, [lanes], VECTORS.all(LEAST)), store(self.total, [lanes], VECTORS.all(0.0))]
        return sequence(statements, begin)

    def _block(self, block: PrimExpr, last_block: PrimExpr, length: PrimExpr) -> Stmt:
        """A block of keys. The lines of the next one are asked for before, where few of them are read much."""
        from tvm import tirx

        after = self.attention.first(self.which, tirx.min(block + 1, last_block))
        return sequence(
            self._asked(after) if self.copied else None,
            store(self.block, [0], self.attention.first(self.which, block)),
            store(self.block, [1], length - 1 - block * BLOCK),
            self._copies() if self.copied else None,
            serial("head", self.attention.group, self._row),
        )

    def _asked(self, page: PrimExpr) -> list[Stmt]:
        pages = self.attention.buffers["pages"]
        return [
            prefetch(pages, page, const(kind), self.head, const(key), const(element))
            for kind in (KEYS, VALUES)
            for key in range(BLOCK)
            for element in range(0, self.attention.depth, line_of(pages))
        ]

    def _copies(self) -> list[Stmt]:
        return [
            store(into, [VECTORS.ramp(at * LANES)], self._loaded(kind, key, at))
            for kind, copies in enumerate(self.copies)
            for key, into in enumerate(copies)
            for at in range(self.attention.vectors)
        ]

    def _loaded(self, kind: int, key: int, vector: int) -> PrimExpr:
        """What lies behind the last key is that again."""
        from tvm import tirx

        page, last = (load(self.block, each) for each in (0, 1))
        return self.attention.row(kind, page, self.head, tirx.min(const(key), last), const(vector))

    def _cached(self, kind: int, key: int, vector: int) -> PrimExpr:
        if self.copied:
            return load(self.copies[kind][key], VECTORS.ramp(vector * LANES))
        return self._loaded(kind, key, vector)

    def _row(self, row: PrimExpr) -> Stmt:
        """A query and a block of keys."""
        from tvm import tirx

        # Step 1. Scores, a vector of partial sums for each key; those of keys behind the last are masked.
        statements = VECTORS.clear(self.scores)
        for vector, queries in enumerate(self.queries):
            query = load(queries, VECTORS.ramp(row * LANES))
            statements += [
                VECTORS.add(score, query * self._cached(KEYS, key, vector)) for key, score in enumerate(self.scores)
            ]
        # Step 2. Online softmax: the new row_max, by which all before is corrected, weights, and row_sum.
        lanes, score = VECTORS.ramp(row * LANES), self.scores[0]
        seen = VECTORS.ramp(0) <= VECTORS.all(load(self.block, 1))
        statements += [
            *VECTORS.sums_of(self.scores),
            VECTORS.set(score, tirx.Select(seen, VECTORS.get(score), VECTORS.all(MASKED))),
            VECTORS.set(self.most, tirx.max(VECTORS.get(score), load(self.largest, lanes))),
            *VECTORS.largest(self.most),
            VECTORS.set(self.before, load(self.largest, lanes) - VECTORS.get(self.most)),
            *VECTORS.exp2(self.before, self.spare),
            VECTORS.set(score, VECTORS.get(score) - VECTORS.get(self.most)),
            *VECTORS.exp2(score, self.spare),
            store(self.largest, [lanes], VECTORS.get(self.most)),
            store(self.total, [lanes], load(self.total, lanes) * VECTORS.get(self.before) + VECTORS.get(score)),
            store(self.weights, [VECTORS.ramp(0)], VECTORS.get(score)),
        ]
        # Step 3. Outputs, corrected, and weighted values.
        return sequence(statements, self._outputs(row))

    def _outputs(self, row: PrimExpr) -> list[Stmt]:
        """Sums in several chains, which do not wait for each other."""
        lanes, (first, *others) = VECTORS.ramp(row * LANES), self.sums
        statements = [
            VECTORS.set(total, load(outputs, lanes) * VECTORS.get(self.before))
            for total, outputs in zip(first, self.outputs, strict=True)
        ]
        statements += VECTORS.clear([total for sums in others for total in sums])
        for key in range(BLOCK):
            weight = VECTORS.all(load(self.weights, const(key)))
            statements += [
                VECTORS.add(total, weight * self._cached(VALUES, key, at))
                for at, total in enumerate(self.sums[key % _CHAINS])
            ]
        for outputs, *sums in zip(self.outputs, *self.sums, strict=True):
            whole = VECTORS.get(sums[0])
            for each in sums[1:]:
                whole = whole + VECTORS.get(each)
            statements.append(store(outputs, [lanes], whole))
        return statements

    def _end(self, row: PrimExpr, part: PrimExpr, parts: int, partial: Buffer | None) -> Stmt:
        attention, lanes = self.attention, VECTORS.ramp(row * LANES)
        head = self.head * attention.group + row
        values = [load(each, lanes) for each in self.outputs]
        if partial is None:
            summed = sequence(VECTORS.set(self.spare, load(self.total, lanes)))
            largest = load(self.largest, row * LANES)
            return sequence(summed, attention.stored(self.which, head, values, largest, VECTORS.total(self.spare)))
        place = _place(attention, self.which, head, part, parts)
        rest = [load(self.largest, lanes), load(self.total, lanes)]
        return sequence(
            [store(partial, [VECTORS.ramp(place + at * LANES)], each) for at, each in enumerate([*values, *rest])]
        )


def _merged(attention: AttentionOverKeys, root: SBlockRealize, parts: int, partial: Buffer) -> Stmt:
    """The results of all parts of each query."""
    from tvm import tirx

    count = attention.vectors
    sums = [VECTORS.buffer(f"sum_{at}") for at in range(count + 1)]
    most, factor, spare = (VECTORS.buffer(name) for name in ("most", "factor", "spare"))

    def query(at: PrimExpr) -> Stmt:
        which, head = tirx.floordiv(at, attention.heads), tirx.floormod(at, attention.heads)

        def of(part: PrimExpr, vector: int) -> PrimExpr:
            return load(partial, VECTORS.ramp(_place(attention, which, head, part, parts) + vector * LANES))

        def merge(part: PrimExpr) -> Stmt:
            scaled = [of(part, vector) for vector in (*range(count), count + 1)]
            return sequence(
                VECTORS.set(factor, of(part, count) - VECTORS.get(most)),
                VECTORS.exp2(factor, spare),
                [VECTORS.add(one, each * VECTORS.get(factor)) for one, each in zip(sums, scaled, strict=True)],
            )

        def larger(part: PrimExpr) -> Stmt:
            return VECTORS.set(most, tirx.max(VECTORS.get(most), of(part, count)))

        values = [VECTORS.get(each) for each in sums[:-1]]
        body = sequence(
            VECTORS.clear(sums),
            VECTORS.set(most, VECTORS.all(LEAST)),
            serial("part", parts, larger),
            serial("part", parts, merge),
            attention.stored(which, head, values, load(most, const(0)), VECTORS.total(sums[-1])),
        )
        return block_of(root, body, "merge", [*sums, most, factor, spare])

    return parallel("query", attention.sequences * attention.heads, query)
