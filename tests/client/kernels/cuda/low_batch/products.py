"""Products with few rows as functions."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.low_batch.weights import E4M3, Format, weights_made
from tunehub.tir.nodes import main_module


def product(
    rows: tuple[int, ...], columns: int, depth: int, bits: int, dtype: str = "float16", *, e4m3: bool = False
) -> Any:
    """x · Wᵀ + bias; of weights in e4m3 times scales of rows, too."""
    x, bias = te.placeholder((*rows, depth), dtype, name="x"), te.placeholder((columns,), dtype, name="bias")
    if bits == 16:
        given = [te.placeholder((columns, depth), dtype, name="weight")]
        weight = given[0]
    else:
        form = E4M3 if e4m3 else Format(bits=bits, group=32)
        words = te.placeholder((columns, depth // form.per_element), form.stored, name="weight")
        scale = ((columns,), "float32") if e4m3 else ((columns, depth // 32), dtype)
        given = [words, te.placeholder(*scale, name="scale")]
        weight = weights_made(given, form, dtype)
    k = te.reduce_axis((0, depth), name="k")

    def one(*i: Any) -> Any:
        return te.sum(x(*i[:-1], k).astype("float32") * weight(i[-1], k).astype("float32"), axis=k)

    sums = te.compute((*rows, columns), one, name="NT_matmul")
    scaled = te.compute(sums.shape, lambda *i: sums(*i) * given[1][i[-1]], name="scaled") if e4m3 else sums
    out = te.compute(sums.shape, lambda *i: scaled(*i).astype(dtype) + bias[i[-1]], name="out")
    return tvm.IRModule({"main": te.create_prim_func([x, *given, bias, out], index_dtype_override="int64")})


def quantised_open_product(
    form: Format, columns: int, depth: int, *, is_batch: bool = False, dtype: str = "float16"
) -> Any:
    """A product with weights in ``form`` and a residual addition; ``is_batch``: of a batch of single rows."""
    rows, k = tirx.Var("n", "int64"), te.reduce_axis((0, depth), name="k")
    shape = (rows, 1) if is_batch else (1, rows)
    x = te.placeholder((*shape, depth), dtype, name="x")
    words = te.placeholder((columns, depth // form.per_element), form.stored, name="w")
    scales = te.placeholder(
        *(((columns,), "float32") if form.e4m3 else ((columns, depth // form.group), dtype)), name="s"
    )
    more = te.placeholder((*shape, columns), dtype, name="r")
    wide = weights_made([words, scales], form, dtype)

    def product(*at: Any) -> Any:
        return te.sum(x[(*at[:-1], k)].astype("float32") * wide[at[-1], k].astype("float32"), axis=k)

    y = te.compute((*shape, columns), product, name="product")
    scaled = te.compute(y.shape, lambda *at: y(*at) * scales[at[-1]], name="scaled") if form.e4m3 else y
    z = te.compute(y.shape, lambda *at: scaled(*at).astype(dtype) + more(*at), name="out")
    return main_module(te.create_prim_func([x, words, scales, more, z], index_dtype_override="int64"))
