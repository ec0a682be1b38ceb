"""Attention of few queries by many keys: the blocks of a cluster (compute capability 9.0) share the keys, and add up
what they have through each other's shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.attention.kernel import AttentionKernel
from tunehub.tir.cuda.ptx.barriers import cluster_sync
from tunehub.tir.cuda.ptx.cp_async import cp_async_wait_all
from tunehub.tir.cuda.ptx.registers import ld_shared_cluster_4, store_4
from tunehub.tir.statements import Body, const, load, nest, pointer, sequence, store, threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.tir.types import Buffer, Index, PrimExpr, Stmt


class ClusterKernel(AttentionKernel):
    """A kernel whose tile has several blocks for the same queries."""

    def grid(self, blocks: Index, body: Body) -> Stmt:
        count = self.t.cluster

        def one(at: PrimExpr) -> Stmt:
            self.rank = at % count
            return threads("clusterCtaIdx.x", count, lambda _: body(at // count))

        return threads("blockIdx.x", blocks * count, one)

    def tiles(self) -> tuple[PrimExpr, PrimExpr]:
        from tvm import tirx

        count = self.count_of_tiles()
        own = (count + (self.t.cluster - 1)) // self.t.cluster
        first = self.rank * own
        return first, tirx.max(tirx.min(own, count - first), const(0))

    def merge(self) -> Stmt:
        count, rows, outputs, blocks = self.t.warps[1], self.t.queries, self.a.outputs, self.t.cluster
        partial, row_stats = self.merge_memory((count, rows, outputs + 4), (count, rows, 2))
        wide = 4 // self.engine.bytes  # TVM gives pointers into shared memory of one type
        whole = self.shared("joined", (rows, wide * (outputs + 4)), self.a.dtype)
        ends = self.shared("ends", (rows, wide * 4), self.a.dtype)
        end = self.local("end", (4,))
        of_all = self._of_all_blocks(whole, ends, wide)

        def joined(own: PrimExpr, column: PrimExpr) -> Stmt:
            return sequence(
                self.added_up(count, *self.part_of_warp(partial, row_stats, own, column)),
                store(end, [0], load(self.top, 0)),
                store(end, [1], load(self.one[2], 0)),
                # Functions write: TVM would set a barrier between what it sees read and written, under a condition.
                store_4()(pointer(whole, own, column * wide), pointer(self.four, 0)),
                store_4()(pointer(ends, own, 0), pointer(end, 0)),
            )

        return sequence(
            cp_async_wait_all()(),
            self.kept(partial, row_stats),
            self.by_fours(joined),
            cluster_sync()(),
            self.by_fours(of_all, lambda at: at % blocks == self.rank),
            cluster_sync()(),
        )

    def _of_all_blocks(self, whole: Buffer, ends: Buffer, wide: int) -> Callable[[PrimExpr, PrimExpr], Stmt]:
        """What writes four results of a row: the blocks' own, in ``whole`` and ``ends`` of each, added up."""
        blocks = self.t.cluster
        far, most = self.local("far", (blocks, 4)), self.local("far_ends", (blocks, 4))
        part = (lambda w: load(most, w, 0), lambda w: load(most, w, 1), lambda w, x: load(far, w, x))

        def of_all(own: PrimExpr, column: PrimExpr) -> Stmt:
            def read(rank: PrimExpr) -> Stmt:
                return sequence(
                    ld_shared_cluster_4()(pointer(far, rank, 0), pointer(whole, own, column * wide), rank),
                    ld_shared_cluster_4()(pointer(most, rank, 0), pointer(ends, own, 0), rank),
                )

            return sequence(nest("w", [blocks], read), self.added_up(blocks, *part), self.write_four(own, column))

        return of_all
