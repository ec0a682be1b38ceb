"""Winograd's minimal filtering F(m×m, 3×3) of blocked images, as tensor expressions, and its weights.

A tile of m×m results takes (m+2)² products instead of 9m²: 2.25 times fewer with m = 2, 4 times with m = 4. The image
is cut into tiles of (m+2)×(m+2) that overlap by two, ``V = Bᵀ d B``; each of their (m+2)² places is a matrix product
of tiles and channels with ``U = G g Gᵀ``, the transformed weights; ``Aᵀ M A`` are the results.

Matrices are those of Toom and Cook: polynomials are multiplied by their values at m + 1 points and at infinity. The
points are 0 and pairs ±p, which share most of their sums. For m = 4 the pairs below have less than half the error of ±1
and ±2 (docs/adr/0039), and all their factors of images and products are exact in float32.

Of integers m is 4, the pairs are ±1 and ±2, and everything is exact. ``B`` has whole numbers, and so have ``G`` and
``A`` when ``G`` is made 24 times as large and its first and last row give 8 of that to ``A``: results are 576 = 9 · 64
times as large. The image's tiles and the weights fit 16 bits, which two instructions' worth of pairs multiply; the
transform back goes around modulo 2^31, where 9 has an inverse, and the 6 bits that 64 takes are shifted out. TVM tells
LLVM that additions in 32 bits do not overflow, so that these are of 31 bits, of which it says nothing.

Sources: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016 (arXiv 1509.09308);
B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks"
(arXiv 1803.10986).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from tvm import te, tirx, topi

from tunehub.kernels.te.weights import Array
from tunehub.tir.nodes import element_type, plain_extent

if TYPE_CHECKING:
    from tunehub.tir.types import Index, PrimExpr, Tensor

PRODUCT, RESULT = "tunehub_winograd", "tunehub_winograd_result"
IMAGE, SUM = "tunehub_winograd_image", "tunehub_winograd_sum"  # copies of what it reads and writes
BORDER, ROWS, DATA, SUMS = (f"{PRODUCT}_{step}" for step in ("border", "rows", "data", "sums"))
KERNEL = 3  # rows and columns of the convolution
POINTS = {2: (Fraction(1),), 4: (Fraction(5, 8), Fraction(3, 2))}
"""By tile: positive points, whose negatives are points, too, beside 0 and infinity."""
_WHOLE_POINTS = Fraction(1), Fraction(2)
_WHOLE_G = np.array([[3, 0, 0], [1, 1, 1], [1, -1, 1], [1, 2, 4], [1, -2, 4], [0, 0, 3]])
_WHOLE_B = np.array([[5, 5], [2, 8], [5, 5], [3, 3], [3, 3], [5, 5]])  # of rows of Bᵀ: sums above 0 and below
WHOLE_TILE, PAIR = 4, 2
_SHIFT, _INVERSE_OF_9 = 6, 954437177  # modulo 2^31
_WRAPPING, _UNSIGNED = "int31", "uint31"
_MOST_DATA = 255


def transformed_shape(shape: Sequence[int], tile: int) -> tuple[int, ...]:
    """The shape of what :func:`transform_weight`, or of integers :func:`transform_integers`, makes of a weight of
    ``shape``."""
    outer, inner, _, _, *block = shape
    if len(block) == 3:
        block = [block[0] * block[2] // PAIR, block[1], PAIR]
    return (tile + KERNEL - 1, tile + KERNEL - 1, outer, inner, *block)


def weight_type(rank: int) -> str:
    """The type of transformed weights that had ``rank`` axes: seven have those of integers."""
    return "int16" if rank == 7 else "float32"


def transform_weight(weight: Array, tile: int, result: Array) -> None:
    """Write ``weight`` ``[O/o, I/i, 3, 3, i, o]`` into ``result`` ``[tile+2, tile+2, O/o, I/i, i, o]``, computed in
    float64."""
    inner, block = weight.shape[1], weight.shape[4:]
    factors = np.array(weight_factors(POINTS[tile]), "float64")
    both, places = np.kron(factors, factors), result.reshape(-1, *result.shape[2:])
    for at, each in enumerate(weight):  # one block of outputs at a time: little memory beside the result
        taps = each.reshape(inner, KERNEL * KERNEL, -1).astype(np.float64)
        places[:, at] = (both @ taps).reshape(inner, -1, *block).swapaxes(0, 1)


def transform_integers(weight: Array, result: Array) -> None:
    """Write integers ``[O/o, I/i, 3, 3, i/g, o, g]`` into ``result`` ``[6, 6, O/o, I/i, i/2, o, 2]`` of 16 bits."""
    inner, (words, lanes, group) = weight.shape[1], weight.shape[4:]
    both, places = np.kron(_WHOLE_G, _WHOLE_G), result.reshape(-1, *result.shape[2:])
    for at, each in enumerate(weight.swapaxes(-1, -2)):
        taps = each.reshape(inner, KERNEL * KERNEL, -1).astype(np.int64)
        pairs = (both @ taps).reshape(inner, -1, words * group // PAIR, PAIR, lanes)
        places[:, at] = pairs.swapaxes(0, 1).swapaxes(-1, -2)


def are_exact(weight: Array) -> bool:
    """Whether integers ``[O/o, I/i, 3, 3, i/g, o, g]`` and any data of 8 bits have results that 31 bits hold 64 times,
    and sums in each place that 32 bits hold."""
    outputs = weight.shape[0] * weight.shape[5]
    taps = weight.astype(np.int64).transpose(2, 3, 0, 5, 1, 4, 6).reshape(KERNEL * KERNEL, outputs, -1)
    above, below = np.maximum(taps, 0).sum(2), np.maximum(-taps, 0).sum(2)
    results = _MOST_DATA * max(int(above.sum(0).max()), int(below.sum(0).max()))
    data = [max(a * c + b * d, a * d + b * c) for a, b in _WHOLE_B for c, d in _WHOLE_B]
    factors = np.kron(np.abs(_WHOLE_G), np.abs(_WHOLE_G)) @ (above + below)
    sums = _MOST_DATA * int((np.asarray(data)[:, np.newaxis] * factors).max())
    return results < 2 ** (30 - _SHIFT) and sums < 2**31


def conv2d_winograd(data: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of ``data`` ``[N, I/i, R+2, S+2, i]``, which has its padding, as ``[N, O/o, R, S, o]``.

    ``weight``: as :func:`transform_weight` or :func:`transform_integers` writes it, which says the tile, too. Where
    tiles go over the end of the image there is one block more, ``tunehub_winograd_border``, that adds zeros.
    """
    tile = int(weight.shape[0]) - KERNEL + 1
    rows, columns = (extent - (KERNEL - 1) for extent in data.shape[2:4])
    down, across = (-(-int(plain_extent(size)) // tile) for size in (rows, columns))
    more = [count * tile - int(plain_extent(size)) for count, size in ((down, rows), (across, columns))]
    if any(more):
        data = topi.nn.pad(data, [0] * 5, [0, 0, *more, 0], name=BORDER)
    index, whole = element_type(weight.shape[0]), len(weight.shape) == 7
    tiling = _Tiling(tile=tile, down=down, across=across, index=index, whole=whole)
    products = _products(_transformed_image(data, tiling), weight)
    return _results(_row_sums(products, tiling), (rows, columns), tiling)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tiling:
    """Results in tiles of ``tile`` × ``tile``, so many ``down`` and ``across``. Extents are of the type ``index``;
    ``whole``: everything is integers."""

    tile: int
    down: int
    across: int
    index: str
    whole: bool

    @property
    def read(self) -> int:
        """Rows and columns of the image that a tile takes."""
        return self.tile + KERNEL - 1

    def extents(self, *values: int) -> list[PrimExpr]:
        return [tirx.IntImm(self.index, each) for each in values]


def _transformed_image(data: Tensor, tiling: _Tiling) -> Tensor:
    """``Bᵀ d B`` of each tile, ``[m+2, m+2, N, down, across, I/i, i]``; rows first."""
    batch, inner, _, _, block = data.shape
    a, th, tw = tiling.extents(tiling.read, tiling.down, tiling.across)
    size, read, points = tiling.tile, range(tiling.read), _WHOLE_POINTS if tiling.whole else ()

    def of_rows(n: PrimExpr, c: PrimExpr, y: PrimExpr, x: PrimExpr, i: PrimExpr, j: PrimExpr, ci: PrimExpr) -> PrimExpr:
        elements = [data[n, c, y * size + k, x * size + j, ci] for k in read]
        elements = [each.astype("int16") for each in elements] if tiling.whole else elements
        return picked(i, of_image(elements, points))

    def of_tile(i: PrimExpr, j: PrimExpr, n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, ci: PrimExpr) -> PrimExpr:
        return picked(j, of_image([in_rows[n, c, y, x, i, k, ci] for k in read], points))

    in_rows = te.compute((batch, inner, th, tw, a, a, block), of_rows, name=ROWS)
    return te.compute((a, a, batch, th, tw, inner, block), of_tile, name=DATA)


def _products(tiles: Tensor, weight: Tensor) -> Tensor:
    """Of tiles and channels in each place, ``[m+2, m+2, O/o, N, down, across, o]``; of integers by pairs."""
    a, b, batch, th, tw, inner, _ = tiles.shape
    outer, lanes, pairs = weight.shape[2], weight.shape[5], weight.shape[6:]
    c, ci = te.reduce_axis((0, inner), "ic"), te.reduce_axis((0, weight.shape[4]), "ii")
    ii = te.reduce_axis((0, PAIR), "pair")

    def product(i: PrimExpr, j: PrimExpr, o: PrimExpr, n: PrimExpr, y: PrimExpr, x: PrimExpr, oi: PrimExpr) -> PrimExpr:
        if not pairs:
            return te.sum(tiles[i, j, n, y, x, c, ci] * weight[i, j, o, c, ci, oi], axis=[c, ci])
        element, factor = tiles[i, j, n, y, x, c, ci * PAIR + ii], weight[i, j, o, c, ci, oi, ii]
        return te.sum(element.astype("int32") * factor.astype("int32"), axis=[c, ci, ii])

    return te.compute((a, b, outer, batch, th, tw, lanes), product, name=PRODUCT)


def _row_sums(products: Tensor, tiling: _Tiling) -> Tensor:
    """``Aᵀ M``, ``[N, O/o, down, across, m, m+2, o]``."""
    a, _, outer, batch, th, tw, lanes = products.shape
    (m,) = tiling.extents(tiling.tile)

    def of_row(n: PrimExpr, o: PrimExpr, y: PrimExpr, x: PrimExpr, i: PrimExpr, j: PrimExpr, oi: PrimExpr) -> PrimExpr:
        found = [products[k, j, o, n, y, x, oi] for k in range(tiling.read)]
        if not tiling.whole:
            return picked(i, of_products(found))
        value = picked(i, _of_whole_products([each.astype(_WRAPPING) for each in found]))
        return value.astype(_UNSIGNED).astype("int32")  # without signs, which nobody reads

    return te.compute((batch, outer, th, tw, m, a, lanes), of_row, name=SUMS)


def _results(sums: Tensor, extents: tuple[Index, Index], tiling: _Tiling) -> Tensor:
    """``Aᵀ M A`` without what goes over the end, ``[N, O/o, R, S, o]``."""
    batch, outer, *_, lanes = sums.shape
    tile = tiling.tile

    def result(n: PrimExpr, o: PrimExpr, h: PrimExpr, w: PrimExpr, oi: PrimExpr) -> PrimExpr:
        y, x, i = h // tile, w // tile, h % tile
        found = [sums[n, o, y, x, i, k, oi] for k in range(tiling.read)]
        if not tiling.whole:
            return picked(w % tile, of_products(found))
        value = picked(w % tile, _of_whole_products([each.astype(_WRAPPING) for each in found]))
        return ((value * tirx.const(_INVERSE_OF_9, _WRAPPING)) >> tirx.const(_SHIFT, _WRAPPING)).astype("int32")

    return te.compute((batch, outer, *extents, lanes), result, name=RESULT)


def weight_factors(points: Sequence[Fraction]) -> list[list[Fraction]]:
    """``G`` of 0, infinity and ``points`` with their negatives."""
    all_points = [Fraction(0), *(signed for point in points for signed in (point, -point))]
    rows = [
        [point**power / prod(point - other for other in all_points if other != point) for power in range(KERNEL)]
        for point in all_points
    ]
    return [*rows, [Fraction(power == KERNEL - 1) for power in range(KERNEL)]]


def of_image(d: Sequence[PrimExpr], points: Sequence[Fraction] = ()) -> list[PrimExpr]:
    """``Bᵀ d`` by ``points`` as :func:`weight_factors` takes them, none for :data:`POINTS`; what two rows share is
    written alike, so that LLVM computes it once."""
    points = points or POINTS[len(d) - KERNEL + 1]
    every, found = _polynomial(points), []
    for point in points:
        others = _polynomial([other for other in points if other != point])
        even, odd = _sum(others, d[-2:0:-2]), _scaled(point, _sum(others, d[-3:0:-2]))
        found += [even + odd, even - odd]
    return [_sum(every, d[-2::-2]), *found, _sum(every, d[:0:-2])]


def of_products(d: Sequence[PrimExpr], points: Sequence[Fraction] = ()) -> list[PrimExpr]:
    """``Aᵀ d`` by ``points`` as :func:`of_image` takes them."""
    points = points or POINTS[len(d) - KERNEL + 1]
    first, *pairs, last = d
    sums = [above + below for above, below in zip(pairs[::2], pairs[1::2], strict=True)]
    differences = [above - below for above, below in zip(pairs[::2], pairs[1::2], strict=True)]
    found = []
    for power in range(len(pairs)):
        ends = [first] * (power == 0) + [last] * (power == len(pairs) - 1)
        factors = [Fraction(1)] * len(ends) + [point**power for point in points]
        found.append(_sum(factors, [*ends, *(differences if power % 2 else sums)]))
    return found


def _polynomial(points: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of all ``x - point²``, the highest first."""
    found = [Fraction(1)]
    for point in points:
        found = [own - point**2 * above for above, own in pairwise([Fraction(0), *found, Fraction(0)])]
    return found


def _sum(factors: Sequence[Fraction], values: Sequence[PrimExpr]) -> PrimExpr:
    """Of products, of which the first factor is positive: each other takes one instruction."""
    total, *others = (_scaled(abs(factor), value) for factor, value in zip(factors, values, strict=True))
    for factor, product in zip(factors[1:], others, strict=True):
        total = total + product if factor > 0 else total - product
    return total


def _scaled(factor: Fraction, value: PrimExpr) -> PrimExpr:
    if factor == 1:
        return value
    return value * tirx.const(int(factor) if factor.denominator == 1 else float(factor), element_type(value))


def _of_whole_products(d: Sequence[PrimExpr]) -> list[PrimExpr]:
    """``Aᵀ d`` of integers, 24 times as large."""
    near, near_odd, far, far_odd = d[1] + d[2], d[1] - d[2], d[3] + d[4], d[3] - d[4]
    two, four, eight = (tirx.const(each, _WRAPPING) for each in (2, 4, 8))
    return [
        d[0] * two - near * four + far,
        far_odd * two - near_odd * four,
        far * four - near * four,
        far_odd * eight - near_odd * four + d[5] * eight,
    ]


def picked(index: PrimExpr, values: Sequence[PrimExpr]) -> PrimExpr:
    """The one of ``values`` at ``index``; the choice goes when the loop over it is unrolled."""
    *first, chosen = values
    for at, value in reversed(list(enumerate(first))):
        chosen = tirx.if_then_else(index == at, value, chosen)
    return chosen
