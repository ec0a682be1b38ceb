"""Kernels of :mod:`.open_bulk` for SiLU(gate) · up: a block loads as many rows of both halves of the weights, and a
thread has the accumulators of both for the results that it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import PIECE, STAGED, WARP, BulkTile
from tunehub.kernels.cuda.gemm.hopper.open_bulk import OpenBulkWriter, over_all_rows
from tunehub.kernels.cuda.gemm.hopper.product import Product, operands_of
from tunehub.kernels.cuda.gemm.hopper.rule import matmul_in
from tunehub.kernels.cuda.gemm.hopper.tiles import FLOAT
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.te.products import gated
from tunehub.tir.cuda.ptx.barriers import bar_sync_warpgroup
from tunehub.tir.cuda.ptx.registers import ld_shared_4, st_shared_2
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, ROWS, WARPGROUP
from tunehub.tir.nodes import buffer_kind, parameters
from tunehub.tir.statements import allocate, const, load, loop, sequence, store, when
from tunehub.tir.versions import VECTORIZED

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, IRModule, PrimExpr, PrimFunc, Stmt

_VECTOR = 4
_HALF = PIECE // 2  # results of a row that go through shared memory at a time
_PATTERN_ROWS = 8  # of the swizzling, at whose multiples boxes begin


def suits(tile: BulkTile) -> bool:
    """Whether a block of ``tile`` can have columns of both halves, which blocks of a cluster load in whole patterns."""
    along_rows, _ = tile.shared
    return tile.cluster == 1 and tile.groups[1] == 1 and tile.columns % (2 * along_rows * _PATTERN_ROWS) == 0


def over_gated_rows(
    whole: OpenFunction, tile: BulkTile, device: GpuDevice, find: Callable[[IRModule], Matmul | None] = matmul_in
) -> PrimFunc:
    """``whole``, a gated product, by ``tile``; as :func:`tunehub.kernels.cuda.gemm.hopper.open_bulk.over_all_rows`."""
    return over_all_rows(whole, tile, device, _GatedWriter, find)


class _GatedWriter(OpenBulkWriter):
    @staticmethod
    def read(mod: IRModule, matmul: Matmul) -> Product:
        def result(*_: PrimExpr) -> tuple[Buffer, list[PrimExpr], PrimExpr]:
            raise ValueError("results are of two accumulators")

        return operands_of(mod, matmul, result)

    @property
    def _half(self) -> int:
        return int(self.extents[1]) // 2

    def _height(self, which: int) -> int:
        return super()._height(which) // (1 + which)

    def _tma_load(self, which: int, stage: PrimExpr, start: Index, k: Index, first: PrimExpr) -> Stmt:
        if which == 0:
            return super()._tma_load(which, stage, start, k, first)
        apart, own = self._height(1) * ROW_BYTES, first // 2
        return sequence(
            [
                super(_GatedWriter, self)._tma_load(1, stage, start + part * apart, k, own + part * self._half)
                for part in (0, 1)
            ]
        )

    def _staged_epilogue(self) -> tuple[list[Stmt], list[Stmt]]:
        """As for others; a piece has as many columns of both halves."""
        group = self.thread // WARPGROUP
        self.staged = self.tile.staged_at + group * self.tile.staged_bytes
        met, across = bar_sync_warpgroup()(group + 1), self._height(1)
        found: list[Stmt] = []
        for part in range(self.parts):
            for first in range(0, across, _HALF):
                width = min(_HALF, across - first)
                found += [*self._halves_to_shared(part, first, width), met, self._half_piece(part, first, width), met]
        return [], found

    def _halves_to_shared(self, part: int, first: int, width: int) -> list[Stmt]:
        lane = self.thread % WARP
        row = self.thread % WARPGROUP // WARP * 16 + lane // 4

        def pair(j: int, down: int, of: int) -> Stmt:
            column = of * self._height(1) + first + j * 8
            own = part * (self.tile.columns // 2) + column // 8 * 4 + down * 2
            at = ((row + down * 8) * STAGED + of * _HALF + lane % 4 * 2 + j * 8) * FLOAT + self.staged
            return st_shared_2()(self._address(at), *(load(self.accumulators, const(own + v)) for v in (0, 1)))

        return [pair(j, down, of) for j in range(width // 8) for down in (0, 1) for of in (0, 1)]

    def _half_piece(self, part: int, first: int, width: int) -> Stmt:
        """Results of a warpgroup's piece, neighbours of a row in a vector of a thread."""
        tile, inside, across = self.tile, self.thread % WARPGROUP, width // _VECTOR
        top = self.first_row + self.thread // WARPGROUP * tile.rows + part * ROWS
        left = self.first_column // 2 + first

        def vector(i: int) -> Stmt:
            index = i * WARPGROUP + inside
            row, column = index // across, index % across * _VECTOR
            return self._written(top + row, left + column, row * STAGED + column)

        return sequence([vector(i) for i in range(ROWS * across // WARPGROUP)])

    def _written(self, row: PrimExpr, column: PrimExpr, place: PrimExpr) -> Stmt:
        *operands, out = parameters(self.product.function)
        dtype = str(buffer_kind(out).dtype)
        halves = self._buffer("halves", 2 * _VECTOR, "float32", "local")
        found = self._buffer("found", _VECTOR, dtype, "local")
        scales = operands[2:]  # of rows and of columns, if the product has some

        def loaded(of: int) -> Stmt:
            at = self._address((place + of * _HALF) * FLOAT + self.staged)
            return store(halves, [tirx.Ramp(of * _VECTOR, 1, _VECTOR)], ld_shared_4()(at, result="float32x4"))

        def half(of: int, v: int) -> PrimExpr:
            total: PrimExpr = load(halves, of * _VECTOR + v)
            if not scales:
                return total
            at = tirx.min(row, self.rows - 1), tirx.min(column, self._half - _VECTOR) + of * self._half + v
            return total * load(scales[0], 0, at[0], 0) * load(scales[1], at[1])

        def value(v: int) -> Stmt:
            return store(found, [v], gated(half(0, v), half(1, v), dtype))

        def kept(v: PrimExpr) -> Stmt:
            return store(out, [const(0), row, column + v], load(found, v))

        holds = [
            row < self.rows,
            *([column < self._half] if self._half % self._height(1) or self.tile.shared[1] > 1 else []),
        ]
        body = [allocate(halves), allocate(found), loaded(0), loaded(1), *map(value, range(_VECTOR))]
        return sequence([*body, when(tirx.all(*holds), loop("i", _VECTOR, kept, VECTORIZED))])
