"""Functions with open axes on CUDA: kernels for pieces of known extents, several of them for products, of which
the one for the size is launched when the function is called. Softmax has one for all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.gemm.cost import matrix_shape
from tunehub.kernels.cuda.gemm.open_rows import open_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError, Tile
from tunehub.kernels.cuda.gemm.sizes import Grid, MeasuredPiece, OpenProblem, SizedPiece, open_problem, tiles_by_size
from tunehub.kernels.cuda.gemm.split_k.open_rows import SplitKRows, over_rows, split_k_rows
from tunehub.kernels.cuda.gemm.split_k.sketch import matmul_of
from tunehub.kernels.cuda.gemm.tiles import (
    FEWEST_WINDOWS,
    WINDOW,
    ReductionBlock,
    checked_tiles,
    one_thread_each,
    reduction_block_of,
    tiled,
)
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.pieces import NotPiecesError, blocks_of
from tunehub.kernels.cuda.symbolic import row_norms, row_reductions, softmax
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch, joined, size_of
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import GuardError, check_exact, check_function
from tunehub.tir.nodes import blocks_in, is_reduction, main_module
from tunehub.tir.symbols import instance, largest_probes, symbols_of
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

NAME = tiles.NAME
_OF_WINDOWS = 2  # axes along which windows of images are reduced


class Static(Protocol):
    """Schedules for the static functions of pieces."""

    def scheduled(self, piece: PrimFunc) -> PrimFunc | None:
        """The function scheduled, None to leave it to TVM."""
        ...

    def recorded(self, piece: PrimFunc) -> tuple[PrimFunc, float] | None:
        """The function scheduled by a record of its own or of its anchor block, and the seconds that it took there."""
        ...

    def transferred(self, piece: PrimFunc) -> tuple[PrimFunc, float] | None:
        """The function scheduled by a record for other shapes, and the seconds that it should take."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedFunction:
    """``mod``: with the function as ``main``, its extents unknown. ``measured``: the sizes of pieces that records are
    for; ``divided``: K of some was split."""

    mod: IRModule
    measured: tuple[int, ...] = ()
    split_k: bool = False


def open_sizes(mod: IRModule, target: Target, pieces: Static) -> SizedFunction | None:
    """:func:`by_size` of a module."""
    return by_size(mod["main"], target, pieces)


def by_size(function: PrimFunc, target: Target, static: Static, *, splits_k: bool = True) -> SizedFunction | None:
    """Schedule ``function``, a PrimFunc with open axes, for ``target``; None when it is not of this kind.

    ``static`` schedules the static functions of pieces; ``divides``: also by split-K, where that is right.
    Raises NoTileError and NotPiecesError where TVM's own schedule is to be used, GuardError for what would be wrong or
    cannot be launched.
    """
    whole = open_function(function)
    found = _of_one_symbol(function, target) if whole is None else _in_pieces(whole, target, static, splits_k)
    for rows in (softmax, row_reductions, row_norms) if found is None else ():
        if (schedule := rows.by_rows(main_module(function))) is not None:
            found = SizedFunction(mod=schedule.mod)
            break
    if found is None and whole is not None:
        found = _of_images(whole, target, static)
    if found is not None:
        try:
            scheduled = found.mod["main"]  # of a branch, other sizes are other numbers of the same statements
            check_function(scheduled, function, target, largest_probes(scheduled))
        except GuardError:
            if not found.split_k:
                raise
            return by_size(function, target, static, splits_k=False)
    return found


def _in_pieces(whole: OpenFunction, target: Target, static: Static, splits_k: bool) -> SizedFunction | None:
    found = piece_problem(whole)
    if found is None:
        return None
    problem, reducing = found
    loop = problem.open_loop
    if loop is None:
        return None
    branches = [*_vector(whole, problem, target, static)]
    limits, device, above = limits_of(target), device_of(target), len(branches)
    known, made = dict(_known(whole, problem.grid, static, splits_k, device)), dict[Tile | SizedPiece, Any]()
    while not made:
        tiles = tiles_by_size(problem, limits, device, covering=reducing.einsum, above=above, known=list(known))
        made = {each.tile: None for each in tiles}
        for tile in made:
            made[tile] = _tiled(whole, loop, tile) if isinstance(tile, Tile) else known[tile]()
        failed = {tile for tile, function in made.items() if function is None}
        if failed:  # choose again, without them
            known, made = {tile: make for tile, make in known.items() if tile not in failed}, {}
    used = tuple({tile.length for tile in made if isinstance(tile, MeasuredPiece)})
    branches += [SizeBranch(up_to=each.up_to, function=made[each.tile]) for each in tiles]
    function = joined(whole.function, product(wide(whole.axes.extents)), branches)
    split_k = any(isinstance(tile, SplitKRows) for tile in made)
    return SizedFunction(mod=main_module(function), measured=used, split_k=split_k)


def _of_images(whole: OpenFunction, target: Target, static: Static) -> SizedFunction | None:
    """What goes over windows of images and is no product, such as depthwise convolutions and pooling: an image
    as the static function is scheduled. None for others."""
    piece = whole.piece(1)["main"]
    axes = [[is_reduction(axis) for axis in block.iter_vars] for block in blocks_in(piece.body)]
    if max(map(sum, axes), default=0) < _OF_WINDOWS:
        return None
    scheduled = static.scheduled(piece) or default_schedule(piece, target)
    first = whole.over(scheduled, 1)
    branches = _of_windows(whole, first) or [SizeBranch(up_to=None, function=first)]
    return SizedFunction(mod=main_module(joined(whole.function, product(wide(whole.axes.extents)), branches)))


