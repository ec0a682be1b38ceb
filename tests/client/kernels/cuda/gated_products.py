"""SiLU(gate) · up as functions, and what they are."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tvm import te, tirx

from tunehub.kernels.cuda.low_batch.gated_functions import gated_quantised_product
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, Format
from tunehub.kernels.te.products import gated_packed_product, gated_product
from tunehub.tir.nodes import main_module

from .low_batch.on_cpu import weights

Array = npt.NDArray[Any]


def open_gated(half: int, depth: int, dtype: str = "float16", *, rows: int | None = None) -> Any:
    """An open number of rows [1, n, K], or a known one, times weights [2 · half, K]."""
    n = tirx.Var("n", "int64") if rows is None else rows
    x, w = te.placeholder((1, n, depth), dtype, name="x"), te.placeholder((2 * half, depth), dtype, name="w")
    return main_module(te.create_prim_func([x, w, gated_product(x, w)], index_dtype_override="int64"))


def open_gated_in_e4m3(half: int, depth: int, dtype: str = "float16", *, rows: int | None = None) -> Any:
    """As :func:`open_gated`, of weights in e4m3 with scales of their rows; ``rows``: a known number of them."""
    n = tirx.Var("n", "int64") if rows is None else rows
    x = te.placeholder((1, n, depth), dtype, name="x")
    w, s = (
        te.placeholder((2 * half, depth), "float8_e4m3fn", name="w"),
        te.placeholder((2 * half,), "float32", name="s"),
    )
    return main_module(te.create_prim_func([x, w, s, gated_packed_product(x, w, s)], index_dtype_override="int64"))


def open_gated_in_groups(
    half: int, depth: int, dtype: str = "float16", *, rows: int | None = None, form: Format = QUANTISED[0]
) -> Any:
    """As :func:`open_gated`, of weights in groups of 4 bits, or in another ``form``."""
    n = tirx.Var("n", "int64") if rows is None else rows
    x = te.placeholder((1, n, depth), dtype, name="x")
    w = te.placeholder((2 * half, depth // form.per_element), form.stored, name="w")
    s = te.placeholder((2 * half, depth // form.group), dtype, name="s")
    found = [x, w, s, gated_quantised_product(x, w, s, form=form)]
    return main_module(te.create_prim_func(found, index_dtype_override="int64"))


def operands_in_groups(rows: int, half: int, depth: int, seed: int, bits: int = 4) -> tuple[Array, Array, Array, Array]:
    """x, words and scales of weights, and the result in float32."""
    (words, scales), wide = weights(bits, 2 * half, depth, seed)
    scales, wide = (each / each.dtype.type(2 ** (bits - 1)) for each in (scales, wide))
    x = np.random.default_rng(seed).standard_normal((1, rows, depth)).astype("float16")
    gate, up = np.split(x.astype("float32") @ wide.T, 2, -1)
    return x, words, scales, gate / (1 + np.exp(-gate)) * up


def operands_in_e4m3(rows: int, half: int, depth: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """x, w, scales of its rows, and the result in float32."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((1, rows, depth)).astype("float16"), rng.standard_normal((2 * half, depth)) * 16
    numbers, scales = w.astype(ml_dtypes.float8_e4m3fn), rng.uniform(0.004, 0.04, 2 * half).astype("float32")
    gate, up = np.split(x.astype("float32") @ (numbers.astype("float32") * scales[:, None]).T, 2, -1)
    return x, numbers, scales, gate / (1 + np.exp(-gate)) * up


def gated_operands(rows: int, half: int, depth: int, seed: int) -> tuple[Array, Array, Array]:
    """x, w, and the result in float32."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape).astype("float16") for shape in ((1, rows, depth), (2 * half, depth)))
    wide = x.astype("float32") @ (w.T.astype("float32") / np.float32(4))
    gate, up = wide[..., :half], wide[..., half:]
    return x, (w / np.float16(4)).astype("float16"), gate / (1 + np.exp(-gate)) * up
