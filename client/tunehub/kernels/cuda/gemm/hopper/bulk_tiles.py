"""Which tiles of a kernel for warpgroups whose operands the copy engine brings suit a product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tunehub.kernels.cuda.gemm.hopper.tiles import DEPTH, FLOAT, SHARED_BYTES, SKEW, WarpgroupBlock
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.ptx.cp_async import COPIED
from tunehub.tir.cuda.ptx.mbarrier import BARRIER_BYTES
from tunehub.tir.cuda.ptx.wgmma import ROWS, WARPGROUP

WARP = 32
PIECE = 32  # columns of results that go through shared memory at a time
STAGED = PIECE + SKEW  # accumulators of a row of them
FEWEST_ROWS, FEWEST_COLUMNS, FEWEST_K = 17, 512, 2048  # of products; what is smaller gained little
_WIDE = 128 * WARPGROUP  # accumulators of a warpgroup that leave all threads as many registers
_BAND = 2048  # rows whose tiles are computed before those below, so that what they share stays in the cache
_PATTERN_ROWS = 8  # of the swizzling, at whose multiples boxes begin
_MOST_TOGETHER = 192  # columns of a warpgroup whose sums are promoted
_Shape = tuple[tuple[int, int], int, int]
_PROMOTED_SHAPES: tuple[_Shape, ...] = (  # as _SHAPES
    *(((1, 1), ROWS, columns) for columns in (32, 64, 96, 128, 160, 192)),
    *(((1, 2), ROWS, columns) for columns in (32, 48, 64, 96, 128)),
    *(((2, 1), ROWS, columns) for columns in (64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)),
    ((2, 1), 2 * ROWS, 128),
)
_SHAPES: tuple[_Shape, ...] = (  # warpgroups, and rows and columns of each
    *(((1, 1), ROWS, columns) for columns in (96, 112, 128, 144, 160, 192, 224, 256)),
    *(((2, 1), ROWS, columns) for columns in (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)),
    *(((2, 1), 2 * ROWS, columns) for columns in (64, 80, 96, 112, 128, 144, 160, 176, 192)),
)
_SHARED = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
_CLUSTERS = (1, 2, 4)
_STAGES = (8, 6, 5, 4, 3)  # with 7, kernels took a quarter longer


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class BulkTile(WarpgroupBlock):
    """Of a kernel whose operands the copy engine brings. A cluster has ``shared`` blocks along rows and columns, which
    bring what they have in common once, times ``cluster``, among which K is divided."""

    shared: tuple[int, int] = (1, 1)

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.cluster * math.prod(self.shared)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of a thread that brings and of one that multiplies, where these need more than there are for all alike."""
        return (24, 240) if self.rows * self.columns > _WIDE or self.loads_ahead else None

    @property
    def loads_ahead(self) -> bool:
        """Whether two warpgroups have as many registers for their epilogue's sake alone, which then has what results
        are computed from."""
        return self.rows * self.columns == _WIDE and math.prod(self.groups) > 1 and self.cluster == 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.multiplying + (WARP if self.registers is None else WARPGROUP)

    @property
    def staged_at(self) -> int:
        """Where results are, in bytes, while they are written."""
        return self.stages * self.stage_bytes

    @property
    def staged_bytes(self) -> int:
        """Of the results of a warpgroup that go through shared memory at a time."""
        return ROWS * STAGED * FLOAT

    @property
    def pieces_ahead(self) -> int:
        """Pieces of results whose other operands are loaded before all products are done. Measured of 8,192 x 4,096
        results and a residual, K of 4,096: with none 1.123 of cuBLAS's time without it, with 2 1.098, with 4 and as
        many registers 1.072."""
        return 4 if self.loads_ahead else 2

    @property
    def barriers_at(self) -> int:
        """Where barriers are, in bytes."""
        if self.cluster > 1:
            return max(self.staged_at, self.block[0] * (self.block[1] + SKEW) * FLOAT)
        return self.staged_at + math.prod(self.groups) * self.staged_bytes

    @property
    def shared_bytes(self) -> int:
        """What a block takes."""
        return self.barriers_at + 2 * BARRIER_BYTES * self.stages

    def over(self, rows: int, columns: int) -> tuple[int, int]:
        """Clusters along ``rows`` and ``columns``."""
        extents = zip((rows, columns), self.block, self.shared, strict=True)
        high, wide = (math.ceil(math.ceil(extent / block) / shared) for extent, block, shared in extents)
        return high, wide

    def resident(self, device: GpuDevice) -> int:
        """Clusters for which ``device`` has places."""
        return device.places[self.blocks]

    def started(self, clusters: int, device: GpuDevice) -> int:
        """How many of ``clusters`` are started; each computes what is left, too. Where K is divided that is all."""
        return clusters if self.cluster > 1 else min(clusters, self.resident(device))

    def is_at_once(self, clusters: int, device: GpuDevice) -> bool:
        """Whether there are places for all of so many ``clusters``, if K is divided: these do not overlap otherwise."""
        return self.cluster == 1 or clusters <= self.resident(device)

    def band(self, high: int) -> int:
        """Of ``high`` clusters along the rows, how many are computed before those below: as many as divide them."""
        return max(each for each in range(1, min(high, self.most_in_band) + 1) if high % each == 0)

    @property
    def most_in_band(self) -> int:
        """Clusters along the rows that are computed before those below, at most."""
        return max(1, _BAND // (self.block[0] * self.shared[0]))


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class PromotedTile(BulkTile):
    """Of products of floats of 8 bits, whose instructions keep some 14 bits of what they add up: a warpgroup adds the
    sums of 128 of K, 64 rows by :attr:`together` columns at a time, to accumulators in float32."""

    @property
    def together(self) -> int:
        """Columns of the sums that instructions have at a time."""
        return self.columns if self.columns <= _MOST_TOGETHER else self.columns // 2

    @property
    def registers(self) -> tuple[int, int] | None:
        """As :attr:`BulkTile.registers`. A single warpgroup may have as many anyway."""
        many = self.rows * self.columns + ROWS * self.together > _WIDE
        return (24, 240) if many and math.prod(self.groups) > 1 else None

    @property
    def loads_ahead(self) -> bool:
        """No: registers are for sums."""
        return False


def suits(matmul: Matmul) -> bool:
    """Whether operands are matrices that the copy engine can take, and large enough."""
    _, rows, columns, k = matmul.extents
    return rows >= FEWEST_ROWS and columns >= FEWEST_COLUMNS and k >= FEWEST_K and are_matrices(matmul)


def are_matrices(matmul: Matmul) -> bool:
    """Whether operands are matrices that the copy engine can take."""
    k = matmul.extents[3]
    plain = not (matmul.batch or matmul.rows_first or matmul.columns_first) and matmul.k_last and matmul.window == 1
    return plain and all(run % COPIED == 0 and run % k == 0 for run in matmul.runs)  # else a convolution


def tiles(matmul: Matmul, device: GpuDevice) -> Iterator[BulkTile]:
    """Every tile that may suit ``matmul`` on ``device``, with as many stages as there is room for."""
    return _tiles(BulkTile, _SHAPES, matmul, device)


def promoted_tiles(matmul: Matmul, device: GpuDevice) -> Iterator[BulkTile]:
    """As :func:`tiles`, of those for products of floats of 8 bits."""
    return _tiles(PromotedTile, _PROMOTED_SHAPES, matmul, device)


def _tiles(kind: type[BulkTile], shapes: Sequence[_Shape], matmul: Matmul, device: GpuDevice) -> Iterator[BulkTile]:
    _, rows, columns, k = matmul.extents
    for (groups, own_rows, own_columns), shared, cluster in product(shapes, _SHARED, _CLUSTERS):
        for stages in _STAGES:
            tile = kind(
                groups=groups, rows=own_rows, columns=own_columns, stages=stages, cluster=cluster, shared=shared
            )
            if tile.shared_bytes <= SHARED_BYTES:
                if _fits(tile, rows, columns, math.ceil(k / DEPTH), device):
                    yield tile
                break


def _fits(tile: BulkTile, rows: int, columns: int, steps: int, device: GpuDevice) -> bool:
    """Whether a block has less than twice what there is, a cluster no block without work, boxes begin at whole
    patterns, and K may be divided as the tile says."""
    (height, width), (along_rows, along_columns) = tile.block, tile.shared
    if tile.blocks not in device.places or (height > ROWS and height >= 2 * rows) or width >= 2 * columns:
        return False
    if along_rows > math.ceil(rows / height) or along_columns > math.ceil(columns / width):
        return False
    if height % (along_columns * _PATTERN_ROWS) or width % (along_rows * _PATTERN_ROWS):
        return False
    return tile.cluster == 1 or _divides(tile, math.prod(tile.over(rows, columns)), steps, device)


def _divides(tile: BulkTile, clusters: int, steps: int, device: GpuDevice) -> bool:
    """Whether K may be divided: all ``clusters`` are there at a time. Of tiles for which registers are moved those of
    8 bits alone were measured."""
    parts = math.prod(tile.block) // 4 // tile.cluster
    few = tile.is_at_once(clusters, device) and (tile.registers is None or isinstance(tile, PromotedTile))
    return few and steps >= 4 * tile.cluster and parts % tile.multiplying == 0
