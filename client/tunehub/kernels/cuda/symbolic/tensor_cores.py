"""Products and convolutions in half precision with an open number of rows or images on CUDA: kernels for few rows, then
tiles on tensor cores (by warpgroups where the GPU has these), for ranges of sizes where these promise to beat TVM's own
schedule, which serves the other sizes. One is launched when the function is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.exceptions import last_line
from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.gemm.half_default import default_s
from tunehub.kernels.cuda.gemm.hopper import cost as warpgroup_cost
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import FEWEST_ROWS, BulkTile
from tunehub.kernels.cuda.gemm.hopper.open_rows import over_rows
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, suits
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.sizes import ranges
from tunehub.kernels.cuda.gemm.tensor_core import rule
from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds as tensor_core_s
from tunehub.kernels.cuda.gemm.tensor_core.rule import check_headers, checked, ranked
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, matmul_of
from tunehub.kernels.cuda.low_batch.open_rows import few_rows, quantised_apart
from tunehub.kernels.cuda.low_batch.rule import FEW
from tunehub.kernels.cuda.low_batch.taken_apart import WEIGHTS_MADE
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.pieces import RowBlocks
from tunehub.kernels.cuda.symbolic.schedule import SizedFunction
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch, joined
from tunehub.tir.cuda.headers import missing_for_tensor_cores
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

NAME = rule.NAME
_MOST_LENGTH = 512  # of a piece
_FEWEST_PIXELS = 32  # of an image


class SizeGrid(NamedTuple):
    """``sizes`` at which times are compared, those of which the best tiles are ``tried``, and how many ``kernels``."""

    sizes: tuple[int, ...]
    tried: tuple[int, ...]
    kernels: int


_ROWS = SizeGrid((16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096), (16, 64, 256, 1024), 7)
_IMAGES = SizeGrid((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64), (1, 3, 8, 16), 2)
_PADDED = 65  # rows from which TVM's rule takes tensor cores; of an open number it always does

_LIKELY = 8  # tiles with TMA loads of a size
_FEW_BLOCKS, _OF_FOUR = 2, 1.15  # blocks of a cluster, and times what larger ones promise: five took as much longer
_NEVER_S = 1e3  # seconds of what is not to be taken

_Tile: TypeAlias = "TensorTile | WarpgroupTile | BulkTile"
_Range: TypeAlias = "tuple[_Tile | None, int | None]"  # what serves sizes, None: TVM's own, up to which; None: all


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> SizedFunction | None:
    """A schedule of ``mod``, one PrimFunc ``main`` with open axes; None when it is not of this kind.

    Raises NoTileError where TVM's own schedule is to be used, GuardError for what would be wrong or cannot be launched,
    and what TVM raises.
    """
    whole, apart = open_function(mod["main"]), None
    if whole is None:
        whole = open_function(mod["main"], shared=True)
        apart = None if whole is None else quantised_apart(whole)
        whole = None if apart is None else whole
    few = [] if whole is None else few_rows(whole, target)
    many = whole if apart is None else open_function(apart.product)
    matmul = None if many is None else open_matmul(many, warpgroups.matmul_in)
    if whole is None or many is None or (matmul is None and not few):
        return None
    chosen, made = _more_rows(many, matmul, target, few)
    few = _kept(few, chosen, quantised=apart is not None)
    above = (few[-1].up_to or 0) if few else 0
    chosen = [(tile, up_to) for tile, up_to in chosen if up_to is None or up_to > above]
    beyond = few[-1:] if apart is None and _is_out_of_reach(chosen) else []
    chosen = chosen[:-1] if beyond else chosen
    if None in {tile for tile, _ in chosen}:
        made[None] = default_schedule(many.function, target)
    branches = [SizeBranch(up_to=up_to, function=made[tile]) for tile, up_to in chosen]
    branches += [SizeBranch(up_to=None, function=each.function) for each in beyond]
    size = product(wide(whole.axes.extents))
    if apart is not None:
        found = apart.together(joined(apart.product, size, branches), target)
        branches = [SizeBranch(up_to=None, function=found)]
    found = joined(whole.function, size, [*few, *branches])
    found = found if apart is None else found.with_attr(WEIGHTS_MADE, True)
    by_groups = any(isinstance(tile, WarpgroupTile | BulkTile) for tile, _ in chosen)
    if by_groups or any("target" in (branch.function.attrs or {}) for branch in few):
        found = warpgroups.for_own_target(found, target)
    return SizedFunction(mod=main_module(found))


def _is_out_of_reach(chosen: Sequence[_Range]) -> bool:
    """Whether what serves the largest sizes serves these alone, as others do not reach so far. A kernel is run at the
    first size that leads to it before it serves; with few rows that takes no time."""
    *others, (last, _) = chosen
    return bool(others) and isinstance(others[-1][0], BulkTile) and last not in {tile for tile, _ in others}


def _more_rows(
    whole: OpenFunction, matmul: OpenMatmul | None, target: Target, few: list[SizeBranch]
) -> tuple[list[_Range], dict[_Tile | None, PrimFunc]]:
    """As :func:`_pieces`, for sizes above those of the branches ``few``: TVM's own schedule without tiles."""
    if matmul is None:
        return [(None, None)], {}
    try:
        chosen, made = _pieces(whole, matmul, target)
    except NoTileError:
        if not few:
            raise
        return [(None, None)], {}
    return chosen, made


