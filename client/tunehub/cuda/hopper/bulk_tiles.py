"""Which tiles of a kernel for warpgroups whose operands the copy engine brings suit a product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.cuda.hopper.ptx import COPIED, ROWS, WARPGROUP
from tunehub.cuda.hopper.ring_code import BARRIER_BYTES
from tunehub.cuda.hopper.tiles import DEPTH, FLOAT, HALF, SHARED_BYTES, SKEW
from tunehub.cuda.matmul import Matmul

WARP = 32
PIECE = 32  # columns of results that go through shared memory at a time
STAGED = PIECE + SKEW  # sums of a row of them
_FEWEST_ROWS, _FEWEST_COLUMNS, _FEWEST_K = 256, 512, 2048  # of products; what is smaller gained nothing
_WIDE = 128 * WARPGROUP  # sums of a warpgroup that leave all threads as many registers
_BAND = 2048  # rows whose tiles are computed before those below, so that what they share stays in the cache
_SHAPES = (  # warpgroups, and rows and columns of each
    *(((2, 1), ROWS, columns) for columns in (128, 160, 192, 224, 256)),
    *(((2, 1), 2 * ROWS, columns) for columns in (96, 128, 160, 192)),
)
_CLUSTERS = (1, 2, 4)
_STAGES = (8, 7, 6, 5, 4, 3)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class BulkTile:
    """The choices: ``groups`` of warpgroups along rows and columns, each of ``rows`` x ``columns``; parts of 64 of K
    are in ``stages`` at a time. K is divided among the blocks of a ``cluster``."""

    groups: tuple[int, int]
    rows: int
    columns: int
    stages: int
    cluster: int = 1

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block of threads."""
        return self.groups[0] * self.rows, self.groups[1] * self.columns

    @property
    def multiplying(self) -> int:
        """Threads of a block that multiply."""
        return WARPGROUP * math.prod(self.groups)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of a thread that brings and of one that multiplies, where these need more than there are for all alike."""
        return (24, 240) if self.rows * self.columns > _WIDE else None

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.multiplying + (WARP if self.registers is None else WARPGROUP)

    @property
    def stage_bytes(self) -> int:
        """Of both operands."""
        return sum(self.block) * DEPTH * HALF

    @property
    def staged_at(self) -> int:
        """Where results are, in bytes, while they are written."""
        return self.stages * self.stage_bytes

    @property
    def barriers_at(self) -> int:
        """Where barriers are, in bytes."""
        if self.cluster > 1:
            return max(self.staged_at, self.block[0] * (self.block[1] + SKEW) * FLOAT)
        return self.staged_at + math.prod(self.groups) * ROWS * STAGED * FLOAT

    @property
    def shared_bytes(self) -> int:
        """What a block takes."""
        return self.barriers_at + 2 * BARRIER_BYTES * self.stages

    def over(self, rows: int, columns: int) -> tuple[int, int]:
        """Tiles along ``rows`` and ``columns``."""
        return math.ceil(rows / self.block[0]), math.ceil(columns / self.block[1])

    def started(self, tiles: int) -> int:
        """How many blocks, or clusters, are started for so many ``tiles``; each computes what is left, too. Where K is
        divided that is all."""
        return tiles if self.cluster > 1 else min(tiles, MULTIPROCESSORS)

    def band(self, high: int) -> int:
        """Of ``high`` tiles along the rows, how many are computed before those below: as many as divide them."""
        most = max(1, _BAND // self.block[0])
        return max(each for each in range(1, min(high, most) + 1) if high % each == 0)


def suits(matmul: Matmul) -> bool:
    """Whether operands are matrices that the copy engine can take, and large enough."""
    _, rows, columns, k = matmul.extents
    large = rows >= _FEWEST_ROWS and columns >= _FEWEST_COLUMNS and k >= _FEWEST_K
    plain = not (matmul.batch or matmul.rows_first or matmul.columns_first) and matmul.k_last and matmul.window == 1
    return large and plain and all(run % COPIED == 0 and run % k == 0 for run in matmul.runs)  # else a convolution


def tiles(matmul: Matmul) -> Iterator[BulkTile]:
    """Every tile that may suit ``matmul``, with as many stages as there is room for."""
    _, rows, columns, k = matmul.extents
    for (groups, own_rows, own_columns), cluster in product(_SHAPES, _CLUSTERS):
        for stages in _STAGES:
            tile = BulkTile(groups=groups, rows=own_rows, columns=own_columns, stages=stages, cluster=cluster)
            if tile.shared_bytes <= SHARED_BYTES:
                if _fits(tile, rows, columns, math.ceil(k / DEPTH)):
                    yield tile
                break


def _fits(tile: BulkTile, rows: int, columns: int, steps: int) -> bool:
    """Whether a block has less than twice what there is; K is divided where blocks do not fill the GPU otherwise."""
    height, width = tile.block
    if height >= 2 * rows or width >= 2 * columns:
        return False
    if tile.cluster == 1:
        return True
    if tile.registers is not None:
        return False  # sums outlive the part of the kernel that has so many
    parts = height * width // 4 // tile.cluster
    blocks = math.prod(tile.over(rows, columns)) * tile.cluster
    return blocks <= MULTIPROCESSORS and steps >= 4 * tile.cluster and parts % tile.multiplying == 0
