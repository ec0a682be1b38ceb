"""Matmuls with weights that are read as they lie, [N, K]: those that nobody packs, because they are inputs.

Neighbours lie side by side along K: ``lanes`` sums of each result run side by side, and are added up at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import te

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Tensor

SUMS, TOTAL = "tunehub_nt_sums", "tunehub_nt_total"


def nt_dense(data: Tensor, weight: Tensor, *, lanes: int) -> Tensor:
    """The matmul of ``data`` ``[..., M, K]`` and the transpose of ``weight`` ``[N, K]``, both of one type of floats, as
    ``[..., M, N]`` in float32; ``lanes`` divide K. Narrow operands are widened where they are loaded."""
    columns, depth = (int(extent) for extent in weight.shape)
    k, lane = te.reduce_axis((0, depth // lanes), "k"), te.reduce_axis((0, lanes), "lane")

    def sums_at(*at: PrimExpr) -> PrimExpr:
        *rows, column, lane = at
        factors = data(*rows, k * lanes + lane), weight[column, k * lanes + lane]
        return te.sum(factors[0].astype("float32") * factors[1].astype("float32"), axis=[k])

    sums = te.compute((*data.shape[:-1], columns, lanes), sums_at, name=SUMS)
    return te.compute((*data.shape[:-1], columns), lambda *at: te.sum(sums(*at, lane), axis=[lane]), name=TOTAL)
