"""Loops over tiles of open axes: a PrimFunc of unknown extents made of scheduled ones of known extents.

A tile is a scheduled static function. Its parameters become views of a piece of the real ones (``DeclBuffer`` at an
address in them), and its body stays as it is: 32-bit indices inside, a 64-bit address outside. The loop that a tile
shares among threads is one with the loop over tiles, so that a single tile runs on all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.tir.flattening import with_opaque_blocks
from tunehub.tir.nodes import blocks_in, element_type, integer, main_module, parameters
from tunehub.tir.open_axes import OpenAxes
from tunehub.tir.statements import block_of, either, loop, parallel, sequence
from tunehub.tir.versions import PARALLEL, SERIAL
from tunehub.tir.views import Extents, number, places, product, view, wide

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, For, PrimExpr, PrimFunc, Stmt

INDEX = "int64"


class NotTiledError(ValueError):
    """Tiles whose schedules cannot be joined; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TileSizes:
    """Sizes of tiles along an open axis, which always has a ``least`` one. A task has ``group`` large ones."""

    large: int
    small: int
    least: int = 1
    group: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTiles:
    """Schedules of tiles of rows, for each of ``sizes``, along the open extent at position ``row``; without one for the
    least where there are always more rows."""

    row: int
    sizes: TileSizes
    functions: tuple[PrimFunc, ...]


def over_pieces(function: PrimFunc, axes: OpenAxes, tile: PrimFunc, fewest: int) -> PrimFunc:
    """``function`` as a loop over pieces of one along each open axis, which ``tile``, scheduled, computes.

    ``fewest``: pieces from which on threads share them where a piece alone runs on one thread.
    """
    tile = opaque(with_own_data(tile))
    count, nests = product(wide(axes.extents)), nests_of(tile)
    if len(nests) == 1 and is_parallel(nests[0]):
        return with_body(function, _fused(function, axes, tile, nests[0]))
    if any(map(is_parallel, nests)):
        return with_body(function, _pieces_apart(function, axes, tile, count, SERIAL))
    shared = _pieces_apart(function, axes, tile, count, PARALLEL)
    if fewest <= 1:
        return with_body(function, shared)
    from tvm import s_tir

    alone = _pieces_apart(function, axes, s_tir.renew_defs(tile), count, SERIAL)
    return with_body(function, either(count < fewest, alone, shared))


