"""Kernels for warpgroups of products with an open number of rows, or of images: the last block may go beyond the end,
where nothing is read or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper.kernel import OpenRows, open_kernel
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.hopper.rule import matmul_in
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.open_rows import open_matmul
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.cuda.pieces import NotPiecesError
from tunehub.tir.nodes import main_module, parameters
from tunehub.tir.statements import bind, block_of
from tunehub.tir.views import number, places, view, wide
from tunehub.tir.views import product as extent_of

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, PrimExpr, PrimFunc, Stmt, Var


def over_rows(
    whole: OpenFunction, tile: WarpgroupTile, find: Callable[[IRModule], Matmul | None] = matmul_in
) -> PrimFunc:
    """The PrimFunc ``whole``, a product that ``find`` sees, by ``tile``, not checked; its open axes lie side by side in
    memory.

    Raises NotPiecesError where they do not, or where a piece is of another kind, ValueError where operands cannot be
    copied as they lie, or what TVM raises.
    """
    from tvm import s_tir

    product = open_matmul(whole, find)
    if product is None or not whole.axes.are_one:
        raise NotPiecesError("the open axes are not the rows of a product")
    length = product.length(tile.block[0])
    piece = main_module(s_tir.renew_defs(whole.piece(length)["main"]))
    matmul = find(piece)
    if matmul is None:
        raise NotPiecesError(f"a piece of {length} is of another kind")
    part = product_of(piece, matmul)
    rows = _Rows(whole, parameters(part.function), length, product.of_one)
    high, blocks = length * product.of_one // tile.block[0], rows.blocks(tile.block[0])
    body = open_kernel(part, tile, OpenRows(blocks=blocks, high=high, left=rows.left, declared=rows.declared))
    return whole.function.with_body(block_of(whole.function.body, body, "root", []))


class _Rows:
    """The rows of ``whole``, of each place along the open axis ``of_one``; ``own``: the parameters of a piece of the
    ``length``."""

    def __init__(self, whole: OpenFunction, own: Sequence[Var], length: int, of_one: int) -> None:
        from tvm import tirx

        self._tirx, self._whole, self._own, self._length, self._of_one = tirx, whole, own, length, of_one
        self._extents = wide(whole.axes.extents)
        self._total = extent_of(self._extents)
        self.left = tirx.Var("left", "int32")

    def blocks(self, rows: int) -> PrimExpr:
        """How many blocks of so many ``rows`` there are."""
        return (self._total * self._of_one + (rows - 1)) // rows

    def declared(self, piece: PrimExpr) -> list[Stmt]:
        """See :class:`OpenRows`. Each place is a variable: TVM takes expressions that several views have out of them,
        to where one of these is before it."""
        tirx = self._tirx
        first, *starts = (tirx.Var(name, "int64") for name in ("first", *("start" for _ in self._extents)))
        found = [bind(first, tirx.Cast("int64", piece) * self._length)]
        found += [bind(*each) for each in zip(starts, places(first, self._extents), strict=True)]
        own = zip(parameters(self._whole.function), self._own, self._whole.axes.places, strict=True)
        for whole, part, axes in own:
            found += view(whole, part, {axis: at for at, axis in zip(starts, axes, strict=True) if axis is not None})
        rest = tirx.min(self._total - first, number(self._length)) * self._of_one
        return [*found, bind(self.left, tirx.Cast("int32", rest))]
