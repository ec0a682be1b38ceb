"""Products in half precision of a size that tests run, for tensor cores, and what they compute on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ......unoptimised import UNOPTIMISED

TARGET = {"kind": "cuda", "arch": "sm_90"}


def dense(rows: int = 64, columns: int = 96, inner: int = 128, dtype: str = "float16", total: str = "float32") -> Any:
    """A product of matrices, and what is made of it in half precision: two steps, of which the second takes both."""
    import tvm
    from tvm import te

    a, b = te.placeholder((rows, inner), dtype, name="a"), te.placeholder((inner, columns), dtype, name="b")
    k = te.reduce_axis((0, inner), name="k")

    def product(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype(total) * b[k, j].astype(total), axis=k)

    c = te.compute((rows, columns), product, name="matmul")
    d = te.compute((rows, columns), lambda i, j: c[i, j].astype("float16"), name="half")
    e = te.compute((rows, columns), lambda i, j: te.tanh(d[i, j]), name="bent")
    f = te.compute((rows, columns), lambda i, j: d[i, j] * e[i, j], name="out")
    return tvm.IRModule({"main": te.create_prim_func([a, b, f], index_dtype_override="int64")})


def conv() -> Any:
    """A convolution with padding and a bias, of 14 × 14 places, which no fragment divides."""
    import tvm
    from tvm import te, topi

    x, w = te.placeholder((1, 32, 14, 14), "float16", name="x"), te.placeholder((64, 32, 3, 3), "float16", name="w")
    bias = te.placeholder((1, 64, 1, 1), "float16", name="bias")
    y = topi.nn.conv2d_nchw(x, w, 1, 1, 1, out_dtype="float32")
    z = te.compute(y.shape, lambda n, c, h, v: y[n, c, h, v].astype("float16") + bias[0, c, 0, 0], name="add")
    return tvm.IRModule({"main": te.create_prim_func([x, w, bias, z], index_dtype_override="int64")})


def narrow_conv() -> Any:
    """Of 10 to 3 channels: K is 90."""
    import tvm
    from tvm import te, topi

    x, w = te.placeholder((1, 10, 28, 28), "float16", name="x"), te.placeholder((3, 10, 3, 3), "float16", name="w")
    y = topi.nn.conv2d_nchw(x, w, 1, 1, 1, out_dtype="float32")
    z = te.compute(y.shape, lambda *i: y(*i).astype("float16"), name="half")
    return tvm.IRModule({"main": te.create_prim_func([x, w, z], index_dtype_override="int64")})


def scores() -> Any:
    """Products of each head, with the second operand as it lies: NT."""
    import tvm
    from tvm import te

    q, key = te.placeholder((4, 64, 32), "float16", name="q"), te.placeholder((4, 64, 32), "float16", name="key")
    k = te.reduce_axis((0, 32), name="k")

    def product(h: Any, i: Any, j: Any) -> Any:
        return te.sum(q[h, i, k].astype("float32") * key[h, j, k].astype("float32"), axis=k)

    return tvm.IRModule(
        {
            "main": te.create_prim_func(
                [q, key, te.compute((4, 64, 64), product, name="nt")], index_dtype_override="int64"
            )
        }
    )


CASES: dict[str, Callable[[], Any]] = {"dense": dense, "conv": conv, "scores": scores}


def run(mod: Any) -> Any:
    import tvm

    from tunehub.tir.nodes import buffer_kind, parameters

    kinds = [buffer_kind(buffer) for buffer in parameters(mod["main"])]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(tuple(map(int, kind.shape)), dtype="float32") for kind in kinds]
    arrays[-1][...] = np.nan
    tensors = [tvm.runtime.tensor(array.astype(str(kind.dtype))) for array, kind in zip(arrays, kinds, strict=True)]
    tvm.tirx.build(mod, target=tvm.target.Target(UNOPTIMISED))["main"](*tensors)
    return tensors[-1].numpy().astype("float32")
