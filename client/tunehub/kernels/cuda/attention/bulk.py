"""As :mod:`.copying`, by the copy engine (TMA): one thread starts the copies of tiles of keys, another one those of
queries and values, and nobody else spends instructions on that. A block takes several parts of the queries, one after
the other: keys of the next arrive while results of the last are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cuda.attention.copying import TURN, CopyingKernel
from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.spec import Attention
from tunehub.kernels.cuda.attention.warpgroups import PART, ROW_BYTES, WARPS
from tunehub.tir.cuda.ptx.barriers import bar_sync
from tunehub.tir.cuda.ptx.mbarrier import (
    BARRIER_BYTES,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait,
)
from tunehub.tir.cuda.ptx.registers import minus_infinity, setmaxnreg
from tunehub.tir.cuda.ptx.tma import flat_place, tensor_map, tensor_map_encode, tma_load_3d
from tunehub.tir.guard import GuardError
from tunehub.tir.nodes import buffer_kind, integer, symbolic
from tunehub.tir.statements import bind, block_of, const, either, f32, load, nest, sequence, serial, store, when

if TYPE_CHECKING:
    from tunehub.tir.types import Index, PrimExpr, PrimFunc, Stmt, Var

_BLOCK_BYTES = 232448  # of shared memory, that a block may have
_REST = 256  # of that, for barriers


class BulkKernel(CopyingKernel):
    """A kernel whose tile has two or three warpgroups along queries, and one of which two threads copy. Raises
    GuardError where extents are not known, or operands are no matrices.

    Parts of the queries of a block are one loop: while values of a part's last keys are weighted, scores of the next
    part's first are made, and their softmax before the results of the former are written."""

    registers: ClassVar = {2: (24, 240), 3: (32, 160)}
    turn_number: PrimExpr = None
    behind: PrimExpr = None  # tiles of keys of all parts before; None: those that are counted

    def __init__(self, attention: Attention, tile: AttentionTile, multiprocessors: int) -> None:
        """``multiprocessors``: that the GPU has, each of which takes a block at a time."""
        a = attention
        if not all(isinstance(extent, int) for extent in (*a.lead, a.queries, a.keys)):
            raise GuardError("extents are not known")
        self.tiles_of_head = -(-a.queries // tile.queries)
        self.parts = math.prod(a.lead) * self.tiles_of_head
        self.in_turn, self.at_once = 1, min(self.parts, multiprocessors)
        if a.causal is not None:  # a block takes a long part and a short one, so that all have as much to do
            in_pairs = self.tiles_of_head % 2 == 0 and self.parts // 2 >= multiprocessors
            self.in_turn, self.at_once = (2, multiprocessors) if in_pairs else (1, self.parts)
        of_keys = tile.step * (a.depth + a.outputs) * (1 if a.keys <= tile.step else tile.stages)
        twice = 2 * (2 * tile.queries * a.depth + of_keys) + _REST <= _BLOCK_BYTES
        self.query_stages = 2 if self.parts > self.at_once and twice else 1
        self.more_barriers = 2 * self.query_stages - 1  # that queries are there, of more places, and read no more
        super().__init__(attention, tile)

    def allocate(self) -> None:
        super().allocate()
        self.before = self.local("before", (1,), "int32")  # tiles of keys of all parts before
        self.last_sum = self.local("last", (self.engine.rows,))

    def function(self) -> PrimFunc:
        a, own = self.a, self.a.function
        queries, keys = (a.queries, self.t.queries), (a.keys, self.t.step)
        of = ((a.query, *queries, a.depth), (a.key, *keys, a.depth), (a.value, *keys, a.outputs))
        names = ("query_map", "key_map", "value_map")
        self.operands = [_Matrices(self.a, *each, tensor_map(name)) for each, name in zip(of, names, strict=True)]
        told = [statement for each in self.operands for statement in each.described()]
        body = self.grid(self.at_once, lambda at: self.threads_of(at))
        return own.with_body(block_of(own.body, sequence([*told, body]), "root", []))

    def threads_of(self, block: PrimExpr) -> Stmt:
        self.own_block = block
        self.lead, self.first = [const(0)] * len(self.a.lead), const(0)
        return self.all_threads()

    # -- parts

    def count_of_parts(self) -> PrimExpr:
        """Of this block."""
        from tvm import tirx

        whole, rest = divmod(self.parts // self.in_turn, self.at_once)
        more = tirx.Select(self.own_block < rest, const(1), const(0)) if rest else const(0)
        return (whole + more) * self.in_turn

    def at_part(self, turn: PrimExpr) -> Stmt:
        """From here on the part of this ``turn`` is what is computed."""
        from tvm import tirx

        number, first = (tirx.Var(name, "int32") for name in ("number", "first"))
        lead, tiles = [tirx.Var("lead", "int32") for _ in self.a.lead], self.tiles_of_head
        self.turn_number = turn
        if self.in_turn == 1:
            self.take(number, const(math.prod(self.a.lead)), const(tiles))
        else:
            at = number % (tiles // 2)
            self.lead = self.places(number // (tiles // 2))
            self.first = self.first_query(tirx.Select(turn % 2 == 0, at, tiles - 1 - at), tiles)
        values = (turn // self.in_turn * self.at_once + self.own_block, self.first, *self.lead)
        self.lead, self.first = lead, first
        return sequence(*map(bind, (number, first, *lead), values))

    def over_parts(self, body: Callable[[], Stmt]) -> Stmt:
        """``body()`` for each part of the queries that is this block's."""

        def one(turn: PrimExpr) -> Stmt:
            at_part = self.at_part(turn)
            return sequence(at_part, body(), self.is_over())

        return sequence(store(self.before, [0], const(0)), serial("part", self.count_of_parts(), one))

    def is_over(self) -> Stmt:
        return store(self.before, [0], load(self.before, 0) + self.count_of_tiles())

    # -- barriers

    def stage(self, tile: PrimExpr) -> PrimExpr:
        return self.of_all(tile) % self.stages if self.stages > 1 else const(0)

    def parity(self, tile: PrimExpr) -> PrimExpr:
        return self.of_all(tile) // self.stages % 2

    def of_all(self, tile: PrimExpr) -> PrimExpr:
        """The number of a tile of keys among those of all parts."""
        if self.parts == self.at_once:
            return tile
        return tile + (load(self.before, 0) if self.behind is None else self.behind)

    @property
    def query_stage(self) -> PrimExpr:
        return self.turn_number % self.query_stages

    def query_place(self) -> PrimExpr:
        return self.query_at + self.query_stage * (2 * self.t.queries * self.a.depth)

    @property
    def queries_there(self) -> PrimExpr:
        return self._of_queries(self.query_stage)

    @property
    def queries_free(self) -> PrimExpr:
        return self._of_queries(self.query_stages + self.query_stage)

    def _of_queries(self, which: Index) -> PrimExpr:
        return self.address(which * BARRIER_BYTES + (self.ring_at + BARRIER_BYTES * 4 * self.stages))

    def _ring(self, which: int, tile: PrimExpr) -> PrimExpr:
        return self.address(self.stage(tile) * BARRIER_BYTES + (self.ring_at + BARRIER_BYTES * which * self.stages))

    def barriers(self) -> Stmt:
        self.turn_number = self.behind = const(0)
        rings, self.behind = self.rings(), None
        made = [
            mbarrier_init()(self._of_queries(const(at)), const(count))
            for at, count in enumerate([self.arrivals] * self.query_stages + [self.t.warps[0]] * self.query_stages)
        ]
        return sequence(rings, made)

    arrivals = 1  # of who copies

    # -- copying

    def copying(self) -> Stmt:
        from tvm import tirx

        keys = when(self.lane == 0, self.over_parts(lambda: self.tiles_of(0)))
        others = self.over_parts(lambda: sequence(self.queries_brought(), self.tiles_of(1)))
        values = when(tirx.all(self.warp % WARPS == 1, self.lane == 0), others)
        return sequence(setmaxnreg(self.fewer, more=False)(), either(self.warp % WARPS == 0, keys, values))

    def queries_brought(self) -> Stmt:
        start = self.query_place()
        return sequence(
            mbarrier_wait()(self.queries_free, (self.turn_number // self.query_stages + 1) % 2),
            self.operands[0].loaded(self, start, self.queries_there, self.first),
        )

    def tiles_of(self, what: int) -> Stmt:
        """All tiles of keys (0) or values (1)."""
        operand = self.operands[1 + what]

        def one(tile: PrimExpr) -> Stmt:
            start = (self.key_at, self.value_at)[what] + self.stage(tile) * operand.bytes
            return sequence(
                mbarrier_wait()(self.free(what, tile), (self.of_all(tile) // self.stages + 1) % 2),
                operand.loaded(self, start, self.there(what, tile), tile * self.t.step),
            )

        return serial("tile", self.count_of_tiles(), one)

    # -- multiplying

    def multiplying(self) -> Stmt:
        first = const(0)
        begin = [self.at_part(first), self.begins()]
        scores = [self.first_are_there(), self.scores(first), self.have_scores(0), self.is_free(0, first)]
        weights = self.weights(first)
        return sequence(
            setmaxnreg(self.more, more=True)(),
            when(self.group == self.groups - 1, self.gives_turn()),
            store(self.before, [0], first),
            self.engine.clear_outputs(),
            *begin,
            *scores,
            weights,
            serial("part", self.count_of_parts(), self.part),
        )

    def begins(self) -> Stmt:
        """The softmax of a part of the queries."""

        def clear(h: PrimExpr) -> Stmt:
            lowest = minus_infinity()(result="float32")
            return sequence(store(self.row_max, [h], lowest), store(self.row_sum, [h], f32(0)))

        return nest("h", [self.engine.rows], clear)

    def first_are_there(self) -> Stmt:
        first = const(0)
        return sequence(
            mbarrier_wait()(self.queries_there, self.turn_number // self.query_stages % 2),
            mbarrier_wait()(self.there(0, first), self.parity(first)),
        )

    def part(self, turn: PrimExpr) -> Stmt:
        """Of the queries, whose first keys have weights."""
        from tvm import tirx

        at_part, count = self.at_part(turn), tirx.Var("count", "int32")
        counted, last = bind(count, self.count_of_tiles()), count - 1
        weighted = sequence(mbarrier_wait()(self.there(1, last), self.parity(last)), self.weighted(last))
        end = sequence(weighted, self.have_outputs(0), self.is_free(1, last), self.finish())
        if self.parts > self.at_once:
            end = either(turn + 1 < self.count_of_parts(), self.with_next(turn, weighted, count), end)
        return sequence(
            at_part,
            counted,
            serial("tile", last, lambda at: self.turn(at, count)),
            when(self.lane == 0, mbarrier_arrive()(self.queries_free)),
            end,
        )

    def with_next(self, turn: PrimExpr, weighted: Stmt, count: PrimExpr) -> Stmt:
        """The last values of a part are weighted while scores of the next part's first keys are made, and the results
        are written behind the softmax of these."""
        first, values_free, own = const(0), self.is_free(1, count - 1), (self.lead, self.first, self.turn_number)
        # Of the next part.
        at_part = self.at_part(turn + 1)
        self.behind = load(self.before, 0) + count
        there, scores = self.first_are_there(), self.scores(first)
        keys_free, softmaxes = self.is_free(0, first), self.softmaxes(first)
        # Of this one.
        self.behind, (self.lead, self.first, self.turn_number) = None, own
        total, self.row_sum = self.row_sum, self.last_sum
        finish = self.finish()
        self.row_sum = total
        return sequence(
            at_part,
            there,
            bar_sync(TURN)(self.group + 1),
            scores,
            weighted,
            self.gives_turn(),
            self.have_scores(1),
            keys_free,
            nest("h", [self.engine.rows], lambda h: store(self.last_sum, [h], load(total, h))),
            self.begins(),
            softmaxes,
            self.have_outputs(0),
            values_free,
            finish,
            self.engine.clear_outputs(),
            self.packed(),
            self.is_over(),
        )


class _Matrices:
    """An operand as the copy engine finds it: ``rows`` of ``width`` numbers, of each place along the heads; a tile has
    ``count`` rows. Raises GuardError where heads do not begin at multiples of the width, or numbers of a row do not lie
    behind each other."""

    def __init__(
        self, attention: Attention, source: Callable[..., PrimExpr], rows: int, count: int, width: int, variable: Var
    ) -> None:
        import tvm
        from tvm import tirx

        self.source, self.rows, self.count, self.width, self.map = source, rows, count, width, variable
        self.dtype, self.bytes = attention.dtype, 2 * count * width
        lead = [tirx.Var("at", "int32") for _ in attention.lead]
        analyzer = symbolic().Analyzer()
        for variable, extent in zip(lead, attention.lead, strict=True):
            analyzer.bind(variable, tvm.ir.Range(0, extent))
        first = source(*lead, const(0), const(0))
        start, below, beside = (
            flat_place(source(*lead, *map(const, place))) for place in ((0, 0), (min(1, rows - 1), 0), (0, 1))
        )
        apart, next_ = (integer(analyzer.simplify(place - start)) for place in (below, beside))
        if apart is None or next_ != 1 or not analyzer.can_prove_equal(start % width, const(0)):
            raise GuardError("an operand has no rows that the copy engine can take")
        self.apart, self.buffer = apart or width, first.source

    def described(self) -> list[Stmt]:
        """What tells the copy engine."""
        size = math.prod(int(extent) for extent in buffer_kind(self.buffer).shape)
        extents, apart = (self.width, self.rows, size // self.width), (self.apart, self.width)
        return tensor_map_encode(
            self.map, self.buffer, self.dtype, extents=extents, apart=apart, box=(PART, self.count)
        )

    def loaded(self, kernel: BulkKernel, start: PrimExpr, barrier: PrimExpr, first: PrimExpr) -> Stmt:
        """Starts the copies of a tile, from the row ``first`` on, to ``start``."""
        from tvm import tirx

        begin = flat_place(self.source(*kernel.lead, const(0), const(0)))
        head = tirx.Cast("int32", symbolic().Analyzer().simplify(tirx.floordiv(begin, self.width)))
        boxes = (
            tma_load_3d()(
                kernel.address(start + part * (self.count * ROW_BYTES)),
                tirx.address_of(self.map),
                barrier,
                const(part * PART),
                first,
                head,
            )
            for part in range(self.width // PART)
        )
        return sequence(mbarrier_arrive_expect_tx(self.bytes)(barrier), list(boxes))
