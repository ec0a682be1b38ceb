"""RMS norms of open rows in half precision: right for any number of rows, read and written by vectors. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import relax
from tvm.script import relax as R

from tunehub.kernels.cuda.symbolic.row_norms import by_rows
from tunehub.kernels.cuda.symbolic.schedule import by_size
from tunehub.tir.nodes import main_module

from ..scheduled import H200

pytestmark = pytest.mark.slow


def _norm(width: int) -> Any:
    """As Relax's legalisation writes it."""
    builder, rows = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    x = relax.Var("x", R.Tensor((1, rows, width), "float16"))
    weight = relax.Var("weight", R.Tensor((width,), "float16"))
    with builder.function("main", [x, weight]):
        builder.emit_func_output(builder.emit(relax.op.nn.rms_norm(x, weight, axes=[-1], epsilon=1e-5)))
    module = relax.transform.LegalizeOps()(builder.get())
    return next(each for each in module.functions.values() if isinstance(each, tvm.tirx.PrimFunc))


@pytest.mark.parametrize(("width", "rows"), [(4096, 3), (3072, 1), (1024, 70)])
def test_each_row_is_normalised(width: int, rows: int) -> None:
    found = by_size(_norm(width), H200, None)  # type: ignore[arg-type]  # no pieces are asked for
    assert found is not None
    looped = threads_as_loops(found.mod, scopes=r"local|shared.*", all_loops=True)
    library = tvm.compile(looped, target="llvm")
    chance = np.random.default_rng(0)
    x, weight = (chance.standard_normal(shape).astype("float16") for shape in ((1, rows, width), (width,)))
    out = tvm.runtime.tensor(np.full((1, rows, width), np.nan, "float16"))
    library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(weight), out)
    wide = x.astype("float32")
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight.astype("float32")
    np.testing.assert_allclose(out.numpy(), expected, atol=4e-3, rtol=4e-3)


def test_rows_that_vectors_do_not_divide_are_left_to_others() -> None:
    assert by_rows(main_module(_norm(1000))) is None


def test_what_is_read_comes_by_vectors() -> None:
    schedule = by_rows(main_module(_norm(4096)))
    assert schedule is not None
    assert schedule.mod["main"].script().count("T.vectorized(T.int64(8))") == 4  # the row twice, weights, results
