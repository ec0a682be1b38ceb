"""The products of attention in half precision, on tensor cores (``mma.m16n8k16``): accumulators of scores stay where
the product with values takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunehub.tir.cuda.ptx.mma import ldmatrix_x4, load_pair, mma_m16n8k16, pack_pair
from tunehub.tir.statements import f32, load, nest, pointer, sequence, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, Stmt


class Halves:
    """Products on tensor cores: fragments of 16 × 8 accumulators, of which a lane has two rows of two neighbours."""

    bytes = 2
    masks = (1, 2)
    neighbours = 2

    def __init__(self, kernel: Any) -> None:
        self.k, self.t, self.a = kernel, kernel.t, kernel.a
        self.rows = 2 * self.t.rows
        self.columns, self.outputs = self.t.keys // 4, self.a.outputs // 4

    def allocate(self) -> None:
        k, rows = self.k, self.t.rows
        self.query = k.local("query", (rows, self.a.depth // 16, 4), "uint32")
        self.acc_s = k.local("scores", (rows, self.t.keys // 8, 4))
        self.acc_o = k.local("results", (rows, self.a.outputs // 8, 4))
        self.part = k.local("operand", (4,), "uint32")
        self.weights = k.local("weights", (4,), "uint32")

    def row(self, h: PrimExpr) -> PrimExpr:
        return h // 2 * 16 + h % 2 * 8 + self.k.lane // 4

    def column(self, c: PrimExpr) -> PrimExpr:
        return c // 2 * 8 + self.k.lane % 4 * 2 + c % 2

    output_column = column

    def score_at(self, h: PrimExpr, c: PrimExpr) -> list[PrimExpr]:
        return [h // 2, c // 2, h % 2 * 2 + c % 2]

    output_at = score_at

    def load_query(self) -> Stmt:
        from tvm import tirx

        k = self.k

        def one(r: PrimExpr, kk: PrimExpr, e: PrimExpr) -> Stmt:
            row = tirx.min(k.row(r * 2 + e % 2), k.queries - 1)
            column = kk * 16 + e // 2 * 8 + k.lane % 4 * 2
            place = self.a.query(*k.lead, row, column)
            return load_pair()(pointer(self.query, r, kk, e), tirx.address_of(place))

        return nest("r d e", [self.t.rows, self.a.depth // 16, 4], one)

    def clear_outputs(self) -> Stmt:
        return nest("r n e", [self.t.rows, self.a.outputs // 8, 4], lambda *at: store(self.acc_o, at, f32(0)))

    def scores(self, stage: PrimExpr) -> Stmt:
        k, lane = self.k, self.k.lane
        first = k.key_warp * self.t.keys

        def step(d: PrimExpr, n: PrimExpr) -> Stmt:
            source = pointer(k.k_tile, stage, first + n * 16 + lane % 8 + lane // 16 * 8, d * 16 + lane // 8 % 2 * 8)
            return sequence(
                ldmatrix_x4()(pointer(self.part, 0), source),
                nest(
                    "r x",
                    [self.t.rows, 2],
                    lambda r, x: self.multiply(self.acc_s, r, n * 2 + x, pointer(self.query, r, d, 0), x),
                ),
            )

        clear = nest("r n e", [self.t.rows, self.t.keys // 8, 4], lambda *at: store(self.acc_s, at, f32(0)))
        return sequence(clear, nest("d n", [self.a.depth // 16, self.t.keys // 16], step))

    def multiply(self, accumulators: Buffer, r: PrimExpr, n: PrimExpr, first: PrimExpr, x: PrimExpr) -> Stmt:
        return mma_m16n8k16(self.a.dtype)(pointer(accumulators, r, n, 0), first, pointer(self.part, x * 2))

    def weighted(self, stage: PrimExpr) -> Stmt:
        k, lane = self.k, self.k.lane
        first = k.key_warp * self.t.keys

        self.all_weights = k.local("pairs", (self.t.rows, 4), "uint32")

        def along(j: PrimExpr) -> Stmt:
            return sequence(
                nest("r e", [self.t.rows, 4], lambda r, e: self._pack(r, j, e)),
                nest("n", [self.a.outputs // 16], lambda n: column(j, n)),
            )

        def column(j: PrimExpr, n: PrimExpr) -> Stmt:
            source = pointer(k.v_tile, stage, first + j * 16 + lane % 16, n * 16 + lane // 16 * 8)
            return sequence(
                ldmatrix_x4(transposed=True)(pointer(self.part, 0), source),
                nest(
                    "r x",
                    [self.t.rows, 2],
                    lambda r, x: self.multiply(self.acc_o, r, n * 2 + x, pointer(self.all_weights, r, 0), x),
                ),
            )

        return nest("j", [self.t.keys // 16], along)

    def _pack(self, r: PrimExpr, j: PrimExpr, e: PrimExpr) -> Stmt:
        """Two weights, in half precision, as an operand of a product has them."""
        at = [r, j * 2 + e // 2, e % 2 * 2]
        low, high = load(self.acc_s, *at), load(self.acc_s, *at[:2], at[2] + 1)
        return pack_pair(self.a.dtype)(pointer(self.all_weights, r, e), low, high)
