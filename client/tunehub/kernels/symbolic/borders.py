"""Padding that tiles of an image of unknown size do without: they read the image itself, and see where it ends.

Only the first and last elements of what a tile reads can be outside of the image. Once loops are unrolled, no other
element has a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cpu.window import WindowWorkload
from tunehub.kernels.symbolic.windows import PROBES, Windows
from tunehub.tir.index_expressions import compiled, operator_name, parts_of
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    is_reduction,
    parameters,
    same_extent,
    with_block_body,
    with_children,
)
from tunehub.tir.open_axes import NotSeparateError, realizations, stores_in
from tunehub.tir.statements import store
from tunehub.tir.symbols import extent_at, symbols_of
from tunehub.tir.versions import LOADS
from tunehub.tir.views import number

if TYPE_CHECKING:
    from tunehub.tir.types import Array, Buffer, BufferLoad, BufferStore, PrimExpr, PrimFunc, SBlock, Stmt

_AXES = (2, 3)  # rows and columns of an image, and of its padded copy
_EDGE = 64  # places at both ends at which conditions are tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Borders:
    """``pad``: the block that writes the padded copy of the parameter ``image``, which the block ``anchor`` reads.
    ``before`` and ``after``: elements that it adds along rows and columns."""

    anchor: str
    pad: str
    image: Buffer
    before: tuple[int, ...]
    after: tuple[int, ...]


def borders_of(function: PrimFunc, windows: Windows, workload: WindowWorkload) -> Borders | None:
    """What ``function``, whose tiles move as ``windows``, adds around a parameter that it reads for nothing else; None
    where it reads no padded copy of one, or where a window can be all outside of it."""
    around = workload.around
    if around.pad is None or around.producers:
        return None
    try:
        blocks = {str(each.block.name_hint): each.block for each in realizations(function.body.block.body)}
        store = _padding_store(blocks[around.pad])
    except (NotSeparateError, KeyError):
        return None
    load = store.value.args[1]
    image, copy = buffer_of(load), buffer_of(store)
    if hash(image) in windows.places or hash(image) not in map(hash, parameters(function)):
        return None
    shapes = list(buffer_kind(image).shape), list(buffer_kind(copy).shape)
    before = [_shift(*indices) for indices in zip(store.indices, load.indices, strict=True)]
    if None in before or any(shift for axis, shift in enumerate(before) if axis not in _AXES):
        return None
    first = [before[axis] or 0 for axis in _AXES]
    after = [_after(shapes[0][axis], shapes[1][axis], shift) for axis, shift in zip(_AXES, first, strict=True)]
    reach = [_last(blocks[workload.anchor], copy, axis, first=True) + 1 for axis in _AXES]
    if any(end is None or start + end >= most for start, end, most in zip(first, after, reach, strict=True)):
        return None
    if not _is_inside(function, store, first):
        return None
    return Borders(
        anchor=workload.anchor, pad=around.pad, image=image, before=tuple(first), after=tuple(end or 0 for end in after)
    )


def with_borders(tile: PrimFunc, borders: Borders) -> PrimFunc:
    """``tile``, a static function, with four integers as parameters behind the others: where it is in the padded image
    (row and column), and where the image ends there."""
    from tvm import tirx

    blocks = {str(each.block.name_hint): each.block for each in realizations(tile.body.block.body)}
    pad = blocks[borders.pad]
    old = _padding_store(pad)
    starts, ends = ([tirx.Var(name, "int64") for name in names] for names in (("top", "left"), ("bottom", "right")))
    condition: PrimExpr | None = None
    for at, axis in enumerate(_AXES):
        place = old.indices[axis]
        needed = _last(blocks[borders.anchor], buffer_of(old), axis, first=False) + 1
        begun = tirx.any(place >= borders.before[at], place + starts[at] >= borders.before[at])
        going = tirx.any(place < needed - borders.after[at], place + starts[at] < ends[at])
        inside = tirx.all(begun, going)
        condition = inside if condition is None else tirx.all(condition, inside)
    _, load, other = old.value.args
    value = tirx.if_then_else(condition, load, other)
    body = _with_store(tile.body, pad, store(buffer_of(old), old.indices, value))
    maps = [tile.buffer_map] if hasattr(tile, "buffer_map") else []  # until 0.25
    return tirx.PrimFunc([*tile.params, *starts, *ends], body, tile.ret_type, *maps, tile.attrs)


def border_values(borders: Borders, windows: Windows, starts: dict[int, PrimExpr]) -> list[PrimExpr]:
    """What the parameters of :func:`with_borders` are for the tile that begins at ``starts`` of the result."""
    places = [windows.places[hash(windows.pad)][axis] for axis in _AXES]
    first = [number(0) if place is None else starts[place[0]] * place[1] for place in places]
    shape = buffer_kind(borders.image).shape
    return [*first, *(number(shape[axis]) + before for axis, before in zip(_AXES, borders.before, strict=True))]


def _padding_store(block: SBlock) -> Stmt:
    """The one store of a padding block, of what it loads at one place inside of the image, and of a number outside."""
    (store,) = stores_in(block.body)
    value = store.value
    if type(value).__name__ != "Call" or operator_name(value) != "if_then_else":
        raise NotSeparateError
    if len(list(_loads(value.args[1]))) != 1 or type(value.args[2]).__name__ not in ("FloatImm", "IntImm"):
        raise NotSeparateError
    return store


def _shift(stored: PrimExpr, loaded: PrimExpr) -> int | None:
    """How much further on an element is in the padded copy, whose index is a variable; None where that is no number."""
    name, index = hash(stored), compiled(loaded)
    if not index.variables <= {name}:
        return None
    shifts = {int(at - index.value({name: np.asarray(at)})) for at in (0, 1, 5, 1000)}
    return shifts.pop() if len(shifts) == 1 and min(shifts) >= 0 else None


def _after(extent: PrimExpr, padded: PrimExpr, before: int) -> int | None:
    """How many elements are behind the image."""
    return next((each for each in range(_EDGE) if same_extent(extent + before + each, padded)), None)


def _last(block: SBlock, buffer: Buffer, axis: int, *, first: bool) -> int:
    """The last place along an axis that a block reads of ``buffer``; ``first``: for its first result."""
    ends = {
        hash(each.var): np.asarray(0 if first and not is_reduction(each) else int(each.dom.extent) - 1)
        for each in block.iter_vars
    }
    loads = [load for store in stores_in(block.body) for load in _loads(store.value)]
    return max(int(compiled(each.indices[axis]).value(ends)) for each in loads if buffer_of(each).same_as(buffer))


def _is_inside(function: PrimFunc, store: BufferStore, before: Sequence[int]) -> bool:
    """Whether what is stored is loaded just where there is something in the image."""
    condition, (load, copy) = compiled(store.value.args[0]), (store.value.args[1], buffer_of(store))
    names = [hash(store.indices[axis]) for axis in _AXES]
    for probe in PROBES:
        known = dict(zip(map(hash, symbols_of(function)), probe, strict=False))
        image, padded = (
            [extent_at(buffer_kind(buffer).shape[axis], known) for axis in _AXES] for buffer in (buffer_of(load), copy)
        )
        rows, columns = (_both_ends(extent) for extent in padded)
        values = {name: np.asarray(value) for name, value in known.items()}
        values |= {names[0]: rows[:, None], names[1]: columns[None, :]}
        if not condition.variables <= set(values):
            return False
        inside = [
            (at >= start) & (at < start + extent)
            for at, start, extent in zip((rows, columns), before, image, strict=True)
        ]
        expected = inside[0][:, None] & inside[1][None, :]
        if not np.array_equal(np.broadcast_to(condition.value(values), expected.shape), expected):
            return False
    return True


def _loads(value: PrimExpr) -> Iterator[BufferLoad]:
    if type(value).__name__ in LOADS:
        yield value
        return
    for part in parts_of(value):
        if not isinstance(part, (int, float, str, bool)):
            yield from _loads(part)


def _both_ends(extent: int) -> Array:
    return np.unique(np.concatenate([np.arange(min(extent, _EDGE)), np.arange(max(extent - _EDGE, 0), extent)]))


def _with_store(node: Stmt, block: SBlock, store: BufferStore) -> Stmt:
    """A statement with ``store`` as the body of ``block``."""
    if node.same_as(block):
        return with_block_body(block, store)
    return with_children(node, lambda child: _with_store(child, block, store))
