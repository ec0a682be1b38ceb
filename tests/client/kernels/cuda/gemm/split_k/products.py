"""Products in float32 whose sums are divided among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TARGET = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}


def dense(rows: int = 64, columns: int = 96, inner: int = 128, dtype: str = "float32") -> Any:
    """A product of matrices, and what is made of it: two steps, of which the second takes both."""
    import tvm
    from tvm import te

    a, b = te.placeholder((rows, inner), dtype, name="a"), te.placeholder((inner, columns), dtype, name="b")
    bias = te.placeholder((columns,), dtype, name="bias")
    k = te.reduce_axis((0, inner), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    d = te.compute((rows, columns), lambda i, j: c[i, j] + bias[j], name="added")
    e = te.compute((rows, columns), lambda i, j: te.tanh(d[i, j]), name="bent")
    f = te.compute((rows, columns), lambda i, j: d[i, j] * e[i, j], name="out")
    return tvm.IRModule({"main": te.create_prim_func([a, b, bias, f], index_dtype_override="int64")})


def uneven() -> Any:
    """Rows and steps that no block divides."""
    return dense(197, 72, 200)


def conv(channels: int = 32, size: int = 7, filters: int = 24, window: int = 3, stride: int = 1) -> Any:
    """A convolution with padding and a bias."""
    import tvm
    from tvm import te, topi

    x = te.placeholder((1, channels, size, size), name="x")
    w = te.placeholder((filters, channels, window, window), name="w")
    bias = te.placeholder((1, filters, 1, 1), name="bias")
    y = topi.nn.conv2d_nchw(x, w, stride, window // 2, 1)
    z = te.compute(y.shape, lambda n, c, h, v: te.max(y[n, c, h, v] + bias[0, c, 0, 0], 0.0), name="add")
    return tvm.IRModule({"main": te.create_prim_func([x, w, bias, z], index_dtype_override="int64")})


def pointwise() -> Any:
    """A convolution with a window of one place: its image is read in vectors, which no row's end may cut."""
    return conv(64, 14, 32, 1)


def strided() -> Any:
    """A convolution of every second place."""
    return conv(16, 14, 32, 3, 2)


def scores() -> Any:
    """Products of each head, with the second operand as it lies: NT."""
    import tvm
    from tvm import te

    q, key = te.placeholder((3, 32, 64), name="q"), te.placeholder((3, 48, 64), name="key")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((3, 32, 48), lambda h, i, j: te.sum(q[h, i, k] * key[h, j, k], axis=k), name="nt")
    return tvm.IRModule({"main": te.create_prim_func([q, key, c], index_dtype_override="int64")})


def batched(batch: int, rows: int, columns: int, inner: int) -> Any:
    """Products of which there are many."""
    import tvm
    from tvm import te

    a, b = te.placeholder((batch, inner, rows), name="a"), te.placeholder((batch, inner, columns), name="b")
    k = te.reduce_axis((0, inner), name="k")
    c = te.compute((batch, rows, columns), lambda p, i, j: te.sum(a[p, k, i] * b[p, k, j], axis=k), name="products")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c], index_dtype_override="int64")})


def transposed() -> Any:
    """A product with the first operand the other way round: TN."""
    import tvm
    from tvm import te

    a, b = te.placeholder((128, 32), name="a"), te.placeholder((128, 64), name="b")
    k = te.reduce_axis((0, 128), name="k")
    c = te.compute((32, 64), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="tn")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c], index_dtype_override="int64")})


CASES: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (dense, uneven, conv, pointwise, strided, scores, transposed)
}
