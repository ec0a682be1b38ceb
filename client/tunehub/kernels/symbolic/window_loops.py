"""Loops over tiles of images of unknown height and width.

A tile is a scheduled static function: of a few columns of a row (or of the pixels of an image), with all channels. Its
parameters are windows of the real ones, whose rows are further apart (``T.match_buffer``). Blocks of channels, which
share weights, are the outermost loop; the last tiles of a row begin in front of the ones before, so that none goes
beyond the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunehub.kernels.symbolic.borders import Borders, border_values
from tunehub.kernels.symbolic.loops import (
    INDEX,
    NotTiledError,
    TileSizes,
    nests_of,
    only_nest,
    opaque,
    row_loops,
    step_at,
    with_body,
    with_own_data,
)
from tunehub.kernels.symbolic.windows import BATCH, COLUMNS, ROWS, Windows
from tunehub.tir.nodes import buffer_kind, integer, parameters, plain_extent, with_parameter
from tunehub.tir.statements import bind, block_of, loop, parallel, sequence
from tunehub.tir.views import Extents, match, number, view

if TYPE_CHECKING:
    from tunehub.kernels.symbolic.windows import Place
    from tunehub.tir.types import Buffer, MatchBufferRegion, PrimExpr, PrimFunc, Stmt, Var


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowTiles:
    """Schedules of tiles that are ``rows`` high, for each of the ``sizes`` along the columns; where these are known,
    one schedule for all of them, and no sizes.

    ``pixels``: rows and columns are one axis.
    """

    rows: int
    sizes: TileSizes | None
    functions: tuple[PrimFunc, ...]
    pixels: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """The scheduled statement that writes a padded image, and the buffer that it writes."""

    nest: Stmt
    buffer: Buffer


def over_windows(
    function: PrimFunc, windows: Windows, tiles: WindowTiles, padding: Padding | Borders | None, pieces: int
) -> PrimFunc:
    """``function`` as a loop over tiles, behind a copy if that is its ``padding``; else these read the image itself.

    ``pieces``: how many the work is to be in at least for threads to share it. Raises NotTiledError where the schedules
    of tiles are not shared among threads alike.
    """
    from tvm import tirx

    functions = [opaque(_without_copy(with_own_data(tile), padding)) for tile in tiles.functions]
    nests = list(map(only_nest, functions))
    blocks = int(nests[0].extent)
    if any(int(nest.extent) != blocks for nest in nests):
        raise NotTiledError("tiles are shared among threads differently")
    outer, inner = Extents(), Extents()
    windows = replace(windows, extents=tuple(map(outer.of, windows.extents)))
    wholes = _Wholes(function, windows, (tiles.pixels, padding), outer)
    lead, row_tasks, column_tasks = map(outer.of, _tasks(windows, tiles))
    block, task = tirx.Var("block", INDEX), tirx.Var("task", INDEX)
    above = inner.new(task // column_tasks)
    row, column = inner.new(above % row_tasks), inner.new(task % column_tasks)
    image = inner.new(above // row_tasks)
    body = wholes.declarations()
    plan = _plan(windows, tiles, (column, column_tasks), outer)
    for tile, nest, (times, first) in zip(functions, nests, plan, strict=True):
        step = tirx.Var("tile", INDEX)
        starts = {BATCH: image, ROWS: _row(windows, tiles, row), COLUMNS: first(step)}
        views, matches = wholes.windows(tile, starts)
        inside = block_of(tile.body, step_at(nest, block, known=True), "tile", tile.body.block.alloc_buffers, matches)
        inside = _located(tile, sequence([*views, inside]), windows, padding, starts)
        body.append(loop(step, inner.of(times), inside))
    each = inner.around(function.body, sequence(body))
    nest = _shared((block, blocks), (task, outer.of(lead * row_tasks * column_tasks)), each, pieces)
    nest = outer.around(function.body, nest)
    if isinstance(padding, Padding):
        return with_body(function, sequence([padding.nest, nest]), [padding.buffer])
    return with_body(function, nest)


def _located(
    tile: PrimFunc, body: Stmt, windows: Windows, padding: Padding | Borders | None, starts: dict[int, PrimExpr]
) -> Stmt:
    """``body`` where the tile's last parameters, if it reads the image itself, say where it is."""

    if not isinstance(padding, Borders):
        return body
    known, values = Extents(), border_values(padding, windows, starts)
    own = list(tile.params)[-len(values) :]
    bound = [bind(variable, known.of(value)) for variable, value in zip(own, values, strict=True)]
    return known.around(tile.body, sequence([*bound, body]))


def _shared(block: tuple[Var, int], task: tuple[PrimExpr, PrimExpr], body: Stmt, pieces: int) -> Stmt:
    """The loops over blocks of channels and the tasks of each, which share weights; on threads blocks where there are
    enough of them, else parts of the tasks."""
    from tvm import tirx

    (block_var, blocks), (task_var, tasks) = block, task
    if blocks >= pieces:
        return parallel(block_var, blocks, loop(task_var, tasks, body))
    part, parts = tirx.Var("part", INDEX), tirx.min(tasks, number(pieces))
    begin, end = part * tasks // parts, (part + 1) * tasks // parts
    over_blocks = loop(block_var, blocks, loop(task_var, end - begin, body, start=begin))
    return parallel(part, parts, over_blocks)


