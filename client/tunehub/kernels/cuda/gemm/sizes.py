"""Which tiles a product gets on a CUDA GPU whose results are an unknown number along one loop: a tile for each
range of sizes, where the rule's costs cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.kernels.cuda.gemm.cost import Array, Problem, as_tiles, seconds
from tunehub.kernels.cuda.gemm.rule import NoTileError, Tile, ranked
from tunehub.kernels.devices.device import GpuDevice
from tunehub.target.gpu_architectures import LaunchLimits

_WORTH = math.log(1.15)  # of one more kernel: as much less of the time at a single size
_WORTH_OF_IMAGES = math.log(2.0)  # of one more convolution, which takes long to compile


class Grid(NamedTuple):
    """``sizes`` at which tiles are compared, those for which the best ones are ``tried`` (with split-K, and
    ``plain`` ones), how many ``ranges`` may be, those that records are often for (``recorded``), and those at which
    records for other shapes are adapted (``moved``). ``weights``: of some sizes, that of others is 1; ``worth``: what a
    range more must gain with split-K."""

    sizes: tuple[int, ...]
    tried: tuple[int, ...]
    plain: tuple[int, ...]
    ranges: int
    recorded: tuple[int, ...]
    moved: tuple[int, ...]
    weights: tuple[tuple[int, float], ...] = ()
    worth: float = _WORTH


_OFTEN = ((16, 3.0), (64, 3.0), (128, 4.0), (256, 3.0), (384, 4.0), (512, 4.0))  # lengths that sequences have
_TRIED_ROWS = (1, 4, 16, 33, 64, 96, 128, 200, 256, 384, 512, 1024)
_ROWS = Grid(
    (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 2048),
    _TRIED_ROWS,
    _TRIED_ROWS,
    5,  # of three or four tiles
    (16, 32, 64, 128, 197, 256, 384, 512, 1024),
    (128,),  # what fewer should take is too short
    _OFTEN,
)
_IMAGES = Grid(
    (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 64),  # some just above what tiles make up
    (1, 3, 8, 17, 32),
    (1, 8),  # best tiles of more images were not as good as their costs, of depthwise convolutions above all
    2,
    (1, 8, 16, 32),
    (),
    ((1, 3.0),),
    _WORTH_OF_IMAGES,
)
_OF_WINOGRAD = _IMAGES._replace(ranges=3, worth=_WORTH)  # products that many convolutions of a network share


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenProblem:
    """Products of unknown extents: ``two`` and ``three`` are the problems of size two and three. ``split_k``: those
    of Winograd's algorithm with an open batch, for which tiles with split-K are taken, whatever others cost."""

    two: Problem
    three: Problem
    split_k: bool = False

    @property
    def loops(self) -> tuple[int, ...]:
        """The loops over results that are as long as the size."""
        return tuple(
            at for at, pair in enumerate(zip(self.two.spatial, self.three.spatial, strict=True)) if len({*pair}) > 1
        )

    @property
    def open_loop(self) -> int | None:
        """The only loop of unknown extent, one over results; None where there are others."""
        alone = len(self.loops) == 1 and self.two.reduction == self.three.reduction
        return self.loops[0] if alone else None

    @property
    def grid(self) -> Grid:
        """Of rows of a matrix, or of images."""
        if self.split_k:
            return _OF_WINOGRAD
        return _IMAGES if len(self.two.reduction) > 1 else _ROWS

    def at(self, size: int) -> Problem:
        """The problem of a size."""

        def resized(two: Sequence[int], three: Sequence[int]) -> tuple[int, ...]:
            return tuple(a if a == b else size for a, b in zip(two, three, strict=True))

        operands = zip(self.two.operands, self.three.operands, strict=True)
        first, second = (replace(two, shape=resized(two.shape, three.shape)) for two, three in operands)
        return replace(
            self.two,
            spatial=resized(self.two.spatial, self.three.spatial),
            reduction=resized(self.two.reduction, self.three.reduction),
            operands=(first, second),
        )