def _of_windows(whole: OpenFunction, few: PrimFunc) -> list[SizeBranch]:
    """Of means of small windows: ``few`` images have several threads for each result, more of them one. None for
    others."""
    piece = whole.piece(1)
    reducing = reduction_block_of(piece)
    if reducing is None or reducing.problem is not None or math.prod(reducing.reduction) > WINDOW:
        return []
    try:
        scheduled = one_thread_each(piece, reducing).mod["main"]
        check_exact(scheduled)
        many = whole.over(scheduled, 1)
    except (NoTileError, NotPiecesError, GuardError):
        return []
    most = (FEWEST_WINDOWS - 1) // math.prod(reducing.spatial)
    own = [SizeBranch(up_to=most, function=few)] if most else []
    return [*own, SizeBranch(up_to=None, function=many)]


def _known(
    whole: OpenFunction, grid: Grid, static: Static, splits_k: bool, device: GpuDevice
) -> Iterator[tuple[SizedPiece, Callable[[], PrimFunc | None]]]:
    """What is known or expected to take some time: pieces of some lengths by records, and by records for other shapes,
    and those with split-K. Each with what makes the function so, or None."""
    for length in sorted({*grid.recorded, *grid.moved}):
        piece = whole.piece(length)["main"]
        found = static.recorded(piece) if length in grid.recorded else None
        if found is None and length in grid.moved:
            found = static.transferred(piece)
        if found is not None:
            scheduled, run_s = found
            function = _over(whole, scheduled, length)
            if function is not None:
                blocks = blocks_of(scheduled)
                yield MeasuredPiece(length=length, blocks=blocks, run_s=run_s, device=device), partial(_same, function)
    for tile in split_k_rows(whole, grid.tried, device) if splits_k else ():
        yield tile, partial(_with_split_k, whole, tile)


def _same(function: PrimFunc) -> PrimFunc:
    return function


def _with_split_k(whole: OpenFunction, tile: SplitKRows) -> PrimFunc | None:
    try:
        return over_rows(whole, tile)
    except Exception:  # TVM raises many kinds; other tiles serve
        return None


def _over(whole: OpenFunction, scheduled: PrimFunc, length: int) -> PrimFunc | None:
    try:
        return whole.over(scheduled, length)
    except NotPiecesError:
        return None


def _of_one_symbol(function: PrimFunc, target: Target) -> SizedFunction | None:
    """Products both of whose operands are as long as the only symbol, as those of attention: tiles that go beyond the
    ends of all loops. None for others."""
    if len(symbols_of(function)) != 1:
        return None
    two, three = (main_module(instance(function, [size])) for size in (2, 3))
    problem, reducing = _problem(two, three)
    if problem is None or reducing is None or not reducing.einsum:
        return None
    tiles = tiles_by_size(problem, limits_of(target), device_of(target), covering=True)
    made: dict[Tile | SizedPiece, PrimFunc] = {}
    for tile in {each.tile: None for each in tiles}:
        assert isinstance(tile, Tile)
        made[tile] = tiled(main_module(function), reducing, tile, symbolic=True).mod["main"]
    branches = [SizeBranch(up_to=each.up_to, function=made[each.tile]) for each in tiles]
    return SizedFunction(mod=main_module(joined(function, size_of(function), branches)))


def piece_problem(whole: OpenFunction) -> tuple[OpenProblem, ReductionBlock] | None:
    """The products of pieces of ``whole``, by their length, and what is read of one of two. None for other
    functions. Raises NotPiecesError."""
    problem, reducing = _problem(whole.piece(2), whole.piece(3))
    if problem is None or reducing is None:
        return None
    matmul = open_matmul(whole, matmul_of, batched=True)
    return replace(problem, split_k=matmul is not None and matmul.two.is_batch_with_outer_k), reducing


def _problem(two: IRModule, three: IRModule) -> tuple[OpenProblem | None, ReductionBlock | None]:
    """Of the instances of size two and three, and what is read of the first."""
    first, second = reduction_block_of(two), reduction_block_of(three)
    if first is None or second is None or first.problem is None or second.problem is None:
        return None, None
    return open_problem(first.problem, second.problem), first


def _vector(whole: OpenFunction, problem: OpenProblem, target: Target, static: Static) -> list[SizeBranch]:
    """A branch for size 1 where that is a product with a vector, which TVM's own schedule serves."""
    shape = matrix_shape(problem.at(1))
    if shape is None or min(shape[1:]) > 1:
        return []
    piece = whole.piece(1)
    scheduled = static.scheduled(piece["main"]) or default_schedule(piece["main"], target)
    try:
        return [SizeBranch(up_to=1, function=whole.over(scheduled, 1))]
    except NotPiecesError:
        return []


def _tiled(whole: OpenFunction, loop: int, tile: Tile) -> PrimFunc:
    length = tile.lengths[loop]
    piece = whole.piece(length)
    reducing = reduction_block_of(piece)
    if reducing is None:
        raise NoTileError(f"a piece of {length} is of another kind")
    return whole.over(checked_tiles(piece, reducing, tile).mod["main"], length)
