"""Kernels of :mod:`.kernel` for SiLU(gate) · up: a warpgroup has 64 of both halves of the weights' rows, so that a
thread has the accumulators of gate and of up for the results that it writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import WARP
from tunehub.kernels.cuda.gemm.hopper.product import Product, operands_of
from tunehub.kernels.cuda.gemm.hopper.tiles import FLOAT
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.packed_gemm.choice import tiles
from tunehub.kernels.cuda.packed_gemm.kernel import PackedWriter
from tunehub.kernels.cuda.packed_gemm.tile import STAGED, PackedTile
from tunehub.kernels.te.products import gated
from tunehub.tir.cuda.ptx.registers import st_shared_1
from tunehub.tir.cuda.ptx.wgmma import ROWS, WARPGROUP
from tunehub.tir.nodes import buffer_kind, parameters
from tunehub.tir.statements import bind, const, load, sequence

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, IRModule, PrimExpr, Stmt

_HALVES = 2


def gated_tiles(bits: int) -> Iterator[PackedTile]:
    """Every tile that may serve: whose warpgroups have rows of both halves, and all of K."""
    return (tile for tile in tiles(bits) if tile.columns == _HALVES * ROWS and tile.cluster == 1)


class GatedPackedWriter(PackedWriter):
    """Of kernels whose function is what :func:`tunehub.kernels.te.products.gated_packed_product` makes."""

    gated = True

    @staticmethod
    def read(mod: IRModule, matmul: Matmul) -> Product:
        """What is computed; its results are those of both halves already."""

        def result(
            _batch: PrimExpr, row: PrimExpr, column: PrimExpr, value: PrimExpr
        ) -> tuple[Buffer, list[PrimExpr], PrimExpr]:
            out = parameters(found.function)[-1]
            return out, [const(0), row, column], value.astype(str(buffer_kind(out).dtype))

        found = operands_of(mod, matmul, result)
        return found

    @property
    def _half(self) -> int:
        return int(self.extents[1]) // _HALVES

    def _weights_in_box(self, rows: int) -> int:
        return ROWS

    def _tma_load(self, which: int, stage: PrimExpr, start: Index, k: Index, first: PrimExpr) -> Stmt:
        if which == 0:
            return super()._tma_load(which, stage, start, k, first)
        count = self.tile.shared[0]
        boxes = self.tile.block[1] // ROWS // count

        def box(i: int) -> Stmt:
            number = self.own_row * boxes + i if count > 1 else const(i)
            row = first // _HALVES + number // _HALVES * ROWS + number % _HALVES * self._half
            return self._load_weights(stage, start, k, number * ROWS, row)

        return sequence([box(i) for i in range(boxes)])

    def _inside(self, place: Index, axis: int) -> list[PrimExpr]:
        if axis == 0:
            return super()._inside(place, axis)
        across = self.tile.block[1] * self.tile.shared[1] // _HALVES
        return [place < self._half] if self._half % across else []

    # -- epilogue

    def _staged_epilogue(self) -> tuple[list[Stmt], list[Stmt]]:
        """Scales of a thread's columns are loaded before all products are done."""
        lane, group = self.thread % WARP, self.thread // WARPGROUP
        column = self._left(group) + self.thread % WARPGROUP // WARP * 16 + lane // 4
        places = [tirx.min(column + half * 8, self._half - 1) + of * self._half for of in (0, 1) for half in (0, 1)]
        of_columns = parameters(self.product.function)[-2]
        self.factors = [tirx.Var("factor", "float32") for _ in places] if self.form.e4m3 else []
        kept = [bind(each, load(of_columns, place)) for each, place in zip(self.factors, places, strict=False)]
        early, found = super()._staged_epilogue()
        return [*kept, *early], found

    def _left(self, group: PrimExpr) -> PrimExpr:
        """The first column of a warpgroup's results."""
        return self.first_column // _HALVES + group * ROWS

    def _pieces(self) -> list[tuple[int, int, int]]:
        return [each for each in super()._pieces() if each[0] == 0]

    def _piece_to_shared(self, part: int, first: int, width: int) -> list[Stmt]:
        lane = self.thread % WARP
        column = self.thread % WARPGROUP // WARP * 16 + lane // 4

        def one(j: int, half: int, v: int) -> Stmt:
            own = (first // 8 + j) * 4 + half * 2 + v
            sums: list[PrimExpr] = [load(self.accumulators, const(own + of * (self.tile.rows // 2))) for of in (0, 1)]
            if self.factors:
                sums = [each * self.factors[of * 2 + half] for of, each in enumerate(sums)]
            at = ((lane % 4 * 2 + (v + j * 8)) * STAGED + column + half * 8) * FLOAT + self.staged
            return st_shared_1()(self._address(at), gated(sums[0], sums[1], "float32"))

        return [one(j, half, v) for j in range(width // 8) for half in (0, 1) for v in (0, 1)]

    def _piece_places(self, part: int, first: int, width: int) -> list[tuple[PrimExpr, PrimExpr, PrimExpr]]:
        group = self.thread // WARPGROUP
        more = self._left(group) - (self.first_column + group * self.tile.columns)
        return [(row, column + more, place) for row, column, place in super()._piece_places(part, first, width)]
