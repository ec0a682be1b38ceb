"""Products of an open number of rows of operands of 8 bits on sm_90: kernels with TMA loads for ranges of sizes;
convolutions of an open number of images: those whose threads copy. One is launched when the function is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.gemm.hopper import block_scales, eight_bits
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.cost import integer_seconds, seconds
from tunehub.kernels.cuda.gemm.hopper.eight_bits import NAME, tile_s
from tunehub.kernels.cuda.gemm.hopper.open_bulk import OpenBulkWriter, most_length, over_all_rows
from tunehub.kernels.cuda.gemm.hopper.open_rows import over_rows
from tunehub.kernels.cuda.gemm.hopper.product import Product
from tunehub.kernels.cuda.gemm.hopper.tiles import tiles
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.sizes import ranges
from tunehub.kernels.cuda.low_batch.open_rows import few_rows
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.symbolic.schedule import SizedFunction
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch, joined
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

__all__ = ["NAME", "open_sizes"]
_ROWS = (2, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)  # at which times are compared
_IMAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_LIKELY = 4  # tiles of a size
_KERNELS_OF_IMAGES = 2
_KERNELS = 5
_MOST_COLUMNS = 128  # of a block beyond what places of 32 bits reach
_NEVER_S = 1e3  # seconds of what is not to be taken


class _BlockScaledWriter(OpenBulkWriter):
    @staticmethod
    def read(mod: IRModule, matmul: Matmul) -> Product:
        return block_scales.block_scaled_product(mod, matmul)


class _ProductKind(NamedTuple):
    """How a product is found and ranked, and its kernel written."""

    find: Callable[[IRModule], Matmul | None]
    ranked: Callable[[Matmul, GpuDevice, int], Sequence[tuple[float, Any]]]
    writer: type[OpenBulkWriter]


_PLAIN = _ProductKind(eight_bits.matmul_in, eight_bits.ranked, OpenBulkWriter)
_SCALED = _ProductKind(block_scales.matmul_in, block_scales.ranked, _BlockScaledWriter)


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> SizedFunction | None:
    """A schedule of ``mod``, one PrimFunc ``main`` with open rows; None when it is not of this kind. Raises NoTileError
    where none is to be had, GuardError for what would be wrong, and what TVM raises."""
    found = _found(mod["main"]) if warpgroups.serves(target) else None
    if found is None:
        return None
    whole, kind, matmul = found
    few = few_rows(whole, target)
    try:
        more = _more_rows(whole, matmul, kind, target, above=(few[-1].up_to or 0) if few else 0)
    except ValueError:  # windows, or images that are stepped over
        if eight_bits.is_promoted(matmul.two):
            raise
        return _of_images(whole, matmul, target)
    branches = [*few, *more]
    for branch in branches[len(few) :]:
        check_function(branch.function, whole.function, target)
    beyond = few[-1].function if few else _beyond(whole, matmul, kind, target)
    branches.append(SizeBranch(up_to=None, function=beyond))
    joint = joined(whole.function, product(wide(whole.axes.extents)), branches)
    return SizedFunction(mod=main_module(warpgroups.for_own_target(joint, target)))


def _of_images(whole: OpenFunction, matmul: OpenMatmul, target: Target) -> SizedFunction:
    """Kernels whose threads copy, for ranges of numbers of images."""
    device = device_of(target)
    known = [tile for tile in tiles(eight_bits.as_halves(matmul.at(_IMAGES[-1]))) if tile.cluster == 1]
    if not known:
        raise NoTileError("no tile of a convolution is within bounds")
    halves = [eight_bits.as_halves(matmul.at(size)) for size in _IMAGES]
    times = np.array([[integer_seconds(each, tile, device) for each in halves] for tile in known])
    branches = []
    for at, last in ranges(times, _KERNELS_OF_IMAGES, np.ones(len(_IMAGES))):
        made = over_rows(whole, known[at], eight_bits.matmul_in)
        check_function(made, whole.function, target)
        branches.append(SizeBranch(up_to=_IMAGES[last] if last + 1 < len(_IMAGES) else None, function=made))
    joint = joined(whole.function, product(wide(whole.axes.extents)), branches)
    return SizedFunction(mod=main_module(warpgroups.for_own_target(joint, target)))


def _found(function: PrimFunc) -> tuple[OpenFunction, _ProductKind, OpenMatmul] | None:
    """A function as a product of open rows, and its kind; one of scales of blocks may scale all its weights first."""
    wholes = open_function(function), open_function(function, shared=True)
    for whole, kind in ((wholes[0], _PLAIN), (wholes[0], _SCALED), (wholes[1], _SCALED)):
        matmul = open_matmul(whole, kind.find) if whole is not None and whole.axes.are_one else None
        if whole is not None and matmul is not None:
            return whole, kind, matmul
    other = None if wholes[0] is None else eight_bits.product_in(wholes[0].piece(2))
    reason = None if other is None else eight_bits.why_not(other)
    if reason is not None:
        raise NoTileError(reason)
    return None


def _more_rows(
    whole: OpenFunction, matmul: OpenMatmul, kind: _ProductKind, target: Target, above: int
) -> list[SizeBranch]:
    """Branches for sizes ``above`` some, as many as places of 32 bits reach."""
    device, largest = device_of(target), most_length(whole)
    chosen = [(tile, up_to or largest) for tile, up_to in _chosen(matmul, kind, device)]
    wanted = dict.fromkeys(tile for tile, up_to in chosen if up_to > above)
    made = {tile: over_all_rows(whole, tile, device, kind.writer, kind.find) for tile in wanted}
    return [SizeBranch(up_to=up_to, function=made[tile]) for tile, up_to in chosen if up_to > above]


def _chosen(matmul: OpenMatmul, kind: _ProductKind, device: GpuDevice) -> list[tuple[BulkTile, int | None]]:
    """What should take least in each range of sizes."""
    found = (tile for rows in _ROWS for _, tile in kind.ranked(matmul.at(rows), device, _LIKELY))
    known = [tile for tile in dict.fromkeys(found) if isinstance(tile, BulkTile)]
    if not known:
        raise NoTileError("operands are no matrices")
    times = np.array([[_seconds(matmul, rows, tile, device) for rows in _ROWS] for tile in known])
    return [
        (known[at], _ROWS[last] if last + 1 < len(_ROWS) else None)
        for at, last in ranges(times, _KERNELS, np.ones(len(_ROWS)))
    ]


def _seconds(matmul: OpenMatmul, rows: int, tile: BulkTile, device: GpuDevice) -> float:
    """Where K is divided, all clusters have to be there at a time."""
    own = matmul.at(rows)
    clusters = math.prod(tile.over(rows, own.extents[2]))
    return tile_s(own, tile, device) if tile.is_at_once(clusters, device) else _NEVER_S


def _beyond(whole: OpenFunction, matmul: OpenMatmul, kind: _ProductKind, target: Target) -> PrimFunc:
    """The kernel of sizes beyond what places of 32 bits reach, whose sums are not promoted; TVM's own for scales of
    blocks."""
    if kind is _SCALED:
        return default_schedule(whole.function, target)
    halves, device = eight_bits.as_halves(matmul.at(_ROWS[-1])), device_of(target)
    known = [tile for tile in tiles(halves) if tile.cluster == 1 and tile.columns <= _MOST_COLUMNS]
    made = over_rows(whole, min(known, key=lambda tile: (seconds(halves, tile, device), tile)), kind.find)
    check_function(made, whole.function, target)
    return made
