"""Winograd's minimal filtering F(m×m, 3×3) of images in NCHW as three functions: tiles of the image are transformed,
multiplied with the weights at each of their (m+2)² places, and transformed back.

Between the functions values lie as ``[place, channel, tile]``, so that neighbouring threads have neighbouring tiles;
with an open batch as ``[image, place, channel, tile]``, so that an image lies in one piece.
What each transform is, and its source: :mod:`tunehub.kernels.te.winograd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import te, tirx

from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3
from tunehub.kernels.te.winograd import KERNEL, of_image, of_products, picked, transform_weight, transformed_shape
from tunehub.tir.nodes import constant_array, constant_like

if TYPE_CHECKING:
    from tunehub.tir.types import Expr, Index, PrimExpr, PrimFunc, Tensor

PRODUCT = "tunehub_winograd_products"
TAKEN, ROWS, TRANSFORMED = (f"tunehub_winograd_{step}" for step in ("taken", "rows", "transformed"))
SUMS, RESULT = (f"tunehub_winograd_{step}" for step in ("sums", "result"))


def image_function(convolution: PlainConv3x3, tile: int, batch: Index) -> PrimFunc:
    """A PrimFunc of the image, with its padding, that gives its transformed tiles. ``batch``: its first extent."""
    shape = extents(convolution.inputs, *(size + KERNEL - 1 for size in convolution.image))
    image = te.placeholder((batch, *shape), "float32", name="image")
    return primitive(image, _transformed_tiles(image, convolution, tile))


def product_function(convolution: PlainConv3x3, tile: int) -> PrimFunc:
    """A PrimFunc of transformed weights ``[place, input, output]`` and tiles."""
    places, tiles = (tile + KERNEL - 1) ** 2, convolution.tiles(tile)
    lead = _lead(convolution, tirx.Var("batch", "int64"))
    weight = te.placeholder(extents(places, convolution.inputs, convolution.outputs), "float32", name="weight")
    image = te.placeholder((*lead, *extents(places, convolution.inputs, tiles)), "float32", name="tiles")
    c = te.reduce_axis((tirx.IntImm("int64", 0), extents(convolution.inputs)[0]), "c")

    def product(*at: Index) -> PrimExpr:
        *n, p, o, t = at
        own, other = weight[p, c, o], image(*n, p, c, t)
        return te.sum(other * own if n else own * other, axis=c)  # the first operand has the rows, which are open

    products = te.compute((*lead, *extents(places, convolution.outputs, tiles)), product, name=PRODUCT)
    return primitive(weight, image, products)


def result_function(convolution: PlainConv3x3, tile: int, batch: Index) -> PrimFunc:
    """A PrimFunc of products that gives what the direct convolution does. ``batch``: the first extent of that."""
    shape = extents((tile + KERNEL - 1) ** 2, convolution.outputs, convolution.tiles(tile))
    products = te.placeholder((*_lead(convolution, batch), *shape), "float32", name="products")
    return primitive(products, _results(products, convolution, tile, batch))


def between(convolution: PlainConv3x3, tile: int, channels: int) -> tuple[int | None, ...]:
    """The shape of tiles between the functions, None for an open batch."""
    lead: tuple[int | None, ...] = (None,) if convolution.batch is None else ()
    return (*lead, (tile + KERNEL - 1) ** 2, channels, convolution.tiles(tile))


def transformed(constant: Expr, tile: int) -> Expr:
    """The weight ``[output, input, 3, 3]``, a constant of Relax, as :func:`product_function` takes it."""
    weight = constant_array(constant).transpose(1, 2, 3, 0)[None, :, :, :, None, :]
    shape = transformed_shape(weight.shape, tile)
    extent, _, _, inputs, _, outputs = shape
    return constant_like(
        (extent * extent, inputs, outputs), "float32", lambda own: transform_weight(weight, tile, own.reshape(shape))
    )


def _transformed_tiles(image: Tensor, convolution: PlainConv3x3, tile: int) -> Tensor:
    """``V = Bᵀ d B``. Where tiles go over the end of the image they have zeros."""
    extent, (down, across) = tile + KERNEL - 1, convolution.grid(tile)
    height, width = image.shape[2:]
    rows_end, columns_end = (
        count * tile != size for count, size in zip((down, across), convolution.image, strict=True)
    )
    lead, count = _lead(convolution, image.shape[0]), convolution.tiles(tile)
    rows_end |= bool(lead) and count != down * across

    def taken(*at: Index) -> PrimExpr:
        *own, c, t, i, j = at
        n, y, x = (*own, t // across, t % across) if own else place_of(t, down, across)
        h, w = y * tile + i, x * tile + j
        inside = [condition for ends, condition in ((rows_end, h < height), (columns_end, w < width)) if ends]
        value = image[n, c, h, w]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32")) if inside else value

    def of_rows(*at: Index) -> PrimExpr:
        *own, i, j = at
        return picked(i, of_image([places(*own, k, j) for k in range(extent)]))

    def of_tile(*at: Index) -> PrimExpr:
        *own, p, c, t = at
        return picked(p % extent, of_image([rows(*own, c, t, p // extent, k) for k in range(extent)]))

    tiles = (*lead, *extents(convolution.inputs, count, extent, extent))
    places = te.compute(tiles, taken, name=TAKEN)
    rows = te.compute(tiles, of_rows, name=ROWS)
    shape = (*lead, *extents(extent * extent, convolution.inputs, count))
    return te.compute(shape, of_tile, name=TRANSFORMED)


def _results(products: Tensor, convolution: PlainConv3x3, tile: int, batch: Index) -> Tensor:
    """``Aᵀ M A``."""
    extent, (down, across) = tile + KERNEL - 1, convolution.grid(tile)

    def of_sums(*at: Index) -> PrimExpr:
        *own, o, t, i, j = at
        return picked(i, of_products([products(*own, k * extent + j, o, t) for k in range(extent)]))

    def result(n: PrimExpr, o: PrimExpr, h: PrimExpr, w: PrimExpr) -> PrimExpr:
        own, row = ((n,), h // tile) if convolution.batch is None else ((), n * down + h // tile)
        t = row * across + w // tile
        return picked(w % tile, of_products([sums(*own, o, t, h % tile, k) for k in range(extent)]))

    shape = extents(convolution.outputs, convolution.tiles(tile), tile, extent)
    sums = te.compute((*_lead(convolution, batch), *shape), of_sums, name=SUMS)
    return te.compute((batch, *extents(convolution.outputs, *convolution.image)), result, name=RESULT)


def _lead(convolution: PlainConv3x3, batch: Index) -> tuple[Index, ...]:
    """The extent of images, where these are an axis of their own between the functions."""
    return (batch,) if convolution.batch is None else ()


def place_of(t: PrimExpr, down: int, across: int) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """The image of a tile, and its place down and across it."""
    return t // (down * across), t // across % down, t % across


def extents(*sizes: int) -> tuple[Any, ...]:
    """Relax counts in 64 bits."""
    return tuple(tirx.IntImm("int64", size) for size in sizes)


def primitive(*tensors: Tensor) -> PrimFunc:
    return te.create_prim_func(list(tensors), index_dtype_override="int64").without_attr("global_symbol")
