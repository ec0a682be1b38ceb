"""The matrices of Winograd's minimal filtering F(m×m, 3×3) by the construction of Toom and Cook, from points at which
polynomials are evaluated, for values that are rounded to float16 between the kernels. Pure.

A result is off by what roundings at each place come to, and the points say how much that is: with independent normal
numbers ``sqrt(3 · f · f)`` of the rounding of a number, where ``f`` is the mean of ``sum(A² · |B|² · |G|²)`` over the
results of a tile, a third of it. That is 1.67² for 0, ±1 (m = 2); 10.8 for m = 4 with the points 0, ±1, ±2 of Lavin and
Gray, 4.78 with 0, ±5/8, ±3/2, which are 0.01 off the best pairs.
Sources: B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
Networks", ACM TOMS 46(4), 2020 (arXiv 1803.10986); S. A. Alam et al., "Winograd Convolution for Deep Neural Networks:
Efficient Point Selection", ACM TECS 21(6), 2022 (arXiv 2201.10369).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub.relax.winograd.kernel import KERNEL

Array = npt.NDArray[Any]
_POINTS = {2: (1.0,), 4: (0.625, 1.5)}  # beside 0 and infinity, each with its negative


@dataclass(frozen=True, kw_only=True, slots=True)
class WinogradMatrices:
    """Of a tile of m×m results, in float64: ``image`` ``[m+2, m+2]`` (``Bᵀ``), ``weight`` ``[m+2, 3]`` (``G``),
    ``result`` ``[m, m+2]`` (``Aᵀ``).

    Rows of ``Bᵀ`` are scaled by powers of two so that none makes numbers larger, and those of ``G`` to a length of
    about 1: what lies between the kernels is not larger than the image or the results.
    """

    image: Array
    weight: Array
    result: Array


@cache
def matrices(tile: int) -> WinogradMatrices:
    """For tiles of ``tile``: 2 or 4. Places 2k+1 and 2k+2 are those of a point and its negative."""
    points = [0.0, *(sign * point for point in _POINTS[tile] for sign in (1, -1))]
    extent = tile + KERNEL - 1
    image, weight, result = np.zeros((extent, extent)), np.zeros((extent, KERNEL)), np.zeros((tile, extent))
    for place, point in enumerate(points):
        others = points[:place] + points[place + 1 :]
        image[place, :-1] = np.poly(others)[::-1]
        weight[place] = point ** np.arange(KERNEL) / np.prod(point - np.asarray(others))
        result[:, place] = point ** np.arange(tile)
    image[-1] = np.poly(points)[::-1]
    weight[-1, -1] = result[-1, -1] = 1.0
    smaller = np.exp2(-np.ceil(np.log2(np.abs(image).sum(1))))
    shorter = np.exp2(-np.round(np.log2(np.linalg.norm(weight, axis=1))))
    return WinogradMatrices(
        image=image * smaller[:, None], weight=weight * shorter[:, None], result=result / (smaller * shorter)
    )
