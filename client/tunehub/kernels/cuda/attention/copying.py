"""Attention by warpgroups that only multiply and one that only copies, after Shah et al. 2024 (FlashAttention-3, arXiv
2407.08608): nobody waits for all others. A tile of keys or values says that it is there, and that it is free again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from tunehub.kernels.cuda.attention.warpgroups import WARPS, WarpgroupKernel
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.barriers import bar_arrive, bar_sync
from tunehub.tir.cuda.ptx.cp_async import cp_async_commit, shared_address
from tunehub.tir.cuda.ptx.mbarrier import (
    BARRIER_BYTES,
    mbarrier_arrive,
    mbarrier_arrive_with_copies,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
)
from tunehub.tir.cuda.ptx.registers import setmaxnreg
from tunehub.tir.cuda.ptx.wgmma import WARPGROUP
from tunehub.tir.statements import address, bind, block_of, const, either, nest, sequence, serial, when

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Stmt

_HALF = 2  # warps that copy keys; as many copy values
TURN = 2 * WARPGROUP  # threads of who waits and who lets begin


class CopyingKernel(WarpgroupKernel):
    """A kernel whose tile has two or three warpgroups along queries, and one that copies."""

    staggered = False
    registers: ClassVar = {2: (40, 232), 3: (32, 160)}  # of a thread that copies and of one that multiplies
    arrivals = _HALF * WARP  # of threads that copy, at the barrier of what they bring
    more_barriers = 0

    def allocate(self) -> None:
        super().allocate()
        self.groups = self.t.warps[0] // WARPS
        self.fewer, self.more = self.registers[self.groups]
        self.ring_at = 4 * self.pool_size()
        self.buffers.remove(self.pool)
        barriers = 1 + 4 * self.stages + self.more_barriers
        self.pool = self._buffer("pool", (self.ring_at // 4 + 2 * barriers,), "float32", "shared.dyn")

    def thread(self, warp: PrimExpr, lane: PrimExpr) -> Stmt:
        from tvm import tirx

        self.base = tirx.Var("base", "uint32")
        self.warp, self.lane, self.row_warp, self.key_warp = warp, lane, warp, const(0)
        self.group = warp // WARPS
        ends = [address(self.pool, const(at)) for at in (0, self.pool_size() - 1)]
        copying, multiplying = self.copying(), self.multiplying()
        body = sequence(
            bind(self.base, shared_address()(*ends, result="uint32")),
            when(tirx.all(warp == 0, lane == 0), self.barriers()),
            mbarrier_init_fence()(),
            either(self.group == self.groups, copying, multiplying),
        )
        return block_of(self.a.function.body, body, "attention", self.buffers)

    # -- barriers

    @property
    def queries_there(self) -> PrimExpr:
        return self.address(const(self.ring_at))

    def there(self, what: int, tile: PrimExpr) -> PrimExpr:
        """The barrier that keys (0) or values (1) of a tile are there."""
        return self._ring(2 * what, tile)

    def free(self, what: int, tile: PrimExpr) -> PrimExpr:
        """That what was where they will be is read no more."""
        return self._ring(2 * what + 1, tile)

    def _ring(self, which: int, tile: PrimExpr) -> PrimExpr:
        first = self.ring_at + BARRIER_BYTES * (1 + which * self.stages)
        return self.address(self.stage(tile) * BARRIER_BYTES + first)

    def parity(self, tile: PrimExpr) -> PrimExpr:
        """Of the times that a place in the ring was used before."""
        return tile // self.stages % 2

    def barriers(self) -> Stmt:
        return sequence(mbarrier_init()(self.queries_there, const(self.arrivals)), self.rings())

    def rings(self) -> list[Stmt]:
        def one(what: int, stage: int) -> Stmt:
            return sequence(
                mbarrier_init()(self.there(what, const(stage)), const(self.arrivals)),
                mbarrier_init()(self.free(what, const(stage)), const(self.t.warps[0])),
            )

        return [one(what, stage) for what in (0, 1) for stage in range(self.stages)]

    # -- copying

    def copying(self) -> Stmt:
        count = self.count_of_tiles()

        def tiles(what: int, copied: Callable[[PrimExpr], Stmt]) -> Stmt:
            def one(tile: PrimExpr) -> Stmt:
                return sequence(
                    mbarrier_wait()(self.free(what, tile), (tile // self.stages + 1) % 2),
                    copied(tile),
                    cp_async_commit()(),
                    mbarrier_arrive_with_copies()(self.there(what, tile)),
                )

            return serial("tile", count, one)

        queries = self.copy_rows(self.query_at, self.a.query, self.first, self.t.queries, self.a.depth, self.a.queries)
        return sequence(
            setmaxnreg(self.fewer, more=False)(),
            either(
                self.warp % WARPS < _HALF,
                tiles(0, self.copy_keys),
                sequence(
                    queries,
                    cp_async_commit()(),
                    mbarrier_arrive_with_copies()(self.queries_there),
                    tiles(1, self.copy_values),
                ),
            ),
        )

    def copiers(self) -> tuple[int, PrimExpr]:
        return _HALF * WARP, self.warp % _HALF * WARP + self.lane

    # -- multiplying

    def multiplying(self) -> Stmt:
        return self.work()

    def loop(self) -> Stmt:
        count = self.count_of_tiles()
        last = count - 1
        return sequence(
            setmaxnreg(self.more, more=True)(),
            when(self.group == self.groups - 1, self.gives_turn()),
            # Step 1. Queries and the first keys: scores, and their softmax.
            mbarrier_wait()(self.queries_there, const(0)),
            mbarrier_wait()(self.there(0, const(0)), const(0)),
            self.scores(const(0)),
            self.have_scores(0),
            self.is_free(0, const(0)),
            self.weights(const(0)),
            # Step 2. Mainloop, in turns with the other warpgroups (ping-pong).
            serial("tile", last, lambda at: self.turn(at, count)),
            # Step 3. The last tile is weighted.
            mbarrier_wait()(self.there(1, last), self.parity(last)),
            self.weighted(last),
            self.have_outputs(0),
        )

    def turn(self, tile: PrimExpr, count: PrimExpr) -> Stmt:
        following = tile + 1
        return sequence(
            mbarrier_wait()(self.there(0, following), self.parity(following)),
            bar_sync(TURN)(self.group + 1),
            self.scores(following),
            mbarrier_wait()(self.there(1, tile), self.parity(tile)),
            self.weighted(tile),
            self.gives_turn(),
            self.have_scores(1),
            self.is_free(0, following),
            self.softmaxes(following),
            self.have_outputs(0),
            self.is_free(1, tile),
            nest("h", [self.engine.rows], self.smaller),
            self.packed(),
        )

    def gives_turn(self) -> Stmt:
        return bar_arrive(TURN)((self.group + 1) % self.groups + 1)

    def is_free(self, what: int, tile: PrimExpr) -> Stmt:
        return when(self.lane == 0, mbarrier_arrive()(self.free(what, tile)))
