"""Where Winograd's algorithm should be faster than the direct convolution on a CUDA GPU, by counted costs; with an open
batch those of fixed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import geometric_mean
from typing import TYPE_CHECKING

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.kernels.cuda.promises import half_product_s, without_record_s
from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3
from tunehub.kernels.cuda.winograd.cost import transform_s
from tunehub.kernels.cuda.winograd.forms import form_of
from tunehub.kernels.devices.known import device_of
from tunehub.kernels.te.winograd import KERNEL
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

_LARGE, _SMALL = 4, 2
# Tiles that may be chosen, and from how many to how many input channels. In float32 products of shorter sums take up to
# five times as long as their costs say, and sums of 512 inputs are at most 1e-4 off with F(4x4). In float16 fewer
# channels gain less than costs say, and F(4x4) brings VGG-16 further from float32 than networks may be (ADR 44).
_TILES = {_LARGE: (64, 512), _SMALL: (64, math.inf)}
_HALF_TILES = {_SMALL: (512, math.inf)}
_BYTES = {False: 4, True: 2}  # of a number, whether it is in half precision
_LARGE_TILES = 1.1  # times as fast as small ones, which are more accurate and have fewer weights


def chosen_tile(convolution: PlainConv3x3, direct_s: Sequence[float], target: Target) -> int | None:
    """The tile that promises most, if that is worth a guess beside ``direct_s``, the seconds of the direct convolution,
    and no loss for any batch by which it is judged. Large tiles are for sums that are short enough to be accurate."""
    tiles = _tiles(convolution)
    if not tiles:
        return None
    times = {tile: [winograd_s(each, tile, target) for each in convolution.judged()] for tile in tiles}
    tile = min(tiles, key=lambda each: (_LARGE_TILES if each == _LARGE else 1.0) * geometric_mean(times[each]))
    gains = [direct / own for direct, own in zip(direct_s, times[tile], strict=True)]
    return tile if min(gains) >= 1 and geometric_mean(gains) >= GUESS_MARGIN else None


def products_s(mod: IRModule, target: Target, *, half: bool) -> float | None:
    """Seconds that ``mod``, which adds up products in float32 or in ``half`` precision, should take without a record;
    None where no cost knows it."""
    return half_product_s(mod, target) if half else without_record_s(mod, target)


def winograd_s(convolution: PlainConv3x3, tile: int, target: Target) -> float:
    """Seconds that the three functions should take for a fixed batch; infinite where the costs do not know the
    products."""
    places, tiles = (tile + KERNEL - 1) ** 2, convolution.tiles(tile)
    pixels = (convolution.batch or 1) * math.prod(convolution.image)
    channels, size = (convolution.inputs, convolution.outputs), _BYTES[convolution.half]
    device = device_of(target)
    transforms = sum(transform_s(size * own * (pixels + places * tiles), device) for own in channels)
    return transforms + _products_s(convolution, tile, target) - device.launches.winograd[size]


@lru_cache(maxsize=256)  # functions differ in what is fused
def _products_s(convolution: PlainConv3x3, tile: int, target: Target) -> float:
    product = main_module(form_of(half=convolution.half).product_function(convolution, tile))
    found = products_s(product, target, half=convolution.half)
    return math.inf if found is None else found


def _tiles(convolution: PlainConv3x3) -> list[int]:
    bounds = _HALF_TILES if convolution.half else _TILES
    return [tile for tile, (fewest, most) in bounds.items() if fewest <= convolution.inputs <= most]