class SizedPiece(Protocol):
    """A schedule for any size."""

    def seconds_at(self, size: int) -> float:
        """What it should take."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPiece:
    """A schedule of a piece of ``length`` along the open loop, a kernel of ``blocks`` blocks of which a record says
    that it takes ``run_s`` on ``device``, or leads to expect it."""

    length: int
    blocks: int
    run_s: float
    device: GpuDevice

    def seconds_at(self, size: int) -> float:
        """Of as many pieces as a size takes, one beside the other on all multiprocessors."""
        return self.run_s * self._rounds(-(-size // self.length)) / self._rounds(1)

    def _rounds(self, pieces: int) -> int:
        return -(-pieces * self.blocks // self.device.multiprocessors)


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedTile:
    """``tile`` serves sizes up to ``up_to``; None: all that are larger."""

    up_to: int | None
    tile: Tile | SizedPiece


def open_problem(two: Problem, three: Problem) -> OpenProblem | None:
    """Of the problems of size two and three; None when extents are something else than the size."""
    found = OpenProblem(two=two, three=three)
    try:
        return found if (found.at(2), found.at(3)) == (two, three) and two != three else None
    except ValueError:  # another number of loops
        return None


def tiles_by_size(
    problem: OpenProblem,
    limits: LaunchLimits,
    device: GpuDevice,
    *,
    covering: bool,
    above: int = 0,
    known: Sequence[SizedPiece] = (),
) -> list[SizedTile]:
    """The tiles for sizes larger than ``above``, in rising order, or what else is ``known``, which should take least;
    ``covering``: tiles may go beyond the ends of all loops. One that serves several ranges is the same object in all.
    Raises NoTileError when none is within bounds."""
    tiles = () if problem.split_k and known else candidates(problem, limits, device, covering=covering)
    choices: list[Tile | SizedPiece] = [*tiles, *known]
    sizes = [size for size in problem.grid.sizes if size > above]
    times = [[each.seconds_at(size) for size in sizes] for each in known]
    if tiles:
        rows = as_tiles([_row(tile) for tile in tiles])
        times = [*np.stack([seconds(problem.at(size), rows, device) for size in sizes], axis=1), *times]
    weights = np.array([dict(problem.grid.weights).get(size, 1.0) for size in sizes])
    worth = problem.grid.worth if known else _WORTH
    return [
        SizedTile(up_to=sizes[last] if last + 1 < len(sizes) else None, tile=choices[chosen])
        for chosen, last in ranges(np.array(times), problem.grid.ranges, weights, worth)
    ]


@lru_cache(maxsize=256)  # networks have functions that differ in nothing else than what is fused to their products
def candidates(problem: OpenProblem, limits: LaunchLimits, device: GpuDevice, *, covering: bool) -> tuple[Tile, ...]:
    """The best tile at each of some sizes. Raises NoTileError when there is none at all."""
    found: dict[object, Tile] = {}
    for size in problem.grid.plain:
        tile = _best(problem.at(size), problem.open_loop, limits, device, covering)
        if tile is not None:
            found.setdefault(_row(tile), tile)
    if not found:
        raise NoTileError(f"no tile of {problem.two.spatial} divides its loops and is within bounds")
    return tuple(found.values())


def _best(problem: Problem, loop: int | None, limits: LaunchLimits, device: GpuDevice, covering: bool) -> Tile | None:
    def first(*, covering: bool) -> Tile | None:
        bounds = {"shared_memory": limits.shared_memory, "threads": limits.threads, "count": 1}
        found = ranked(problem, device, **bounds, covering=covering, open_loop=loop)
        return next(iter(found), None)

    best, uneven = first(covering=False), first(covering=True) if covering else None
    if best is None or (uneven is not None and best.expected_s > GUESS_MARGIN * uneven.expected_s):
        return uneven
    return best


def _row(tile: Tile) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return tile.virtual, tile.threads, tile.inner, tile.step


def ranges(times: Array, most: int, weights: Array | float = 1.0, worth: float = _WORTH) -> list[tuple[int, int]]:
    """Divide the columns of ``times`` (a row for each candidate, a column for each size) into ``most`` ranges or fewer
    with a candidate each: pairs of a candidate and the last column. What is lost against the best at each size, by
    the ``weights`` of sizes, is least, where a range more is a loss as well."""
    lost = weights * np.log(times / times.min(axis=0))
    until = np.concatenate([np.zeros((len(times), 1)), np.cumsum(lost, axis=1)], axis=1)
    best: list[list[tuple[float, list[tuple[int, int]]]]] = [[(0.0, [])]]
    for end in range(1, times.shape[1] + 1):
        options = []
        for start in range(end):
            each = until[:, end] - until[:, start]
            chosen = int(np.argmin(each))
            options += [
                (loss + float(each[chosen]) + worth, [*found, (chosen, end - 1)])
                for loss, found in best[start]
                if len(found) < most
            ]
        by_count = {len(found): (loss, found) for loss, found in sorted(options, reverse=True)}
        best.append(list(by_count.values()))
    return min(best[-1])[1]
