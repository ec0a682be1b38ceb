"""Winograd's minimal filtering F(m×m, 3×3) of images in float16 with channels last, as three functions: what
:mod:`tunehub.kernels.cuda.winograd.kernels` has for float32.

Transforms compute in float32. Between the functions values are in float16 and lie as ``[place, tile, channel]``, as
kernels for warpgroups read them; sums of products are in float32. Neighbouring threads have neighbouring channels.
Transformed images could be four times as large as images with ``m = 2``, more than float16 has; so they are made four
times smaller, and weights larger, which changes no digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import te, tirx

from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3
from tunehub.kernels.cuda.winograd.kernels import PRODUCT, extents, place_of, primitive
from tunehub.kernels.te.winograd import KERNEL, of_image, of_products, picked, transform_weight, transformed_shape
from tunehub.tir.nodes import constant_array, constant_like

if TYPE_CHECKING:
    from tunehub.tir.types import Expr, Index, PrimExpr, PrimFunc, Tensor

TAKEN, ROWS, TRANSFORMED = (f"tunehub_winograd_half_{step}" for step in ("taken", "rows", "transformed"))
SUMS, RESULT = (f"tunehub_winograd_half_{step}" for step in ("sums", "result"))
_HALF, _FLOAT = "float16", "float32"
_SMALLER = 4


def image_function(convolution: PlainConv3x3, tile: int, batch: Index) -> PrimFunc:
    """A PrimFunc of the image, with its padding, that gives its transformed tiles. ``batch``: its first extent."""
    shape = extents(*(size + KERNEL - 1 for size in convolution.image), convolution.inputs)
    image = te.placeholder((batch, *shape), _HALF, name="image")
    return primitive(image, _transformed_tiles(image, convolution, tile))


def product_function(convolution: PlainConv3x3, tile: int) -> PrimFunc:
    """A PrimFunc of transformed weights ``[place, output, input]`` and tiles."""
    places, tiles, inputs = (tile + KERNEL - 1) ** 2, convolution.tiles(tile), convolution.inputs
    weight = te.placeholder(extents(places, convolution.outputs, inputs), _HALF, name="weight")
    image = te.placeholder(extents(places, tiles, inputs), _HALF, name="tiles")
    c = te.reduce_axis((tirx.IntImm("int64", 0), extents(inputs)[0]), "c")
    shape = extents(places, tiles, convolution.outputs)

    def product(p: PrimExpr, t: PrimExpr, o: PrimExpr) -> PrimExpr:
        return te.sum(image[p, t, c].astype(_FLOAT) * weight[p, o, c].astype(_FLOAT), axis=c)

    sums = te.compute(shape, product, name=PRODUCT)
    return primitive(weight, image, te.compute(shape, lambda *at: sums(*at).astype(_HALF), name="rounded"))


def result_function(convolution: PlainConv3x3, tile: int, batch: Index) -> PrimFunc:
    """A PrimFunc of products that gives the sums of the direct convolution, in float32. ``batch``: the first extent of
    that."""
    shape = extents((tile + KERNEL - 1) ** 2, convolution.tiles(tile), convolution.outputs)
    products = te.placeholder(shape, _HALF, name="products")
    return primitive(products, _results(products, convolution, tile, batch))


def between(convolution: PlainConv3x3, tile: int, channels: int) -> tuple[int | None, ...]:
    """The shape of tiles between the functions."""
    return (tile + KERNEL - 1) ** 2, convolution.tiles(tile), channels


def transformed(constant: Expr, tile: int) -> Expr:
    """The weight ``[output, 3, 3, input]``, a constant of Relax, as :func:`product_function` takes it: computed in
    float64, rounded once."""
    weight = constant_array(constant)[:, None, ..., None] * np.float32(_SMALLER)
    shape = transformed_shape(weight.shape, tile)
    extent, _, outputs, _, inputs, _ = shape
    return constant_like(
        (extent * extent, outputs, inputs), _HALF, lambda own: transform_weight(weight, tile, own.reshape(shape))
    )


def _transformed_tiles(image: Tensor, convolution: PlainConv3x3, tile: int) -> Tensor:
    """``Bᵀ d B``. Where tiles go over the end of the image they have zeros."""
    extent, (down, across) = tile + KERNEL - 1, convolution.grid(tile)
    ends = [count * tile != size for count, size in zip((down, across), convolution.image, strict=True)]
    count, channels, smaller = convolution.tiles(tile), convolution.inputs, tirx.const(1 / _SMALLER, _FLOAT)

    def taken(t: PrimExpr, i: PrimExpr, j: PrimExpr, c: PrimExpr) -> PrimExpr:
        n, y, x = place_of(t, down, across)
        at = y * tile + i, x * tile + j
        inside = [own < size for end, own, size in zip(ends, at, image.shape[1:3], strict=True) if end]
        value = image(n, *at, c)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, _HALF)) if inside else value

    def of_rows(t: PrimExpr, i: PrimExpr, j: PrimExpr, c: PrimExpr) -> PrimExpr:
        return picked(i, of_image([places(t, k, j, c).astype(_FLOAT) * smaller for k in range(extent)]))

    def of_tile(p: PrimExpr, t: PrimExpr, c: PrimExpr) -> PrimExpr:
        return picked(p % extent, of_image([rows(t, p // extent, k, c) for k in range(extent)])).astype(_HALF)

    tiles = extents(count, extent, extent, channels)
    places = te.compute(tiles, taken, name=TAKEN)
    rows = te.compute(tiles, of_rows, name=ROWS)
    return te.compute(extents(extent * extent, count, channels), of_tile, name=TRANSFORMED)


def _results(products: Tensor, convolution: PlainConv3x3, tile: int, batch: Index) -> Tensor:
    """``Aᵀ M A``."""
    extent, (down, across) = tile + KERNEL - 1, convolution.grid(tile)

    def of_sums(t: PrimExpr, i: PrimExpr, j: PrimExpr, o: PrimExpr) -> PrimExpr:
        found = [products[k * extent + j, t, o].astype(_FLOAT) for k in range(extent)]
        return picked(i, of_products(found))

    def result(n: PrimExpr, h: PrimExpr, w: PrimExpr, o: PrimExpr) -> PrimExpr:
        t = (n * down + h // tile) * across + w // tile
        return picked(w % tile, of_products([sums(t, h % tile, k, o) for k in range(extent)]))

    sums = te.compute(extents(convolution.tiles(tile), tile, extent, convolution.outputs), of_sums, name=SUMS)
    shape = (batch, *extents(*convolution.image, convolution.outputs))
    return te.compute(shape, result, name=RESULT)
