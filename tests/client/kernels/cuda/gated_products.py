"""SiLU(gate) · up as functions, and what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx

from tunehub.kernels.te.products import gated_product
from tunehub.tir.nodes import main_module

Array = npt.NDArray[Any]


def open_gated(half: int, depth: int, dtype: str = "float16") -> Any:
    """An open number of rows [1, n, K] times weights [2 · half, K]."""
    rows = tirx.Var("n", "int64")
    x, w = te.placeholder((1, rows, depth), dtype, name="x"), te.placeholder((2 * half, depth), dtype, name="w")
    return main_module(te.create_prim_func([x, w, gated_product(x, w)], index_dtype_override="int64"))


def gated_operands(rows: int, half: int, depth: int, seed: int) -> tuple[Array, Array, Array]:
    """x, w, and the result in float32."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape).astype("float16") for shape in ((1, rows, depth), (2 * half, depth)))
    wide = x.astype("float32") @ (w.T.astype("float32") / np.float32(4))
    gate, up = wide[..., :half], wide[..., half:]
    return x, (w / np.float16(4)).astype("float16"), gate / (1 + np.exp(-gate)) * up
