"""Which tiles convolutions and pooling of images of open height and width are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import KnobError, Machine, Match, conv2d, depthwise, pooling
from tunehub.kernels.cpu.base import size_of
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.fusion import inline
from tunehub.kernels.cpu.register_tile import cost, vectors_of
from tunehub.kernels.symbolic.borders import Borders, borders_of, with_borders
from tunehub.kernels.symbolic.loops import NotTiledError, TileSizes, tile_counts
from tunehub.kernels.symbolic.window_loops import Padding, WindowTiles, over_windows
from tunehub.kernels.symbolic.windows import COLUMNS, ROWS, Windows, windows_of
from tunehub.kernels.te.blocked import CONV2D
from tunehub.tir.index_expressions import compiled
from tunehub.tir.nodes import buffer_kind, integer, main_module, parameters
from tunehub.tir.schedules import open_schedule
from tunehub.tir.symbols import instance, symbols_of, typical_instance, variables_in

if TYPE_CHECKING:
    from tunehub.kernels.cpu.fusion import Surroundings
    from tunehub.tir.types import Index, PrimFunc, Var

_TEMPLATES = (conv2d.NAME, depthwise.NAME, pooling.NAME)
_LARGEST = 1 << 15  # values of a symbol that are tried for the size of a tile
_MOST_COLUMNS, _MOST_BLOCKS, _MOST_LANES = 28, 8, 64
_LIKELY = (*range(7, 17), 20, 24, 28, 30, 31, 32, 40, 48, 56, 60, 61, 64, 80, 112, 122, 128, 160, 240, 256)
_LIKELY_PIXELS = (49, 64, 100, 196, 225, 400, 784, 1024, 3136)
_WEIGHTS_CYCLES = 2.0  # for a vector of weights from the second level of the cache
_TILE_CYCLES = 0.25  # in each step, for what a tile takes besides
_PIECES = 4  # for each thread
_BLOCKS = 2  # of channels for each thread, of a copy
_GROUP = 8  # large tiles in a task
_WINDOW_COLUMNS = (8, 4)
_UNROLLED = 9  # elements of a window


@dataclass(frozen=True, kw_only=True, slots=True)
class TiledWindows:
    """A scheduled function, and the name of the template of its tiles."""

    function: PrimFunc
    template: str


def by_windows(function: PrimFunc, machine: Machine) -> TiledWindows | None:
    """Schedule ``function``, a convolution or pooling of images of open height or width, by tiles; None for others."""
    typical = typical_instance(function)
    match = None if typical is None else templates.find(main_module(typical))
    if match is None or match.template.NAME not in _TEMPLATES:
        return None
    windows = windows_of(function, getattr(match.workload, "anchor", CONV2D), match.workload.around)
    values = None if windows is None else _Values.of(function, windows)
    if windows is None or values is None:
        return None
    try:
        borders = None if match.template.NAME == conv2d.NAME else borders_of(function, windows, match.workload)
        tiles = _tiles(function, windows, values, (match, machine), borders)
        is_copied = windows.pad is not None and borders is None
        padding = _padding(function, match.workload.around, machine) if is_copied else borders
        made = over_windows(function, windows, tiles, padding, _PIECES * machine.cores)
        return TiledWindows(function=made, template=match.template.NAME)
    except (NotTiledError, KnobError):
        return None


def _tiles(
    function: PrimFunc, windows: Windows, values: _Values, by: tuple[Match, Machine], borders: Borders | None
) -> WindowTiles:
    match, machine = by
    known = integer(windows.extents[COLUMNS])
    if known is not None:
        tile = _tile(instance(function, values.at(known)), match, None, borders)
        return WindowTiles(rows=values.rows, sizes=None, functions=(tile,), pixels=False)
    pixels = _are_pixels(function, windows, values, match)
    sizes, blocks = _sizes(match, machine, values.columns, pixels=pixels)
    widths = (sizes.large, sizes.small, sizes.least)
    functions = tuple(_tile(instance(function, values.at(width)), match, (width, blocks), borders) for width in widths)
    return WindowTiles(rows=values.rows, sizes=sizes, functions=functions, pixels=pixels)


def _are_pixels(function: PrimFunc, windows: Windows, values: _Values, match: Match) -> bool:
    is_pointwise = match.template.NAME == conv2d.NAME and match.workload.pointwise
    is_open = integer(windows.extents[ROWS]) is None and values.rows == 1
    return is_pointwise and is_open and windows.are_pixels(parameters(function))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Values:
    """Values of the symbols of a function for tiles. ``rows``: of every tile. ``columns``: the numbers that tiles can
    have, in rising order, the first of which every image has."""

    symbols: tuple[Var, ...]
    rows: int
    columns: tuple[int, ...]
    known: dict[int, int]  # by the hash of the symbol, for tiles of one image and as few rows as there are
    by_columns: dict[int, dict[int, int]]

    @classmethod
    def of(cls, function: PrimFunc, windows: Windows) -> _Values | None:
        """None where the numbers of rows and columns depend on the same symbol, or on several."""
        batch, rows, columns = (_attained(function, extent) for extent in windows.extents)
        if batch is None or rows is None or columns is None or not (batch and rows and columns):
            return None
        parts = [next(iter(each.values())) for each in (batch, rows, columns)]
        names = [name for part in parts for name in part]
        symbols = symbols_of(function)
        if len(set(names)) != len(names) or set(names) != {hash(symbol) for symbol in symbols}:
            return None
        fewest = min(rows)
        return cls(
            symbols=symbols,
            rows=fewest,
            columns=tuple(sorted(columns)),
            known=batch[min(batch)] | rows[fewest],
            by_columns=columns,
        )

    def at(self, columns: int) -> list[int]:
        """The values for a tile of so many columns."""
        known = self.known | self.by_columns[columns]
        return [known[hash(symbol)] for symbol in self.symbols]


def _attained(function: PrimFunc, extent: Index) -> dict[int, dict[int, int]] | None:
    """The numbers that an extent can be, up to the width of the largest tile, and the least value of its symbol for
    each; None where it depends on several symbols. All extents that depend on the symbol are to be positive there."""
    variables = variables_in([] if integer(extent) is not None else [extent])
    if len(variables) > 1:
        return None
    if not variables:
        return {int(extent): {}}
    (symbol,) = variables
    tried = np.arange(1, _LARGEST)
    numbers = compiled(extent).value({hash(symbol): tried})
    for buffer in parameters(function):
        for other in buffer_kind(buffer).shape:
            if [each.same_as(symbol) for each in variables_in([] if integer(other) is not None else [other])] == [True]:
                numbers = np.where(compiled(other).value({hash(symbol): tried}) > 0, numbers, 0)
    found, first = np.unique(numbers, return_index=True)
    pairs = zip(found.tolist(), tried[first].tolist(), strict=True)
    return {number: {hash(symbol): value} for number, value in pairs if 0 < number <= _MOST_COLUMNS}


def _tile(piece: PrimFunc, match: Match, size: tuple[int, int] | None, borders: Borders | None) -> PrimFunc:
    """The schedule of a tile of columns and blocks, or of whole rows. Raises KnobError where there is none."""
    mod = main_module(piece if borders is None else with_borders(piece, borders))
    own = templates.find(mod)
    if own is None or own.template.NAME != match.template.NAME:
        raise KnobError("a tile is another kind of function")
    workload = own.workload
    is_copied = workload.around.pad is not None and borders is None
    padding: Literal["inline", "whole"] = "whole" if is_copied else "inline"
    columns, blocks = size or (max(divisors(workload.columns, _WINDOW_COLUMNS[0])), 1)
    if match.template.NAME == conv2d.NAME:
        knobs: Any = conv2d.tile_knobs(workload, columns, blocks, padding)
    else:
        knobs = depthwise.WindowKnobs(columns=columns, unroll=size_of(workload.kernel) <= _UNROLLED, padding=padding)
    return match.template.apply(mod, workload, knobs).mod["main"]


def _sizes(match: Match, machine: Machine, attained: Sequence[int], *, pixels: bool) -> tuple[TileSizes, int]:
    """The sizes of tiles, and their blocks of channels."""
    if match.template.NAME != conv2d.NAME:
        most = max(1, machine.accumulators // vectors_of(match.workload.lanes, machine))
        large, small = (
            max(each for each in attained if each <= max(limit, attained[0]))
            for limit in (min(_WINDOW_COLUMNS[0], most), min(_WINDOW_COLUMNS[1], most))
        )
        return TileSizes(large=large, small=small, least=attained[0], group=_GROUP), 1
    outer, lanes = match.workload.outputs
    large, small, blocks = _conv_sizes(outer, lanes, machine, tuple(attained), pixels, not match.workload.grouped)
    return TileSizes(large=large, small=small, least=attained[0], group=_GROUP), blocks


@lru_cache(maxsize=256)
def _conv_sizes(
    outer: int, lanes: int, machine: Machine, attained: tuple[int, ...], pixels: bool, shared: bool
) -> tuple[int, int, int]:
    """Columns of the large and of the small tile, and blocks of channels, with the fewest cycles for likely images."""
    vectors, least = vectors_of(lanes, machine), attained[0]

    @cache
    def step(columns: int, blocks: int) -> float:
        cycles = cost((columns, columns, blocks), lanes, machine, shared=shared) * blocks * columns
        return max(cycles, _WEIGHTS_CYCLES * blocks * vectors) + _TILE_CYCLES

    def seconds(choice: tuple[int, int, int]) -> float:
        large, small, blocks = choice
        total = 0.0
        for width in _LIKELY_PIXELS if pixels else _LIKELY:
            counts = tile_counts(width, TileSizes(large=large, small=small, least=least))
            steps = (step(columns, blocks) for columns in (large, small, least))
            total += sum(count * each for count, each in zip(counts, steps, strict=True)) / (width * blocks)
        return total

    def fits(large: int, blocks: int) -> bool:
        sums = large * blocks * vectors
        others = (large if blocks * vectors > 1 else 1) + 1
        return sums <= machine.accumulators and sums + others <= machine.registers

    choices = [
        (large, small, blocks)
        for blocks in divisors(outer, _MOST_BLOCKS)
        for large in attained
        if fits(large, blocks) or (large == least and blocks == 1)
        for small in attained
        if small < large or large == least == small
    ]
    return min(choices, key=seconds)


def _padding(function: PrimFunc, around: Surroundings, machine: Machine) -> Padding:
    """The padded image of all of the input, written by all threads: its blocks of channels where there are enough of
    them, else these and rows. TVM's passes take several times as long where an open extent divides an index."""
    schedule = open_schedule(main_module(function))
    for name in around.producers:
        inline(schedule, name)
    loops = schedule.get_loops(schedule.get_sblock(around.pad))
    if (integer(schedule.get(loops[-1]).extent) or _MOST_LANES + 1) <= _MOST_LANES:
        schedule.vectorize(loops[-1])
    image, block, row = loops[:3]
    blocks = size_of(tuple(integer(schedule.get(loop).extent) or 0 for loop in (image, block)))
    shared = [image, block] if blocks >= _BLOCKS * machine.cores else [image, block, row]
    if len(shared) > 2 and blocks:
        shared = [row, image, block]
        schedule.reorder(*shared)
    schedule.parallel(schedule.fuse(*shared))
    root = schedule.mod["main"].body.block
    (buffer,) = (each for each in root.alloc_buffers if str(each.name) == around.pad)
    return Padding(nest=root.body.seq[0], buffer=buffer)
