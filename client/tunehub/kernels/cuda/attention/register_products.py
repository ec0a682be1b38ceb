"""The products of attention in float32: a thread adds up a part of a matrix in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.cp_async import cp_async_16_to, cp_async_commit_group
from tunehub.tir.statements import (
    barrier,
    const,
    f32,
    load,
    nest,
    pointer,
    sequence,
    serial,
    store,
    vectorized,
    when,
)

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Stmt


class Singles:
    """Products in float32: a lane has rows 4 apart, of keys 8 apart."""

    bytes = 4
    masks = (1, 2, 4)

    def __init__(self, kernel: Any) -> None:
        self.k, self.t, self.a = kernel, kernel.t, kernel.a
        self.rows = 4 * self.t.rows
        self.columns, self.outputs = self.t.keys // 8, self.a.outputs // 8
        self.neighbours = next(v for v in (4, 2, 1) if self.outputs % v == 0)

    def allocate(self) -> None:
        k, t = self.k, self.t
        self.q_tile = k.shared("queries", (t.queries, self.a.depth + 4))
        self.w_tile = k.shared("weights", (t.warps[0] * t.warps[1], 16 * t.rows, t.keys + 4))
        self.acc_s = k.local("scores", (self.rows, self.columns))
        self.acc_o = k.local("results", (self.rows, self.outputs // self.neighbours, self.neighbours))
        self.first, self.second = k.local("first", (self.rows, 4)), k.local("second", (self.columns, 4))
        self.wide = k.local("wide", (self.outputs // self.neighbours, self.neighbours))

    def row(self, h: PrimExpr) -> PrimExpr:
        return h * 4 + self.k.lane // 8

    def column(self, c: PrimExpr) -> PrimExpr:
        return c * 8 + self.k.lane % 8

    def output_column(self, u: PrimExpr) -> PrimExpr:
        return u // self.neighbours * (8 * self.neighbours) + self.k.lane % 8 * self.neighbours + u % self.neighbours

    def score_at(self, h: PrimExpr, c: PrimExpr) -> list[PrimExpr]:
        return [h, c]

    def output_at(self, h: PrimExpr, u: PrimExpr) -> list[PrimExpr]:
        return [h, u // self.neighbours, u % self.neighbours]

    def load_query(self) -> Stmt:
        from tvm import tirx

        k, parts = self.k, self.a.depth // 4
        total, own = self.t.queries * parts, self.t.threads
        thread = k.warp * WARP + k.lane

        def one(i: PrimExpr) -> Stmt:
            at = i * own + thread
            row, part = at // parts, at % parts * 4
            place = self.a.query(*k.lead, tirx.min(k.first + row, k.queries - 1), part)
            copied = cp_async_16_to()(pointer(self.q_tile, row, part), tirx.address_of(place), const(16))
            return copied if total % own == 0 else when(at < total, copied)

        return sequence(nest("i", [-(-total // own)], one), cp_async_commit_group()())

    def clear_outputs(self) -> Stmt:
        return nest(
            "r n e",
            [self.rows, self.outputs // self.neighbours, self.neighbours],
            lambda *at: store(self.acc_o, at, f32(0)),
        )

    def scores(self, stage: PrimExpr) -> Stmt:
        k = self.k
        own = k.row_warp * (16 * self.t.rows)
        first = k.key_warp * self.t.keys

        def step(d: PrimExpr) -> Stmt:
            def queries(h: PrimExpr) -> Stmt:
                return vectorized(
                    "x", 4, lambda x: store(self.first, [h, x], load(k.engine.q_tile, own + self.row(h), d * 4 + x))
                )

            def keys(c: PrimExpr) -> Stmt:
                return vectorized(
                    "x",
                    4,
                    lambda x: store(self.second, [c, x], load(k.k_tile, stage, first + self.column(c), d * 4 + x)),
                )

            def add(h: PrimExpr, c: PrimExpr, x: PrimExpr) -> Stmt:
                return store(
                    self.acc_s, [h, c], load(self.acc_s, h, c) + load(self.first, h, x) * load(self.second, c, x)
                )

            return sequence(
                nest("h", [self.rows], queries),
                nest("c", [self.columns], keys),
                nest("h c x", [self.rows, self.columns, 4], add),
            )

        clear = nest("h c", [self.rows, self.columns], lambda *at: store(self.acc_s, at, f32(0)))
        return sequence(clear, serial("d", self.a.depth // 4, step))

    def weighted(self, stage: PrimExpr) -> Stmt:

        k = self.k
        first = k.key_warp * self.t.keys
        put = nest(
            "h c",
            [self.rows, self.columns],
            lambda h, c: store(self.w_tile, [k.warp, self.row(h), self.column(c)], load(self.acc_s, h, c)),
        )

        def along(j: PrimExpr) -> Stmt:
            read = nest(
                "h",
                [self.rows],
                lambda h: vectorized(
                    "x", 4, lambda x: store(self.first, [h, x], load(self.w_tile, k.warp, self.row(h), j * 4 + x))
                ),
            )
            return sequence(read, nest("y", [4], lambda y: one(j, y)))

        def one(j: PrimExpr, y: PrimExpr) -> Stmt:
            key = first + j * 4 + y
            groups = self.outputs // self.neighbours
            read = nest(
                "n",
                [groups],
                lambda n: vectorized(
                    "x",
                    self.neighbours,
                    lambda x: store(
                        self.wide,
                        [n, x],
                        load(k.v_tile, stage, key, n * (8 * self.neighbours) + k.lane % 8 * self.neighbours + x),
                    ),
                ),
            )

            def add(h: PrimExpr, n: PrimExpr, x: PrimExpr) -> Stmt:
                return store(
                    self.acc_o,
                    [h, n, x],
                    load(self.acc_o, h, n, x) + load(self.first, h, y) * load(self.wide, n, x),
                )

            return sequence(read, nest("h n x", [self.rows, groups, self.neighbours], add))

        sync = barrier("warp")
        return sequence(put, sync, serial("j", self.t.keys // 4, along), sync)
