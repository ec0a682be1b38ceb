"""Sliding windows over images of open height and width: what a tile of the result reads of each operand.

A convolution or pooling, with what is fused behind it, is written for one tile of the result as a static function. This
module proves for which functions that is all there is to do: every access is at a place that moves with the tile by a
known step, or not at all, and nothing else depends on where the tile is or on how large the image is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cpu.fusion import Surroundings
from tunehub.tir.index_expressions import compiled, is_variable, parts_of
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_reduction, parameters, plain_extent, same_extent
from tunehub.tir.open_axes import NotSeparateError, realizations, stores_in
from tunehub.tir.symbols import symbols_of
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.index_expressions import Expression
    from tunehub.tir.types import (
        Array,
        Buffer,
        BufferLoad,
        BufferStore,
        Index,
        IterVar,
        PrimExpr,
        PrimFunc,
        SBlock,
        SBlockRealize,
        Var,
    )

BATCH, ROWS, COLUMNS = range(3)
_AXES = {BATCH: 0, ROWS: 2, COLUMNS: 3}  # of images, in blocks of channels or not
PROBES = ((61, 127, 31, 251), (1021, 509, 97, 2039))  # values of the symbols
_SAMPLES = 32
_RANKS = (4, 5)

Place = tuple[int, int]  # an open axis of the result, and the elements that an operand moves by for one of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """``extents``: of the batch, the rows and the columns of the result; expressions where they are open, else numbers.

    ``places``: for each buffer that tiles read or write, by its hash, and each of its axes: how it moves with the tile.
    ``pad``: the buffer that holds the padded image, if there is one.
    """

    extents: tuple[Index, Index, PrimExpr]
    places: dict[int, tuple[Place | None, ...]]
    pad: Var | None

    def are_pixels(self, buffers: Sequence[Buffer]) -> bool:
        """Whether rows and columns lie side by side in all ``buffers`` that have them, and move by one: then they are
        one axis of pixels in memory."""
        return all(self._has_pixels(buffer) for buffer in buffers if hash(buffer) in self.places)

    def _has_pixels(self, buffer: Buffer) -> bool:
        places = self.places[hash(buffer)]
        moving = [(axis, place) for axis, place in enumerate(places) if place is not None and place[0] != BATCH]
        if not moving:
            return True
        shape = buffer_kind(buffer).shape
        (first, _), *_ = moving
        whole = all(same_extent(shape[axis], self.extents[place[0]]) for axis, place in moving)
        return whole and moving == [(first, (ROWS, 1)), (first + 1, (COLUMNS, 1))]


def windows_of(function: PrimFunc, anchor: str, around: Surroundings) -> Windows | None:
    """How the operands of ``function``, whose reduction is the block ``anchor`` with ``around`` it, move with tiles of
    its result; None where they do not just move, and where neither rows nor columns are open."""
    try:
        blocks = {str(each.block.name_hint): each for each in realizations(function.body.block.body)}
        symbols = symbols_of(function)
        if around.rest or (around.producers and around.pad is None) or len(symbols) > len(PROBES[0]):
            return None
        judged = [blocks[name] for name in (anchor, *around.consumers)]
        extents = _extents(judged[0].block)
        pad = None if around.pad is None else buffer_of(blocks[around.pad].block.writes[0])
        known = [*parameters(function), *([] if pad is None else [pad])]
        places = _Places(symbols, extents, {hash(buffer) for buffer in known})
        for each in judged:
            places.judge(each)
    except (NotSeparateError, AttributeError, KeyError):
        return None
    is_open = [integer(extent) is None for extent in extents]
    return Windows(extents=extents, places=places.found, pad=pad) if any(is_open[ROWS:]) else None


def _extents(block: SBlock) -> tuple[Index, Index, Index]:
    spatial = [plain_extent(axis.dom.extent) for axis in block.iter_vars if not is_reduction(axis)]
    if len(spatial) not in _RANKS:
        raise NotSeparateError
    return spatial[_AXES[BATCH]], spatial[_AXES[ROWS]], spatial[_AXES[COLUMNS]]


class _Places:
    """Finds how buffers move with tiles, access by access; NotSeparateError for one that does not just move."""

    def __init__(self, symbols: Sequence[Var], extents: tuple[Index, Index, Index], known: set[int]) -> None:
        self.found: dict[int, tuple[Place | None, ...]] = {}
        self._symbols, self._extents, self._known = symbols, extents, known

    def judge(self, realize: SBlockRealize) -> None:
        """Judge a block; what it writes is known from then on."""
        block = realize.block
        if integer(realize.predicate) != 1 or len(block.alloc_buffers) or len(block.match_buffers):
            raise NotSeparateError
        opened = self._open_variables(block)
        fixed = [axis for axis in block.iter_vars if hash(axis.var) not in opened]
        if any(integer(axis.dom.extent) is None for axis in fixed):
            raise NotSeparateError
        samples = [_sampled(self._symbols, probe, fixed, opened) for probe in PROBES]
        for body in (block.init, block.body):
            for store in () if body is None else stores_in(body):
                self._known.add(hash(buffer_of(store)))
                moved = [place for place in self._access(store, opened, samples) if place is not None]
                if sorted(moved) != [(axis, 1) for axis in sorted(opened.values())]:
                    raise NotSeparateError
                for load in _loads(store.value, {hash(axis.var) for axis in fixed}):
                    self._access(load, opened, samples)

    def _open_variables(self, block: SBlock) -> dict[int, int]:
        """The variables of open axes, by hash, in a block that has the same ones as the result."""
        spatial = [axis for axis in block.iter_vars if not is_reduction(axis)]
        if len(spatial) not in _RANKS:
            raise NotSeparateError
        found = {}
        for at, extent in enumerate(self._extents):
            if integer(extent) is None:
                axis = spatial[_AXES[at]]
                if not same_extent(axis.dom.extent, extent):
                    raise NotSeparateError
                found[hash(axis.var)] = at
        return found

    def _access(
        self, access: BufferLoad | BufferStore, opened: dict[int, int], samples: Sequence[dict[int, Array]]
    ) -> tuple[Place | None, ...]:
        buffer = hash(buffer_of(access))
        if buffer not in self._known:
            raise NotSeparateError
        places = tuple(_place(compiled(index), opened, samples) for index in access.indices)
        if self.found.setdefault(buffer, places) != places:
            raise NotSeparateError
        return places


def _place(index: Expression, opened: dict[int, int], samples: Sequence[dict[int, Array]]) -> Place | None:
    """How an index moves with the open axes, judged by trying it."""
    steps = {}
    for name in opened:
        moved = index.value({**samples[0], name: samples[0][name] + 1}) - index.value(samples[0])
        steps[name] = int(np.broadcast_to(moved, (_SAMPLES,))[0])
    rest = [index.value(each) - sum(step * each[name] for name, step in steps.items()) for each in samples]
    one, other = (np.broadcast_to(each, (_SAMPLES,)) for each in rest)
    moving = [(opened[name], step) for name, step in steps.items() if step]
    if not np.array_equal(one, other) or len(moving) > 1 or any(step < 0 for _, step in moving):
        raise NotSeparateError
    return moving[0] if moving else None


def _sampled(
    symbols: Sequence[Var], probe: Sequence[int], fixed: Sequence[IterVar], opened: dict[int, int]
) -> dict[int, Array]:
    """Places in a block for these values of the symbols: the same ones along all axes but those that are open."""
    same, moving = np.random.default_rng(0), np.random.default_rng(probe[0])
    found = {hash(symbol): np.asarray(value) for symbol, value in zip(symbols, probe, strict=False)}
    found |= {hash(axis.var): same.integers(0, int(axis.dom.extent), _SAMPLES) for axis in fixed}
    return found | {name: moving.integers(0, max(PROBES[0]), _SAMPLES) for name in opened}


def _loads(value: PrimExpr, variables: set[int]) -> Iterator[BufferLoad]:
    """What a value loads; NotSeparateError where it depends on other variables than ``variables`` besides."""
    if type(value).__name__ in LOADS:
        yield value
        return
    if is_variable(value) and hash(value) not in variables:
        raise NotSeparateError
    for part in parts_of(value):
        if not isinstance(part, (int, float, str, bool)):
            yield from _loads(part, variables)
