"""The axes of unknown extent of a PrimFunc, and whether its work can be done one piece of them after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.tir.index_expressions import compiled, is_variable, parts_of
from tunehub.tir.nodes import buffer_kind, buffer_of, children, integer, is_reduction, parameters
from tunehub.tir.symbols import symbols_of
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import (
        Array,
        Buffer,
        BufferLoad,
        BufferStore,
        Number,
        PrimExpr,
        PrimFunc,
        SBlockRealize,
        Stmt,
        Var,
    )

_PROBES = ((5, 7, 11, 13), (8191, 4093, 2039, 1021))  # extents, a different one for each symbol
_SAMPLES = 64
_INNER = ("For", "SBlockRealize", "SBlock", "SeqStmt")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenAxes:
    """``extents``: those that are unknown, symbols and products of symbols; ``places``: for each parameter of the
    function, and each of them, the axis of that extent, None where it has none. ``symbols``: all of the function."""

    extents: tuple[PrimExpr, ...]
    places: tuple[tuple[int | None, ...], ...]
    symbols: tuple[Var, ...]

    def values(self, sizes: Sequence[int]) -> list[int] | None:
        """The values of the symbols for which the extents are ``sizes``; None where there are none."""
        found: dict[int, int] = {}
        for extent, size in zip(self.extents, sizes, strict=True):
            *others, last = _factors(extent)
            for factor, value in [*((other, 1) for other in others), (last, size)]:
                if found.setdefault(hash(factor), value) != value:
                    return None
        return [found.get(hash(symbol), 1) for symbol in self.symbols]

    @property
    def are_one(self) -> bool:
        """Whether the open axes lie side by side, in the same order, in all parameters that have one of them: then they
        are one axis in memory."""
        first = [places[0] for places in self.places]
        rows = [tuple(at + i for i in range(len(self.extents))) if at is not None else None for at in first]
        empty = (None,) * len(self.extents)
        return all(places in (row, empty) for places, row in zip(self.places, rows, strict=True))

    def is_contiguous(self, function: PrimFunc, sizes: Sequence[int]) -> bool:
        """Whether pieces of ``sizes`` along the symbols lie in one piece in all parameters of ``function``."""
        return all(
            _in_one_piece(list(buffer_kind(buffer).shape), dict(zip(places, sizes, strict=True)))
            for buffer, places in zip(parameters(function), self.places, strict=True)
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """A block: its axes by the hash of their variables, with the position of the open extent, or the number; its
    stores; and for each probe random places in it, values of the symbols and axes by hash."""

    axes: dict[int, tuple[int | None, int]]
    stores: tuple[BufferStore, ...]
    samples: list[dict[int, Array]]


_Places = dict[int, tuple[int | None, ...]]  # the open axes of buffers by hash


def separate_axes(function: PrimFunc) -> OpenAxes | None:
    """The open axes of ``function`` when pieces of one along each lie in one piece in its parameters, else None."""
    axes = open_axes(function)
    return axes if axes is not None and axes.is_contiguous(function, [1] * len(axes.extents)) else None


def open_axes(function: PrimFunc, *, shared: bool = False) -> OpenAxes | None:
    """The open axes of ``function``, not scheduled; None unless each part of what it computes along them depends on the
    same part of its operands, and on nothing else that is open. ``shared``: it may also compute what all parts read,
    such as weights of quantised ones, in memory of its own.

    Indices are judged by trying them: at random places, for two extents of each symbol.
    """
    symbols = symbols_of(function)
    if not 0 < len(symbols) <= len(_PROBES[0]):
        return None
    try:
        extents = _open_extents(function)
        if not extents:
            return None
        places: _Places = {hash(buffer): _places(buffer, extents) for buffer in _buffers(function)}
        probes = [dict(zip(map(hash, symbols), values, strict=False)) for values in _PROBES]
        common = {hash(buffer) for buffer in function.body.block.alloc_buffers} if shared else set()
        for block in [_described(block, extents, probes) for block in realizations(function.body.block.body)]:
            for store in block.stores:
                _check_store(store, block, places, common)
    except (NotSeparateError, AttributeError):
        return None
    own = tuple(places[hash(buffer)] for buffer in parameters(function))
    return OpenAxes(extents=extents, places=own, symbols=symbols)


class NotSeparateError(ValueError):
    """A function depends on the extent of an open axis, or on other parts of it."""


def _in_one_piece(shape: Sequence[PrimExpr], sizes: dict[int | None, int]) -> bool:
    covered = [sizes.get(axis, integer(extent)) for axis, extent in enumerate(shape)]
    first = next((axis for axis, extent in enumerate(covered) if extent != 1), len(shape))
    return not any(axis in sizes for axis in range(first + 1, len(shape)))


def _buffers(function: PrimFunc) -> list[Buffer]:
    return [*parameters(function), *function.body.block.alloc_buffers]


def _open_extents(function: PrimFunc) -> tuple[Var, ...]:
    """The different unknown extents of buffers."""
    found: list[Var] = []
    for buffer in _buffers(function):
        for extent in buffer_kind(buffer).shape:
            if integer(extent) is None and not any(_same(extent, other) for other in found):
                found.append(extent)
    return tuple(found)


def _places(buffer: Buffer, extents: Sequence[PrimExpr]) -> tuple[int | None, ...]:
    """The axis of each open extent in a buffer that has each once."""
    found: list[int | None] = [None] * len(extents)
    for axis, extent in enumerate(buffer_kind(buffer).shape):
        if integer(extent) is None:
            at = _position(extent, extents)
            if found[at] is not None:
                raise NotSeparateError
            found[at] = axis
    return tuple(found)


def _position(extent: PrimExpr, extents: Sequence[PrimExpr]) -> int:
    for at, other in enumerate(extents):
        if _same(extent, other):
            return at
    raise NotSeparateError


def _same(first: PrimExpr, second: PrimExpr) -> bool:
    return bool(first.same_as(second)) or list(map(hash, _factors(first))) == list(map(hash, _factors(second)))


def _factors(extent: PrimExpr) -> list[PrimExpr]:
    """The variables that an extent is the product of."""
    kind = type(extent).__name__
    if kind == "Mul":
        return [*_factors(extent.a), *_factors(extent.b)]
    if not is_variable(extent):
        raise NotSeparateError
    return [extent]


def _product(extent: PrimExpr, known: dict[int, int]) -> int:
    return math.prod(known[hash(factor)] for factor in _factors(extent))


def realizations(node: Stmt) -> Iterator[SBlockRealize]:
    """The realizations of the blocks in a statement that is nothing but loops around blocks; NotSeparateError for
    others."""
    kind = type(node).__name__
    if kind not in _INNER or (kind == "For" and integer(node.min) != 0):
        raise NotSeparateError
    if kind == "SBlockRealize":
        yield node
        return
    for child in children(node):
        yield from realizations(child)


def _described(realize: SBlockRealize, extents: Sequence[PrimExpr], probes: Sequence[dict[int, int]]) -> _Block:
    block = realize.block
    axes: dict[int, tuple[int | None, int]] = {}
    if integer(realize.predicate) != 1 or len(block.alloc_buffers) or len(block.match_buffers):
        raise NotSeparateError
    for axis in block.iter_vars:
        extent = integer(axis.dom.extent)
        at = _position(axis.dom.extent, extents) if extent is None else None
        if at is not None and (is_reduction(axis) or any(other == at for other, _ in axes.values())):
            raise NotSeparateError
        axes[hash(axis.var)] = (at, extent or 0)
    stores = [store for body in (block.init, block.body) if body is not None for store in stores_in(body)]
    samples = [_sampled(axes, known, [_product(extent, known) for extent in extents]) for known in probes]
    return _Block(axes, tuple(stores), samples)


def stores_in(body: Stmt) -> Iterator[Stmt]:
    """The stores of a block's body; NotSeparateError where there is anything else."""
    kind = type(body).__name__
    if kind == "SeqStmt":
        for each in body.seq:
            yield from stores_in(each)
    elif kind == "BufferStore":
        yield body
    else:
        raise NotSeparateError


