"""Products of operands of 8 bits, with scales of rows and columns behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


def byte_product(rows: Any, columns: int, depth: int, dtypes: tuple[str, str], out: str) -> Any:
    """A product whose rows and columns have scales, in the type ``out``: rounded and clipped to 8 bits. ``rows``: a
    number, or a symbol."""
    total = "int32" if dtypes[0] in LIMITS else "float32"
    a, b = (te.placeholder((n, depth), t, f"x{t}") for n, t in zip((rows, columns), dtypes, strict=True))
    of_rows, of_columns = te.placeholder((rows, 1), name="of_rows"), te.placeholder((columns,), name="of_columns")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k].astype(total) * b[j, k].astype(total), axis=k), "c")
    scaled = te.compute(c.shape, lambda i, j: c[i, j].astype("float32") * of_rows[i, 0] * of_columns[j], "scaled")

    def written(i: Any, j: Any) -> Any:
        if out not in LIMITS:
            return scaled[i, j].astype(out)
        low, high = (tirx.const(float(each), "float32") for each in LIMITS[out])
        return te.max(te.min(te.round(scaled[i, j]), high), low).astype(out)

    d = te.compute(c.shape, written, name="out")
    return tvm.IRModule({"main": te.create_prim_func([a, b, of_rows, of_columns, d], index_dtype_override="int64")})


def byte_arrays(rows: int, columns: int, depth: int, dtypes: tuple[str, str], out: str, seed: int) -> list[Any]:
    """Its operands, and room for its results."""
    rng = np.random.default_rng(seed)

    def operand(extent: int, dtype: str) -> Any:
        if dtype in LIMITS:
            low, high = LIMITS[dtype]
            return rng.integers(low, high + 1, (extent, depth)).astype(dtype)
        return rng.standard_normal((extent, depth)).astype(dtype)

    most = 30.0 if dtypes[0] not in LIMITS else 500000.0
    scales = [rng.uniform(0.5, 1.0, shape).astype("float32") for shape in ((rows, 1), (columns,))]
    scales[1] *= np.float32(100.0 / most)
    operands = [operand(n, t) for n, t in zip((rows, columns), dtypes, strict=True)]
    return [*operands, *scales, np.zeros((rows, columns), out)]


def expected(a: Any, b: Any, of_rows: Any, of_columns: Any, out: Any) -> Any:
    """In float64."""
    scaled = a.astype("float64") @ b.astype("float64").T * of_rows * of_columns
    return np.clip(np.rint(scaled), *LIMITS[str(out.dtype)]) if str(out.dtype) in LIMITS else scaled


def block_scaled_product(rows: Any, columns: int, depth: int, out: str = "float32") -> Any:
    """A product of e4m3 whose operands have scales of 128 of K, and of 128 columns of B."""
    dtype, blocks = "float8_e4m3fn", -(-depth // 128)
    a, b = (te.placeholder((n, depth), dtype, name) for n, name in ((rows, "a"), (columns, "b")))
    of_a = te.placeholder((rows, blocks), name="of_a")
    of_b = te.placeholder((-(-columns // 128), blocks), name="of_b")
    wide_a = te.compute(a.shape, lambda i, k: a[i, k].astype("float32") * of_a[i, k // 128], name="wide_a")
    wide_b = te.compute(b.shape, lambda j, k: b[j, k].astype("float32") * of_b[j // 128, k // 128], name="wide_b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(wide_a[i, k] * wide_b[j, k], axis=k), name="c")
    d = te.compute(c.shape, lambda i, j: c[i, j].astype(out), name="out")
    return tvm.IRModule({"main": te.create_prim_func([a, of_a, b, of_b, d], index_dtype_override="int64")})


def block_scaled_arrays(rows: int, columns: int, depth: int, out: str = "float32") -> list[Any]:
    """Its operands, and room for its results."""
    rng, blocks = np.random.default_rng(rows), -(-depth // 128)
    a, b = (rng.standard_normal((n, depth)).astype("float8_e4m3fn") for n in (rows, columns))
    of_a, of_b = (rng.uniform(0.1, 1.0, (n, blocks)).astype("float32") for n in (rows, -(-columns // 128)))
    return [a, of_a, b, of_b, np.zeros((rows, columns), out)]


def block_scaled_expected(a: Any, of_a: Any, b: Any, of_b: Any, _out: Any) -> Any:
    """In float64."""
    wide_a, wide_b = (
        each.astype("float64") * np.repeat(scales, 128, 1)[:, : each.shape[1]]
        for each, scales in ((a, of_a), (b, np.repeat(of_b, 128, 0)[: b.shape[0]]))
    )
    return wide_a @ wide_b.T