def _kept(few: list[SizeBranch], chosen: Sequence[_Range], *, quantised: bool) -> list[SizeBranch]:
    """Branches for few rows, without those that kernels for warpgroups serve as fast: of more than eight rows, and
    weights as they are."""
    if quantised:
        return few

    def serves(rows: int) -> bool:
        tile = next(tile for tile, up_to in chosen if up_to is None or rows <= up_to)
        return rows > FEW and isinstance(tile, WarpgroupTile | BulkTile)

    return list(takewhile(lambda branch: not serves(branch.up_to or 0), few))


def _pieces(
    whole: OpenFunction, matmul: OpenMatmul, target: Target
) -> tuple[list[_Range], dict[_Tile | None, PrimFunc]]:
    """Which tile serves which sizes, and the function in pieces by each. Raises NoTileError where there is none."""
    tiles = list(_likely(whole, matmul, target))
    failure = "TVM's own schedule should take as little at all sizes"
    made: dict[_Tile | None, PrimFunc] = {}
    while True:
        chosen = _within_reach(whole, matmul, tiles, device_of(target))
        wanted = {tile for tile, _ in chosen if tile is not None}
        if not wanted:
            raise NoTileError(failure)
        tile = next(iter(wanted - made.keys()), None)
        if tile is None:
            return chosen, made
        try:
            made[tile] = _tiled(whole, tile, target)
        except Exception as error:  # TVM raises many kinds, and so does a piece; another tile may do
            failure = last_line(error)
            tiles.remove(tile)


def _likely(whole: OpenFunction, matmul: OpenMatmul, target: Target) -> dict[_Tile, None]:
    """The best tiles of some sizes, in their order. Raises NoTileError where CUDA's headers for all of them are
    missing."""
    found: dict[_Tile, None] = {}
    grid, device = grid_of(matmul), device_of(target)
    if warpgroups.serves(target) and suits(matmul.two):
        found = {tile: None for size in grid.sizes for tile in warpgroups.ranked(matmul.at(size), 1, device)}
        found |= {tile: None for size in grid.sizes for tile in _bulk_ranked(whole, matmul.at(size), device)}
    if found and missing_for_tensor_cores() is not None:
        return found
    check_headers()
    if matmul_of(whole.piece(2)) is not None:
        found |= {tile: None for size in grid.tried for tile in ranked(matmul.at(size), 1, device)}
    return {tile: None for tile in found if isinstance(tile, BulkTile) or matmul.length(tile.block[0]) <= _MOST_LENGTH}


