"""Elementwise functions with open rows in half precision: right for any number of them, and read by vectors. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import te, tirx, topi

from tunehub.kernels.cuda.symbolic.elementwise import open_sizes
from tunehub.tir.nodes import main_module

from ..scheduled import H200

pytestmark = pytest.mark.slow


def _gated(width: int, begin: int = 0, dtype: str = "float16") -> Any:
    """SiLU of the first part of a row times the second part."""
    rows = tirx.Var("n", "int64")
    x = te.placeholder((rows, tirx.IntImm("int64", begin + 2 * width)), dtype, name="x")
    shape = (rows, tirx.IntImm("int64", width))
    gate = te.compute(shape, lambda i, j: x[i, j + begin], name="gate")
    up = te.compute(shape, lambda i, j: x[i, j + (begin + width)], name="up")
    out = topi.multiply(topi.multiply(gate, topi.sigmoid(gate)), up)
    return main_module(te.create_prim_func([x, out], index_dtype_override="int64"))


@pytest.mark.parametrize("width", [1024, 14336])
@pytest.mark.parametrize("rows", [1, 5])
def test_each_row_is_computed(width: int, rows: int) -> None:
    found = open_sizes(_gated(width), H200)
    assert found is not None
    looped = threads_as_loops(found.mod, scopes=r"local", all_loops=True)
    library = tvm.compile(looped, target="llvm")
    x = np.random.default_rng(0).standard_normal((rows, 2 * width)).astype("float16")
    out = tvm.runtime.tensor(np.full((rows, width), np.nan, "float16"))
    library["main"](tvm.runtime.tensor(x), out)
    gate, up = x[:, :width].astype("float32"), x[:, width:].astype("float32")
    np.testing.assert_allclose(out.numpy(), gate / (1 + np.exp(-gate)) * up, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize(
    "module", [_gated(1000), _gated(1024, begin=4), _gated(1024, dtype="float32")], ids=["width", "begin", "float32"]
)
def test_what_vectors_do_not_divide_is_left_to_others(module: Any) -> None:
    assert open_sizes(module, H200) is None


def test_reductions_are_left_to_others() -> None:
    rows = tirx.Var("n", "int64")
    x = te.placeholder((rows, tirx.IntImm("int64", 1024)), "float16", name="x")
    module = main_module(te.create_prim_func([x, topi.sum(x, axis=1, keepdims=True)], index_dtype_override="int64"))
    assert open_sizes(module, H200) is None
