"""Products of an open number of rows with weights that are read as they lie: tiles of three sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import KnobError, Machine
from tunehub.kernels.cpu import nt_dense as nt_template
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.nt_dense import NtDenseKnobs, NtDenseWorkload
from tunehub.kernels.symbolic.loops import NotTiledError, RowTiles, TileSizes, over_rows
from tunehub.kernels.symbolic.pieces import piece_of, sizes_of
from tunehub.kernels.template_fit import with_short_indices
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from tunehub.tir.open_axes import OpenAxes
    from tunehub.tir.types import PrimFunc

_COLUMNS = 4  # of a tile
_MANY_REGISTERS = 32


def by_nt_rows(function: PrimFunc, axes: OpenAxes, machine: Machine) -> PrimFunc | None:
    """``function`` in tiles along an open axis, if it is such a product with rows along one; else None."""
    sizes = TileSizes(large=4, small=2) if machine.registers >= _MANY_REGISTERS else TileSizes(large=2, small=1)
    for row in reversed(range(len(axes.extents))):
        rows = (sizes.large, sizes.small, sizes.least)
        if not axes.is_contiguous(function, sizes_of(axes, row, sizes.large)):
            continue
        tiles = [_tile(piece_of(function, axes, sizes_of(axes, row, size)), size) for size in rows]
        found = tuple(tile for tile in tiles if tile is not None)
        if len(found) < len(tiles):
            continue
        try:
            return over_rows(function, axes, RowTiles(row=row, sizes=sizes, functions=found))
        except NotTiledError:
            continue
    return None


def _tile(piece: PrimFunc | None, rows: int) -> PrimFunc | None:
    """The schedule of a piece of so many rows that is one tile high; None where it is no such product."""
    match = None if piece is None else templates.find(main_module(piece))
    if match is None or not isinstance(match.workload, NtDenseWorkload) or match.workload.length != rows:
        return None
    knobs = NtDenseKnobs(rows=rows, columns=max(divisors(match.workload.outputs, _COLUMNS)))
    try:
        return nt_template.apply(with_short_indices(main_module(piece)), match.workload, knobs).mod["main"]
    except KnobError:
        return None
