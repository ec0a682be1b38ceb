"""Where Winograd's algorithm should be faster than the direct convolution, by counted costs. Pure.

The unit is what one core takes for a multiply-add of vectors at its peak. Constants are fitted to the layers of ResNet
and VGG on a Zen 4 core with AVX-512 (docs/adr/0039).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import geometric_mean

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.kernels.cpu import register_tile
from tunehub.kernels.cpu.base import FLOAT_BYTES, Machine
from tunehub.kernels.cpu.winograd import register_tiles
from tunehub.kernels.te.winograd import PAIR, WHOLE_TILE

TILES = _LARGE, _SMALL = 4, 2
OPEN_BATCHES = 1, 8  # for which an open batch is judged
_KERNEL, _MOST_INPUTS = 3, 512  # sums of so many inputs are at most 1e-4 off with F(4x4)
_TRANSFORMED = {1: 6.4, PAIR: 4.0}  # of one vector of one place, in and out, by products of one instruction
_MOST_READERS = 4  # of weights from memory; more cores get no more
_LARGE_TILES = 1.1  # times as fast as small ones, which are more accurate and have fewer weights
_STEPS = 3  # more that all threads begin together


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv3x3:
    """A convolution of 3×3 with unit strides. ``batches``: the numbers of images for which it is judged, several for an
    open one; ``inputs`` and ``outputs``: blocks of channels, and channels in one; ``rows`` and ``columns`` are those of
    the result. ``group``: products of integers that one instruction adds up; 1 for float32."""

    batches: tuple[int, ...]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    rows: int
    columns: int
    group: int = 1


def gains(convolution: Conv3x3, tile: int, machine: Machine) -> list[float]:
    """How many times as fast as the direct convolution the algorithm with tiles of ``tile`` should be, by batch."""
    return [
        _direct(convolution, batch, machine) / _by_tiles(convolution, batch, tile, machine)
        for batch in convolution.batches
    ]


def chosen_tile(convolution: Conv3x3, machine: Machine, tuned_gain: float = 1.0) -> int | None:
    """The tile that promises most, if that is worth a guess, and no loss for any batch. Large tiles are for sums that
    are short enough to be accurate.

    ``tuned_gain``: how many times as fast as by default knobs the direct convolution is by a record.
    """
    accurate = math.prod(convolution.inputs) <= _MOST_INPUTS
    tiles = (WHOLE_TILE,) if convolution.group > 1 else TILES if accurate else (_SMALL,)
    promised = {tile: gains(convolution, tile, machine) for tile in tiles}
    worth = {
        tile: mean
        for tile, found in promised.items()
        if (mean := geometric_mean(found)) >= GUESS_MARGIN * tuned_gain and min(found) >= tuned_gain
    }
    large, small = worth.get(_LARGE, 0.0), worth.get(_SMALL, 0.0)
    if large and large >= _LARGE_TILES * small:
        return _LARGE
    return _SMALL if small else None


def _direct(convolution: Conv3x3, batch: int, machine: Machine) -> float:
    outer, lanes = convolution.outputs
    sizes = register_tile.tiles(convolution.columns, outer, lanes, machine)
    cost = min(register_tile.cost((convolution.columns, *size), lanes, machine) for size in sizes)
    pixels = batch * convolution.rows * convolution.columns
    return _units(convolution, machine, pixels * _KERNEL * _KERNEL * cost, _KERNEL * _KERNEL, convolution.group)


def _by_tiles(convolution: Conv3x3, batch: int, tile: int, machine: Machine) -> float:
    all_tiles = (batch, -(-convolution.rows // tile), -(-convolution.columns // tile))
    tiles = math.prod(all_tiles)
    places = (tile + _KERNEL - 1) ** 2
    cost = min(register_tiles(all_tiles, convolution.outputs, machine).values())
    vectors = sum(
        blocks * register_tile.vectors_of(lanes, machine) for blocks, lanes in (convolution.inputs, convolution.outputs)
    )
    group = min(convolution.group, PAIR)
    transforms = _TRANSFORMED[group] * places * tiles * vectors / machine.cores
    products = _units(convolution, machine, places * tiles * cost, places, group)
    return products + transforms + _STEPS * machine.rates.region


def _units(convolution: Conv3x3, machine: Machine, steps: float, places: int, group: int) -> float:
    """Of products that take ``steps`` for a block of outputs and an input, and of reading ``places`` weights for each
    pair of channels. A step counts two multiply-adds in a unit, of which an instruction does ``group`` at once."""
    inputs = math.prod(convolution.inputs)
    weights = FLOAT_BYTES / group * places * inputs * math.prod(convolution.outputs)
    bytes_a_unit = machine.rates.memory_bytes * machine.vector * min(machine.cores, _MOST_READERS)
    return 2 * steps / group * convolution.outputs[0] * inputs / machine.cores + weights / bytes_a_unit
