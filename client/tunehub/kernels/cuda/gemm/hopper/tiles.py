"""Which tiles of a kernel for warpgroups suit a product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.tir.cuda.ptx.cp_async import COPIED
from tunehub.tir.cuda.ptx.wgmma import ROWS, WARPGROUP

AHEAD = 2  # stages that are not waited for: one is multiplied, and one may still be
DEPTH = 64  # elements of K in a row of 128 bytes
SHARED_BYTES = 227 << 10  # that a block may ask for
HALF, FLOAT = 2, 4  # bytes
SKEW = 8  # accumulators that a row is longer, so that rows start at different banks
_MOST_CLUSTER_BLOCKS = 160  # of a grid whose K is divided: more fill the GPU anyway
_BLOCKS = (  # warpgroups, and rows and columns of each
    *(((1, 1), ROWS, columns) for columns in (32, 64, 96, 128, 192, 256)),
    *(((2, 1), ROWS, columns) for columns in (64, 96, 128, 192, 256)),
    ((1, 2), ROWS, 128),
    ((2, 1), 2 * ROWS, 128),
    ((2, 2), ROWS, 128),
)
_FEWEST_COLUMNS = 32
_STAGES = (3, 4, 6)
_CLUSTERS = (1, 2, 4, 8)  # blocks among which K is divided


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class WarpgroupBlock:
    """What all tiles for warpgroups choose: ``groups`` of warpgroups along rows and columns, each of ``rows`` x
    ``columns``; parts of 64 of K are in ``stages`` at a time. K is divided among the blocks of a ``cluster``."""

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
    def stage_bytes(self) -> int:
        """Of both operands."""
        return sum(self.block) * DEPTH * HALF


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class WarpgroupTile(WarpgroupBlock):
    """Of a kernel whose threads all copy operands and multiply."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.multiplying

    @property
    def shared_bytes(self) -> int:
        """What a block takes."""
        return max(self.stages * self.stage_bytes, self.block[0] * (self.block[1] + SKEW) * FLOAT)


def suits(matmul: Matmul) -> bool:
    """Whether operands lie so that copies of 16 bytes can take them: A along K, B along K or the columns."""
    return not matmul.rows_first and all(run % COPIED == 0 for run in matmul.runs)


def tiles(matmul: Matmul) -> Iterator[WarpgroupTile]:
    """Every tile that may suit ``matmul``; a block covers a dimension twice at most."""
    batch, rows, columns, k = matmul.extents
    for (groups, own_rows, own_columns), stages, cluster in product(_BLOCKS, _STAGES, _CLUSTERS):
        if not matmul.k_last and own_columns % DEPTH:
            continue
        tile = WarpgroupTile(groups=groups, rows=own_rows, columns=own_columns, stages=stages, cluster=cluster)
        block_rows, block_columns = tile.block
        if block_rows >= 2 * max(rows, ROWS) or block_columns >= 2 * max(columns, _FEWEST_COLUMNS):
            continue
        blocks = batch * math.ceil(rows / block_rows) * math.ceil(columns / block_columns)
        if tile.shared_bytes <= SHARED_BYTES and _divides(tile, blocks, math.ceil(k / DEPTH)):
            yield tile


def _divides(tile: WarpgroupTile, blocks: int, steps: int) -> bool:
    """Whether K may be divided as ``tile`` says."""
    rows, columns = tile.block
    if tile.cluster == 1:
        return True
    parts = rows * columns // 4 // tile.cluster
    return blocks * tile.cluster <= _MOST_CLUSTER_BLOCKS and steps >= 4 * tile.cluster and parts % tile.threads == 0
