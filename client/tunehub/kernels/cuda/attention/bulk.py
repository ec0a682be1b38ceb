"""As :mod:`.copying`, by the copy engine (TMA): one thread starts the copies of tiles of keys, another one those of
queries and values, and nobody else spends instructions on that. A block takes several parts of the queries, one after
the other: keys of the next arrive while results of the last are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cuda.attention.copying import CopyingKernel
from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.spec import Attention
from tunehub.kernels.cuda.attention.warpgroups import PART, ROW_BYTES, WARPS
from tunehub.tir.cuda.ptx.mbarrier import (
    BARRIER_BYTES,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait,
)
from tunehub.tir.cuda.ptx.registers import setmaxnreg
from tunehub.tir.cuda.ptx.tma import flat_place, tensor_map, tensor_map_encode, tma_load_3d
from tunehub.tir.guard import GuardError
from tunehub.tir.nodes import buffer_kind, integer, symbolic
from tunehub.tir.statements import bind, block_of, const, either, sequence, serial, when

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, PrimFunc, Stmt, Var


class BulkKernel(CopyingKernel):
    """A kernel whose tile has two or three warpgroups along queries, and one of which two threads copy. Raises
    GuardError where extents are not known, or operands are no matrices."""

    registers: ClassVar = {2: (24, 240), 3: (32, 160)}
    more_barriers = 1  # that queries are read no more
    turn_number: PrimExpr = None

    def __init__(self, attention: Attention, tile: AttentionTile, multiprocessors: int) -> None:
        """``multiprocessors``: that the GPU has, each of which takes a block at a time."""
        self.multiprocessors = multiprocessors
        super().__init__(attention, tile)

    def function(self) -> PrimFunc:
        a, own = self.a, self.a.function
        if not all(isinstance(extent, int) for extent in (*a.lead, a.queries, a.keys)):
            raise GuardError("extents are not known")
        queries, keys = (a.queries, self.t.queries), (a.keys, self.t.step)
        of = ((a.query, *queries, a.depth), (a.key, *keys, a.depth), (a.value, *keys, a.outputs))
        names = ("query_map", "key_map", "value_map")
        self.operands = [_Matrices(self.a, *each, tensor_map(name)) for each, name in zip(of, names, strict=True)]
        self.parts = math.prod(a.lead) * -(-a.queries // self.t.queries)
        self.at_once = self.parts if a.causal is not None else min(self.parts, self.multiprocessors)
        told = [statement for each in self.operands for statement in each.described()]
        body = self.grid(self.at_once, lambda at: self.threads_of(at))
        return own.with_body(block_of(own.body, sequence([*told, body]), "root", []))

    def threads_of(self, block: PrimExpr) -> Stmt:
        self.own_block = block
        self.lead, self.first = [const(0)] * len(self.a.lead), const(0)
        return self.all_threads()

    def over_parts(self, body: Callable[[], Stmt]) -> Stmt:
        """``body()`` for each part of the queries that is this block's."""
        from tvm import tirx

        number, heads = tirx.Var("number", "int32"), math.prod(self.a.lead)
        self.lead, self.first = self.places(number % heads), self.first_query(number // heads, self.parts // heads)

        def one(turn: PrimExpr) -> Stmt:
            self.turn_number = turn
            return sequence(bind(number, self.own_block + turn * self.at_once), body())

        more = self.parts - self.at_once
        return serial("part", (more + self.at_once - 1 - self.own_block) // self.at_once + 1 if more else 1, one)

    # -- barriers

    def stage(self, tile: PrimExpr) -> PrimExpr:
        return self.of_all(tile) % self.stages if self.stages > 1 else const(0)

    def parity(self, tile: PrimExpr) -> PrimExpr:
        return self.of_all(tile) // self.stages % 2

    def of_all(self, tile: PrimExpr) -> PrimExpr:
        """The number of a tile of keys among those of all parts; one block has one where they have different many."""
        return tile if self.parts == self.at_once else self.turn_number * self.count_of_tiles() + tile

    @property
    def queries_free(self) -> PrimExpr:
        return self.address(const(self.ring_at + BARRIER_BYTES * (1 + 4 * self.stages)))

    def barriers(self) -> Stmt:
        self.turn_number = const(0)
        free = mbarrier_init()(self.queries_free, const(self.t.warps[0]))
        return sequence(super().barriers(), free)

    arrivals = 1  # of who copies

    # -- copying

    def copying(self) -> Stmt:
        from tvm import tirx

        keys = when(self.lane == 0, self.over_parts(lambda: self.tiles_of(0)))
        others = self.over_parts(lambda: sequence(self.queries_brought(), self.tiles_of(1)))
        values = when(tirx.all(self.warp % WARPS == 1, self.lane == 0), others)
        return sequence(setmaxnreg(self.fewer, more=False)(), either(self.warp % WARPS == 0, keys, values))

    def queries_brought(self) -> Stmt:
        return sequence(
            mbarrier_wait()(self.queries_free, (self.turn_number + 1) % 2),
            self.operands[0].loaded(self, const(self.query_at), self.queries_there, self.first),
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
        return sequence(
            setmaxnreg(self.more, more=True)(),
            when(self.group == self.groups - 1, self.gives_turn()),
            self.over_parts(self.work),
        )

    def loop(self) -> Stmt:
        count = self.count_of_tiles()
        last, first = count - 1, const(0)
        return sequence(
            mbarrier_wait()(self.queries_there, self.turn_number % 2),
            mbarrier_wait()(self.there(0, first), self.parity(first)),
            self.scores(first),
            self.have_scores(0),
            self.is_free(0, first),
            self.weights(first),
            serial("tile", last, lambda at: self.turn(at, count)),
            when(self.lane == 0, mbarrier_arrive()(self.queries_free)),
            mbarrier_wait()(self.there(1, last), self.parity(last)),
            self.weighted(last),
            self.have_outputs(0),
            self.is_free(1, last),
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
