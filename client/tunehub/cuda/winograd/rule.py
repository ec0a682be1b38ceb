"""Where Winograd's algorithm should be faster than the direct convolution on a CUDA GPU, by counted costs; with an open
batch those of fixed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import geometric_mean
from typing import Any

from tunehub.cuda.adapted import without_record_s
from tunehub.cuda.winograd.convolution import PlainConv3x3
from tunehub.cuda.winograd.cost import transform_s
from tunehub.cuda.winograd.kernels import product_function
from tunehub.records.never_worse import GUESS_MARGIN
from tunehub.relax.nodes import main_module
from tunehub.relax.winograd.kernel import KERNEL

_LARGE, _SMALL = 4, 2
_FEWEST_INPUTS = 64  # products of shorter sums take up to five times as long as their costs say
_MOST_INPUTS = 512  # sums of so many inputs are at most 1e-4 off with F(4x4)
_LARGE_TILES = 1.1  # times as fast as small ones, which are more accurate and have fewer weights


def chosen_tile(convolution: PlainConv3x3, direct_s: Sequence[float], target: Any) -> int | None:
    """The tile that promises most, if that is worth a guess beside ``direct_s``, the seconds of the direct convolution,
    and no loss for any batch by which it is judged. Large tiles are for sums that are short enough to be accurate."""
    if convolution.inputs < _FEWEST_INPUTS:
        return None

    def times(tile: int) -> list[float]:
        return [winograd_s(each, tile, target) for each in convolution.judged()]

    small = times(_SMALL)
    large = times(_LARGE) if convolution.inputs <= _MOST_INPUTS else [math.inf] * len(small)
    tile, best = (_LARGE, large) if _LARGE_TILES * geometric_mean(large) <= geometric_mean(small) else (_SMALL, small)
    gains = [direct / own for direct, own in zip(direct_s, best, strict=True)]
    return tile if min(gains) >= 1 and geometric_mean(gains) >= GUESS_MARGIN else None


def winograd_s(convolution: PlainConv3x3, tile: int, target: Any) -> float:
    """Seconds that the three functions should take for a fixed batch; infinite where the costs do not know the
    products."""
    places, tiles = (tile + KERNEL - 1) ** 2, convolution.tiles(tile)
    pixels = (convolution.batch or 1) * math.prod(convolution.image)
    transforms = sum(
        transform_s(channels * (pixels + places * tiles)) for channels in (convolution.inputs, convolution.outputs)
    )
    return transforms + _products_s(convolution, tile, target)


@lru_cache(maxsize=256)  # functions differ in what is fused
def _products_s(convolution: PlainConv3x3, tile: int, target: Any) -> float:
    found = without_record_s(main_module(product_function(convolution, tile)), target)
    return math.inf if found is None else found
