"""Which tiles of a kernel for warps suit a product of operands of 8 bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tunehub.kernels.cuda.gemm.hopper.tiles import FLOAT, SKEW
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.cp_async import COPIED_BYTES
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES

_WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
_OF_A_WARP = ((16, 32), (32, 16), (32, 32), (16, 64), (32, 64), (64, 32), (64, 64))  # rows and columns
_STAGES = (2, 3, 4, 6)
_FEWEST_ROWS, _FEWEST_COLUMNS = 16, 16  # of a block that is not too large for anything


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class WarpTile:
    """A block has ``warps`` along rows and columns, each of which multiplies ``rows`` x ``columns``; parts of 128 of K
    are in ``stages`` at a time."""

    warps: tuple[int, int]
    rows: int
    columns: int
    stages: int

    cluster = 1  # blocks among which K is divided

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block of threads."""
        return self.warps[0] * self.rows, self.warps[1] * self.columns

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * math.prod(self.warps)

    @property
    def stage_bytes(self) -> int:
        """Of both operands."""
        return sum(self.block) * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """What a block takes."""
        return max(self.stages * self.stage_bytes, self.block[0] * (self.block[1] + SKEW) * FLOAT)


def suits(matmul: Matmul) -> bool:
    """Whether operands lie along K so that copies of 16 bytes can take them."""
    return matmul.k_last and not matmul.rows_first and all(run % COPIED_BYTES == 0 for run in matmul.runs)


def tiles(matmul: Matmul, device: GpuDevice) -> Iterator[WarpTile]:
    """Every tile that may suit ``matmul``; a block covers a dimension twice at most."""
    _, rows, columns, k = matmul.extents
    steps = math.ceil(k / ROW_BYTES)
    for warps, (own_rows, own_columns), stages in product(_WARPS, _OF_A_WARP, _STAGES):
        tile = WarpTile(warps=warps, rows=own_rows, columns=own_columns, stages=stages)
        block_rows, block_columns = tile.block
        if block_rows >= 2 * max(rows, _FEWEST_ROWS) or block_columns >= 2 * max(columns, _FEWEST_COLUMNS):
            continue
        if tile.shared_bytes <= device.block_shared_memory and stages <= max(2, steps + 1):
            yield tile
