"""Functions with open axes for CUDA, and how far their results are from numpy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx, topi

from tunehub.tir.nodes import main_module

TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
Array = np.ndarray[Any, Any]


def function_of(*tensors: Any) -> Any:
    return main_module(te.create_prim_func(list(tensors)))["main"]


def tensor(name: str, *shape: Any) -> Any:
    """With extents of 64 bits, as those of Relax's functions are."""
    return te.placeholder([tirx.IntImm("int64", each) if isinstance(each, int) else each for each in shape], name=name)


def variables(*names: str) -> list[Any]:
    return [tirx.Var(name, "int64") for name in names]


def open_rows(depth: int = 48, columns: int = 40) -> tuple[Any, Callable[..., Any]]:
    """A product with bias and a residual."""
    (rows,) = variables("rows")
    first, second = tensor("first", rows, depth), tensor("second", depth, columns)
    bias, other = tensor("bias", columns), tensor("other", rows, columns)
    sums = topi.add(topi.add(topi.nn.matmul(first, second), bias), other)
    function = function_of(first, second, bias, other, sums)
    shapes = ((depth, columns), (columns,))
    return function, lambda n: (
        [(n, depth), *shapes, (n, columns), (n, columns)],
        lambda first, second, bias, other: first @ second + bias + other,
    )


def largest_error(library: Any, shapes: Sequence[tuple[int, ...]], expected: Callable[..., Array]) -> float:
    rng = np.random.default_rng(0)
    *inputs, last = shapes
    arrays = [rng.uniform(-1, 1, shape).astype("float32") for shape in inputs]
    result = tvm.runtime.tensor(np.full(last, np.nan, "float32"))
    library["main"](*map(tvm.runtime.tensor, arrays), result)
    return float(np.abs(result.numpy() - expected(*arrays)).max())


def open_linear(columns: int, depth: int, dtype: str = "float16", lead: tuple[int, ...] = ()) -> Any:
    """An open number of rows, times weights as they lie, plus a bias."""
    rows = tirx.Var("n", "int64")
    x = te.placeholder((*lead, rows, depth), dtype, name="x")
    w, bias = te.placeholder((columns, depth), dtype, name="w"), te.placeholder((columns,), dtype, name="bias")
    k = te.reduce_axis((0, depth), name="k")

    def product(*at: Any) -> Any:
        return te.sum(x[(*at[:-1], k)].astype("float32") * w[at[-1], k].astype("float32"), axis=k)

    y = te.compute((*lead, rows, columns), product, name="product")
    z = te.compute(y.shape, lambda *at: y(*at).astype(dtype) + bias[at[-1]], name="out")
    return main_module(te.create_prim_func([x, w, bias, z], index_dtype_override="int64"))
