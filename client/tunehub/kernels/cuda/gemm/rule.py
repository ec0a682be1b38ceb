"""Which tile a product gets on a CUDA GPU when nobody has measured one: the one that should cost least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Annotated, TypeVar

import numpy as np
from msgspec import Meta

from tunehub.comparison.guess import GUESS_MARGIN, against_guess
from tunehub.kernels.cuda.gemm.cost import (
    SHORT_K,
    Array,
    Problem,
    Tiles,
    as_tiles,
    default_s,
    matrix_shape,
    seconds,
    shared_bytes,
)
from tunehub.kernels.devices.device import GpuDevice

FURTHER = 40  # tiles among which some are worth measuring
_BEST, _APART = 10, 5  # the best ones, and every fifth of those behind them
UNROLLED = 512  # steps of loops in one another that become straight code
_FEWEST_THREADS, _MOST_THREADS = 32, 512
_MOST_OF_THREAD, _MOST_ACCUMULATORS = 16, 64  # elements of a thread: along one loop, and of all
_MOST_VIRTUAL = 4
_MOST_STEP = 64  # products of an element between two loads
_FIRST_STEP = 24  # with which tiles of the result are compared first
_KEPT = 256  # of the best, which are looked at more closely
_EVEN = 16  # loops that it divides have tiles enough that divide them
_MULTIPLES = (2, 4, 8, 16, 32, 64)  # to which others are made longer
T = TypeVar("T")
_MOST_WASTE = 4 / 3  # of them: the longer loop by the loop


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """How the loops are cut: for each loop over results (``virtual`` threads, ``threads``, ``inner`` elements of a
    thread), for each loop over what is added up the part of a ``step``. The last tile of a loop may go beyond its end.
    ``expected_s``: what it should take."""

    virtual: tuple[Annotated[int, Meta(ge=1, le=64)], ...]
    threads: tuple[Annotated[int, Meta(ge=1, le=1024)], ...]
    inner: tuple[Annotated[int, Meta(ge=1, le=64)], ...]
    step: tuple[Annotated[int, Meta(ge=1, le=64)], ...]
    expected_s: float = field(default=0.0, metadata={"is_knob": False})

    @property
    def lengths(self) -> tuple[int, ...]:
        """How much of each loop over results a block takes, then how much of each other loop a step takes."""
        return (*map(math.prod, zip(self.virtual, self.threads, self.inner, strict=True)), *self.step)


class NoTileError(ValueError):
    """TVM's own schedule is to be used; the message says why."""


@lru_cache(maxsize=256)  # asked for a function's records for other shapes, and then for the function
def tile_for(problem: Problem, device: GpuDevice, *, shared_memory: int, threads: int, covering: bool = False) -> Tile:
    """The tile that should take least on ``device``, with at most so many ``threads`` and bytes of ``shared_memory`` in
    a block.

    ``covering``: tiles may go beyond the ends of loops, where this promises more, by the margin of every guess, than
    those that divide them. Raises NoTileError when TVM's own schedule should take as little, within that margin, when
    no tile is within bounds, and for matmuls with a vector, which TVM does well unless K is short.
    """
    shape = matrix_shape(problem)
    if shape is not None and min(shape[1:]) == 1 and problem.summands > SHORT_K:
        raise NoTileError("TVM's own schedule serves matmuls with a vector")
    best = next(iter(ranked(problem, device, shared_memory=shared_memory, threads=threads, count=1)), None)
    if covering and _is_uneven(problem):
        bounds = {"shared_memory": shared_memory, "threads": threads, "count": 1}
        best = _better(best, ranked(problem, device, **bounds, covering=True))
    if best is None:
        raise NoTileError(f"no tile of {problem.spatial} divides its loops and is within bounds")
    default = default_s(problem, device)
    against = None if default is None else against_guess(best.expected_s, default, launches_s=device.launches.threads)
    if against is not None:
        raise NoTileError(against)
    return best


