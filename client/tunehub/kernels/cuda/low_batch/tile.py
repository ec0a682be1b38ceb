"""The choices of the kernels for low-batch GEMMs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.wgmma import ROWS, WARPGROUP

_SIDE = 16  # columns of an instruction


@dataclass(frozen=True, kw_only=True, slots=True)
class _TileInBlock:
    tiles: int
    warps: tuple[int, int]

    @property
    def columns(self) -> int:
        """Of a block."""
        return _SIDE * self.tiles * self.warps[0]

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * math.prod(self.warps)


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectTile(_TileInBlock):
    """A block has ``warps`` along columns and along K. A warp has ``tiles`` of 16 columns; in a step it multiplies
    ``unroll`` chunks of K, 4 vectors of 16 bytes beside each other of a row of weights. It has loaded ``depth`` steps
    before they are needed."""

    unroll: int
    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedTile(_TileInBlock):
    """A block has ``warps`` along columns, which are a team, and teams along K. A warp has ``tiles`` of 16 columns.
    Each team has ``stages`` slices of ``depth`` of K, at most 256, in shared memory or on their way there; where x is
    ``held`` (weights of 4 bits) its part goes straight into registers, a slice ahead."""

    stages: int
    depth: int
    held: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class WgmmaTile:
    """The blocks of a ``cluster`` have ``groups`` warpgroups each, of 64 columns that all of them share, and a part of
    K each. ``stages`` slices of ``depth`` of K, 128 or 256, are in shared memory or on their way there."""

    groups: int
    cluster: int
    stages: int
    depth: int

    @property
    def together(self) -> int:
        """Columns that the blocks of a cluster share."""
        return ROWS * self.groups

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.together // self.cluster

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARPGROUP * self.groups


AnyTile = DirectTile | StagedTile | WgmmaTile
