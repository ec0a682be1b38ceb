"""Products of an open number of rows on CPUs: register tiles of packed ``dense``, of three sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import KnobError, Knobs, Machine
from tunehub.kernels.cpu import dense as dense_template
from tunehub.kernels.cpu.dense import DenseKnobs, DenseWorkload
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.register_tile import cost
from tunehub.kernels.symbolic.loops import NotTiledError, RowTiles, TileSizes, over_rows, tile_counts
from tunehub.kernels.symbolic.matrix_rows import by_matrices
from tunehub.kernels.symbolic.pieces import piece_of, sizes_of
from tunehub.kernels.template_fit import machine_for, with_short_indices
from tunehub.tir.nodes import main_module
from tunehub.tir.open_axes import OpenAxes

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import PrimFunc

NAME, VERSION = "rows", 1  # of its knobs in records
_MOST_ROWS, _MOST_BLOCKS = 8, 8
_LIKELY_ROWS = (*range(1, 65), 128, 256, 384, 512)
_SINGLE_SIZES = (1, 4, 8, 16, 32, 128)  # rows for which the best tiles are worth measuring
_MEASURED = 16


class RowKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of the ``large`` and of the ``small`` tile, and ``blocks`` of outputs of both."""

    large: Annotated[int, Meta(ge=2, le=_MOST_ROWS)]
    small: Annotated[int, Meta(ge=1, le=_MOST_ROWS)]
    blocks: Annotated[int, Meta(ge=1, le=_MOST_BLOCKS)]


def by_rows(function: PrimFunc, axes: OpenAxes, target: Target, knobs: RowKnobs | None = None) -> PrimFunc | None:
    """``function`` in register tiles along an open axis, if it is a product with rows along one; by ``knobs``, or by
    those with the fewest cycles over likely numbers of rows. Where ``target`` has instructions for matrices, these
    compute all but a few rows. Raises KnobError for knobs that do not fit."""
    machine = machine_for(target)
    for row, workload in _products(function, axes):
        lanes = workload.lanes(machine)
        chosen = knobs or _choices(workload.outer(lanes), lanes, machine)[0]
        _check(chosen, workload.outer(lanes))
        sizes = (chosen.large, chosen.small, 1)
        pieces = [piece_of(function, axes, sizes_of(axes, row, rows)) for rows in sizes]
        tiles = [_dense_tile(piece, lanes, chosen.blocks) for piece in pieces]
        if None in tiles:
            continue
        try:
            size = TileSizes(large=chosen.large, small=chosen.small)
            few = over_rows(function, axes, RowTiles(row=row, sizes=size, functions=tuple(tiles)))
            return by_matrices(function, axes, row, target, few)
        except NotTiledError:
            continue
    return None


def row_space(function: PrimFunc, axes: OpenAxes, machine: Machine) -> list[RowKnobs]:
    """The knobs worth measuring, those of the rule first; none for what is no product of rows."""
    for _, workload in _products(function, axes):
        lanes = workload.lanes(machine)
        return list(_choices(workload.outer(lanes), lanes, machine)[:_MEASURED])
    return []


def _products(function: PrimFunc, axes: OpenAxes) -> Iterator[tuple[int, DenseWorkload]]:
    """The positions of open extents that are rows of a product, with the product of a tile."""
    for row in reversed(range(len(axes.extents))):
        sizes = sizes_of(axes, row, _MOST_ROWS)
        piece = piece_of(function, axes, sizes) if axes.is_contiguous(function, sizes) else None
        workload = None if piece is None else _dense(piece)
        if workload is not None and workload.length == _MOST_ROWS:
            yield row, workload


def _dense(piece: PrimFunc) -> DenseWorkload | None:
    mod = main_module(piece)
    match = templates.find(mod)
    found = None if match is None or match.template.NAME != dense_template.NAME else match.workload
    return found if isinstance(found, DenseWorkload) else None


def _check(knobs: RowKnobs, outer: int) -> None:
    if knobs.small >= knobs.large:
        raise KnobError(f"small: {knobs.small} is not less than {knobs.large} rows of the large tile")
    if outer % knobs.blocks:
        raise KnobError(f"blocks: {knobs.blocks} does not divide {outer}")


def _dense_tile(piece: PrimFunc | None, lanes: int, blocks: int) -> PrimFunc | None:
    """The schedule of a register tile that is all rows; None where the template refuses."""
    workload = None if piece is None else _dense(piece)
    if workload is None:
        return None
    mod = main_module(piece)
    rows = workload.length
    knobs = DenseKnobs(columns=rows, blocks=blocks, lanes=lanes, row=rows)
    try:
        schedule = dense_template.apply(with_short_indices(mod), workload, knobs)
    except templates.KnobError:
        return None
    return schedule.mod["main"]


@cache
def _counts(rows: int, large: int, small: int) -> tuple[int, int, int]:
    return tile_counts(rows, TileSizes(large=large, small=small))


@lru_cache(maxsize=256)
def _choices(outer: int, lanes: int, machine: Machine) -> tuple[RowKnobs, ...]:
    """Knobs whose tiles fit registers: those with the fewest cycles over likely numbers of rows, then those with the
    fewest at some numbers, then all others in their order."""

    @cache
    def step(rows: int, blocks: int) -> float:
        return cost((rows, rows, blocks), lanes, machine) * rows

    def cycles(knobs: RowKnobs, rows: int) -> float:
        first, second, third = _counts(rows, knobs.large, knobs.small)
        large, small, single = (step(tile, knobs.blocks) for tile in (knobs.large, knobs.small, 1))
        return (first * large + second * small + third * single) / rows

    vectors = -(-lanes // machine.vector)
    fitting = [
        RowKnobs(large=large, small=small, blocks=blocks)
        for blocks in divisors(outer, _MOST_BLOCKS)
        for large in range(2, _MOST_ROWS + 1)
        if large * blocks * vectors <= machine.accumulators or (large == 2 and blocks == 1)
        for small in range(1, large)
    ]
    ordered = sorted(fitting, key=lambda knobs: sum(cycles(knobs, rows) for rows in _LIKELY_ROWS))
    single = [min(ordered, key=lambda knobs: cycles(knobs, rows)) for rows in _SINGLE_SIZES]
    return tuple(dict.fromkeys([ordered[0], *single, *ordered]))
