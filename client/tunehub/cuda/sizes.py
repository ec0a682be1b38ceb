"""Which tiles a sum of products gets on a CUDA GPU whose results are an unknown number along one loop: a tile for each
range of sizes, where the rule's costs cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tunehub.cuda.cost import Array, Operand, Problem, as_tiles, seconds
from tunehub.cuda.rule import NoTileError, Tile, ranked
from tunehub.records.never_worse import GUESS_MARGIN
from tunehub.target.gpu_architectures import LaunchLimits

_WORTH = math.log(1.15)  # of one more kernel: as much less of the time at a single size


class _Grid(NamedTuple):
    """``sizes`` at which tiles are compared, those for which the best ones are ``tried``, and how many ``kernels`` may
    be."""

    sizes: tuple[int, ...]
    tried: tuple[int, ...]
    kernels: int


_ROWS = _Grid(
    (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 2048),
    (1, 4, 16, 33, 64, 96, 128, 200, 256, 512, 1024),
    6,
)
_IMAGES = _Grid((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64), (1, 2, 8, 32), 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenProblem:
    """Products whose results are an unknown number along ``loop``: ``problem`` is that of one of them. ``shapes``: for
    each operand the axis that is as long, if any."""

    problem: Problem
    loop: int
    axes: tuple[int | None, int | None]

    @property
    def grid(self) -> _Grid:
        """Of rows of a matrix, or of images."""
        return _IMAGES if len(self.problem.reduction) > 1 else _ROWS

    def at(self, size: int) -> Problem:
        """The problem of ``size`` along the loop."""
        first, second = (
            operand if axis is None else replace(operand, shape=_with(operand.shape, axis, size))
            for operand, axis in zip(self.problem.operands, self.axes, strict=True)
        )
        return replace(self.problem, spatial=_with(self.problem.spatial, self.loop, size), operands=(first, second))


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedTile:
    """``tile`` serves sizes up to ``up_to``; None: all that are larger."""

    up_to: int | None
    tile: Tile


def open_problem(two: Problem, three: Problem) -> OpenProblem | None:
    """Of the problems of size two and three; None when they differ in more than one loop over results."""
    loops = [at for at, pair in enumerate(zip(two.spatial, three.spatial, strict=True)) if pair == (2, 3)]
    if len(loops) != 1 or two.reduction != three.reduction:
        return None
    axes = [_axis(*pair) for pair in zip(two.operands, three.operands, strict=True)]
    found = OpenProblem(problem=two, loop=loops[0], axes=(axes[0], axes[1]))
    return found if found.at(3) == three else None


def _axis(two: Operand, three: Operand) -> int | None:
    return next((at for at, pair in enumerate(zip(two.shape, three.shape, strict=True)) if pair == (2, 3)), None)


def _with(numbers: Sequence[int], at: int, number: int) -> tuple[int, ...]:
    return (*numbers[:at], number, *numbers[at + 1 :])


def tiles_by_size(problem: OpenProblem, limits: LaunchLimits, *, covering: bool, above: int = 0) -> list[SizedTile]:
    """The tiles for sizes larger than ``above``, in rising order; ``covering``: tiles may go beyond the ends of all
    loops. Raises NoTileError when none is within bounds."""
    tiles = candidates(problem, limits, covering=covering)
    sizes = [size for size in problem.grid.sizes if size > above]
    times = np.stack([seconds(problem.at(size), as_tiles([_row(tile) for tile in tiles])) for size in sizes], axis=1)
    found = []
    for chosen, last in ranges(times, problem.grid.kernels):
        up_to = sizes[last] if last + 1 < len(sizes) else None
        found.append(SizedTile(up_to=up_to, tile=replace(tiles[chosen], expected_s=float(times[chosen, last]))))
    return found


def candidates(problem: OpenProblem, limits: LaunchLimits, *, covering: bool) -> list[Tile]:
    """The best tile at each of some sizes. Raises NoTileError when there is none at all."""
    found: dict[object, Tile] = {}
    for size in problem.grid.tried:
        tile = _best(problem.at(size), problem.loop, limits, covering)
        if tile is not None:
            found.setdefault(_row(tile), tile)
    if not found:
        raise NoTileError(f"no tile of {problem.problem.spatial} divides its loops and is within bounds")
    return list(found.values())


def _best(problem: Problem, loop: int, limits: LaunchLimits, covering: bool) -> Tile | None:
    def first(*, covering: bool) -> Tile | None:
        memory, threads = limits.shared_memory, limits.threads
        found = ranked(problem, shared_memory=memory, threads=threads, count=1, covering=covering, open_loop=loop)
        return next(iter(found), None)

    best, uneven = first(covering=False), first(covering=True) if covering else None
    if best is None or (uneven is not None and best.expected_s > GUESS_MARGIN * uneven.expected_s):
        return uneven
    return best


def _row(tile: Tile) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return tile.virtual, tile.threads, tile.inner, tile.step


def ranges(times: Array, most: int) -> list[tuple[int, int]]:
    """Divide the columns of ``times`` (a row for each candidate, a column for each size) into ``most`` ranges or fewer
    with a candidate each: pairs of a candidate and the last column. What is lost against the best at each size is
    least, where a range more is a loss as well."""
    lost = np.log(times / times.min(axis=0))
    until = np.concatenate([np.zeros((len(times), 1)), np.cumsum(lost, axis=1)], axis=1)
    best: list[list[tuple[float, list[tuple[int, int]]]]] = [[(0.0, [])]]
    for end in range(1, times.shape[1] + 1):
        options = []
        for start in range(end):
            each = until[:, end] - until[:, start]
            chosen = int(np.argmin(each))
            options += [
                (loss + float(each[chosen]) + _WORTH, [*found, (chosen, end - 1)])
                for loss, found in best[start]
                if len(found) < most
            ]
        by_count = {len(found): (loss, found) for loss, found in sorted(options, reverse=True)}
        best.append(list(by_count.values()))
    return min(best[-1])[1]