def _bulk_ranked(whole: OpenFunction, matmul: Matmul, device: GpuDevice) -> list[BulkTile]:
    """The best tiles of kernels with TMA loads; none where they are not for as many rows."""
    return warpgroups.bulk_ranked(matmul, _LIKELY, device) if whole.axes.are_one else []


def grid_of(matmul: OpenMatmul) -> SizeGrid:
    """The sizes that are compared: numbers of rows, or of images."""
    return _IMAGES if matmul.of_one >= _FEWEST_PIXELS else _ROWS


def _tiled(whole: OpenFunction, tile: _Tile, target: Target) -> PrimFunc:
    """The function in pieces of as many rows as a block of ``tile`` has, checked, as TVM's own is where it is made."""
    if isinstance(tile, BulkTile):
        from tunehub.kernels.cuda.gemm.hopper.open_bulk import over_all_rows

        made = over_all_rows(whole, tile, device_of(target))
    else:
        made = over_rows(whole, tile) if isinstance(tile, WarpgroupTile) else _over_pieces(whole, tile)
    check_function(made, whole.function, target)
    return made


def _over_pieces(whole: OpenFunction, tile: TensorTile) -> PrimFunc:
    rows, columns, _ = tile.block
    product = open_matmul(whole, matmul_of)
    if product is None:
        raise NoTileError("it is no product on tensor cores")
    length = product.length(rows)
    piece = whole.piece(length)
    matmul = matmul_of(piece)
    if matmul is None:
        raise NoTileError(f"a piece of {length} is of another kind")
    beside = -(-matmul.extents[2] // columns)
    blocks = RowBlocks(rows=rows, of_one=product.of_one, beside=beside, outer=True)
    return whole.over(checked(piece, matmul, tile).mod["main"], length, blocks)


def _within_reach(whole: OpenFunction, matmul: OpenMatmul, tiles: Sequence[_Tile], device: GpuDevice) -> list[_Range]:
    """As :func:`_chosen`; sizes beyond what places of 32 bits reach have another kind of kernel."""
    chosen = _chosen(matmul, tiles, device)
    last, _ = chosen[-1]
    if not isinstance(last, BulkTile):
        return chosen
    from tunehub.kernels.cuda.gemm.hopper.open_bulk import most_length

    plain = [each for each in tiles if not isinstance(each, BulkTile)]
    served = {tile for tile, _ in chosen}  # no kernel more where it does not matter
    others = [each for each in plain if each in served] or plain
    return [*chosen[:-1], (last, most_length(whole)), (_chosen(matmul, others, device)[-1][0], None)]


def _chosen(matmul: OpenMatmul, tiles: Sequence[_Tile], device: GpuDevice) -> list[_Range]:
    """What should take least in each range of sizes; images are not left to TVM."""
    sizes, _, kernels = grid_of(matmul)
    times = [[_seconds(matmul.at(size), tile, device) for size in sizes] for tile in tiles]
    candidates: list[_Tile | None] = [*tiles]
    if grid_of(matmul) is _ROWS:
        times.append([default_s(matmul.at(max(size, _PADDED)), device) / GUESS_MARGIN for size in sizes])
        candidates.append(None)
    if not candidates:
        return [(None, None)]
    return [
        (candidates[at], sizes[last] if last + 1 < len(sizes) else None)
        for at, last in ranges(np.array(times), kernels, np.array([3.0 if size == 1 else 1.0 for size in sizes]))
    ]


def _seconds(matmul: Matmul, tile: _Tile, device: GpuDevice) -> float:
    if isinstance(tile, BulkTile):
        _, rows, columns, _ = matmul.extents
        serves = rows >= FEWEST_ROWS and tile.is_at_once(math.prod(tile.over(rows, columns)), device)
        four = _OF_FOUR if tile.cluster == 1 and tile.blocks > _FEW_BLOCKS else 1.0
        return _NEVER_S if not serves else four * warpgroup_cost.bulk_seconds(matmul, tile, device) / warpgroups.MARGIN
    if isinstance(tile, WarpgroupTile):
        return warpgroup_cost.seconds(matmul, tile, device)
    return tensor_core_s(matmul, tile, device)
