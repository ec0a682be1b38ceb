"""Which tiles of a stage of loops are worth trying, and what each costs (:mod:`tunehub.kernels.cpu.loops`)."""

from __future__ import annotations

from tunehub.kernels.cpu.base import FLOAT_BYTES, Machine, size_of
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.loop_plan import Stage

_MAX_ROWS = 8
_MAX_WASTE = 2.0  # what check_tiles admits
_RAGGED = (1.0, 1.05, 1.3)  # loops with remainders: each doubles the code, and takes 10 ms to schedule


def tile_choices(stage: Stage, machine: Machine) -> list[tuple[int, int, int]]:
    """Lanes, the loop of rows, and rows of tiles, the best by the model first."""
    if stage.vector is None:
        return [(1, 0, 1)]
    nest, vector = stage.nest, max(1, FLOAT_BYTES * machine.vector // stage.nest.bytes_in_registers)
    lanes = _lanes(stage.length, vector)
    last = stage.first if stage.kind == "columns" else len(nest.spatial)
    others = [i for i, extent in enumerate(nest.spatial) if extent > 1 and (i < last or i > (stage.vector or 0))]
    tiles = {(width, 0, 1): None for width in lanes}
    for row in others:
        for rows in _rows(nest.extents[row], whole=stage.kind == "dots"):
            for width in lanes:
                if rows * -(-width // vector) <= machine.accumulators:
                    tiles.setdefault((width, row, rows))
    fitting = [tile for tile in tiles if stage.kind == "dots" or _waste(stage, tile) <= _MAX_WASTE]
    return sorted(fitting, key=lambda tile: _cost(stage, tile, vector, machine.rates.latency))


def _waste(stage: Stage, tile: tuple[int, int, int]) -> float:
    """How many times the results all tiles have, those that lie beyond the end included."""
    width, row, rows = tile
    extent = stage.nest.extents[row] if rows > 1 else 1
    return -(-stage.length // width) * width / stage.length * -(-extent // rows) * rows / extent


def _lanes(length: int, vector: int) -> list[int]:
    """Numbers of lanes for a loop of ``length``: one, two or four vectors, or what one vector holds.

    LLVM takes other numbers beyond one vector apart badly, with hundreds of moves.
    """
    parts = [vector // 4, vector // 2, min(length, vector), *divisors(length, vector)]
    return [width for width in dict.fromkeys((*parts, 2 * vector, 4 * vector)) if 1 < width <= length] or [1]


def _rows(extent: int, *, whole: bool) -> list[int]:
    """Numbers of rows for a loop of ``extent``; ``whole``: without a remainder."""
    found = divisors(extent, _MAX_ROWS) if whole else (*range(1, min(extent, _MAX_ROWS) + 1), extent)
    return [rows for rows in dict.fromkeys(found) if 1 < rows <= 2 * _MAX_ROWS]


def _cost(stage: Stage, tile: tuple[int, int, int], vector: int, latency: float) -> tuple[float, int]:
    """Cycles for each row of a tile; among equals, the larger tile is the better.

    Two multiply-adds and two loads start in a cycle; vectors that are not aligned need two loads half of the time. A
    part of a vector, or what the lanes leave over, is one of 8, 4, 2 and 1 elements each: 13 are three.
    """
    width, row, rows = tile
    nest, along, vectors = stage.nest, stage.vector or 0, -(-width // vector)
    moves = 1.5 * _parts(width, vector)
    loads = sum((moves if read[along] else 0.5) * (rows if read[row] else 1) for read in nest.reads)
    step = max(rows * vectors / 2, loads / 2, latency)
    whole, rest = divmod(stage.length, width)
    again = size_of(nest.reduction) / (stage.length if stage.kind == "dots" else 1)
    join = width * max(rows, latency) if stage.kind == "dots" else 0.0
    cycles = step * (whole + _parts(rest, vector) / vectors) * again + join
    tiles = -(-nest.extents[row] // rows) / nest.extents[row] if rows > 1 else 1.0
    ragged = (1 if rest else 0) + (1 if rows > 1 and nest.extents[row] % rows else 0)
    return (cycles * tiles * _RAGGED[ragged], -rows * vectors)


def _parts(width: int, vector: int) -> int:
    """How many vectors, and powers of two smaller than one, ``width`` elements are."""
    return width // vector + (width % vector).bit_count()
