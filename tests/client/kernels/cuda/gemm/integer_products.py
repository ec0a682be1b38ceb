"""Products and convolutions of integers of 8 bits as models quantised for CUDA have them, of any extents."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx


def product_of_integers(
    rows: int, columns: int, depth: int, *, types: tuple[str, str] = ("uint8", "int8"), batch: int = 0
) -> Any:
    """A product with weights as [columns, depth], requantised to unsigned bytes."""
    a = te.placeholder((*([batch] if batch else []), rows, depth), types[0], name="a")
    b = te.placeholder((columns, depth), types[1], name="b")
    k = te.reduce_axis((0, depth), name="k")

    def product(*at: Any) -> Any:
        return te.sum(a[(*at[:-1], k)].astype("int32") * b[at[-1], k].astype("int32"), axis=k)

    return _requantised([a, b], te.compute((*a.shape[:-1], columns), product, name="product"))


def convolution_of_integers(
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    *,
    batch: int = 1,
    zero: int = 0,
    types: tuple[str, str] = ("uint8", "int8"),
    added: bool = False,
    padded: bool = True,
) -> Any:
    """A convolution of data [N, H, W, C], padded by ``zero``, with weights [O, H, W, I], requantised; ``added``: with
    another tensor of integers."""
    x = te.placeholder((batch, size, size + 1, channels), types[0], name="x")
    w = te.placeholder((outputs, kernel, kernel, channels), types[1], name="w")
    pad = kernel // 2 if padded else 0
    high, wide = size, size + 1

    def around(n: Any, i: Any, j: Any, c: Any) -> Any:
        inside = tirx.all(i >= pad, i < high + pad, j >= pad, j < wide + pad)
        return tirx.if_then_else(inside, x[n, i - pad, j - pad, c], tirx.const(zero, types[0]))

    data = te.compute((batch, high + 2 * pad, wide + 2 * pad, channels), around, name="padded") if pad else x
    i, j, c = (
        te.reduce_axis((0, extent), name=name) for name, extent in zip("ijc", (kernel, kernel, channels), strict=True)
    )
    y = te.compute(
        (batch, (high + 2 * pad - kernel) // stride + 1, (wide + 2 * pad - kernel) // stride + 1, outputs),
        lambda n, a, b, o: te.sum(
            data[n, a * stride + i, b * stride + j, c].astype("int32") * w[o, i, j, c].astype("int32"), axis=[i, j, c]
        ),
        name="conv",
    )
    other = te.placeholder(y.shape, types[0], name="other") if added else None
    return _requantised([x, w], y, other)


def _requantised(operands: list[Any], sums: Any, other: Any = None) -> Any:
    """(sums + an addend) times a factor, rounded and clipped to unsigned bytes."""
    outputs = sums.shape[-1]
    addend, scale = te.placeholder((outputs,), "int32", name="addend"), te.placeholder((outputs,), "float32", name="s")

    def element(*at: Any) -> Any:
        value = (sums(*at) + addend[at[-1]]).astype("float32") * scale[at[-1]]
        if other is not None:
            value = value + other(*at).astype("float32") * tirx.const(0.25, "float32")
        return tirx.min(tirx.max(tirx.round(value), tirx.const(0, "float32")), tirx.const(255, "float32")).astype(
            "uint8"
        )

    out = te.compute(sums.shape, element, name="out")
    inputs = [*operands, addend, scale, *([] if other is None else [other]), out]
    return tvm.IRModule({"main": te.create_prim_func(inputs, index_dtype_override="int64")})
