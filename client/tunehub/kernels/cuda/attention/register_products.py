"""The products of attention in float32: a thread adds up a part of a matrix in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.cp_async import cp_async_16_to, cp_async_commit_group
from tunehub.tir.nodes import buffer_kind
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
    from collections.abc import Callable

    from tunehub.tir.types import Buffer, PrimExpr, Stmt


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
            return sequence(
                _vectors("h", self.first, lambda h, x: load(k.engine.q_tile, own + self.row(h), d * 4 + x)),
                _vectors("c", self.second, lambda c, x: load(k.k_tile, stage, first + self.column(c), d * 4 + x)),
                nest("h c x", [self.rows, self.columns, 4], self._add_score),
            )

        clear = nest("h c", [self.rows, self.columns], lambda *at: store(self.acc_s, at, f32(0)))
        return sequence(clear, serial("d", self.a.depth // 4, step))

    def _add_score(self, h: PrimExpr, c: PrimExpr, x: PrimExpr) -> Stmt:
        return store(self.acc_s, [h, c], load(self.acc_s, h, c) + load(self.first, h, x) * load(self.second, c, x))

    def weighted(self, stage: PrimExpr) -> Stmt:
        k = self.k

        def put(h: PrimExpr, c: PrimExpr) -> Stmt:
            return store(self.w_tile, [k.warp, self.row(h), self.column(c)], load(self.acc_s, h, c))

        def along(j: PrimExpr) -> Stmt:
            read = _vectors("h", self.first, lambda h, x: load(self.w_tile, k.warp, self.row(h), j * 4 + x))
            return sequence(read, nest("y", [4], lambda y: self._add_key(stage, j, y)))

        sync = barrier("warp")
        return sequence(nest("h c", [self.rows, self.columns], put), sync, serial("j", self.t.keys // 4, along), sync)

    def _add_key(self, stage: PrimExpr, j: PrimExpr, y: PrimExpr) -> Stmt:
        """Add the values of key ``y`` of the four at ``j``, weighted, to the outputs."""
        k = self.k
        key, groups = k.key_warp * self.t.keys + j * 4 + y, self.outputs // self.neighbours

        def value(n: PrimExpr, x: PrimExpr) -> PrimExpr:
            return load(k.v_tile, stage, key, n * (8 * self.neighbours) + k.lane % 8 * self.neighbours + x)

        def add(h: PrimExpr, n: PrimExpr, x: PrimExpr) -> Stmt:
            total = load(self.acc_o, h, n, x) + load(self.first, h, y) * load(self.wide, n, x)
            return store(self.acc_o, [h, n, x], total)

        return sequence(_vectors("n", self.wide, value), nest("h n x", [self.rows, groups, self.neighbours], add))


def _vectors(name: str, to: Buffer, element: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> Stmt:
    """A loop over the rows of ``to``, each of which is written as one vector of ``element(row, lane)``."""
    rows, lanes = (int(extent) for extent in buffer_kind(to).shape)
    return nest(name, [rows], lambda i: vectorized("x", lanes, lambda x: store(to, [i, x], element(i, x))))
