"""Winograd's minimal filtering F(m×m, 3×3) of images in float16 with channels last, as three functions: what
:mod:`tunehub.cuda.winograd.kernels` has for float32.

Transforms compute in float32. Between the functions values are in float16 and lie as ``[place, tile, channel]``, as
kernels for warpgroups read them; sums of products are in float32. Neighbouring threads have neighbouring channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from tunehub.cuda.winograd.convolution import PlainConv3x3
from tunehub.cuda.winograd.kernels import PRODUCT, extents, place_of, primitive
from tunehub.cuda.winograd.points import Array, matrices
from tunehub.relax.nodes import constant_array, constant_like
from tunehub.relax.winograd.kernel import KERNEL, picked

TAKEN, ROWS, TRANSFORMED = (f"tunehub_winograd_half_{step}" for step in ("taken", "rows", "transformed"))
SUMS, RESULT = (f"tunehub_winograd_half_{step}" for step in ("sums", "result"))
_HALF, _FLOAT = "float16", "float32"


def image_function(convolution: PlainConv3x3, tile: int, batch: Any) -> Any:
    """A PrimFunc of the image, with its padding, that gives its transformed tiles. ``batch``: its first extent."""
    shape = extents(*(size + KERNEL - 1 for size in convolution.image), convolution.inputs)
    image = te.placeholder((batch, *shape), _HALF, name="image")
    return primitive(image, _transformed_tiles(image, convolution, tile))


def product_function(convolution: PlainConv3x3, tile: int) -> Any:
    """A PrimFunc of transformed weights ``[place, output, input]`` and tiles."""
    places, tiles, inputs = (tile + KERNEL - 1) ** 2, convolution.tiles(tile), convolution.inputs
    weight = te.placeholder(extents(places, convolution.outputs, inputs), _HALF, name="weight")
    image = te.placeholder(extents(places, tiles, inputs), _HALF, name="tiles")
    c = te.reduce_axis((tirx.IntImm("int64", 0), extents(inputs)[0]), "c")
    shape = extents(places, tiles, convolution.outputs)

    def product(p: Any, t: Any, o: Any) -> Any:
        return te.sum(image[p, t, c].astype(_FLOAT) * weight[p, o, c].astype(_FLOAT), axis=c)

    sums = te.compute(shape, product, name=PRODUCT)
    return primitive(weight, image, te.compute(shape, lambda *at: sums(*at).astype(_HALF), name="rounded"))


def result_function(convolution: PlainConv3x3, tile: int, batch: Any) -> Any:
    """A PrimFunc of products that gives the sums of the direct convolution, in float32. ``batch``: the first extent of
    that."""
    shape = extents((tile + KERNEL - 1) ** 2, convolution.tiles(tile), convolution.outputs)
    products = te.placeholder(shape, _HALF, name="products")
    return primitive(products, _results(products, convolution, tile, batch))


def between(convolution: PlainConv3x3, tile: int, channels: int) -> tuple[int | None, ...]:
    """The shape of tiles between the functions."""
    return (tile + KERNEL - 1) ** 2, convolution.tiles(tile), channels


def transformed(constant: Any, tile: int) -> Any:
    """The weight ``[output, 3, 3, input]``, a constant of Relax, as :func:`product_function` takes it: computed in
    float64, rounded once."""
    weight, own = constant_array(constant), matrices(tile).weight
    outputs, *_, inputs = weight.shape
    places = np.kron(own, own)

    def fill(result: Array) -> None:
        for at, each in enumerate(weight):  # one output at a time: little memory beside the result
            result[:, at] = places @ each.reshape(KERNEL * KERNEL, inputs).astype(np.float64)

    return constant_like((len(places), outputs, inputs), _HALF, fill)


def _transformed_tiles(image: Any, convolution: PlainConv3x3, tile: int) -> Any:
    """``Bᵀ d B``. Where tiles go over the end of the image they have zeros."""
    extent, (down, across) = tile + KERNEL - 1, convolution.grid(tile)
    ends = [count * tile != size for count, size in zip((down, across), convolution.image, strict=True)]
    count, channels = convolution.tiles(tile), convolution.inputs

    def taken(t: Any, i: Any, j: Any, c: Any) -> Any:
        n, y, x = place_of(t, down, across)
        at = y * tile + i, x * tile + j
        inside = [own < size for end, own, size in zip(ends, at, image.shape[1:3], strict=True) if end]
        value = image(n, *at, c)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, _HALF)) if inside else value

    def of_rows(t: Any, i: Any, j: Any, c: Any) -> Any:
        return picked(i, _of_image([places(t, k, j, c).astype(_FLOAT) for k in range(extent)], tile))

    def of_tile(p: Any, t: Any, c: Any) -> Any:
        found = _of_image([rows(t, p // extent, k, c) for k in range(extent)], tile)
        return picked(p % extent, found).astype(_HALF)

    tiles = extents(count, extent, extent, channels)
    places = te.compute(tiles, taken, name=TAKEN)
    rows = te.compute(tiles, of_rows, name=ROWS)
    return te.compute(extents(extent * extent, count, channels), of_tile, name=TRANSFORMED)


def _results(products: Any, convolution: PlainConv3x3, tile: int, batch: Any) -> Any:
    """``Aᵀ M A``."""
    extent, (down, across) = tile + KERNEL - 1, convolution.grid(tile)

    def of_sums(t: Any, i: Any, j: Any, o: Any) -> Any:
        found = [products[k * extent + j, t, o].astype(_FLOAT) for k in range(extent)]
        return picked(i, _of_products(found, tile))

    def result(n: Any, h: Any, w: Any, o: Any) -> Any:
        t = (n * down + h // tile) * across + w // tile
        return picked(w % tile, _of_products([sums(t, h % tile, k, o) for k in range(extent)], tile))

    sums = te.compute(extents(convolution.tiles(tile), tile, extent, convolution.outputs), of_sums, name=SUMS)
    shape = (batch, *extents(*convolution.image, convolution.outputs))
    return te.compute(shape, result, name=RESULT)


def _of_image(d: Sequence[Any], tile: int) -> list[Any]:
    """``Bᵀ d``; what a point and its negative share is written alike, so that the compiler computes it once."""
    image = matrices(tile).image
    found = [_combined(image[0], d)]
    for row in image[1:-1:2]:
        even, odd = (_combined(np.where(np.arange(len(d)) % 2 == parity, row, 0.0), d) for parity in (0, 1))
        found += [even + odd, even - odd]
    return [*found, _combined(image[-1], d)]


def _of_products(d: Sequence[Any], tile: int) -> list[Any]:
    """``Aᵀ d``, likewise."""
    both = [*zip(d[1:-1:2], d[2:-1:2], strict=True)]
    sums, differences = [a + b for a, b in both], [a - b for a, b in both]
    found = []
    for row, factors in enumerate(matrices(tile).result):
        paired = differences if row % 2 else sums
        found.append(_combined([factors[0], *factors[1:-1:2], factors[-1]], [d[0], *paired, d[-1]]))
    return found


def _combined(factors: Any, values: Sequence[Any]) -> Any:
    """The sum of ``values`` times ``factors``, those of 0 left out."""
    first, *others = (value * tirx.const(float(by), _FLOAT) for by, value in zip(factors, values, strict=True) if by)
    for other in others:
        first = first + other
    return first
