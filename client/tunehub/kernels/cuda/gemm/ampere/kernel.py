"""The kernel of a product of integers of 8 bits for warps, as statements of TIR around the instructions of
:mod:`tunehub.tir.cuda.ptx`: as :mod:`tunehub.kernels.cuda.gemm.hopper.kernel`, but each warp multiplies by ``mma`` what
it loads by ``ldmatrix``. The loop is that of CUTLASS's ``MmaMultistage``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx

from tunehub.kernels.cuda.gemm.ampere.tiles import WarpTile
from tunehub.kernels.cuda.gemm.hopper.kernel import KernelWriter
from tunehub.kernels.cuda.gemm.hopper.product import Product
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.cp_async import cp_async_commit, cp_async_wait_for_all_threads
from tunehub.tir.cuda.ptx.mma import mma_stage
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES
from tunehub.tir.statements import address, const, load, loop, sequence, store, when
from tunehub.tir.versions import UNROLLED, VECTORIZED

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, PrimFunc, Stmt

_ROWS, _COLUMNS = 16, 8  # of a fragment of accumulators
_OF_A_THREAD = 4  # of these


def kernel(product: Product, tile: WarpTile, most_shared: int) -> PrimFunc:
    """The PrimFunc of ``product`` by ``tile``, for GPUs whose blocks have at most so many bytes of shared memory.
    Raises ValueError where a block writes less than its threads."""
    writer = _WarpWriter(product, tile)
    writer.most_shared = most_shared
    return product.function.with_body(writer.statement())


class _WarpWriter(KernelWriter):
    tile: WarpTile

    def __init__(self, product: Product, tile: WarpTile) -> None:
        super().__init__(product, tile, None)
        self.count = tile.rows * tile.columns // WARP
        self.accumulators = self._buffer("sums", self.count, self.sum_type, "local")
        self.warp, self.lane = self.thread // WARP, self.thread % WARP
        self.warp_row, self.warp_column = self.warp // tile.warps[1], self.warp % tile.warps[1]

    def _ahead(self) -> int:
        return int(self.tile.stages - 1)

    def _finished(self) -> list[Stmt]:
        return []

    def _iteration(self, step: PrimExpr, ahead: int) -> Stmt:
        """Wait for a stage, which all threads then see, start the copies into the one that all have read, multiply."""
        later = step + ahead
        copies = self._load_stage(later, later % self.tile.stages)
        return sequence(
            [
                cp_async_wait_for_all_threads(ahead - 1)(),
                *([when(later < self.steps, sequence(copies))] if self.steps > ahead else []),
                cp_async_commit()(),
                self._mma(step % self.tile.stages),
            ]
        )

    def _mma(self, stage: PrimExpr) -> Stmt:
        tile = self.tile
        start = stage * tile.stage_bytes
        a = start + self.warp_row * (tile.rows * ROW_BYTES)
        b = start + tile.block[0] * ROW_BYTES + self.warp_column * (tile.columns * ROW_BYTES)
        places = (self.base + tirx.Cast("uint32", place) for place in (a, b))
        function = mma_stage(self.product.dtype, self.product.b_dtype, tile.rows, tile.columns)
        return function(address(self.accumulators, const(0)), *places)

    def _accumulators_to_shared(self) -> list[Stmt]:
        """As ``mma`` leaves them in registers: four threads have a row of a fragment, and the eighth one behind."""
        tile = self.tile
        row = self.warp_row * tile.rows + self.lane // 4
        column = self.warp_column * tile.columns + self.lane % 4 * 2
        across = tile.columns // _COLUMNS

        def pair(i: int, half: int) -> Stmt:
            def one(j: PrimExpr) -> Stmt:
                to = (row + i * _ROWS + half * 8) * self.row_stride + column + j * _COLUMNS
                own = (i * across + j) * _OF_A_THREAD + half * 2
                return loop("v", 2, lambda v: store(self.pool, [to + v], load(self.accumulators, own + v)), VECTORIZED)

            return loop("j", across, one, UNROLLED)

        return [pair(i, half) for i in range(tile.rows // _ROWS) for half in (0, 1)]
