"""Kernels of :mod:`.bulk` for products with an open number of rows: the copy engine is told of it at each launch, and
brings zeros from beyond the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper.bulk import BulkWriter
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.product import Product, product_of
from tunehub.kernels.cuda.gemm.hopper.rule import matmul_in
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.cuda.pieces import NotPiecesError
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.nodes import buffer_shapes, element_type, main_module, parameters
from tunehub.tir.statements import INDEX, bind, block_of, sequence
from tunehub.tir.views import product as extent_of
from tunehub.tir.views import views, wide

if TYPE_CHECKING:
    from tunehub.kernels.cuda.gemm.hopper.product import Element
    from tunehub.tir.types import Buffer, Index, IRModule, PrimExpr, PrimFunc, Stmt, Var

Find = Callable[[Any], Matmul | None]
_MOST_ELEMENTS = (1 << 31) - 1  # of a buffer whose places are numbers of 32 bits


def most_length(whole: OpenFunction) -> int:
    """Places along the open axis up to which places in all buffers are numbers of 32 bits."""
    one, two = (buffer_shapes(whole.piece(length)["main"]) for length in (1, 2))
    of_one = (_elements(second) - _elements(first) for (first, _), (second, _) in zip(one, two, strict=True))
    return _MOST_ELEMENTS // max(1, *of_one)


def longest_piece(whole: OpenFunction, find: Find = matmul_in) -> tuple[OpenMatmul, IRModule, Matmul]:
    """``whole`` as a product that ``find`` sees, and the function of :func:`most_length` places along its open axis
    with its own. Raises NotPiecesError where it is no product whose rows the open axes are."""
    from tvm import s_tir

    product = open_matmul(whole, find)
    if product is None or not whole.axes.are_one:
        raise NotPiecesError("the open axes are not the rows of a product")
    piece = main_module(s_tir.renew_defs(whole.piece(most_length(whole))["main"]))
    matmul = find(piece)
    if matmul is None:
        raise NotPiecesError("a piece is of another kind")
    return product, piece, matmul


def over_all_rows(
    whole: OpenFunction,
    tile: BulkTile,
    device: GpuDevice,
    writer: type[OpenBulkWriter] | None = None,
    find: Find = matmul_in,
) -> PrimFunc:
    """``whole`` by ``tile`` for up to :func:`most_length` places along its open axis, not checked. ``writer``: of
    another epilogue. ``find``: see :func:`longest_piece`.

    Raises NotPiecesError where it is no such product, ValueError where an operand is no matrix, or what TVM raises.
    """
    product, piece, matmul = longest_piece(whole, find)
    kind = writer or OpenBulkWriter
    own = kind(kind.read(piece, matmul), tile, device)
    body = own.over(whole, extent_of(wide(whole.axes.extents)) * product.of_one)
    return whole.function.with_body(block_of(whole.function.body, body, "root", []))


def _elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


class OpenBulkWriter(BulkWriter):
    """Of kernels whose number of rows is known at the launch."""

    @staticmethod
    def read(mod: IRModule, matmul: Matmul) -> Product:
        """What is computed."""
        return product_of(mod, matmul)

    def __init__(self, product: Product, tile: BulkTile, device: GpuDevice) -> None:
        super().__init__(product, tile, None)
        self.device = device
        self.piece_rows, columns, k = self.extents
        self.rows, self.high, self.clusters = (tirx.Var(name, INDEX) for name in ("rows", "high", "clusters"))
        self.wide = tile.over(1, columns)[1]
        self.extents = (self.rows, columns, k)

    def over(self, whole: OpenFunction, total: PrimExpr) -> Stmt:
        """The statement for ``whole``, which has ``total`` rows."""
        own, parts = parameters(whole.function), parameters(self.product.function)
        self.whole_of = {hash(part): buffer for part, buffer in zip(parts, own, strict=True)}
        self.declared = self._views(own, parts)
        apart = self.tile.block[0] * self.tile.shared[0]
        self.started = self._limited((total + (apart - 1)) // apart * self.wide) * self.tile.blocks
        return sequence(
            [
                bind(self.rows, tirx.Cast(INDEX, total)),
                bind(self.high, (self.rows + (apart - 1)) // apart),
                bind(self.clusters, self._limited(self.high * self.wide)),
                self.statement(),
            ]
        )

    def _views(self, own: Sequence[Buffer], parts: Sequence[Buffer]) -> list[Stmt]:
        """Statements that make the parameters of the product those of the function."""
        return views(own, parts)

    def _limited(self, clusters: PrimExpr) -> PrimExpr:
        """How many of so many are started."""
        most = self.tile.started(_MOST_ELEMENTS, self.device)
        return clusters if most == _MOST_ELEMENTS else tirx.min(clusters, tirx.const(most, element_type(clusters)))

    def _count_tiles(self) -> None:
        """They are known at the launch."""

    def _grid(self, nest: Stmt, along_y: tuple[PrimExpr, int], along_x: tuple[Var, Index]) -> Stmt:
        """Its extent is an expression of the function's symbols: checks put numbers in place of these."""
        place = tirx.Var("place", element_type(self.started))
        nest = sequence([bind(along_x[0], tirx.Cast(INDEX, place)), *self.declared, nest])
        return super()._grid(nest, along_y, (place, self.started))

    def _operand(self, element: Element, extent: Index) -> Buffer:
        return self.whole_of[hash(super()._operand(element, self.piece_rows if extent is self.rows else extent))]

    def _place_of(self, number: Var) -> tuple[PrimExpr, PrimExpr]:
        most = self.tile.most_in_band
        band, inside = number // (most * self.wide), number % (most * self.wide)
        own = tirx.min(self.high - band * most, most)  # the last band has what is left
        return band * most + inside % own, inside // own

    def _is_one_tile_each(self) -> bool:
        return False

    def _inside(self, place: Index, axis: int) -> list[PrimExpr]:
        return [place < self.rows] if axis == 0 else super()._inside(place, axis)
