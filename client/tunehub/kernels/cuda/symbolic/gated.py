"""SiLU(gate) · up of an open number of rows on sm_90, one kernel of a language model's feed-forward network where its
gate and up are one product: a kernel for up to 8 rows, those with TMA loads for more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.gemm.hopper import eight_bits
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.cost import bulk_seconds
from tunehub.kernels.cuda.gemm.hopper.gated import over_gated_rows, suits
from tunehub.kernels.cuda.gemm.hopper.open_bulk import most_length
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.sizes import ranges
from tunehub.kernels.cuda.low_batch.gated import few_gated_rows
from tunehub.kernels.cuda.low_batch.gated_functions import gated_maker
from tunehub.kernels.cuda.low_batch.rule import FEW
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic.schedule import SizedFunction
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.kernels.te.products import gated_product, gated_scaled_product
from tunehub.tir.branches import SizeBranch, joined
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

NAME = warpgroups.NAME
_ROWS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)  # at which times are compared
_KERNELS = 4
_TRIED = 64  # tiles, among which is one for both halves


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> SizedFunction | None:
    """A schedule of ``mod``, one PrimFunc ``main`` with open rows; None when it is not of this kind. Raises NoTileError
    where none is to be had, GuardError for what would be wrong, and what TVM raises."""
    whole = open_function(mod["main"]) if warpgroups.serves(target) else None
    kind = None if whole is None else _KINDS.get(gated_maker(whole.function))
    matmul = None if whole is None or kind is None else open_matmul(whole, kind.matmul_in)
    if whole is None or kind is None or matmul is None:
        return None
    device, largest = device_of(target), most_length(whole)
    chosen_tiles = _chosen(matmul, kind, device)
    tiles = dict.fromkeys(tile for tile, _ in chosen_tiles)
    made = {tile: over_gated_rows(whole, tile, device, kind.matmul_in) for tile in tiles}
    few = [] if kind is _SCALED else few_gated_rows(whole, target, (FEW,))
    branches = [*few, *(SizeBranch(up_to=up_to or largest, function=made[tile]) for tile, up_to in chosen_tiles)]
    for branch in branches:
        check_function(branch.function, whole.function, target)
    # Beyond places of 32 bits eight rows at a time: a kernel that few rows have is run with few when it is verified.
    beyond = few[0].function if few else default_schedule(whole.function, target)
    branches.append(SizeBranch(up_to=None, function=beyond))
    found = joined(whole.function, product(wide(whole.axes.extents)), branches)
    return SizedFunction(mod=main_module(warpgroups.for_own_target(found, target)))


class _GatedKind(NamedTuple):
    """How a product is found, and its tiles ranked: the best ones, and what one should take in seconds."""

    matmul_in: Callable[[IRModule], Matmul | None]
    ranked: Callable[[Matmul, GpuDevice], Iterable[Any]]
    seconds: Callable[[Matmul, Any, GpuDevice], float]


_HALVES = _GatedKind(
    warpgroups.matmul_in, lambda matmul, device: warpgroups.bulk_ranked(matmul, _TRIED, device), bulk_seconds
)
_SCALED = _GatedKind(
    eight_bits.matmul_in,
    lambda matmul, device: (tile for _, tile in eight_bits.ranked(matmul, device, _TRIED)),
    eight_bits.tile_s,
)


_KINDS: Mapping[Any, _GatedKind] = MappingProxyType({gated_product: _HALVES, gated_scaled_product: _SCALED})
"""By what makes such functions."""


def _chosen(matmul: OpenMatmul, kind: _GatedKind, device: GpuDevice) -> list[tuple[BulkTile, int | None]]:
    """What should take least in each range of sizes."""
    ranked = (kind.ranked(matmul.at(rows), device) for rows in _ROWS)
    tiles = list(dict.fromkeys(tile for each in ranked for tile in list(filter(suits, each))[:1]))
    if not tiles:
        raise NoTileError("it is too small for TMA loads")
    times = np.array([[kind.seconds(matmul.at(rows), tile, device) for rows in _ROWS] for tile in tiles])
    found = ranges(times, _KERNELS, np.ones(len(_ROWS)))
    return [(tiles[at], _ROWS[last] if last + 1 < len(_ROWS) else None) for at, last in found]
