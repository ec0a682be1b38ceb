"""Pieces of known sizes of a function with open axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.base import KnobError
from tunehub.kernels.cpu.fusion import inline
from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, integer, main_module, reduces
from tunehub.tir.open_axes import OpenAxes
from tunehub.tir.schedules import open_schedule
from tunehub.tir.symbols import instance

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc, SBlock


def piece_of(function: PrimFunc, axes: OpenAxes, sizes: Sequence[int]) -> PrimFunc | None:
    """The static function of these sizes, None where no values of the symbols give it."""
    values = axes.values(sizes)
    return None if values is None else instance(function, values)


def sizes_of(axes: OpenAxes, row: int, rows: int) -> list[int]:
    """So many ``rows`` along the extent at position ``row``, one along the others."""
    return [rows if at == row else 1 for at in range(len(axes.extents))]


def without_shared_blocks(function: PrimFunc) -> PrimFunc:
    """``function`` without the blocks whose results all pieces along open axes would share, as a scale of all rows is
    that is computed of others: what reads them computes them. As it is where there are none, or where one reduces."""
    blocks = [block for block in blocks_in(function.body) if len(block.iter_vars)]
    shared = [block for block in blocks if _is_shared(block, function)]
    if not shared or any(map(reduces, shared)):
        return function
    schedule = open_schedule(main_module(function))
    try:
        for block in shared:
            inline(schedule, str(block.name_hint))
    except KnobError:
        return function
    inlined = schedule.mod["main"]
    symbol = function.attrs.get("global_symbol") if function.attrs else None
    return inlined.without_attr("global_symbol") if symbol is None else inlined.with_attr("global_symbol", symbol)


def _is_shared(block: SBlock, function: PrimFunc) -> bool:
    """Whether what ``block`` writes has no open extent, and is not a parameter."""
    own = [buffer_of(region) for region in block.writes]
    inside = {hash(buffer) for buffer in function.body.block.alloc_buffers}
    return all(hash(buffer) in inside and None not in map(integer, buffer_kind(buffer).shape) for buffer in own)
