"""Attention as one kernel: queries of a block stay in registers, keys and values pass by in tiles, and the softmax is
made as they do (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135, and 2023, arXiv
2307.08691). Keys may be divided among the warps of a block, whose parts are put together at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tunehub.cuda.attention import device_code as device
from tunehub.cuda.attention.nodes import (
    SharedTile,
    barrier,
    load,
    nest,
    pointer,
    run,
    serial,
    steps,
    store,
    threads,
    when,
)
from tunehub.cuda.attention.spec import Attention
from tunehub.relax.open_axes.views import block_of

WARP = 32
LOG2_E = math.log2(math.e)
_F32 = "float32"
LOWEST = -3.4028234663852886e38  # of float32; less is minus infinity, which TVM cannot write without a header


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class AttentionTile:
    """A block has ``warps`` along queries and along keys. Each has ``rows`` times 16 queries and takes ``keys`` keys
    at a time. ``stages``: of tiles of keys and values in shared memory; with 2 the next is loaded meanwhile."""

    warps: tuple[int, int]
    rows: int
    keys: int
    stages: int = 2

    @property
    def queries(self) -> int:
        """Of a block."""
        return 16 * self.rows * self.warps[0]

    @property
    def step(self) -> int:
        """Keys that a block takes at a time."""
        return self.keys * self.warps[1]

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.warps[0] * self.warps[1]


def kernel_of(attention: Attention, tile: AttentionTile) -> Any:
    """The function of ``attention`` as a kernel by ``tile``."""
    return _AttentionKernel(attention, tile).function()


def const(value: int) -> Any:
    from tvm import tirx

    return tirx.const(value, "int32")


def f32(value: float) -> Any:
    from tvm import tirx

    return tirx.const(value, _F32)


class _AttentionKernel:
    def __init__(self, attention: Attention, tile: AttentionTile) -> None:
        self.a, self.t = attention, tile
        self.buffers: list[Any] = []
        self.keys, self.queries = attention.keys, attention.queries
        self.single = isinstance(self.keys, int) and self.keys <= tile.step
        self.stages = 1 if self.single else tile.stages
        self.engine: Any = (Halves if attention.dtype == "float16" else Singles)(self)
        width = 16 // self.engine.bytes  # elements of one copy
        self.width = width
        self.shared_bytes = 0
        self.k_tile = self.shared("keys", (self.stages, tile.step, attention.depth + width), attention.dtype)
        self.v_tile = self.shared("values", (self.stages, tile.step, attention.outputs + width), attention.dtype)
        self.engine.allocate()
        rows = self.engine.rows
        self.most, self.total = self.local("most", (rows,)), self.local("total", (rows,))
        self.one = [self.local(name, (1,)) for name in ("new", "factor", "weight")]

    # -- memory

    def local(self, name: str, shape: tuple[int, ...], dtype: str = _F32) -> Any:
        return self._buffer(name, shape, dtype, "local")

    def shared(self, name: str, shape: tuple[int, ...], dtype: str = _F32) -> Any:
        self.shared_bytes += math.prod(shape) * (2 if dtype == "float16" else 4)
        return SharedTile(self._buffer(name, (math.prod(shape),), dtype, "shared.dyn"), shape)

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Any:
        from tvm import tirx

        buffer = tirx.decl_buffer([const(each) for each in shape], dtype, f"{name}", scope=scope, layout=None)
        self.buffers.append(buffer)
        return buffer

    # -- the function

    def function(self) -> Any:
        tiles = -(-self.queries // self.t.queries)
        heads = math.prod(self.a.lead)
        body = threads("blockIdx.x", heads * tiles, lambda block: self.block(block, heads, tiles))
        own = self.a.function
        return own.with_body(block_of(own.body, body, "root", []))

    def block(self, block: Any, heads: int, tiles: int) -> Any:
        self.lead = self.places(block % heads)
        at = block // heads
        self.first = ((tiles - 1 - at) if self.a.causal is not None else at) * self.t.queries
        body = threads(
            "threadIdx.y",
            self.t.warps[0] * self.t.warps[1],
            lambda warp: threads("threadIdx.x", WARP, lambda lane: self.thread(warp, lane)),
        )
        return block_of(self.a.function.body, body, "attention", self.buffers) if False else body

    def places(self, head: Any) -> list[Any]:
        found = []
        for extent in reversed(self.a.lead):
            found.append(head % extent)
            head = head // extent
        return found[::-1]

    def thread(self, warp: Any, lane: Any) -> Any:
        self.warp, self.lane = warp, lane
        self.row_warp, self.key_warp = warp // self.t.warps[1], warp % self.t.warps[1]
        body = steps(
            self.copy_tile(0, 0),
            self.engine.load_query(),
            nest(
                "h",
                [self.engine.rows],
                lambda h: steps(store(self.most, [h], device.call(device.NOTHING)), store(self.total, [h], f32(0))),
            ),
            self.engine.clear_outputs(),
            self.loop(),
            self.finish(),
        )
        return block_of(self.a.function.body, body, "attention", self.buffers)

    def loop(self) -> Any:
        if self.single:
            return self.tile_of_keys(const(0), const(0), None)
        step = self.t.step
        count = -(-self.keys // step)
        if self.a.causal is not None:
            from tvm import tirx

            last = self.first + self.t.queries + self.a.causal  # keys that the last query sees
            count = tirx.min(const(count), (last + (step - 1)) // step)

        def body(at: Any) -> Any:
            following = when(at + 1 < count, self.copy_tile(at + 1, (at + 1) % self.stages))
            if self.stages == 1:
                return steps(self.tile_of_keys(at, const(0), None), barrier(), following)
            return self.tile_of_keys(at, at % self.stages, following)

        return serial("tile", count, body)

    # -- loading

    def copy_tile(self, tile: Any, stage: Any) -> Any:
        """Bring keys and values into shared memory."""
        return steps(
            self.copy(self.k_tile, self.a.key, self.a.depth, tile, stage),
            self.copy(self.v_tile, self.a.value, self.a.outputs, tile, stage),
            run(device.call(device.COMMIT)),
        )

    def copy(self, target: Any, source: Any, length: int, tile: Any, stage: Any) -> Any:
        from tvm import tirx

        parts = length // self.width
        total, own = self.t.step * parts, self.t.threads
        thread = self.warp * WARP + self.lane

        def one(i: Any) -> Any:
            at = i * own + thread
            row, part = at // parts, at % parts * self.width
            key = tile * self.t.step + row
            inside = key < self.keys
            place = source(*self.lead, tirx.min(key, const(self.keys - 1)), part)
            size = tirx.Select(inside, const(16), const(0))
            copied = run(device.call(device.COPY, pointer(target, stage, row, part), tirx.address_of(place), size))
            return copied if total % own == 0 else when(at < total, copied)

        return nest("i", [-(-total // own)], one)

    # -- one tile

    def tile_of_keys(self, tile: Any, stage: Any, following: Any) -> Any:
        e = self.engine
        return steps(
            run(device.call(device.WAIT)),
            barrier(),
            following,
            e.scores(stage),
            nest("h", [e.rows], lambda h: self.softmax(tile, h)),
            e.weighted(stage),
        )

    def row(self, h: Any) -> Any:
        return self.first + self.row_warp * (16 * self.t.rows) + self.engine.row(h)

    @property
    def row_of_warp(self) -> Any:
        """The first query of a warp."""
        return self.first + self.row_warp * (16 * self.t.rows)

    @property
    def hides(self) -> bool:
        """Whether there are keys that count nothing for some query: behind the end, or behind the query."""
        return self.keys % self.t.step != 0 or self.a.causal is not None

    def end_of(self, row: Any) -> Any:
        """The first key behind those that a query has."""
        from tvm import tirx

        if self.a.causal is None:
            return const(self.keys)
        return tirx.min(const(self.keys), row + (self.a.causal + 1))

    def softmax(self, tile: Any, h: Any) -> Any:
        from tvm import tirx

        e = self.engine
        new, factor, weight = self.one
        start = tile * self.t.step + self.key_warp * self.t.keys
        columns = e.columns

        def masked(c: Any) -> Any:
            row, key = (
                tirx.min(place, const(end - 1))
                for place, end in ((self.row(h), self.queries), (start + e.column(c), self.keys))
            )
            return store(e.sums, e.score_at(h, c), self.a.masked(*self.lead, row, key, load(e.sums, *e.score_at(h, c))))

        def hidden(c: Any) -> Any:
            shown = start + e.column(c) < self.end_of(self.row(h))
            return store(
                e.sums,
                e.score_at(h, c),
                tirx.Select(shown, load(e.sums, *e.score_at(h, c)), device.call(device.NOTHING)),
            )

        def largest(c: Any) -> Any:
            return store(new, [0], tirx.max(load(new, 0), load(e.sums, *e.score_at(h, c))))

        def exchanged(mask: int) -> Any:
            return store(new, [0], tirx.max(load(new, 0), device.call(device.EXCHANGE, load(new, 0), const(mask))))

        def power(c: Any) -> Any:
            at = e.score_at(h, c)
            value = tirx.exp2(self.exponent(load(e.sums, *at), load(weight, 0)))
            return steps(store(e.sums, at, value), store(self.total, [h], load(self.total, h) + load(e.sums, *at)))

        rescale = [
            store(factor, [0], tirx.exp2(self.exponent(load(self.most, h), load(weight, 0)))),
            store(self.total, [h], load(self.total, h) * load(factor, 0)),
            nest(
                "u",
                [e.outputs],
                lambda u: store(e.results, e.output_at(h, u), load(e.results, *e.output_at(h, u)) * load(factor, 0)),
            ),
        ]
        return steps(
            nest("c", [columns], masked) if self.pure is None else None,
            when(start + self.t.keys > self.end_of(self.row_of_warp), nest("c", [columns], hidden))
            if self.hides
            else None,
            store(new, [0], load(self.most, h)),
            nest("c", [columns], largest),
            [exchanged(mask) for mask in e.masks],
            store(weight, [0], tirx.Select(load(new, 0) < f32(LOWEST), f32(0), self.subtracted(load(new, 0)))),
            None if self.single else rescale,
            store(self.most, [h], load(new, 0)),
            nest("c", [columns], power),
        )

    def subtracted(self, most: Any) -> Any:
        """What is subtracted from scores, in the terms of :meth:`exponent`."""
        return most if self.pure is None else most * f32(self.pure * LOG2_E)

    def exponent(self, score: Any, subtracted: Any) -> Any:
        """The power of 2 of a score. A mask may be as large as float32 has numbers: it must be subtracted first."""
        if self.pure is None:
            return (score - subtracted) * f32(LOG2_E)
        return score * f32(self.pure * LOG2_E) - subtracted

    @property
    def pure(self) -> float | None:
        """The factor when scores are only multiplied by a positive one: the softmax then multiplies."""
        return self.a.scale if self.a.scale is not None and self.a.scale > 0 else None

    # -- the end

    def finish(self) -> Any:
        e = self.engine
        summed = nest(
            "h",
            [e.rows],
            lambda h: steps(
                *[
                    store(
                        self.total,
                        [h],
                        load(self.total, h) + device.call(device.EXCHANGE, load(self.total, h), const(mask)),
                    )
                    for mask in e.masks
                ]
            ),
        )
        if self.t.warps[1] == 1:
            return steps(summed, nest("h", [e.rows], self.write_row))
        return steps(summed, self.merge())

    def write_row(self, h: Any) -> Any:
        row, e = self.row(h), self.engine

        def put(u: Any) -> Any:
            value = self.a.finished(load(e.results, *e.output_at(h, u)), load(self.total, h))
            return store(self.a.result, self.a.written(*self.lead, row, e.output_column(u)), value)

        body = e.write(h, put)
        return body if self.queries % self.t.queries == 0 else when(row < self.queries, body)

    def merge(self) -> Any:
        """Parts of different keys are added, each weighted by what its maximum is less than the largest."""
        from tvm import tirx

        e, count = self.engine, self.t.warps[1]
        width = self.a.outputs + 4
        sums = self.shared("sums", (count, self.t.queries, width))
        tops = self.shared("tops", (count, self.t.queries, 2))

        def keep(h: Any) -> Any:
            own = self.row_warp * (16 * self.t.rows) + e.row(h)
            return steps(
                nest(
                    "u",
                    [e.outputs],
                    lambda u: store(
                        sums, [self.key_warp, own, e.output_column(u)], load(e.results, *e.output_at(h, u))
                    ),
                ),
                store(tops, [self.key_warp, own, 0], load(self.most, h)),
                store(tops, [self.key_warp, own, 1], load(self.total, h)),
            )

        parts = self.a.outputs // 4
        total, threads_ = self.t.queries * parts, self.t.threads
        thread = self.warp * WARP + self.lane
        most, scale, whole = self.one
        acc = self.local("part", (4,))

        def joined(i: Any) -> Any:
            at = i * threads_ + thread
            own, column = at // parts, at % parts * 4
            row = self.first + own
            body = steps(
                store(most, [0], load(tops, 0, own, 0)),
                nest("w", [count - 1], lambda w: store(most, [0], tirx.max(load(most, 0), load(tops, w + 1, own, 0)))),
                store(most, [0], tirx.Select(load(most, 0) < f32(LOWEST), f32(0), self.subtracted(load(most, 0)))),
                store(whole, [0], f32(0)),
                nest("x", [4], lambda x: store(acc, [x], f32(0))),
                nest(
                    "w",
                    [count],
                    lambda w: steps(
                        store(scale, [0], tirx.exp2(self.exponent(load(tops, w, own, 0), load(most, 0)))),
                        store(whole, [0], load(whole, 0) + load(scale, 0) * load(tops, w, own, 1)),
                        nest(
                            "x",
                            [4],
                            lambda x: store(acc, [x], load(acc, x) + load(scale, 0) * load(sums, w, own, column + x)),
                        ),
                    ),
                ),
                self.four(acc, whole, row, column),
            )
            inside = []
            if total % threads_:
                inside.append(at < total)
            if self.queries % self.t.queries:
                inside.append(row < self.queries)
            return body if not inside else when(tirx.all(*inside), body)

        return steps(barrier(), nest("h", [e.rows], keep), barrier(), nest("i", [-(-total // threads_)], joined))

    def four(self, acc: Any, whole: Any, row: Any, column: Any) -> Any:
        from tunehub.cuda.attention.nodes import vectorized

        return vectorized(
            "x",
            4,
            lambda x: store(
                self.a.result,
                self.a.written(*self.lead, row, column + x),
                self.a.finished(load(acc, x), load(whole, 0)),
            ),
        )


class Halves:
    """Products on tensor cores: fragments of 16 × 8 sums, of which a lane has two rows of two neighbours."""

    bytes = 2
    masks = (1, 2)

    def __init__(self, kernel: _AttentionKernel) -> None:
        self.k, self.t, self.a = kernel, kernel.t, kernel.a
        self.rows = 2 * self.t.rows
        self.columns, self.outputs = self.t.keys // 4, self.a.outputs // 4

    def allocate(self) -> None:
        k, rows = self.k, self.t.rows
        self.query = k.local("query", (rows, self.a.depth // 16, 4), "uint32")
        self.sums = k.local("scores", (rows, self.t.keys // 8, 4))
        self.results = k.local("results", (rows, self.a.outputs // 8, 4))
        self.part = k.local("operand", (4,), "uint32")
        self.weights = k.local("weights", (4,), "uint32")

    def row(self, h: Any) -> Any:
        return h // 2 * 16 + h % 2 * 8 + self.k.lane // 4

    def column(self, c: Any) -> Any:
        return c // 2 * 8 + self.k.lane % 4 * 2 + c % 2

    output_column = column

    def score_at(self, h: Any, c: Any) -> list[Any]:
        return [h // 2, c // 2, h % 2 * 2 + c % 2]

    output_at = score_at

    def write(self, h: Any, put: Any) -> Any:
        from tunehub.cuda.attention.nodes import unrolled, vectorized

        return unrolled("u", self.outputs // 2, lambda u: vectorized("x", 2, lambda x: put(u * 2 + x)))

    def load_query(self) -> Any:
        from tvm import tirx

        k = self.k

        def one(r: Any, kk: Any, e: Any) -> Any:
            row = tirx.min(k.row(r * 2 + e % 2), const(k.queries - 1))
            column = kk * 16 + e // 2 * 8 + k.lane % 4 * 2
            place = self.a.query(*k.lead, row, column)
            return run(device.call(device.TWO, pointer(self.query, r, kk, e), tirx.address_of(place)))

        return nest("r d e", [self.t.rows, self.a.depth // 16, 4], one)

    def clear_outputs(self) -> Any:
        return nest("r n e", [self.t.rows, self.a.outputs // 8, 4], lambda *at: store(self.results, at, f32(0)))

    def scores(self, stage: Any) -> Any:
        k, lane = self.k, self.k.lane
        first = k.key_warp * self.t.keys

        def step(d: Any, n: Any) -> Any:
            source = pointer(k.k_tile, stage, first + n * 16 + lane % 8 + lane // 16 * 8, d * 16 + lane // 8 % 2 * 8)
            return steps(
                run(device.call(device.LOAD, pointer(self.part, 0), source)),
                nest(
                    "r x",
                    [self.t.rows, 2],
                    lambda r, x: self.multiply(self.sums, r, n * 2 + x, pointer(self.query, r, d, 0), x),
                ),
            )

        clear = nest("r n e", [self.t.rows, self.t.keys // 8, 4], lambda *at: store(self.sums, at, f32(0)))
        return steps(clear, nest("d n", [self.a.depth // 16, self.t.keys // 16], step))

    def multiply(self, sums: Any, r: Any, n: Any, first: Any, x: Any) -> Any:
        return run(device.call(device.MULTIPLY, pointer(sums, r, n, 0), first, pointer(self.part, x * 2)))

    def weighted(self, stage: Any) -> Any:
        k, lane = self.k, self.k.lane
        first = k.key_warp * self.t.keys

        def pack(r: Any, j: Any, e: Any) -> Any:
            at = [r, j * 2 + e // 2, e % 2 * 2]
            low, high = load(self.sums, *at), load(self.sums, *at[:2], at[2] + 1)
            return run(device.call(device.PAIR, pointer(self.all_weights, r, e), low, high))

        self.all_weights = k.local("pairs", (self.t.rows, 4), "uint32")

        def along(j: Any) -> Any:
            return steps(
                nest("r e", [self.t.rows, 4], lambda r, e: pack(r, j, e)),
                nest("n", [self.a.outputs // 16], lambda n: column(j, n)),
            )

        def column(j: Any, n: Any) -> Any:
            source = pointer(k.v_tile, stage, first + j * 16 + lane % 16, n * 16 + lane // 16 * 8)
            return steps(
                run(device.call(device.LOAD_TRANSPOSED, pointer(self.part, 0), source)),
                nest(
                    "r x",
                    [self.t.rows, 2],
                    lambda r, x: self.multiply(self.results, r, n * 2 + x, pointer(self.all_weights, r, 0), x),
                ),
            )

        return nest("j", [self.t.keys // 16], along)


class Singles:
    """Products in float32: a lane has rows 4 apart, of keys 8 apart."""

    bytes = 4
    masks = (1, 2, 4)

    def __init__(self, kernel: _AttentionKernel) -> None:
        self.k, self.t, self.a = kernel, kernel.t, kernel.a
        self.rows = 4 * self.t.rows
        self.columns, self.outputs = self.t.keys // 8, self.a.outputs // 8
        self.lanes = next(v for v in (4, 2, 1) if self.outputs % v == 0)

    def allocate(self) -> None:
        k, t = self.k, self.t
        self.q_tile = k.shared("queries", (t.queries, self.a.depth + 4))
        self.w_tile = k.shared("weights", (t.warps[0] * t.warps[1], 16 * t.rows, t.keys + 4))
        self.sums = k.local("scores", (self.rows, self.columns))
        self.results = k.local("results", (self.rows, self.outputs // self.lanes, self.lanes))
        self.first, self.second = k.local("first", (self.rows, 4)), k.local("second", (self.columns, 4))
        self.wide = k.local("wide", (self.outputs // self.lanes, self.lanes))

    def row(self, h: Any) -> Any:
        return h * 4 + self.k.lane // 8

    def column(self, c: Any) -> Any:
        return c * 8 + self.k.lane % 8

    def output_column(self, u: Any) -> Any:
        return u // self.lanes * (8 * self.lanes) + self.k.lane % 8 * self.lanes + u % self.lanes

    def score_at(self, h: Any, c: Any) -> list[Any]:
        return [h, c]

    def output_at(self, h: Any, u: Any) -> list[Any]:
        return [h, u // self.lanes, u % self.lanes]

    def write(self, h: Any, put: Any) -> Any:
        from tunehub.cuda.attention.nodes import unrolled, vectorized

        return unrolled(
            "u", self.outputs // self.lanes, lambda u: vectorized("x", self.lanes, lambda x: put(u * self.lanes + x))
        )

    def load_query(self) -> Any:
        from tvm import tirx

        k, parts = self.k, self.a.depth // 4
        total, own = self.t.queries * parts, self.t.threads
        thread = k.warp * WARP + k.lane

        def one(i: Any) -> Any:
            at = i * own + thread
            row, part = at // parts, at % parts * 4
            place = self.a.query(*k.lead, tirx.min(k.first + row, const(k.queries - 1)), part)
            copied = run(device.call(device.COPY, pointer(self.q_tile, row, part), tirx.address_of(place), const(16)))
            return copied if total % own == 0 else when(at < total, copied)

        return steps(nest("i", [-(-total // own)], one), run(device.call(device.COMMIT)))

    def clear_outputs(self) -> Any:
        return nest(
            "r n e", [self.rows, self.outputs // self.lanes, self.lanes], lambda *at: store(self.results, at, f32(0))
        )

    def scores(self, stage: Any) -> Any:
        from tunehub.cuda.attention.nodes import vectorized

        k = self.k
        own = k.row_warp * (16 * self.t.rows)
        first = k.key_warp * self.t.keys

        def step(d: Any) -> Any:
            def queries(h: Any) -> Any:
                return vectorized(
                    "x", 4, lambda x: store(self.first, [h, x], load(k.engine.q_tile, own + self.row(h), d * 4 + x))
                )

            def keys(c: Any) -> Any:
                return vectorized(
                    "x",
                    4,
                    lambda x: store(self.second, [c, x], load(k.k_tile, stage, first + self.column(c), d * 4 + x)),
                )

            def add(h: Any, c: Any, x: Any) -> Any:
                return store(
                    self.sums, [h, c], load(self.sums, h, c) + load(self.first, h, x) * load(self.second, c, x)
                )

            return steps(
                nest("h", [self.rows], queries),
                nest("c", [self.columns], keys),
                nest("h c x", [self.rows, self.columns, 4], add),
            )

        clear = nest("h c", [self.rows, self.columns], lambda *at: store(self.sums, at, f32(0)))
        return steps(clear, serial("d", self.a.depth // 4, step))

    def weighted(self, stage: Any) -> Any:
        from tvm import tirx

        from tunehub.cuda.attention.nodes import vectorized

        k = self.k
        first = k.key_warp * self.t.keys
        put = nest(
            "h c",
            [self.rows, self.columns],
            lambda h, c: store(self.w_tile, [k.warp, self.row(h), self.column(c)], load(self.sums, h, c)),
        )

        def along(j: Any) -> Any:
            read = nest(
                "h",
                [self.rows],
                lambda h: vectorized(
                    "x", 4, lambda x: store(self.first, [h, x], load(self.w_tile, k.warp, self.row(h), j * 4 + x))
                ),
            )
            return steps(read, nest("y", [4], lambda y: one(j, y)))

        def one(j: Any, y: Any) -> Any:
            key = first + j * 4 + y
            groups = self.outputs // self.lanes
            read = nest(
                "n",
                [groups],
                lambda n: vectorized(
                    "x",
                    self.lanes,
                    lambda x: store(
                        self.wide,
                        [n, x],
                        load(k.v_tile, stage, key, n * (8 * self.lanes) + k.lane % 8 * self.lanes + x),
                    ),
                ),
            )

            def add(h: Any, n: Any, x: Any) -> Any:
                return store(
                    self.results,
                    [h, n, x],
                    load(self.results, h, n, x) + load(self.first, h, y) * load(self.wide, n, x),
                )

            return steps(read, nest("h n x", [self.rows, groups, self.lanes], add))

        sync = run(tirx.op.tvm_storage_sync("warp"))
        return steps(put, sync, serial("j", self.t.keys // 4, along), sync)
