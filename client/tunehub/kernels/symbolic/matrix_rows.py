"""Products of an open number of rows by instructions for matrices (AMX): tiles of 4 to 64 rows, fewer by vectors.

Weights that are packed for instructions for vectors lie in memory as those for matrices read them
(:mod:`tunehub.kernels.te.grouped`), so one function has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu import KnobError, matrix_tiles
from tunehub.kernels.cpu.base import blocks_of
from tunehub.kernels.cpu.matrix_tiles import MatrixTileKnobs
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.kernels.symbolic.loops import RowTiles, TileSizes, over_rows, with_body
from tunehub.kernels.symbolic.pieces import piece_of, sizes_of
from tunehub.kernels.template_fit import with_short_indices
from tunehub.tir.nodes import main_module
from tunehub.tir.open_axes import OpenAxes
from tunehub.tir.statements import either
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import PrimFunc

_FEWEST = 4  # rows that tiles compute faster than vectors
_SIZES = (  # of tiles for a number of rows from the least one on
    TileSizes(large=TILE, small=TILE // 2, least=_FEWEST),
    TileSizes(large=2 * TILE, small=TILE, least=TILE),
    TileSizes(large=4 * TILE, small=2 * TILE, least=4 * TILE),
)
_BLOCKS = (4, 2, 1)  # of outputs in a task


def by_matrices(function: PrimFunc, axes: OpenAxes, row: int, target: Target, few: PrimFunc) -> PrimFunc:
    """``function``, a product with rows along the open extent at position ``row``, by instructions for matrices;
    ``few`` is the same for a few rows, and for all where ``target`` or the product has no such instructions. Raises
    NotTiledError."""
    made = few
    for sizes in _SIZES:
        rows = dict.fromkeys((sizes.large, sizes.small, sizes.least))
        tiles = tuple(_tile(piece_of(function, axes, sizes_of(axes, row, each)), target) for each in rows)
        if None in tiles:
            return few
        many = over_rows(function, axes, RowTiles(row=row, sizes=sizes, functions=tiles))
        made = _from(function, axes, row, sizes.least, (made, many))
    return made


def _from(function: PrimFunc, axes: OpenAxes, row: int, least: int, ways: tuple[PrimFunc, PrimFunc]) -> PrimFunc:
    """``function`` in the second of ``ways`` where it has ``least`` rows or more, else in the first."""

    extents = wide(axes.extents)
    rows = product(extents) if axes.are_one and row == len(extents) - 1 else extents[row]
    fewer, many = (each.body.block.body for each in ways)
    return with_body(function, either(rows < least, fewer, many))


def _tile(piece: PrimFunc | None, target: Target) -> PrimFunc | None:
    """The schedule of a tile that is all rows; None where the template refuses."""
    mod = None if piece is None else main_module(piece)
    workload = None if mod is None else matrix_tiles.rows_of(mod, blocks_of(mod))
    if mod is None or workload is None or matrix_tiles.lacks(workload, target) is not None:
        return None
    blocks = next(each for each in _BLOCKS if workload.outputs[0] % each == 0)
    knobs = MatrixTileKnobs(rows=workload.rows, blocks=blocks, stays="data")
    try:
        return matrix_tiles.apply(with_short_indices(mod), workload, knobs).mod["main"]
    except KnobError:
        return None
