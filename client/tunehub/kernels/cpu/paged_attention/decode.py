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
from tunehub.tir.statements import block_of, const, load, parallel, sequence, serial, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt


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
        rows, of_lanes = attention.group * attention.depth, attention.group * LANES
        self.queries = tirx.decl_buffer((rows,), "float32", "queries")
        self.outputs = tirx.decl_buffer((rows,), "float32", "outputs")
        self.largest = tirx.decl_buffer((of_lanes,), "float32", "largest")
        self.total = tirx.decl_buffer((of_lanes,), "float32", "total")
        self.block = tirx.decl_buffer((2,), "int32", "block")  # its page, and the last key that counts
        self.weights = tirx.decl_buffer((LANES,), "float32", "weights")
        self.scores = [VECTORS.buffer(f"score_{key}") for key in range(BLOCK)]
        self.most, self.before, self.spare = (VECTORS.buffer(name) for name in ("most", "before", "spare"))
        self.sums = [VECTORS.buffer(f"sum_{at}") for at in range(attention.vectors)]
        self.copies = [tirx.decl_buffer((BLOCK * attention.depth,), "float32", name) for name in ("keys", "values")]
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
            serial("block", count, lambda block: self._block(first + block, length)),
            serial("head", self.attention.group, lambda row: self._end(row, part, parts, partial)),
        ]
        memory = [self.block, self.queries, self.outputs, self.largest, self.total, self.weights]
        memory += self.copies if self.copied else []
        vectors = [*self.scores, *self.sums, self.most, self.before, self.spare]
        return block_of(root, sequence(statements), "attention", [*memory, *vectors])

    def _begin(self, row: PrimExpr) -> Stmt:
        attention, statements = self.attention, []
        for at in range(attention.vectors):
            query = attention.query(self.which, self.head * attention.group + row, const(at))
            statements.append(store(self.queries, [self._of(row, at)], query))
            statements.append(store(self.outputs, [self._of(row, at)], VECTORS.all(0.0)))
        lanes = VECTORS.ramp(row * LANES)
        begin = [store(self.largest, [lanes], VECTORS.all(LEAST)), store(self.total, [lanes], VECTORS.all(0.0))]
        return sequence(statements, begin)

    def _of(self, row: PrimExpr, vector: int) -> PrimExpr:
        return VECTORS.ramp(row * self.attention.depth + vector * LANES)

    def _block(self, block: PrimExpr, length: PrimExpr) -> Stmt:
        page, last = (load(self.block, each) for each in (0, 1))
        copies = [self.attention.copied(kind, into, page, self.head, last) for kind, into in enumerate(self.copies)]
        return sequence(
            store(self.block, [0], self.attention.first(self.which, block)),
            store(self.block, [1], length - 1 - block * BLOCK),
            copies if self.copied else None,
            serial("head", self.attention.group, self._row),
        )

    def _cached(self, kind: int, key: int, vector: int) -> PrimExpr:
        from tvm import tirx

        if self.copied:
            return load(self.copies[kind], VECTORS.ramp(key * self.attention.depth + vector * LANES))
        page, last = (load(self.block, each) for each in (0, 1))
        return self.attention.row(kind, page, self.head, tirx.min(const(key), last), const(vector))

    def _row(self, row: PrimExpr) -> Stmt:
        """A query and a block of keys."""
        from tvm import tirx

        # Step 1. Scores, a vector of partial sums for each key; those of keys behind the last are masked.
        statements = VECTORS.clear(self.scores)
        for vector in range(self.attention.vectors):
            query = load(self.queries, self._of(row, vector))
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
        statements = [
            VECTORS.set(total, load(self.outputs, self._of(row, at)) * VECTORS.get(self.before))
            for at, total in enumerate(self.sums)
        ]
        for key in range(BLOCK):
            weight = VECTORS.all(load(self.weights, const(key)))
            statements += [
                VECTORS.add(total, weight * self._cached(VALUES, key, at)) for at, total in enumerate(self.sums)
            ]
        stores = [store(self.outputs, [self._of(row, at)], VECTORS.get(total)) for at, total in enumerate(self.sums)]
        return [*statements, *stores]

    def _end(self, row: PrimExpr, part: PrimExpr, parts: int, partial: Buffer | None) -> Stmt:
        attention, lanes = self.attention, VECTORS.ramp(row * LANES)
        head = self.head * attention.group + row
        values = [load(self.outputs, self._of(row, at)) for at in range(attention.vectors)]
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
