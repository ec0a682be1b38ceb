"""Loops over tiles of images of unknown height and width.

A tile is a scheduled static function: of a few columns of a row (or of the pixels of an image), with all channels. Its
parameters are windows of the real ones, whose rows are further apart (``T.match_buffer``). Blocks of channels, which
share weights, are the outermost loop; the last tiles of a row begin in front of the ones before, so that none goes
beyond the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunehub.relax.nodes import buffer_kind, integer, parameters
from tunehub.relax.open_axes.loops import (
    INDEX,
    PARALLEL,
    SERIAL,
    NotTiledError,
    TileSizes,
    is_parallel,
    nests_of,
    row_loops,
    step_at,
    with_body,
    with_own_data,
)
from tunehub.relax.open_axes.views import block_of, match, number, sequence, view
from tunehub.relax.open_axes.windows import BATCH, COLUMNS, ROWS, Windows


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowTiles:
    """Schedules of tiles that are ``rows`` high, for each of the ``sizes`` along the columns; where these are known,
    one schedule for all of them, and no sizes.

    ``pixels``: rows and columns are one axis.
    """

    rows: int
    sizes: TileSizes | None
    functions: tuple[Any, ...]
    pixels: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """The scheduled statement that writes a padded image, and the buffer that it writes."""

    nest: Any
    buffer: Any


def over_windows(function: Any, windows: Windows, tiles: WindowTiles, padding: Padding | None) -> Any:
    """``function`` as a loop over tiles, behind ``padding`` if it has one. Raises NotTiledError where the schedules of
    tiles are not shared among threads alike."""
    from tvm import tirx

    functions = [with_own_data(tile) for tile in tiles.functions]
    nests = [_main_nest(tile, padding is not None) for tile in functions]
    extent = int(nests[0].extent)
    if any(int(nest.extent) != extent for nest in nests):
        raise NotTiledError("tiles are shared among threads differently")
    wholes = _Wholes(function, windows, tiles.pixels, padding)
    lead, row_tasks, column_tasks = _tasks(windows, tiles)
    place = tirx.Var("task", INDEX)
    row = place // column_tasks % row_tasks
    lead_at = place // (column_tasks * row_tasks) % lead
    thread = place // (column_tasks * row_tasks * lead)
    body = wholes.declarations()
    plan = _plan(windows, tiles, place % column_tasks, column_tasks)
    for tile, nest, (times, first) in zip(functions, nests, plan, strict=True):
        step = tirx.Var("tile", INDEX)
        starts = {BATCH: lead_at, ROWS: _row(windows, tiles, row), COLUMNS: first(step)}
        views, matches = wholes.windows(tile, starts)
        buffers = [each for each in tile.body.block.alloc_buffers if not wholes.is_padded(each)]
        inside = block_of(tile.body, step_at(nest, thread), "tile", buffers, matches)
        body.append(tirx.For(step, number(0), times, SERIAL, sequence([*views, inside])))
    total = lead * row_tasks * column_tasks * extent
    loop = tirx.For(place, number(0), total, PARALLEL, sequence(body))
    if padding is None:
        return with_body(function, loop)
    return with_body(function, sequence([padding.nest, loop]), [padding.buffer])


def _main_nest(tile: Any, is_padded: bool) -> Any:
    """The loop that threads share; behind that which writes the padded image."""
    nests = nests_of(tile)
    if len(nests) != 1 + is_padded or not is_parallel(nests[-1]):
        raise NotTiledError("a tile is more than one loop shared among threads")
    return nests[-1]


def _tasks(windows: Windows, tiles: WindowTiles) -> tuple[Any, Any, Any]:
    """How many tasks there are along the batch, the rows and the columns."""
    from tvm import tirx

    batch, rows, _ = windows.extents
    lead = number(1) if integer(batch) is not None else batch
    row_tasks = number(1) if tiles.pixels or integer(rows) is not None else (rows + (tiles.rows - 1)) // tiles.rows
    if tiles.sizes is None:
        return lead, row_tasks, number(1)
    most = tiles.sizes.group * tiles.sizes.large
    return lead, row_tasks, tirx.max(_along(windows, tiles) // most, number(1))


def _along(windows: Windows, tiles: WindowTiles) -> Any:
    """The columns, or pixels, that tiles lie along."""
    _, rows, columns = windows.extents
    return number(rows) * number(columns) if tiles.pixels else columns


def _plan(windows: Windows, tiles: WindowTiles, task: Any, tasks: Any) -> list[tuple[Any, Callable[[Any], Any]]]:
    if tiles.sizes is None:
        return [(number(1), lambda _: number(0))]
    return row_loops(_along(windows, tiles), task, tasks, tiles.sizes)


def _row(windows: Windows, tiles: WindowTiles, task: Any) -> Any:
    """The first row of a task."""
    from tvm import tirx

    rows = windows.extents[ROWS]
    if tiles.pixels or integer(rows) is not None:
        return number(0)
    return task if tiles.rows == 1 else tirx.min(task * tiles.rows, rows - tiles.rows)


class _Wholes:
    """The operands that tiles are windows of: parameters of the function, and the padded image."""

    def __init__(self, function: Any, windows: Windows, pixels: bool, padding: Padding | None) -> None:
        self._pixels, self._pad = pixels, None if padding is None else _name(padding.buffer)
        own = parameters(function)
        operands = {
            str(at): (buffer, windows.places[hash(buffer)])
            for at, buffer in enumerate(own)
            if hash(buffer) in windows.places
        }
        if padding is not None:
            operands["pad"] = (padding.buffer, windows.places[hash(windows.pad)])
        self._operands = {at: each for at, each in operands.items() if any(each[1])}
        self._joined = {at: self._one_axis(*each) for at, each in self._operands.items()} if pixels else {}

    def is_padded(self, buffer: Any) -> bool:
        """Whether a buffer of a tile is its padded image."""
        return self._pad is not None and _name(buffer) == self._pad

    def declarations(self) -> list[Any]:
        """Statements in front of all tiles."""
        found = []
        for at, joined in self._joined.items():
            whole, _ = self._operands[at]
            found += view(whole, joined, {})
        return found

    def windows(self, tile: Any, starts: dict[int, Any]) -> tuple[list[Any], list[Any]]:
        """Statements that make windows that begin at ``starts``, and the parameters of ``tile`` as parts of them."""
        from tvm import tirx

        views, matches = [], []
        parts = {str(at): part for at, part in enumerate(parameters(tile))}
        parts.update(("pad", each) for each in tile.body.block.alloc_buffers if self.is_padded(each))
        for at, (whole, places) in self._operands.items():
            base = self._joined.get(at, whole)
            moved = {axis: starts[place[0]] * place[1] for axis, place in enumerate(places) if place is not None}
            kind = buffer_kind(base)
            window = tirx.decl_buffer(list(kind.shape), str(kind.dtype), f"window{at}")
            views += view(base, window, moved)
            matches.append(match(parts[at], window))
        return views, matches

    def _one_axis(self, whole: Any, places: Sequence[Any]) -> Any:
        """``whole`` with all its pixels along the axis of columns."""
        from tvm import tirx

        shape = list(buffer_kind(whole).shape)
        for axis, place in enumerate(places):
            if place is not None and place[0] == COLUMNS:
                shape[axis - 1 : axis + 1] = [number(1), shape[axis - 1] * shape[axis]]
        return tirx.decl_buffer(shape, str(buffer_kind(whole).dtype), "pixels")


def _name(buffer: Any) -> str:
    return str(buffer.name)
