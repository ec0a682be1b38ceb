"""Attention by the instructions of warpgroups (compute capability 9.0), after Shah et al. 2024 (FlashAttention-3, arXiv
2407.08608): scores of a tile of keys are made while the tile before is weighted, and the softmax while tensor cores
work. Queries, keys and values lie in shared memory, weights go from one product to the other in registers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.attention.kernel import AttentionKernel, divides, narrow
from tunehub.kernels.cuda.attention.tensor_core_products import Halves
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.cp_async import cp_async_16, cp_async_commit, cp_async_wait_and_sync, shared_address
from tunehub.tir.cuda.ptx.mma import pack_pair
from tunehub.tir.cuda.ptx.wgmma import (
    KINDS,
    wgmma_fresh,
    wgmma_from_registers,
    wgmma_wait_for,
    wgmma_wait_for_registers,
)
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import (
    SharedTile,
    address,
    bind,
    const,
    either,
    load,
    nest,
    pointer,
    sequence,
    serial,
    store,
    when,
)

if TYPE_CHECKING:
    from tunehub.tir.types import Expr, Index, PrimExpr, Stmt

WARPS = 4  # of a warpgroup
PART = 64  # numbers of a row in shared memory
ROW_BYTES = 2 * PART
_U32 = "uint32"


class WarpgroupKernel(AttentionKernel):
    """A kernel whose tile has fours of warps along queries."""

    query_stages = 1  # places for queries of a block

    def allocate(self) -> None:
        """One pool of shared memory: queries, then stages of keys and of values. Weights are in registers."""
        a, t = self.a, self.t
        self.engine = Halves(self)
        self.width = 8
        self.stages = 1 if self.single else t.stages
        self.kind = KINDS[a.dtype]
        sizes = (
            self.query_stages * t.queries * a.depth,
            *[t.step * a.depth] * self.stages,
            *[t.step * a.outputs] * self.stages,
        )
        starts = [2 * sum(sizes[:at]) for at in range(len(sizes))]
        self.query_at, self.key_at, self.value_at = starts[0], starts[1], starts[1 + self.stages]
        merged = t.warps[1] * t.queries * (a.outputs + 6) * 4 if t.warps[1] > 1 else 0
        self.pool = self._buffer("pool", (max(2 * sum(sizes), merged) // 4,), "float32", "shared.dyn")
        self.engine.allocate()
        self.pairs = self.local("pairs", (t.keys // 16, 4), _U32)
        self.factors = self.local("factors", (self.engine.rows,))

    def merge_memory(self, *shapes: tuple[int, ...]) -> list[SharedTile]:
        """Where tiles were."""
        starts = [math.prod(shape) for shape in shapes]
        return [SharedTile(self.pool, shape, sum(starts[:at])) for at, shape in enumerate(shapes)]

    def thread(self, warp: PrimExpr, lane: PrimExpr) -> Stmt:
        """As of warps; a warpgroup is four of them along queries."""
        from tvm import tirx

        group, along = warp // WARPS, self.t.warps[1]
        self.base = tirx.Var("base", _U32)
        return self.body(warp, lane, group // along * WARPS + warp % WARPS, group % along)

    def loop(self) -> Stmt:
        """All tiles of keys: the softmax of one while tensor cores multiply another (FlashAttention-3)."""
        last = self.pool_size() - 1
        ends = address(self.pool, const(0)), address(self.pool, const(last))
        self.group = self.warp // WARPS
        count = self.count_of_tiles()
        return sequence(
            bind(self.base, shared_address()(*ends, result=_U32)),
            # Step 1. Prologue: queries and the first keys, then the first values.
            self.copy_rows(self.query_at, self.a.query, self.first, self.t.queries, self.a.depth, self.a.queries),
            self.copy_keys(const(0)),
            cp_async_commit()(),
            cp_async_wait_and_sync(0)(),
            None if self.single else when(const(1) < count, self.copy_keys(const(1))),
            self.copy_values(const(0)),
            cp_async_commit()(),
            # Step 2. Scores of the first tile, and its softmax.
            self.scores(const(0)),
            self.have_scores(0),
            self.if_early(self.weights(const(0))),
            # Step 3. Mainloop: scores of a tile are made while the one before is weighted.
            None if self.single else serial("tile", count - 1, lambda at: self.turn(at, count)),
            # Step 4. The last tile is weighted.
            cp_async_wait_and_sync(0)(),
            self.if_late(self.new_weights(const(0) if self.single else count - 1)),
            self.weighted(const(0) if self.single else count - 1),
            self.have_outputs(0),
        )

    def turn(self, tile: PrimExpr, count: PrimExpr) -> Stmt:
        """Scores of the tile behind ``tile``, whose own values are weighted meanwhile (intra-warpgroup pipelining)."""
        following = tile + 1
        copies = [when(tile + 2 < count, self.copy_keys(tile + 2)), self.copy_values(following), cp_async_commit()()]
        early = sequence(
            self.scores(following),
            *copies,
            self.weighted(tile),
            self.have_scores(1),
            self.softmaxes(following),
            self.have_outputs(0),
            nest("h", [self.engine.rows], self.smaller),
            self.packed(),
        )
        if not self.staggered:
            return sequence(cp_async_wait_and_sync(0)(), early)
        late = sequence(
            *copies,
            self.new_weights(tile),
            self.scores(following),
            self.weighted(tile),
            self.have_scores(0),
            self.have_outputs(0),
        )
        return sequence(cp_async_wait_and_sync(0)(), either(self.is_early, early, late))

    @property
    def staggered(self) -> bool:
        """Whether warpgroups of a block take turns with tensor cores."""
        return self.t.warps[0] > WARPS

    @property
    def is_early(self) -> PrimExpr:
        """Whether a warpgroup makes the softmax behind its products and not before: while others multiply."""
        return self.group % 2 == 0

    def if_early(self, body: Stmt) -> Stmt:
        """``body``, where warpgroups take turns only in those that are early."""
        return when(self.is_early, body) if self.staggered else body

    def if_late(self, body: Stmt) -> Stmt | None:
        """``body`` in the late warpgroups; nothing where they do not take turns."""
        return when(self.group % 2 == 1, body) if self.staggered else None

    def weights(self, tile: Expr) -> Stmt:
        """Of the first tile."""
        return sequence(self.softmaxes(tile), self.packed())

    def new_weights(self, tile: PrimExpr) -> Stmt:
        """The softmax of a tile's scores, the output rescaled to it, and its weights as an operand."""
        return sequence(self.softmaxes(tile), nest("h", [self.engine.rows], self.smaller), self.packed())

    def have_scores(self, under_way: int) -> Stmt:
        """Wait for scores, while so many later groups of products may be ``under_way``."""
        return wgmma_wait_for(under_way, self.t.keys // 2)(pointer(self.engine.acc_s, 0, 0, 0))

    def pool_size(self) -> int:
        """Of shared memory, in numbers of float32."""
        return int(buffer_kind(self.pool).shape[0])

    # -- loading

    def copy_keys(self, tile: PrimExpr) -> Stmt:
        """Begin to copy a tile of keys into its stage."""
        start = self.key_at + self.stage(tile) * (2 * self.t.step * self.a.depth)
        return self.copy_rows(start, self.a.key, tile * self.t.step, self.t.step, self.a.depth, self.a.keys)

    def copy_values(self, tile: PrimExpr) -> Stmt:
        """Begin to copy a tile of values into its stage."""
        start = self.value_at + self.stage(tile) * (2 * self.t.step * self.a.outputs)
        return self.copy_rows(start, self.a.value, tile * self.t.step, self.t.step, self.a.outputs, self.a.keys)

    def stage(self, tile: PrimExpr) -> PrimExpr:
        """Which stage of shared memory a tile has."""
        return tile % self.stages if self.stages > 1 else const(0)

    def copy_rows(
        self, start: Index, source: Callable[..., PrimExpr], first: PrimExpr, count: int, length: int, extent: Index
    ) -> Stmt:
        """Bring ``count`` rows from ``first`` on into shared memory, zeros behind the last: ``start`` in bytes."""
        from tvm import tirx

        parts, end = length // self.width, narrow(extent)
        own, thread = self.copiers()

        def one(i: PrimExpr) -> Stmt:
            at = i * own + thread
            row, part = at // parts, at % parts
            place = start + part // 8 * (count * ROW_BYTES) + row * ROW_BYTES + tirx.bitwise_xor(part % 8, row % 8) * 16
            whole = divides(count, extent)
            inside = tirx.const(True, "bool") if whole else first + row < end
            from_row = first + row if whole else tirx.min(first + row, end - 1)
            address = tirx.address_of(source(*self.lead, from_row, part * self.width))
            copied = cp_async_16()(self.base + tirx.Cast(_U32, place), address, inside)
            return copied if count * parts % own == 0 else when(at < count * parts, copied)

        return nest("i", [-(-count * parts // own)], one)

    def copiers(self) -> tuple[int, PrimExpr]:
        """How many threads copy, and the number of this one."""
        return self.t.threads, self.warp * WARP + self.lane

    # -- products

    def address(self, place: PrimExpr) -> PrimExpr:
        """Of a ``place`` in bytes, as instructions of warpgroups take it."""
        from tvm import tirx

        return self.base + tirx.Cast(_U32, place)

    def scores(self, tile: PrimExpr) -> Stmt:
        """Begin S = Q Kᵀ, of a tile of keys."""
        t, a = self.t, self.a
        function = wgmma_fresh(self.kind, t.keys, a.depth, t.queries * ROW_BYTES, t.step * ROW_BYTES)
        query = self.query_place() + self.row_warp // WARPS * (PART * ROW_BYTES)
        key = self.key_at + self.stage(tile) * (2 * t.step * a.depth) + self.key_warp * (t.keys * ROW_BYTES)
        return function(pointer(self.engine.acc_s, 0, 0, 0), self.address(query), self.address(key))

    def query_place(self) -> Index:
        """Where the queries begin in shared memory, in bytes."""
        return self.query_at

    def weighted(self, tile: PrimExpr) -> Stmt:
        """Begin O += P V, of a tile of values; P lies in registers."""
        t, a = self.t, self.a
        function = wgmma_from_registers(self.kind, a.outputs, t.keys, t.step * ROW_BYTES)
        value = self.value_at + self.stage(tile) * (2 * t.step * a.outputs) + self.key_warp * (t.keys * ROW_BYTES)
        return function(pointer(self.engine.acc_o, 0, 0, 0), pointer(self.pairs, 0, 0), self.address(value))

    def have_outputs(self, under_way: int) -> Stmt:
        """Wait for the output, while so many later groups of products may be ``under_way``."""
        function = wgmma_wait_for_registers(under_way, self.a.outputs // 2, self.t.keys // 4)
        return function(pointer(self.engine.acc_o, 0, 0, 0), pointer(self.pairs, 0, 0))

    def packed(self) -> Stmt:
        """Weights as the next product takes them."""

        def pair(j: PrimExpr, e: PrimExpr) -> Stmt:
            at = [const(0), j * 2 + e // 2, e % 2 * 2]
            low, high = load(self.engine.acc_s, *at), load(self.engine.acc_s, *at[:2], at[2] + 1)
            return pack_pair(self.a.dtype)(pointer(self.pairs, j, e), low, high)

        return nest("j e", [self.t.keys // 16, 4], pair)

    # -- the softmax

    def softmaxes(self, tile: PrimExpr) -> Stmt:
        """The online softmax of all rows of a thread."""
        return nest("h", [self.engine.rows], lambda h: self.softmax(tile, h))

    def rescaled(self, h: PrimExpr) -> Stmt:
        """What results are multiplied by is kept: they are still being added to."""

        _, factor, weight = self.one
        return sequence(
            store(factor, [0], self.power(self.exponent(load(self.row_max, h), load(weight, 0)))),
            store(self.row_sum, [h], load(self.row_sum, h) * load(factor, 0)),
            store(self.factors, [h], load(factor, 0)),
        )

    def smaller(self, h: PrimExpr) -> Stmt:
        """The output of a row times the factor that :meth:`rescaled` kept."""
        e = self.engine

        def one(u: PrimExpr) -> Stmt:
            at = e.output_at(h, u)
            return store(e.acc_o, at, load(e.acc_o, *at) * load(self.factors, h))

        return nest("u", [e.outputs], one)