def _check_store(store: BufferStore, block: _Block, places: _Places, common: set[int]) -> None:
    """``common``: the buffers that each piece may write for itself."""
    buffer = hash(buffer_of(store))
    if None in places.get(buffer, (None,)) and buffer not in common:  # all pieces share it, each would write it again
        raise NotSeparateError
    _check_access(store, block, places)
    _check_value(store.value, block, places)


def _check_value(value: Number, block: _Block, places: _Places) -> None:
    """What is computed depends on no open axis but through what is loaded."""
    kind = type(value).__name__
    if kind in LOADS:
        _check_access(value, block, places)
        return
    if is_variable(value) and block.axes.get(hash(value), (0, 0))[0] is not None:
        raise NotSeparateError  # an open axis, or a variable that is none of the block's
    for part in parts_of(value):
        _check_value(part, block, places)


def _check_access(access: BufferLoad | BufferStore, block: _Block, places: _Places) -> None:
    """Along open axes an access is where the block is, and elsewhere it does not depend on them."""
    own = places.get(hash(buffer_of(access)))
    if own is None:
        raise NotSeparateError
    for axis, index in enumerate(access.indices):
        at = own.index(axis) if axis in own else None
        place = block.axes.get(hash(index)) if is_variable(index) else None
        if place is not None:  # most are: there is nothing to try
            if place[0] != at:
                raise NotSeparateError
            continue
        try:
            expression = compiled(index)
            found = [np.broadcast_to(expression.value(values), (_SAMPLES,)) for values in block.samples]
        except KeyError:  # an index that is loaded: an open axis cannot be
            if at is not None:
                raise NotSeparateError from None
            _check_value(index, block, places)
            continue
        expected = found[:1] * 2 if at is None else [_of_axis(block, at, values) for values in block.samples]
        if not all(map(np.array_equal, found, expected)):
            raise NotSeparateError


def _of_axis(block: _Block, at: int, values: dict[int, Array]) -> Array:
    for name, (symbol, _) in block.axes.items():
        if symbol == at:
            return values[name]
    raise NotSeparateError


def _sampled(
    axes: dict[int, tuple[int | None, int]], known: dict[int, int], extents: Sequence[int]
) -> dict[int, Array]:
    """Places in a block with ``axes`` for these values of the symbols: the same ones along all other axes."""
    fixed, moving = np.random.default_rng(0), np.random.default_rng(extents[0])
    return {name: np.asarray(value) for name, value in known.items()} | {
        name: fixed.integers(0, extent, _SAMPLES) if at is None else moving.integers(0, extents[at], _SAMPLES)
        for name, (at, extent) in axes.items()
    }