def ranked(
    problem: Problem,
    device: GpuDevice,
    *,
    shared_memory: int,
    threads: int,
    count: int,
    covering: bool = False,
    open_loop: int | None = None,
) -> list[Tile]:
    """The ``count`` tiles that should take least on ``device``, the best first: those that divide their loops, or
    ``covering`` ones, which may go beyond the ends (of what both operands have, such as a batch, they then take one at
    a time). Along ``open_loop``, one over results, all may."""
    tiles = _plain(problem, min(threads, _MOST_THREADS), covering, open_loop)
    if not len(tiles):
        return []
    tiles = _cheapest(problem, tiles, device, _KEPT)
    tiles = _cheapest(problem, _fitting(problem, _with_steps(problem, tiles, covering), shared_memory), device, _KEPT)
    if not len(tiles):
        return []
    tiles = _with_virtual(tiles)
    expected = seconds(problem, tiles, device)
    return [_row(tiles, at, float(expected[at])) for at in np.argsort(expected, kind="stable")[:count]]


def is_within(problem: Problem, tile: Tile, *, shared_memory: int, threads: int) -> bool:
    """Whether ``tile``, from elsewhere, keeps the bounds that the rule's own tiles of ``problem`` have."""
    loops, extents = len(problem.spatial), (*problem.spatial, *problem.reduction)
    counts = [len(part) for part in (tile.virtual, tile.threads, tile.inner, tile.step)]
    if counts != [loops, loops, loops, len(problem.reduction)]:
        return False
    if any(length > 2 * max(extent, _MULTIPLES[-1]) for length, extent in zip(tile.lengths, extents, strict=True)):
        return False
    of_thread = math.prod(tile.virtual) * math.prod(tile.inner)
    row = as_tiles([(tile.virtual, tile.threads, tile.inner, tile.step)])
    return (
        math.prod(tile.threads) <= min(threads, _MOST_THREADS)
        and of_thread <= _MOST_ACCUMULATORS
        and math.prod(tile.virtual) <= _MOST_VIRTUAL
        and math.prod(tile.step) <= _MOST_STEP
        and int(shared_bytes(problem, row)[0]) <= shared_memory
    )


def spread(tiles: Sequence[T]) -> list[T]:
    """The best of ``tiles``, and some behind them: neighbours are alike."""
    return [*tiles[:_BEST], *tiles[_BEST::_APART]]


def _better(dividing: Tile | None, covering: Sequence[Tile]) -> Tile | None:
    if not covering or (dividing is not None and dividing.expected_s < GUESS_MARGIN * covering[0].expected_s):
        return dividing
    return covering[0]


def _is_uneven(problem: Problem) -> bool:
    """Whether covering tiles may be more than those that divide the loops."""
    common = _common(problem)
    own = [extent for loop, extent in enumerate(problem.spatial) if loop not in common]
    return any(len(_lengths(extent)) > 1 for extent in (*own, *problem.reduction))


def _common(problem: Problem) -> frozenset[int]:
    """The loops of both operands, such as a batch."""
    first, second = (operand.loops for operand in problem.operands)
    return first & second