def _without_copy(tile: PrimFunc, padding: Padding | Borders | None) -> PrimFunc:
    """``tile`` without the statement that writes its padded image, which becomes its last parameter."""
    if not isinstance(padding, Padding):
        return tile
    root, nests = tile.body.block, nests_of(tile)
    padded = [each for each in root.alloc_buffers if _name(each) == _name(padding.buffer)]
    if len(nests) != 1 + len(padded):
        raise NotTiledError("a tile is more than one loop shared among threads")
    kept = [each for each in root.alloc_buffers if not each.same_as(padded[0])]
    return with_parameter(with_body(tile, nests[-1], kept), padded[0])


def _tasks(windows: Windows, tiles: WindowTiles) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """How many tasks there are along the batch, the rows and the columns."""
    from tvm import tirx

    batch, rows, _ = windows.extents
    lead = number(1) if integer(batch) is not None else batch
    row_tasks = number(1) if tiles.pixels or integer(rows) is not None else (rows + (tiles.rows - 1)) // tiles.rows
    if tiles.sizes is None:
        return lead, row_tasks, number(1)
    most = tiles.sizes.group * tiles.sizes.large
    return lead, row_tasks, tirx.max(_along(windows, tiles) // most, number(1))


def _along(windows: Windows, tiles: WindowTiles) -> PrimExpr:
    """The columns, or pixels, that tiles lie along."""
    _, rows, columns = windows.extents
    return number(rows) * number(columns) if tiles.pixels else columns


def _plan(
    windows: Windows, tiles: WindowTiles, task: tuple[PrimExpr, PrimExpr], extents: Extents
) -> list[tuple[PrimExpr, Callable[[Stmt], Stmt]]]:
    """As of :func:`row_loops`; ``task``: which of how many along the columns."""
    if tiles.sizes is None:
        return [(number(1), lambda _: number(0))]
    return row_loops(_along(windows, tiles), *task, tiles.sizes, extents)


def _row(windows: Windows, tiles: WindowTiles, task: PrimExpr) -> PrimExpr:
    """The first row of a task."""
    from tvm import tirx

    rows = windows.extents[ROWS]
    if tiles.pixels or integer(rows) is not None:
        return number(0)
    return task if tiles.rows == 1 else tirx.min(task * tiles.rows, rows - tiles.rows)


class _Wholes:
    """The operands that tiles are windows of: parameters of the function, and the padded image."""

    def __init__(
        self, function: PrimFunc, windows: Windows, by: tuple[bool, Padding | Borders | None], extents: Extents
    ) -> None:
        """``by``: whether rows and columns are one axis, and the padding."""
        pixels, padding = by
        own = parameters(function)
        operands = {
            str(at): (buffer, windows.places[hash(buffer)])
            for at, buffer in enumerate(own)
            if hash(buffer) in windows.places
        }
        if isinstance(padding, Padding):
            operands[str(len(own))] = (padding.buffer, windows.places[hash(windows.pad)])
        elif padding is not None:
            at = list(map(hash, own)).index(hash(padding.image))
            operands[str(at)] = (padding.image, windows.places[hash(windows.pad)])
        self._operands = {at: each for at, each in operands.items() if any(each[1])}
        self._fixed = {at: buffer for at, (buffer, places) in operands.items() if not any(places)}
        self._bases = {at: _base(*each, pixels, extents) for at, each in self._operands.items()}

    def declarations(self) -> list[Stmt]:
        """Statements in front of all tiles."""
        return [each for at, base in self._bases.items() for each in view(self._operands[at][0], base, {})]

    def windows(self, tile: PrimFunc, starts: dict[int, PrimExpr]) -> tuple[list[Stmt], list[MatchBufferRegion]]:
        """Statements that make windows that begin at ``starts``, and the parameters of ``tile`` as parts of them."""
        from tvm import tirx

        views, matches = [], []
        parts = {str(at): part for at, part in enumerate(parameters(tile))}
        for at, whole in self._fixed.items():
            views += view(whole, parts[at], {})
        for at, (_, places) in self._operands.items():
            base = self._bases[at]
            moved = {axis: starts[place[0]] * place[1] for axis, place in enumerate(places) if place is not None}
            kind = buffer_kind(base)
            window = tirx.decl_buffer(list(kind.shape), str(kind.dtype), f"window{at}")
            views += view(base, window, moved)
            matches.append(match(parts[at], window))
        return views, matches


def _base(whole: Buffer, places: Sequence[Place | None], pixels: bool, extents: Extents) -> Buffer:
    """``whole`` with variables for its extents; all pixels lie along the columns where they are one axis."""
    from tvm import tirx

    kind = buffer_kind(whole)
    shape = [extents.of(plain_extent(extent)) for extent in kind.shape]
    for axis, place in enumerate(places):
        if pixels and place is not None and place[0] == COLUMNS:
            shape[axis - 1 : axis + 1] = [number(1), extents.of(shape[axis - 1] * shape[axis])]
    return tirx.decl_buffer(shape, str(kind.dtype), "whole")


def _name(buffer: Buffer) -> str:
    return str(buffer.name)
