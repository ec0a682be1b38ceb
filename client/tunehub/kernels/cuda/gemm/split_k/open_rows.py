"""Split-K within a block (:mod:`tunehub.kernels.cuda.gemm.split_k.sketch`) for any number of rows or images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.kernels.cuda.gemm.matmul import find_matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.split_k.cost import seconds
from tunehub.kernels.cuda.gemm.split_k.rule import likeliest
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile, SplitTiles, apply, matmul_of, sides
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.cuda.pieces import RowBlocks
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.guard import check_tiles

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc

_MOST_LENGTH = 512  # of a piece
_CANDIDATES = 2  # tiles of a size


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitKRows:
    """A ``tile`` with split-K for any number of rows, whose times are those on ``device``."""

    product: OpenMatmul
    tile: SplitTile
    device: GpuDevice

    @property
    def blocks(self) -> RowBlocks:
        """What its blocks compute."""
        both = sides(self.product.two)
        at = next(place for place, side in enumerate(both) if side.number == 0)
        beside = -(-both[1 - at].extent // self.tile.block[1 - at])
        return RowBlocks(rows=self.tile.block[at], of_one=self.product.of_one, beside=beside, outer=at == 0)

    @property
    def length(self) -> int:
        """Of the piece that the kernel is made for."""
        return self.product.length(self.blocks.rows)

    def seconds_at(self, size: int) -> float:
        """What it should take."""
        return float(seconds(self.product.at(size), _as_tiles(self.tile), self.device)[0])


def split_k_rows(whole: OpenFunction, sizes: Sequence[int], device: GpuDevice) -> tuple[SplitKRows, ...]:
    """The likeliest tiles at each of ``sizes`` on ``device``; none where ``whole`` is no such product. Raises
    NotPiecesError."""
    product = open_matmul(whole, matmul_of, batched=True)
    return () if product is None else _likely(product, tuple(sizes), device)


def row_blocks(whole: OpenFunction, tile: SplitTile, length: int, device: GpuDevice) -> RowBlocks | None:
    """What the blocks of ``tile`` compute in pieces of the ``length`` that it divides; None for others."""
    product = open_matmul(whole, matmul_of)
    if product is None:
        return None
    found = SplitKRows(product=product, tile=tile, device=device)
    return None if length % found.length else found.blocks


def over_rows(whole: OpenFunction, found: SplitKRows) -> PrimFunc:
    """``whole`` by a tile, not checked as a whole. Raises NoTileError where a piece is of another kind, GuardError when
    a tile writes what others write, NotPiecesError, and what TVM raises."""
    piece = whole.piece(found.length)
    matmul = find_matmul(piece, "float32")
    if matmul is None:
        raise NoTileError(f"a piece of {found.length} is no such product")
    schedule = apply(piece, matmul, found.tile)
    check_tiles(schedule.mod["main"])
    return whole.over(schedule.mod["main"], found.length, found.blocks)


@lru_cache(maxsize=256)  # functions differ in what follows only
def _likely(product: OpenMatmul, sizes: tuple[int, ...], device: GpuDevice) -> tuple[SplitKRows, ...]:
    tiles = {tile: None for size in sizes for tile, _ in likeliest(product.at(size), _CANDIDATES, device)}
    found = (SplitKRows(product=product, tile=tile, device=device) for tile in tiles)
    return tuple(each for each in found if each.length <= _MOST_LENGTH)


def _as_tiles(tile: SplitTile) -> SplitTiles:
    def column(value: Any) -> Any:
        return tuple(map(column, value)) if isinstance(value, tuple) else np.array([value])

    return SplitTiles(**{name: column(getattr(tile, name)) for name in SplitTiles.__slots__})
