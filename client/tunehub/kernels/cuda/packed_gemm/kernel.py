"""A persistent, warp-specialised product of an open number of rows with quantised weights: as
:mod:`tunehub.kernels.cuda.gemm.hopper.open_bulk`, but packed weights come by TMA as they lie, and consumers dequantise
them in registers, which are the left operand of ``wgmma``: out^T = W · x^T. x in shared memory is the right one, as in
CUTLASS's products of mixed types for Hopper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import WARP
from tunehub.kernels.cuda.gemm.hopper.open_bulk import OpenBulkWriter, longest_piece
from tunehub.kernels.cuda.gemm.hopper.product import Product
from tunehub.kernels.cuda.gemm.hopper.tiles import DEPTH as PANEL
from tunehub.kernels.cuda.gemm.hopper.tiles import FLOAT
from tunehub.kernels.cuda.low_batch.taken_apart import TakenApart
from tunehub.kernels.cuda.low_batch.weights import WORD_BITS
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.cuda.packed_gemm.source import PackedSource
from tunehub.kernels.cuda.packed_gemm.tile import DEPTH, PIECE, STAGED, PackedTile
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.ptx.mbarrier import mbarrier_arrive_expect_tx, mbarrier_wait
from tunehub.tir.cuda.ptx.registers import st_shared_1
from tunehub.tir.cuda.ptx.tma import tensor_map_encode, tma_load_2d, tma_load_2d_multicast
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, ROWS, WARPGROUP
from tunehub.tir.nodes import parameters
from tunehub.tir.statements import address, allocate, block_of, const, f32, load, loop, sequence, store, when
from tunehub.tir.versions import UNROLLED
from tunehub.tir.views import product as extent_of
from tunehub.tir.views import views, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc, Stmt

_VECTOR = 4
_BITS_SWIZZLED = 8  # of weights whose rows are as long as those of x


def packed_over_all_rows(
    whole: OpenFunction,
    apart: TakenApart,
    tile: PackedTile,
    device: GpuDevice,
    writer: type[PackedWriter] | None = None,
) -> PrimFunc:
    """``apart.function`` by ``tile`` for up to :func:`most_length` places along its open axis, not checked; ``whole``:
    its product of weights that are made. ``writer``: of another epilogue.

    Raises NotPiecesError where it is no such product, ValueError where x is no matrix, or what TVM raises.
    """
    found, piece, matmul = longest_piece(whole)
    kind = writer or PackedWriter
    own = kind(kind.read(piece, matmul), tile, device, apart)
    body = own.over(whole, extent_of(wide(whole.axes.extents)) * found.of_one)
    return apart.function.with_body(block_of(apart.function.body, body, "root", []))


class PackedWriter(OpenBulkWriter):
    """Of kernels whose weights are packed."""

    gated = False

    def __init__(self, product: Product, tile: PackedTile, device: GpuDevice, apart: TakenApart) -> None:
        super().__init__(product, tile, device)
        _, columns, k = self.extents
        self.depth = DEPTH
        self.all_steps = -(-k // DEPTH)
        self.steps = -(-self.all_steps // tile.cluster)
        self.form, self.made_weights = apart.form, apart.weights
        self.words, *scales, _ = parameters(apart.made)
        self.scales = (scales or [self.words])[0]  # of e4m3 nothing is read
        self.packed = PackedSource(columns=columns, depth=k, form=apart.form, tile=tile, gated=self.gated)
        self.count = self.packed.parts * tile.rows // 2
        self.accumulators = self._buffer("sums", self.count, "float32", "local")
        self.state = self._buffer("state", self.packed.state, "uint32", "local")

    def _views(self, own: Sequence[Buffer], parts: Sequence[Buffer]) -> list[Stmt]:
        kept = [pair for pair in zip(own, parts, strict=True) if not pair[0].same_as(self.made_weights)]
        return views(*zip(*kept, strict=True))

    def _tensor_maps(self) -> list[Stmt]:
        """x as two boxes of 64 of K, weights as words; rows of as many bytes as a pattern are swizzled as it asks."""
        rows, columns, k = self.extents
        high, wide_ = (self.tile.block[at] // self.tile.shared[1 - at] for at in (0, 1))
        of_word = WORD_BITS // self.form.bits
        x, words = self._operand(self.product.a, rows), k // of_word
        swizzled = self.form.bits == _BITS_SWIZZLED
        wide_ = self._weights_in_box(wide_)
        return [
            *tensor_map_encode(self.maps[0], x, self.product.dtype, extents=(k, rows), apart=(k,), box=(PANEL, high)),
            *tensor_map_encode(
                self.maps[1],
                self.words,
                "uint32",
                extents=(words, columns),
                apart=(words,),
                box=(DEPTH // of_word, wide_),
                swizzled=swizzled,
            ),
        ]

    def _weights_in_box(self, rows: int) -> int:
        """Rows of weights that are loaded at once; ``rows``: all that a block loads itself."""
        return rows

    # -- producer

    def _producer(self) -> Stmt:
        tile = self.tile

        def one(turn: PrimExpr, step: PrimExpr) -> Stmt:
            at = turn * self.steps + step
            stage = at % tile.stages
            start, panel = stage * tile.stage_bytes, tile.block[0] * ROW_BYTES
            k = (self.part * self.steps + step) * DEPTH
            return sequence(
                [
                    mbarrier_wait()(self._empty_barrier(stage), (at // tile.stages + 1) % 2),
                    mbarrier_arrive_expect_tx(tile.stage_bytes)(self._full_barrier(stage)),
                    *(
                        self._tma_load(0, stage, start + i * panel, k + i * PANEL, self.first_row)
                        for i in range(DEPTH // PANEL)
                    ),
                    self._tma_load(1, stage, start + tile.x_bytes, k, self.first_column),
                ]
            )

        loaded = self._over_tiles(lambda turn: loop("i", self.steps, lambda step: one(turn, step)))
        return sequence([loaded, self._drain()]) if self._peers > 1 and tile.cluster == 1 else loaded

    def _tma_load(self, which: int, stage: PrimExpr, start: Index, k: Index, first: PrimExpr) -> Stmt:
        if which == 0:
            return super()._tma_load(which, stage, start, k, first)
        rows = self.tile.block[1] // self.tile.shared[0]
        part = self.own_row * rows if self.tile.shared[0] > 1 else const(0)
        return self._load_weights(stage, start, k, part, first + part)

    def _load_weights(self, stage: PrimExpr, start: Index, k: Index, part: Index, row: Index) -> Stmt:
        """A box of weights from their ``row`` on, which lie in the stage from the row ``part`` on."""
        tile, count = self.tile, self.tile.shared[0]
        place = self._address(start + part * tile.row_bytes)
        word = k * self.form.bits // WORD_BITS
        box = place, tirx.address_of(self.maps[1]), self._full_barrier(stage), word, row
        if count == 1:
            return tma_load_2d()(*box)
        bits = const(sum(1 << (tile.cluster * i) for i in range(count)))
        return tma_load_2d_multicast()(*box, tirx.shift_left(bits, self.rank - self.own_row * tile.cluster))

    # -- consumers

    def _consumers(self) -> Stmt:
        tile, packed = self.tile, self.packed
        sums, state = address(self.accumulators, const(0)), address(self.state, const(0))
        scales, first = address(self.scales, const(0), const(0)), self.part * self.steps

        def step(at: PrimExpr, i: PrimExpr, column: PrimExpr) -> Stmt:
            stage, before = (at + i) % tile.stages, (at + i + (tile.stages - 1)) % tile.stages
            start = stage * tile.stage_bytes
            own = start + tile.x_bytes + self.thread // WARPGROUP * (tile.columns * tile.row_bytes)
            return sequence(  # wait for a stage, dequantise and multiply it, and release the one before
                [
                    mbarrier_wait()(self._full_barrier(stage), (at + i) // tile.stages % 2),
                    packed.products()(sums, state, self._address(own), self._address(start), scales, column, first + i),
                    when(i > 0, self._release(before)),
                ]
            )

        def one(turn: PrimExpr) -> Stmt:
            at = turn * self.steps
            column = self.first_column + self.thread // WARPGROUP * tile.columns
            early, epilogue = self._staged_epilogue() if tile.cluster == 1 else ([], [])
            return sequence(
                [
                    loop("i", self.count, lambda i: store(self.accumulators, [i], f32(0)), UNROLLED),
                    # All of it: TVM makes buffers smaller whose other elements nobody writes but functions.
                    loop("i", packed.state, lambda i: store(self.state, [i], const(0, "uint32")), UNROLLED),
                    packed.begin()(state, scales, column, first),
                    loop("i", self.steps, lambda i: step(at, i, column)),
                    *early,
                    packed.finish()(sums, state),
                    self._release((at + (self.steps - 1)) % tile.stages),
                    *epilogue,
                ]
            )

        return sequence([allocate(self.state), self._over_tiles(one)])

    # -- epilogue: accumulators have columns where others have rows

    def _pieces(self) -> list[tuple[int, int, int]]:
        rows = range(0, self.tile.rows, PIECE)
        return [(part, at, min(PIECE, self.tile.rows - at)) for part in range(self.packed.parts) for at in rows]

    def _accumulators_to_shared(self) -> list[Stmt]:
        lane, group = self.thread % WARP, self.thread // WARPGROUP
        column = group * self.tile.columns + self.thread % WARPGROUP // WARP * 16 + lane // 4

        def four(part: int) -> Stmt:
            def one(j: PrimExpr) -> Stmt:
                row, own = j * 8 + lane % 4 * 2, part * (self.tile.rows // 2) + j * 4
                return sequence(
                    [
                        store(
                            self.pool,
                            [(row + v) * self.row_stride + column + (part * ROWS + half * 8)],
                            load(self.accumulators, own + (half * 2 + v)),
                        )
                        for half in (0, 1)
                        for v in (0, 1)
                    ]
                )

            return loop("i", self.tile.rows // 8, one, UNROLLED)

        return [four(part) for part in range(self.packed.parts)]

    def _piece_to_shared(self, part: int, first: int, width: int) -> list[Stmt]:
        lane = self.thread % WARP
        column = self.thread % WARPGROUP // WARP * 16 + lane // 4

        def one(j: int, half: int, v: int) -> Stmt:
            own = part * (self.tile.rows // 2) + (first // 8 + j) * 4 + half * 2 + v
            at = ((lane % 4 * 2 + (v + j * 8)) * STAGED + column + half * 8) * FLOAT + self.staged
            return st_shared_1()(self._address(at), load(self.accumulators, const(own)))

        return [one(j, half, v) for j in range(width // 8) for half in (0, 1) for v in (0, 1)]

    def _piece_places(self, part: int, first: int, width: int) -> list[tuple[PrimExpr, PrimExpr, PrimExpr]]:
        inside, across = self.thread % WARPGROUP, ROWS // _VECTOR
        left = self.first_column + self.thread // WARPGROUP * self.tile.columns + part * ROWS

        def place(i: int) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
            index = i * WARPGROUP + inside
            row, column = index // across, index % across * _VECTOR
            return self.first_row + first + row, left + column, row * STAGED + column

        return [place(i) for i in range(width * across // WARPGROUP)]
