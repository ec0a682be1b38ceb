"""Attention as one kernel: queries of a block stay in registers, keys and values pass by in tiles, and the softmax is
made online as they do, by ``row_max`` and ``row_sum`` of the scores so far (Milakov and Gimelshein 2018, arXiv
1805.02867; FlashAttention and FlashAttention-2: Dao et al. 2022, arXiv 2205.14135, and 2023, arXiv 2307.08691). Keys
may be divided among the warps of a block, whose parts are put together at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.attention.register_products import Singles
from tunehub.kernels.cuda.attention.spec import Attention
from tunehub.kernels.cuda.attention.tensor_core_products import Halves
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.cp_async import cp_async_16_to, cp_async_commit_group, cp_async_wait_all
from tunehub.tir.cuda.ptx.registers import minus_infinity, power_of_two, shfl_xor
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import (
    Body,
    SharedTile,
    barrier,
    block_of,
    const,
    f32,
    load,
    nest,
    pointer,
    sequence,
    serial,
    store,
    threads,
    vectorized,
    when,
)
from tunehub.tir.views import product

if TYPE_CHECKING:
    from tunehub.kernels.cuda.attention.products import AttentionProducts
    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc, Stmt

LOG2_E = math.log2(math.e)
_LOWEST = -3.4028234663852886e38  # of float32; less is minus infinity, which TVM cannot write without a header
_COPYING = 4  # warps
_LONGEST = 4096  # keys up to which that gained with a causal mask
_CACHED = 24 << 20  # bytes of keys and values, of an L2 cache of 40 or 50 MB
_F32 = "float32"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class AttentionTile:
    """A block has ``warps`` along queries and along keys. Each has ``rows`` times 16 queries and takes ``keys`` keys
    at a time. ``stages``: of tiles of keys and values in shared memory; with 2 the next is loaded meanwhile.
    ``warpgroups``: by their instructions; warps along queries are fours. ``copying``: one more warpgroup copies for the
    others, ``bulk``: by the copy engine. ``cluster``: blocks that share the keys."""

    warps: tuple[int, int]
    rows: int
    keys: int
    stages: int = 2
    warpgroups: bool = False
    copying: bool = False
    cluster: int = 1
    bulk: bool = False

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
        return WARP * (self.warps[0] * self.warps[1] + (_COPYING if self.copying else 0))


class AttentionKernel:
    """Writes the kernel of ``attention`` by ``tile``."""

    engine: AttentionProducts

    def __init__(self, attention: Attention, tile: AttentionTile) -> None:
        self.a, self.t = attention, tile
        self.buffers: list[Buffer] = []
        self.keys, self.queries = narrow(attention.keys), narrow(attention.queries)
        self.single = isinstance(attention.keys, int) and attention.keys <= tile.step
        self.allocate()
        rows = self.engine.rows
        self.row_max, self.row_sum = self.local("most", (rows,)), self.local("total", (rows,))
        side_by_side = (
            4 if tile.warps[1] * tile.cluster > 1 else self.engine.neighbours
        )  # results that are written at once
        self.out = self.local("out", (side_by_side,), str(buffer_kind(attention.result).dtype))
        self.one = [self.local(name, (1,)) for name in ("new", "factor", "weight")]
        self.top, self.four = self.local("top", (1,)), self.local("four", (4,))

    # -- memory

    def allocate(self) -> None:
        """Memory for queries, keys, values, scores and results."""
        attention, tile = self.a, self.t
        self.stages = 1 if self.single else tile.stages
        self.engine = (Singles if attention.dtype == _F32 else Halves)(self)
        self.width = width = 16 // self.engine.bytes  # elements of one copy
        self.k_tile = self.shared("keys", (self.stages, tile.step, attention.depth + width), attention.dtype)
        self.v_tile = self.shared("values", (self.stages, tile.step, attention.outputs + width), attention.dtype)
        self.engine.allocate()

    def local(self, name: str, shape: tuple[int, ...], dtype: str = _F32) -> Buffer:
        """An array of ``shape`` in the registers of a thread."""
        return self._buffer(name, shape, dtype, "local")

    def shared(self, name: str, shape: tuple[int, ...], dtype: str = _F32) -> SharedTile:
        """An array of ``shape`` in the shared memory of a block."""
        return SharedTile(self._buffer(name, (math.prod(shape),), dtype, "shared.dyn"), shape)

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Buffer:
        from tvm import tirx

        buffer = tirx.decl_buffer([const(each) for each in shape], dtype, name, scope=scope, layout=None)
        self.buffers.append(buffer)
        return buffer

    # -- the function

    def function(self) -> PrimFunc:
        """The function of the attention, with the kernel as its body."""
        rows, queries = self.t.queries, self.a.queries
        tiles, heads = (queries + (rows - 1)) // rows, product(self.a.lead)
        body = self.grid(heads * tiles, lambda at: self.block(narrow(at), narrow(heads), narrow(tiles)))
        own = self.a.function
        return own.with_body(block_of(own.body, body, "root", []))

    def grid(self, blocks: Index, body: Body) -> Stmt:
        """``body`` for each of ``blocks`` blocks."""
        return threads("blockIdx.x", blocks, body)

    def block(self, block: PrimExpr, heads: PrimExpr, tiles: PrimExpr) -> Stmt:
        """What block number ``block`` does, of ``tiles`` of the queries of each of ``heads``."""
        self.take(block, heads, tiles)
        return self.all_threads()

    def take(self, number: PrimExpr, heads: PrimExpr, tiles: PrimExpr) -> None:
        """The part ``number`` of all queries is what is computed: :attr:`lead` and :attr:`first` say where it is."""
        together = self.heads_together()
        if together is None:
            self.lead, self.first = self.places(number % heads), self.first_query(number // heads, tiles)
            return
        inside = number % (together * tiles)
        head = number // (together * tiles) * together + inside % together
        self.lead, self.first = self.places(head), self.first_query(inside // together, tiles)

    def heads_together(self) -> int | None:
        """How many heads blocks that follow each other have, whose keys and values the L2 cache holds meanwhile; with
        a causal mask as many as it can, as all of these begin with their longest parts. None: all heads."""
        a = self.a
        if not all(isinstance(extent, int) for extent in (*a.lead, a.queries, a.keys)):
            return None
        if a.causal is None:
            return 1
        if a.keys > _LONGEST:
            return None
        most = _CACHED // (a.keys * (a.depth + a.outputs) * self.engine.bytes)
        heads = math.prod(a.lead)
        return max(each for each in range(1, heads + 1) if heads % each == 0 and each <= max(most, 1))

    def first_query(self, at: PrimExpr, tiles: Index) -> PrimExpr:
        """Of the block ``at`` of ``tiles`` of a head; those with most keys first."""
        return ((tiles - 1 - at) if self.a.causal is not None else at) * self.t.queries

    def all_threads(self) -> Stmt:
        """What a block does: all of its threads."""
        warps = self.t.threads // WARP
        return threads("threadIdx.y", warps, lambda y: threads("threadIdx.x", WARP, lambda x: self.thread(y, x)))

    def places(self, head: PrimExpr) -> list[PrimExpr]:
        """The indices along batch and heads of head number ``head`` of all."""
        found = []
        for extent in map(narrow, reversed(self.a.lead)):
            found.append(head % extent)
            head = head // extent
        return found[::-1]

    def thread(self, warp: PrimExpr, lane: PrimExpr) -> Stmt:
        """What a thread does, a ``lane`` of a ``warp`` of the block."""
        return self.body(warp, lane, warp // self.t.warps[1], warp % self.t.warps[1])

    def body(self, warp: PrimExpr, lane: PrimExpr, row_warp: PrimExpr, key_warp: PrimExpr) -> Stmt:
        """What a thread does, of the warp so far along queries and along keys."""
        self.warp, self.lane, self.row_warp, self.key_warp = warp, lane, row_warp, key_warp
        return block_of(self.a.function.body, self.work(), "attention", self.buffers)

    def work(self) -> Stmt:
        """What a thread that multiplies does."""

        def clear(h: PrimExpr) -> Stmt:
            return sequence(
                store(self.row_max, [h], minus_infinity()(result="float32")), store(self.row_sum, [h], f32(0))
            )

        return sequence(
            # Step 1. row_max is minus infinity, row_sum and the output are zero.
            nest("h", [self.engine.rows], clear),
            self.engine.clear_outputs(),
            # Step 2. Mainloop over tiles of keys: scores, online softmax, weighted values.
            self.loop(),
            # Step 3. Epilogue: the output is divided by row_sum and written.
            self.finish(),
        )

    def count_of_tiles(self) -> PrimExpr:
        """Of keys, up to the last that a query has."""
        step = self.t.step
        count = (self.keys + (step - 1)) // step
        if self.a.causal is None:
            return count
        from tvm import tirx

        last = self.first + self.t.queries + self.a.causal  # keys that the last query sees
        return tirx.min(count, (last + (step - 1)) // step)

    def tiles(self) -> tuple[PrimExpr, PrimExpr]:
        """The first tile of keys of a block, and how many it takes."""
        return const(0), self.count_of_tiles()

    def loop(self) -> Stmt:
        """All tiles of keys."""
        first, count = self.tiles()
        start = sequence(self.copy_tile(first, 0), self.engine.load_query())
        if self.single:
            return sequence(start, self.tile_of_keys(const(0), const(0), None))

        def body(at: PrimExpr) -> Stmt:
            following = when(at + 1 < count, self.copy_tile(first + at + 1, (at + 1) % self.stages))
            if self.stages == 1:
                return sequence(self.tile_of_keys(first + at, const(0), None), barrier("shared"), following)
            return self.tile_of_keys(first + at, at % self.stages, following)

        return sequence(start, serial("tile", count, body))

    # -- loading

    def copy_tile(self, tile: PrimExpr, stage: Index) -> Stmt:
        """Bring keys and values into shared memory."""
        return sequence(
            self.copy(self.k_tile, self.a.key, self.a.depth, tile, stage),
            self.copy(self.v_tile, self.a.value, self.a.outputs, tile, stage),
            cp_async_commit_group()(),
        )

    def copy(
        self, target: SharedTile, source: Callable[..., PrimExpr], length: int, tile: PrimExpr, stage: Index
    ) -> Stmt:
        """Begin to copy the rows of a ``tile``, ``length`` elements of ``source`` each, into a ``stage`` of ``target``,
        16 bytes at a time; zeros behind the last key."""
        from tvm import tirx

        parts = length // self.width
        total, own = self.t.step * parts, self.t.threads
        thread = self.warp * WARP + self.lane

        def one(i: PrimExpr) -> Stmt:
            at = i * own + thread
            row, part = at // parts, at % parts * self.width
            key = tile * self.t.step + row
            inside = key < self.keys
            place = source(*self.lead, tirx.min(key, self.keys - 1), part)
            size = tirx.Select(inside, const(16), const(0))
            copied = cp_async_16_to()(pointer(target, stage, row, part), tirx.address_of(place), size)
            return copied if total % own == 0 else when(at < total, copied)

        return nest("i", [-(-total // own)], one)

    # -- one tile

    def tile_of_keys(self, tile: PrimExpr, stage: PrimExpr, following: Stmt | None) -> Stmt:
        """Scores, softmax and weighted values of one tile, which lies in ``stage``; ``following`` begins to copy the
        next."""
        e = self.engine
        return sequence(
            cp_async_wait_all()(),
            barrier("shared"),
            following,
            e.scores(stage),
            nest("h", [e.rows], lambda h: self.softmax(tile, h)),
            e.weighted(stage),
        )

    def row(self, h: PrimExpr) -> PrimExpr:
        """The query of row ``h`` of a thread."""
        return self.first + self.row_warp * (16 * self.t.rows) + self.engine.row(h)

    @property
    def row_of_warp(self) -> PrimExpr:
        """The first query of a warp."""
        return self.first + self.row_warp * (16 * self.t.rows)

    @property
    def hides(self) -> bool:
        """Whether there are keys that count nothing for some query: behind the end, or behind the query."""
        return self.a.causal is not None or not divides(self.t.step, self.a.keys)

    def end_of(self, row: PrimExpr) -> PrimExpr:
        """The first key behind those that a query has."""
        from tvm import tirx

        if self.a.causal is None:
            return self.keys
        return tirx.min(self.keys, row + (self.a.causal + 1))

    def softmax(self, tile: PrimExpr, h: PrimExpr) -> Stmt:
        """Online softmax: scores of a row become weights; what was added up with a smaller row_max is rescaled."""

        e, (new, _, weight) = self.engine, self.one
        start = tile * self.t.step + self.key_warp * self.t.keys
        behind = start + self.t.keys > self.end_of(self.row_of_warp)

        def power(c: PrimExpr) -> Stmt:
            at = e.score_at(h, c)
            value = self.power(self.exponent(load(e.acc_s, *at), load(weight, 0)))
            return sequence(
                store(e.acc_s, at, value), store(self.row_sum, [h], load(self.row_sum, h) + load(e.acc_s, *at))
            )

        return sequence(
            # Step 1. Masks.
            nest("c", [e.columns], lambda c: self.masked(start, h, c)) if self.pure is None else None,
            when(behind, nest("c", [e.columns], lambda c: self.hidden(start, h, c))) if self.hides else None,
            # Step 2. The new row_max, of all lanes that share the row.
            self.largest(new, h),
            # Step 3. The output and row_sum are rescaled to it.
            store(weight, [0], self.finite(load(new, 0))),
            None if self.single else self.rescaled(h),
            # Step 4. Weights, and their row_sum.
            store(self.row_max, [h], load(new, 0)),
            nest("c", [e.columns], power),
            # Step 5. Of a quantised model: weights are whole steps.
            None if self.a.rounded is None else self.rounded(h),
        )

    def rounded(self, h: PrimExpr) -> Stmt:
        """Weights of a row, all of whose keys are in this tile, in steps."""
        assert self.single and self.t.warps[1] * self.t.cluster == 1
        e, round_it = self.engine, self.a.rounded
        assert round_it is not None

        def one(c: PrimExpr) -> Stmt:
            at = e.score_at(h, c)
            return store(e.acc_s, at, round_it(load(e.acc_s, *at), load(self.row_sum, h)))

        return sequence(*[self.summed(h, mask) for mask in e.masks], nest("c", [e.columns], one))

    def summed(self, h: PrimExpr, mask: int) -> Stmt:
        """The row sum with that of another lane that shares the row."""
        total = load(self.row_sum, h)
        return store(self.row_sum, [h], total + shfl_xor()(total, const(mask), result="float32"))

    def largest(self, new: Buffer, h: PrimExpr) -> Stmt:
        """Into ``new`` the largest score of a row so far, of all lanes that share it."""
        from tvm import tirx

        e = self.engine

        def larger(other: PrimExpr) -> Stmt:
            return store(new, [0], tirx.max(load(new, 0), other))

        return sequence(
            store(new, [0], load(self.row_max, h)),
            nest("c", [e.columns], lambda c: larger(load(e.acc_s, *e.score_at(h, c)))),
            [larger(shfl_xor()(load(new, 0), const(mask), result="float32")) for mask in e.masks],
        )

    def masked(self, start: PrimExpr, h: PrimExpr, c: PrimExpr) -> Stmt:
        """A score becomes what the softmax takes."""
        from tvm import tirx

        e, row, key = self.engine, self.row(h), start + self.engine.column(c)
        score = load(e.acc_s, *e.score_at(h, c))
        inside = tirx.min(row, self.queries - 1), tirx.min(key, self.keys - 1)
        return store(e.acc_s, e.score_at(h, c), self.a.masked(*self.lead, *inside, score))

    def hidden(self, start: PrimExpr, h: PrimExpr, c: PrimExpr) -> Stmt:
        """Minus infinity for a key that a query does not have."""
        from tvm import tirx

        e = self.engine
        shown, score = start + e.column(c) < self.end_of(self.row(h)), load(e.acc_s, *e.score_at(h, c))
        return store(e.acc_s, e.score_at(h, c), tirx.Select(shown, score, minus_infinity()(result="float32")))

    def rescaled(self, h: PrimExpr) -> Stmt:
        """The output and row_sum of a row, times the power of 2 by which its row_max has grown."""
        e, (_, factor, weight) = self.engine, self.one

        def smaller(u: PrimExpr) -> Stmt:
            at = e.output_at(h, u)
            return store(e.acc_o, at, load(e.acc_o, *at) * load(factor, 0))

        return sequence(
            store(factor, [0], self.power(self.exponent(load(self.row_max, h), load(weight, 0)))),
            store(self.row_sum, [h], load(self.row_sum, h) * load(factor, 0)),
            nest("u", [e.outputs], smaller),
        )

    def finite(self, most: PrimExpr) -> PrimExpr:
        """What is subtracted from scores; 0 without any, so that their weights are 0 and not NaN."""
        from tvm import tirx

        return tirx.Select(most < f32(_LOWEST), f32(0), self.subtracted(most))

    def power(self, exponent: PrimExpr) -> PrimExpr:
        """Of 2."""
        return power_of_two()(exponent, result="float32")

    def subtracted(self, most: PrimExpr) -> PrimExpr:
        """What is subtracted from scores, in the terms of :meth:`exponent`."""
        return most if self.pure is None else most * f32(self.pure * LOG2_E)

    def exponent(self, score: PrimExpr, subtracted: PrimExpr) -> PrimExpr:
        """The power of 2 of a score. A mask may be as large as float32 has numbers: it must be subtracted first."""
        if self.pure is None:
            return (score - subtracted) * f32(LOG2_E)
        return score * f32(self.pure * LOG2_E) - subtracted

    @property
    def pure(self) -> float | None:
        """The factor when scores are only multiplied by a positive one: the softmax then multiplies."""
        return self.a.scale if self.a.scale is not None and self.a.scale > 0 else None

    # -- the end

    def finish(self) -> Stmt:
        """Epilogue: row_sum of all lanes that share a row, and the output written, or merged with that of others."""
        e = self.engine
        if self.a.rounded is not None:
            return nest("h", [e.rows], self.write_row)
        summed = nest("h", [e.rows], lambda h: sequence(*[self.summed(h, mask) for mask in e.masks]))
        if self.t.warps[1] * self.t.cluster == 1:
            return sequence(summed, nest("h", [e.rows], self.write_row))
        return sequence(summed, self.merge())

    def write_row(self, h: PrimExpr) -> Stmt:
        """Row ``h`` of the output, divided by its row_sum, into memory; none behind the last query."""
        row, e, inverse = self.row(h), self.engine, self.one[1]

        def neighbours(u: PrimExpr) -> Stmt:
            first = u * e.neighbours
            return self.write(
                row,
                e.neighbours,
                lambda x: e.output_column(first + x),
                lambda x: (load(e.acc_o, *e.output_at(h, first + x)), load(self.row_sum, h)),
                load(inverse, 0),
            )

        divided = store(inverse, [0], f32(1) / load(self.row_sum, h))
        body = sequence(divided, nest("u", [e.outputs // e.neighbours], neighbours))
        return body if divides(self.t.queries, self.a.queries) else when(row < self.queries, body)

    def write(
        self,
        row: PrimExpr,
        count: int,
        column: Body,
        parts: Callable[[PrimExpr], tuple[PrimExpr, PrimExpr]],
        inverse: PrimExpr | None = None,
    ) -> Stmt:
        """Results side by side, as one vector, of outputs and row sums, whose ``inverse`` may be known. They are
        computed before: of vectors TVM selects none rightly."""

        def value(x: Index) -> PrimExpr:
            return self.a.finished(*self.lead, row, column(x), *parts(x), inverse=inverse)

        return sequence(
            nest("x", [count], lambda x: store(self.out, [x], value(x))),
            vectorized(
                "x",
                count,
                lambda x: store(self.a.result, self.a.written(*self.lead, row, column(x)), load(self.out, x)),
            ),
        )

    def merge_memory(self, *shapes: tuple[int, ...]) -> list[SharedTile]:
        """Shared memory for parts, and for maxima and totals."""
        return [self.shared(name, shape) for name, shape in zip(("sums", "tops"), shapes, strict=True)]

    def merge(self) -> Stmt:
        """Parts of different keys are added, each weighted by what its maximum is less than the largest."""
        count, rows = self.t.warps[1], self.t.queries
        partial, row_stats = self.merge_memory((count, rows, self.a.outputs + 4), (count, rows, 2))

        def joined(own: PrimExpr, column: PrimExpr) -> Stmt:
            part = self.part_of_warp(partial, row_stats, own, column)
            return sequence(self.added_up(count, *part), self.write_four(own, column))

        return sequence(self.kept(partial, row_stats), self.by_fours(joined))

    def part_of_warp(
        self, partial: Buffer | SharedTile, row_stats: Buffer | SharedTile, own: PrimExpr, column: PrimExpr
    ) -> tuple[Body, Body, Callable[[PrimExpr, PrimExpr], PrimExpr]]:
        """Row maximum, row sum and output of one warp's part."""
        return (
            lambda w: load(row_stats, w, own, 0),
            lambda w: load(row_stats, w, own, 1),
            lambda w, x: load(partial, w, own, column + x),
        )

    def kept(self, partial: Buffer | SharedTile, row_stats: Buffer | SharedTile) -> Stmt:
        """What each warp has of its keys, in shared memory."""
        e = self.engine

        def keep(h: PrimExpr) -> Stmt:
            own = self.row_warp * (16 * self.t.rows) + e.row(h)

            def part(u: PrimExpr) -> Stmt:
                return store(partial, [self.key_warp, own, e.output_column(u)], load(e.acc_o, *e.output_at(h, u)))

            return sequence(
                nest("u", [e.outputs], part),
                store(row_stats, [self.key_warp, own, 0], load(self.row_max, h)),
                store(row_stats, [self.key_warp, own, 1], load(self.row_sum, h)),
            )

        return sequence(barrier("shared"), nest("h", [e.rows], keep), barrier("shared"))

    def by_fours(self, body: Callable[[PrimExpr, PrimExpr], Stmt], *more: Callable[[PrimExpr], PrimExpr]) -> Stmt:
        """``body`` for four neighbours of a row at a time, the row of a block and the first column."""
        from tvm import tirx

        rows, parts = self.t.queries, self.a.outputs // 4
        total = rows * parts

        def one(i: PrimExpr) -> Stmt:
            at = i * self.t.threads + self.warp * WARP + self.lane
            inside = [] if total % self.t.threads == 0 else [at < total]
            inside += [] if divides(rows, self.a.queries) else [self.first + at // parts < self.queries]
            inside += [holds(at) for holds in more]
            own = body(at // parts, at % parts * 4)
            return when(tirx.all(*inside), own) if inside else own

        return nest("i", [-(-total // self.t.threads)], one)

    def added_up(self, count: int, top: Body, total: Body, part: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> Stmt:
        """Four neighbours of ``count`` parts; the largest maximum and the total of the weights come with them."""
        from tvm import tirx

        subtracted, scale, whole = self.one

        def larger(w: PrimExpr) -> Stmt:
            return store(self.top, [0], tirx.max(load(self.top, 0), top(w + 1)))

        def added(w: PrimExpr) -> Stmt:
            weight = load(scale, 0)
            return sequence(
                store(scale, [0], self.power(self.exponent(top(w), load(subtracted, 0)))),
                store(whole, [0], load(whole, 0) + weight * total(w)),
                nest("x", [4], lambda x: store(self.four, [x], load(self.four, x) + weight * part(w, x))),
            )

        return sequence(
            store(self.top, [0], top(const(0))),
            nest("w", [count - 1], larger),
            store(subtracted, [0], self.finite(load(self.top, 0))),
            store(whole, [0], f32(0)),
            nest("x", [4], lambda x: store(self.four, [x], f32(0))),
            nest("w", [count], added),
        )

    def write_four(self, own: PrimExpr, column: PrimExpr) -> Stmt:
        """The results that were added up."""
        whole = self.one[2]
        return self.write(
            self.first + own,
            4,
            lambda x: column + x,
            lambda x: (load(self.four, x), load(whole, 0)),
        )


def narrow(extent: Index) -> PrimExpr:
    """An extent in 32 bits, an expression."""
    from tvm import tirx

    return const(extent) if isinstance(extent, int) else tirx.Cast("int32", extent)


def divides(part: int, extent: Index) -> bool:
    """Whether it is known that an extent has whole parts."""
    return isinstance(extent, int) and extent % part == 0
