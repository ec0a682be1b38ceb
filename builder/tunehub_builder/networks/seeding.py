"""Random weights that keep the activations of a network near unit scale. Pure NumPy.

Every array has its own random stream, made from the seed and the array's name: it does not depend on which other arrays
are made, or in which order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.deploy.arrays import generator as generator

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

BIAS_SPREAD = 0.05
SCALE_SPREAD = 0.1


def normal(seed: int, name: str, shape: Sequence[int], deviation: float) -> Array:
    """Normal values around 0. float32 throughout: 140 million weights (VGG-19) take about a second."""
    values: Array = generator(seed, name).standard_normal(tuple(shape), dtype="float32")
    values *= deviation
    return values


def bias(seed: int, name: str, shape: Sequence[int]) -> Array:
    """Small values around 0, against activations near 1."""
    return normal(seed, name, shape, BIAS_SPREAD)


def around_one(seed: int, name: str, shape: Sequence[int]) -> Array:
    """Values between 0.9 and 1.1: scales of normalisations. Always positive."""
    values: Array = generator(seed, name).random(tuple(shape), dtype="float32")
    values *= 2 * SCALE_SPREAD
    values += 1 - SCALE_SPREAD
    return values


def fan_in_deviation(fan_in: int, second_moment: float = 1.0, gain: float = 1.0) -> float:
    """The deviation of weights that gives outputs of deviation `gain` from inputs of mean square `second_moment`.

    With `gain` = sqrt(2) this is He initialisation (He et al. 2015, arXiv 1502.01852).
    """
    return gain / math.sqrt(fan_in * second_moment)