def _lengths(extent: int, covering: bool = True) -> list[int]:
    """How long tiles may make a loop: as it is, and ``covering`` ones multiples that are not much longer."""
    if not covering or extent % _EVEN == 0:
        return [extent]
    longer = {-(-extent // multiple) * multiple for multiple in _MULTIPLES}
    return [extent, *sorted(length for length in longer if extent < length <= _MOST_WASTE * extent)]


def _plain(problem: Problem, threads: int, covering: bool, open_loop: int | None) -> Tiles:
    """All tiles of the result within bounds, with one step and without virtual threads."""
    found = np.ones((1, 0, 2), dtype=np.int64)
    common = _common(problem) if covering else frozenset()
    for loop, extent in enumerate(problem.spatial):
        cuts = [(1, 1)] if loop in common else _cuts(_lengths(extent, covering or loop == open_loop), threads)
        cuts = [(count, own) for count, own in cuts if _keeps_groups(problem, loop, count * own)]
        choices = np.array(cuts, dtype=np.int64)
        found = np.concatenate([np.repeat(found, len(choices), axis=0), np.tile(choices, (len(found), 1))[:, None]], 1)
        found = found[(found[:, :, 0].prod(1) <= threads) & (found[:, :, 1].prod(1) <= _MOST_ACCUMULATORS)]
    fewest = min(_FEWEST_THREADS, problem.results)
    found = found[found[:, :, 0].prod(1) >= fewest]
    step = min(_steps(problem.reduction, covering), key=lambda each: abs(math.prod(each) - _FIRST_STEP))
    return Tiles(
        virtual=np.ones_like(found[:, :, 0]),
        threads=found[:, :, 0],
        inner=found[:, :, 1],
        step=np.tile(np.array(step, dtype=np.int64), (len(found), 1)),
    )


def _keeps_groups(problem: Problem, loop: int, length: int) -> bool:
    """Whether tiles of this ``length`` begin where groups do, or lie in one: of others, TVM cannot say which part of an
    operand they read, and stages all of it."""
    terms = (term for operand in problem.operands for index in operand.index for term in index)
    groups = {term.divisor for term in terms if term.loop == loop}
    return all(length % group == 0 or group % length == 0 for group in groups)


def _cuts(lengths: Sequence[int], threads: int) -> list[tuple[int, int]]:
    """Pairs (threads, elements of a thread) whose product divides one of ``lengths``."""
    pairs = [
        (count, own)
        for length in lengths
        for own in _divisors(length, _MOST_OF_THREAD)
        for count in _divisors(length // own, threads)
    ]
    return list(dict.fromkeys(pairs))


def _steps(reduction: Sequence[int], covering: bool) -> list[tuple[int, ...]]:
    """Parts of the loops over what is added up, within bounds; the smallest when none is."""
    lengths = [_lengths(extent, covering) for extent in reduction]
    choices = [sorted({part for each in loop for part in _divisors(each, _MOST_STEP)}) for loop in lengths]
    return [each for each in product(*choices) if math.prod(each) <= _MOST_STEP]


def _divisors(number: int, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]


def _cheapest(problem: Problem, tiles: Tiles, device: GpuDevice, count: int) -> Tiles:
    if len(tiles) <= count:
        return tiles
    return tiles.at(np.argpartition(seconds(problem, tiles, device, conflicts=False), count)[:count])


def _with_steps(problem: Problem, tiles: Tiles, covering: bool) -> Tiles:
    """Each of ``tiles`` with each step."""
    steps = np.array(_steps(problem.reduction, covering), dtype=np.int64)
    rows = np.repeat(np.arange(len(tiles)), len(steps))
    chosen = tiles.at(rows)
    return Tiles(
        virtual=chosen.virtual, threads=chosen.threads, inner=chosen.inner, step=np.tile(steps, (len(tiles), 1))
    )


def _fitting(problem: Problem, tiles: Tiles, shared_memory: int) -> Tiles:
    return tiles.at(shared_bytes(problem, tiles) <= shared_memory)


def _with_virtual(tiles: Tiles) -> Tiles:
    """Each of ``tiles``, also with the elements of a thread apart from one another instead of side by side."""
    found = [tiles]
    for loops in product((False, True), repeat=tiles.threads.shape[1]):
        apart = np.array(loops)
        virtual = np.where(apart, tiles.inner, 1)
        rows = (virtual.prod(1) <= _MOST_VIRTUAL) & _any_moved(virtual, apart)
        moved = tiles.at(rows)
        found.append(
            Tiles(
                virtual=virtual[rows],
                threads=moved.threads,
                inner=np.where(apart, 1, moved.inner),
                step=moved.step,
            )
        )
    return _joined(found)


def _any_moved(virtual: Array, apart: Array) -> Array:
    """Rows in which every loop that is to be apart has elements to be moved: others would come twice."""
    return np.asarray(apart.any() & ((virtual > 1) | ~apart).all(axis=1))


def _joined(tiles: Sequence[Tiles]) -> Tiles:
    return Tiles(
        virtual=np.concatenate([each.virtual for each in tiles]),
        threads=np.concatenate([each.threads for each in tiles]),
        inner=np.concatenate([each.inner for each in tiles]),
        step=np.concatenate([each.step for each in tiles]),
    )


def _row(tiles: Tiles, at: int, expected_s: float) -> Tile:
    def numbers(column: Array) -> tuple[int, ...]:
        return tuple(int(number) for number in column[at])

    return Tile(
        virtual=numbers(tiles.virtual),
        threads=numbers(tiles.threads),
        inner=numbers(tiles.inner),
        step=numbers(tiles.step),
        expected_s=expected_s,
    )