def over_groups(function: PrimFunc, axes: OpenAxes, tile: PrimFunc, most: int, mark: str) -> PrimFunc:
    """``function`` as a loop over groups of at most ``most`` pieces of its one open axis, as equal as possible.

    ``tile``: scheduled for ``most`` pieces. Its loops that are marked with the annotation ``mark`` go over the pieces
    outside of all else, and end where those of a group do; its buffers keep their size. Raises NotTiledError where a
    nest has no such loop.
    """
    from tvm import tirx

    tile, known, group = opaque(with_own_data(tile)), Extents(), tirx.Var("group", INDEX)
    (count,) = wide(axes.extents)
    groups = known.new((count + (most - 1)) // most)
    size = known.new((count + groups - 1) // tirx.max(groups, number(1)))
    first = group * size
    own = tirx.min(count - first, size)
    nests = [_of_pieces(nest, own, most, mark) for nest in nests_of(tile)]
    body = sequence(_views(function, axes, tile, [first]), _inside(tile, nests))
    return with_body(function, known.around(function.body, loop(group, groups, body)))


def _of_pieces(node: Stmt, own: PrimExpr, most: int, mark: str) -> Stmt:
    """A nest of loops over ``most`` pieces with ``own`` instead."""
    from tvm import tirx

    if type(node).__name__ != "For":
        raise NotTiledError("there is no loop over pieces outside of others")
    body, extent = node.body, node.extent
    annotations = {key: value for key, value in node.annotations.items() if str(key) != mark}
    if len(annotations) < len(node.annotations):
        extent = tirx.Cast(element_type(extent), own * (int(extent) // most))
    else:
        body = _of_pieces(body, own, most, mark)
    return loop(node.loop_var, extent, body, node.kind, start=node.min, annotations=annotations)


def over_rows(function: PrimFunc, axes: OpenAxes, tiles: RowTiles) -> PrimFunc:
    """``function`` as a loop over tiles of rows; along other open axes, pieces of one. Axes that are one in memory are
    rows together: sequences of one token in a batch of eight are eight rows.

    A task has one large tile. The last has what remains as well: tiles that are small, or begin in front of the ones
    before, so that none goes beyond the end; fewer rows than a small tile has are computed one by one. Raises
    NotTiledError where schedules are not one loop each, shared among threads alike.
    """
    from tvm import tirx

    functions = [opaque(with_own_data(tile)) for tile in tiles.functions]
    nests = [only_nest(tile) for tile in functions]
    extent = int(nests[0].extent)
    if any(int(nest.extent) != extent for nest in nests):
        raise NotTiledError("tiles are shared among threads differently")
    extents, outer, inner = wide(axes.extents), Extents(), Extents()
    joined = axes.are_one and tiles.row == len(extents) - 1
    others = [] if joined else [each for at, each in enumerate(extents) if at != tiles.row]
    whole = product(extents) if joined else extents[tiles.row]
    count, lead = tirx.max(whole // tiles.sizes.large, number(1)), product(others)
    place = tirx.Var("task", INDEX)
    rows, tasks = outer.new(whole), outer.new(count)
    task, thread = inner.new(place % tasks), inner.new(place // (lead * tasks))
    leading = places(place // tasks % lead, others)
    body = []
    plans = zip(functions, nests, row_loops(rows, task, tasks, tiles.sizes, outer), strict=False)
    for tile, nest, (times, first) in plans:
        step = tirx.Var("tile", INDEX)
        at = first(step)
        starts = places(at, extents) if joined else [*leading[: tiles.row], at, *leading[tiles.row :]]
        inside = [*_views(function, axes, tile, starts), _inside(tile, [step_at(nest, thread, known=True)])]
        body.append(loop(step, inner.new(times), sequence(inside)))
    each = inner.around(function.body, sequence(body))
    return with_body(function, outer.around(function.body, parallel(place, lead * count * extent, each)))


def row_loops(
    rows: PrimExpr, task: PrimExpr, tasks: PrimExpr, sizes: TileSizes, known: Extents
) -> list[tuple[PrimExpr, Callable[[Stmt], Stmt]]]:
    """For large, small and smallest tiles of a task: how many there are, and where each begins.

    There are ``tasks = max(rows // (sizes.group * sizes.large), 1)``. What is the same for all tasks is put into
    ``known``, in small steps: TVM's passes take long for conditions inside of others.
    """
    from tvm import tirx

    large, small, least = sizes.large, sizes.small, sizes.least
    whole, rest = known.new(rows // large), known.new(rows % large)
    few, single = rows < large, rows < small
    split = known.new(_count(tirx.all(rest > 0, rest <= 2 * small - large)))  # two small ones for the last large, rest
    own = whole - (tasks - 1) * sizes.group  # of the last task
    larges = known.new(_where(few, number(0), own - split + _count(rest > small)))
    fits = known.new(_count(tirx.all(rest > 0, rest <= small)))
    of_few = known.new(_where(single, number(0), (rows + (small - 1)) // small))
    smalls = known.new(_where(few, of_few, fits + split))
    leasts = known.new(_where(single, (rows + (least - 1)) // least, number(0)))
    first_small = known.new(_where(few, number(0), (whole - split) * large))

    def of_task(last: PrimExpr, before: int) -> PrimExpr:
        return _where(task == tasks - 1, last, number(before))

    return [
        (of_task(larges, sizes.group), lambda i: tirx.min((task * sizes.group + i) * large, rows - large)),
        (of_task(smalls, 0), lambda i: tirx.min(first_small + i * small, rows - small)),
        (of_task(leasts, 0), lambda i: tirx.min(i * least, rows - least)),
    ]


def _count(condition: PrimExpr) -> PrimExpr:
    """1 where a condition holds, else 0."""
    from tvm import tirx

    return tirx.Cast(INDEX, condition)


def _where(condition: PrimExpr, value: PrimExpr, other: PrimExpr) -> PrimExpr:
    from tvm import tirx

    return tirx.Select(condition, value, other)


def tile_counts(rows: int, sizes: TileSizes) -> tuple[int, int, int]:
    """How many tiles of each size :func:`row_loops` takes, all tasks together."""
    large, small, least = sizes.large, sizes.small, sizes.least
    whole, rest = divmod(rows, large)
    if rows < small:
        return 0, 0, -(-rows // least)
    if rows < large:
        return 0, -(-rows // small), 0
    if rest and large + rest <= 2 * small:
        return whole - 1, 2, 0
    return (whole + 1, 0, 0) if rest > small else (whole, int(rest > 0), 0)


def _fused(function: PrimFunc, axes: OpenAxes, tile: PrimFunc, nest: For) -> Stmt:
    """The tile's loop over threads with the pieces outside of it."""
    from tvm import tirx

    counts, extent, place = wide(axes.extents), int(nest.extent), tirx.Var("piece", INDEX)
    body = _views(function, axes, tile, places(place // extent, counts))
    body.append(_inside(tile, [step_at(nest, place % extent)]))
    return parallel(place, product(counts) * extent, sequence(body))


def _pieces_apart(function: PrimFunc, axes: OpenAxes, tile: PrimFunc, count: PrimExpr, kind: int) -> Stmt:
    """A loop over pieces, whose own loops over threads stay."""
    from tvm import tirx

    piece = tirx.Var("piece", INDEX)
    views = _views(function, axes, tile, places(piece, wide(axes.extents)))
    views.append(_inside(tile, nests_of(tile)))
    return loop(piece, count, sequence(views), kind)


def _inside(tile: PrimFunc, nests: Sequence[Stmt]) -> Stmt:
    """Loops of a tile in a block that holds its buffers."""
    return block_of(tile.body, sequence(nests), "tile", tile.body.block.alloc_buffers)


def with_body(function: PrimFunc, body: Stmt, buffers: Sequence[Buffer] = ()) -> PrimFunc:
    """``function`` with ``body`` instead of its own, and ``buffers`` of its own."""
    return function.with_body(block_of(function.body, body, "root", buffers))


def _views(function: PrimFunc, axes: OpenAxes, tile: PrimFunc, starts: Sequence[PrimExpr]) -> list[Stmt]:
    """Statements that make the parameters of ``tile`` what begins at ``starts`` along the open axes."""
    found = []
    for whole, part, own in zip(parameters(function), parameters(tile), axes.places, strict=True):
        at = {axis: start for start, axis in zip(starts, own, strict=True) if axis is not None}
        found += view(whole, part, at)
    return found


def with_own_data(tile: PrimFunc) -> PrimFunc:
    """``tile`` with parameters that share nothing with those of the function it is a piece of: in 0.25 specialising
    leaves them the same pointers."""
    from tvm import s_tir, tirx

    return tile if hasattr(tirx.DeclBuffer, "data") else s_tir.renew_defs(tile)


def opaque(tile: PrimFunc) -> PrimFunc:
    """``tile`` by TVM's first passes, so that its own memory is as small as its loops of known extents need: TVM takes
    many times as long to find that inside of a loop of unknown length, and writes it in long expressions.

    As it is where instructions have operands of their own (``match_buffer``): TVM's ``CompactBufferAllocation`` fails
    on the vectors of indices that ``LowerMatchBuffer`` makes of these.
    """
    if any(len(block.match_buffers) for block in blocks_in(tile.body)):
        return tile
    return with_opaque_blocks(main_module(tile))["main"]


def step_at(nest: For, place: PrimExpr, *, known: bool = False) -> Stmt:
    """The loop ``nest`` at one place only: of one step. TVM is told that the place is inside of the loop: buffers have
    to be no larger for one step than for all. Not where that is ``known``."""
    from tvm import tirx

    dtype = element_type(nest.loop_var)
    inside = place if known else tirx.min(place, number(int(nest.extent) - 1))
    at = inside if dtype == INDEX else tirx.Cast(dtype, inside)
    return loop(nest.loop_var, 1, nest.body, start=at, annotations=nest.annotations)


def nests_of(tile: PrimFunc) -> list[Stmt]:
    """The outermost statements of a scheduled function."""
    body = tile.body.block.body
    return list(body.seq) if type(body).__name__ == "SeqStmt" else [body]


def only_nest(tile: PrimFunc) -> Stmt:
    """The loop that threads share, which is all of ``tile``. Raises NotTiledError for others."""
    nests = nests_of(tile)
    if len(nests) != 1 or not is_parallel(nests[0]):
        raise NotTiledError("a tile is more than one loop shared among threads")
    return nests[0]


def is_parallel(nest: Stmt) -> bool:
    """Whether a statement is a loop that threads share."""
    return type(nest).__name__ == "For" and int(nest.kind) == PARALLEL and integer(nest.min) == 0
