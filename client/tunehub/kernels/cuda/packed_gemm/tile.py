"""The choices of the kernel for products of many rows with quantised weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.tiles import FLOAT, HALF
from tunehub.tir.cuda.ptx.wgmma import ROWS, WARPGROUP

DEPTH = 128  # of K in a stage
PIECE = 32  # rows of x whose results go through shared memory at a time
_MOST_GROUPS = 3
_WIDE = 64 * WARPGROUP  # accumulators of a warpgroup that leave all threads as many registers
STAGED = ROWS + 4  # results of each, so that rows begin at different banks


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class PackedTile(BulkTile):
    """As :class:`BulkTile`, of weights of so many ``bits``: warpgroups are beside each other, each has ``columns``, a
    multiple of 64, of all ``rows`` of x. A stage is 128 of K."""

    bits: int

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of a thread that loads and of one that multiplies, where these need more than there are for all alike."""
        groups = math.prod(self.groups)
        if groups == _MOST_GROUPS:
            return 24, 160
        return (24, 240) if groups > 1 and self.rows * self.columns > _WIDE else None

    @property
    def pieces_ahead(self) -> int:
        """None: weights are in registers."""
        return 0

    @property
    def x_bytes(self) -> int:
        """Of x, in a stage."""
        return self.block[0] * DEPTH * HALF

    @property
    def row_bytes(self) -> int:
        """Of a row of weights, in a stage."""
        return DEPTH * self.bits // 8

    @property
    def stage_bytes(self) -> int:
        """Of both operands."""
        return self.x_bytes + self.block[1] * self.row_bytes

    @property
    def staged_bytes(self) -> int:
        """Of the results of a warpgroup that go through shared memory at a time."""
        return PIECE * STAGED * FLOAT
