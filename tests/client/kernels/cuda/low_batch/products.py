"""Products with few rows as functions."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te

from tunehub.kernels.cuda.low_batch.weights import Format, dequantised


def product(rows: tuple[int, ...], columns: int, depth: int, bits: int, dtype: str = "float16") -> Any:
    """x · Wᵀ + bias."""
    x, bias = te.placeholder((*rows, depth), dtype, name="x"), te.placeholder((columns,), dtype, name="bias")
    if bits == 16:
        given = [te.placeholder((columns, depth), dtype, name="weight")]
        weight = given[0]
    else:
        words = te.placeholder((columns, depth * bits // 32), "uint32", name="weight")
        given = [words, te.placeholder((columns, depth // 32), "float16", name="scale")]
        weight = dequantised(*given, Format(bits=bits, group=32))
    k = te.reduce_axis((0, depth), name="k")

    def one(*i: Any) -> Any:
        return te.sum(x(*i[:-1], k).astype("float32") * weight(i[-1], k).astype("float32"), axis=k)

    sums = te.compute((*rows, columns), one, name="NT_matmul")
    out = te.compute(sums.shape, lambda *i: sums(*i).astype(dtype) + bias[i[-1]], name="out")
    return tvm.IRModule({"main": te.create_prim_func([x, *given, bias, out], index_dtype_override="int64")})
