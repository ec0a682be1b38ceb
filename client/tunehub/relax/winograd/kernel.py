"""Winograd's minimal filtering F(m×m, 3×3) of blocked images, as tensor expressions, and its weights.

A tile of m×m results takes (m+2)² products instead of 9m²: 2.25 times fewer with m = 2, 4 times with m = 4. The image
is cut into tiles of (m+2)×(m+2) that overlap by two, ``V = Bᵀ d B``; each of their (m+2)² places is a matrix product
of tiles and channels with ``U = G g Gᵀ``, the transformed weights; ``Aᵀ M A`` are the results.

Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016 (arXiv 1509.09308).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from tunehub.relax.layout.blocked import Array
from tunehub.relax.nodes import element_type, plain_extent

PRODUCT, RESULT = "tunehub_winograd", "tunehub_winograd_result"
IMAGE, SUM = "tunehub_winograd_image", "tunehub_winograd_sum"  # copies of what it reads and writes
BORDER, ROWS, DATA, SUMS = (f"{PRODUCT}_{step}" for step in ("border", "rows", "data", "sums"))
KERNEL = 3  # rows and columns of the convolution
_G = {
    2: np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]]),
    4: np.array(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ]
    ),
}


def transformed_shape(shape: Sequence[int], tile: int) -> tuple[int, ...]:
    """The shape of what :func:`transform_weight` makes of a weight of ``shape``."""
    outer, inner, _, _, *block = shape
    return (tile + KERNEL - 1, tile + KERNEL - 1, outer, inner, *block)


def transform_weight(weight: Array, tile: int, result: Array) -> None:
    """Write ``weight`` ``[O/o, I/i, 3, 3, i, o]`` into ``result`` ``[tile+2, tile+2, O/o, I/i, i, o]``, computed in
    float64."""
    inner, block = weight.shape[1], weight.shape[4:]
    both, places = np.kron(_G[tile], _G[tile]), result.reshape(-1, *result.shape[2:])
    for at, each in enumerate(weight):  # one block of outputs at a time: little memory beside the result
        taps = each.reshape(inner, KERNEL * KERNEL, -1).astype(np.float64)
        places[:, at] = (both @ taps).reshape(inner, -1, *block).swapaxes(0, 1)


def conv2d_winograd(data: Any, weight: Any) -> Any:
    """Return the convolution of ``data`` ``[N, I/i, R+2, S+2, i]``, which has its padding, as ``[N, O/o, R, S, o]``.

    ``weight``: as :func:`transform_weight` writes it, which says the tile, too. Where tiles go over the end of the
    image there is one block more, ``tunehub_winograd_border``, that adds zeros.
    """
    batch, inner, height, width, block = data.shape
    extent, lanes = int(weight.shape[0]), weight.shape[5]
    tile = extent - KERNEL + 1
    rows, columns = height - (KERNEL - 1), width - (KERNEL - 1)
    down, across = (-(-int(plain_extent(size)) // tile) for size in (rows, columns))
    more = [count * tile - int(plain_extent(size)) for count, size in ((down, rows), (across, columns))]
    if any(more):
        data = topi.nn.pad(data, [0] * 5, [0, 0, *more, 0], name=BORDER)
    index = element_type(weight.shape[0])
    a, m, th, tw = (tirx.IntImm(index, each) for each in (extent, tile, down, across))

    def of_rows(n: Any, c: Any, y: Any, x: Any, i: Any, j: Any, ci: Any) -> Any:
        return picked(i, of_image([data[n, c, y * tile + k, x * tile + j, ci] for k in range(extent)]))

    def of_tile(i: Any, j: Any, n: Any, y: Any, x: Any, c: Any, ci: Any) -> Any:
        return picked(j, of_image([in_rows[n, c, y, x, i, k, ci] for k in range(extent)]))

    def product(i: Any, j: Any, o: Any, n: Any, y: Any, x: Any, oi: Any) -> Any:
        return te.sum(tiles[i, j, n, y, x, c, ci] * weight[i, j, o, c, ci, oi], axis=[c, ci])

    def of_sums(n: Any, o: Any, y: Any, x: Any, i: Any, j: Any, oi: Any) -> Any:
        return picked(i, of_products([products[k, j, o, n, y, x, oi] for k in range(extent)]))

    def result(n: Any, o: Any, h: Any, w: Any, oi: Any) -> Any:
        y, x, i = h // tile, w // tile, h % tile
        return picked(w % tile, of_products([sums[n, o, y, x, i, k, oi] for k in range(extent)]))

    in_rows = te.compute((batch, inner, th, tw, a, a, block), of_rows, name=ROWS)
    tiles = te.compute((a, a, batch, th, tw, inner, block), of_tile, name=DATA)
    c, ci = te.reduce_axis((0, inner), "ic"), te.reduce_axis((0, block), "ii")
    outer = weight.shape[2]
    products = te.compute((a, a, outer, batch, th, tw, lanes), product, name=PRODUCT)
    sums = te.compute((batch, outer, th, tw, m, a, lanes), of_sums, name=SUMS)
    return te.compute((batch, outer, rows, columns, lanes), result, name=RESULT)


def of_image(d: Sequence[Any]) -> list[Any]:
    """``Bᵀ d``; what two of them share is written alike, so that LLVM computes it once."""
    if len(d) == 4:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    even, odd = d[4] - d[2] * _number(4), d[3] - d[1] * _number(4)
    evens, odds = d[4] - d[2], (d[3] - d[1]) * _number(2)
    first = d[0] * _number(4) - d[2] * _number(5) + d[4]
    last = d[1] * _number(4) - d[3] * _number(5) + d[5]
    return [first, even + odd, even - odd, evens + odds, evens - odds, last]


def of_products(d: Sequence[Any]) -> list[Any]:
    """``Aᵀ d``."""
    if len(d) == 4:
        return [d[0] + d[1] + d[2], d[1] - d[2] - d[3]]
    near, near_odd, far, far_odd = d[1] + d[2], d[1] - d[2], d[3] + d[4], d[3] - d[4]
    return [
        d[0] + near + far,
        near_odd + far_odd * _number(2),
        near + far * _number(4),
        near_odd + far_odd * _number(8) + d[5],
    ]


def picked(index: Any, values: Sequence[Any]) -> Any:
    """The one of ``values`` at ``index``; the choice goes when the loop over it is unrolled."""
    *first, chosen = values
    for at, value in reversed(list(enumerate(first))):
        chosen = tirx.if_then_else(index == at, value, chosen)
    return chosen


def _number(value: float) -> Any:
    return tirx.const(value, "float32")
