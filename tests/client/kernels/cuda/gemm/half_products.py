"""Products and convolutions in half precision, of any extents."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi


def half_product(
    batch: int, rows: int, columns: int, depth: int, *, transposed: tuple[bool, bool], dtype: str = "float16"
) -> Any:
    """A product with a bias, in each order of the operands' dimensions."""
    shapes = ((rows, depth), (depth, columns))
    a, b = (
        te.placeholder((batch, *(shape[::-1] if turned else shape)), dtype, name=name)
        for name, shape, turned in zip("ab", shapes, transposed, strict=True)
    )
    bias = te.placeholder((columns,), dtype, name="bias")
    k = te.reduce_axis((0, depth), name="k")

    def product(n: Any, i: Any, j: Any) -> Any:
        one = a[n, k, i] if transposed[0] else a[n, i, k]
        other = b[n, j, k] if transposed[1] else b[n, k, j]
        return te.sum(one.astype("float32") * other.astype("float32"), axis=k)

    c = te.compute((batch, rows, columns), product, name="product")
    d = te.compute(c.shape, lambda n, i, j: c[n, i, j].astype(dtype) + bias[j], name="out")
    return tvm.IRModule({"main": te.create_prim_func([a, b, bias, d], index_dtype_override="int64")})


def half_conv(
    size: int, channels: int, outputs: int, kernel: int, stride: int, dilation: int = 1, batch: int = 1
) -> Any:
    x = te.placeholder((batch, channels, size, size), "float16", name="x")
    w = te.placeholder((outputs, channels, kernel, kernel), "float16", name="w")
    y = topi.nn.conv2d_nchw(x, w, stride, kernel // 2, dilation, out_dtype="float32")
    z = te.compute(y.shape, lambda *i: te.max(y(*i), te.const(0, "float32")).astype("float16"), name="relu")
    return tvm.IRModule({"main": te.create_prim_func([x, w, z], index_dtype_override="int64")})


def half_nhwc_conv() -> Any:
    x, w = te.placeholder((1, 9, 9, 24), "float16", name="x"), te.placeholder((3, 3, 24, 40), "float16", name="w")
    y = topi.nn.conv2d_nhwc(x, w, 2, 1, 1, out_dtype="float32")
    z = te.compute(y.shape, lambda *i: y(*i).astype("float16"), name="half")
    return tvm.IRModule({"main": te.create_prim_func([x, w, z], index_dtype_override="int64")})


def every_other_row(rows: int, columns: int, depth: int) -> Any:
    """A product of every other row of a larger matrix."""
    a, b = (te.placeholder(shape, "float16") for shape in ((2 * rows, depth), (columns, depth)))
    part = te.compute((rows, depth), lambda i, j: a[i * 2, j], name="part")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute(
        (rows, columns), lambda i, j: te.sum(part[i, k].astype("float32") * b[j, k].astype("float32"), axis=k), name="c"
    )
    return tvm.IRModule({"main": te.create_prim_func([a, b, c], index_dtype_override="int64")})
