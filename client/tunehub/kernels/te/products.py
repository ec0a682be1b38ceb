"""Products with weights [N, K] as they lie, as tensor expressions, added up in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import te, tirx

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Tensor

NAME = "NT_matmul"  # as MLC-LLM and TVM's FuseTransposeMatmul call it
GATED = f"{NAME}_silu_multiply"
_SUM = "float32"
_BLOCK = 128


def nt_matmul(data: Tensor, weight: Tensor, *, name: str = NAME, sum_type: str = _SUM) -> Tensor:
    """``data`` [..., K] times the transpose of ``weight`` [N, K], added up in ``sum_type``."""
    columns, depth = weight.shape
    k = te.reduce_axis((0, depth), name="k")

    def product(*i: PrimExpr) -> PrimExpr:
        factors = data(*i[:-1], k), weight(i[-1], k)
        return te.sum(factors[0].astype(sum_type) * factors[1].astype(sum_type), axis=k)

    return te.compute((*data.shape[:-1], columns), product, name=name)


def block_scaled_matmul(data: Tensor, data_scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """:func:`nt_matmul` of operands that are times ``data_scales`` [..., K / 128] and ``weight_scales`` [N / 128,
    K / 128]: one for each block of 128."""
    columns, depth = weight.shape
    k = te.reduce_axis((0, depth), name="k")

    def product(*i: PrimExpr) -> PrimExpr:
        wide = data(*i[:-1], k).astype(_SUM) * data_scales(*i[:-1], k // _BLOCK)
        return te.sum(wide * (weight(i[-1], k).astype(_SUM) * weight_scales(i[-1] // _BLOCK, k // _BLOCK)), axis=k)

    return te.compute((*data.shape[:-1], columns), product, name=NAME)


def nt_matmuls(data: Tensor, weights: Tensor) -> Tensor:
    """``data`` [B, M, K] times the transpose of ``weights`` [B, N, K], in float32."""
    k = te.reduce_axis((0, weights.shape[2]), name="k")

    def product(b: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
        return te.sum(data[b, i, k].astype(_SUM) * weights[b, j, k].astype(_SUM), axis=k)

    return te.compute((*data.shape[:2], weights.shape[1]), product, name=NAME)


def gated_product(data: Tensor, weight: Tensor) -> Tensor:
    """SiLU(gate) · up, of products with the first and the second half of the rows of ``weight``; rounded once."""
    wide = nt_matmul(data, weight)
    half = weight.shape[0] // 2

    def value(*i: PrimExpr) -> PrimExpr:
        return gated(wide(*i), wide(*i[:-1], i[-1] + half), str(data.dtype))

    return te.compute((*data.shape[:-1], half), value, name="gated")


def gated_scaled_product(data: Tensor, weight: Tensor, of_rows: Tensor, of_columns: Tensor, *, dtype: str) -> Tensor:
    """As :func:`gated_product` in ``dtype``, of floats of 8 bits; results of the product are times their scales of rows
    [..., 1] and columns [2 · N]."""
    wide = nt_matmul(data, weight)
    half = weight.shape[0] // 2

    def value(*i: PrimExpr) -> PrimExpr:
        scaled = [wide(*i[:-1], at) * of_rows(*i[:-1], 0) * of_columns(at) for at in (i[-1], i[-1] + half)]
        return gated(scaled[0], scaled[1], dtype)

    return te.compute((*data.shape[:-1], half), value, name="gated")


def gated_packed_product(data: Tensor, weight: Tensor, of_columns: Tensor) -> Tensor:
    """As :func:`gated_product`, of ``weight`` in e4m3; results of the product are times ``of_columns`` [2 · N]."""
    half = weight.shape[0] // 2
    wide = nt_matmul(data, te.compute(weight.shape, lambda *at: weight(*at).astype(data.dtype), name="compute"))

    def value(*i: PrimExpr) -> PrimExpr:
        scaled = [wide(*i[:-1], at) * of_columns(at) for at in (i[-1], i[-1] + half)]
        return gated(scaled[0], scaled[1], str(data.dtype))

    return te.compute((*data.shape[:-1], half), value, name="gated")


def gated(gate: PrimExpr, up: PrimExpr, dtype: str) -> PrimExpr:
    """SiLU(``gate``) · ``up`` of numbers in float32, in the type ``dtype``."""
    return (gate / (tirx.const(1.0, _SUM) + tirx.exp(tirx.const(0.0, _SUM) - gate)) * up).astype(dtype)
