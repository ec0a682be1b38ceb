"""Products of rows with the weights of experts: the kernel's code as TVM writes it, run on a CPU. No GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.low_batch.experts import build, candidates, match, open_sizes
from tunehub.kernels.cuda.low_batch.tile import DirectTile
from tunehub.kernels.devices.known import default_device
from tunehub.kernels.te.experts import expert_product
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module

from ..scheduled import H200
from ..symbolic.open_functions import TARGET, open_linear
from .on_cpu import run, weights

pytestmark = pytest.mark.slow

EXPERTS, COLUMNS, DEPTH, CHOSEN = 4, 40, 96, 2


def _module(shared_by: int, bits: int = 16, rows: int | None = None, *, e4m3: bool = False) -> Any:
    """Of an open number of rows, or of as many as are given."""
    count = tirx.Var("n", "int64") if rows is None else tirx.IntImm("int64", rows)
    x = te.placeholder((count if shared_by > 1 else count * CHOSEN, DEPTH), "float16", name="x")
    number = te.placeholder((count, CHOSEN), "int32", name="number")
    own = [te.placeholder((EXPERTS, COLUMNS, DEPTH), "float16", name="w")]
    if e4m3:
        numbers = te.placeholder((EXPERTS, COLUMNS, DEPTH), "float8_e4m3fn", name="w")
        own = [numbers, te.placeholder((EXPERTS, COLUMNS), "float32", name="s")]
    elif bits < 16:
        words = te.placeholder((EXPERTS, COLUMNS, DEPTH * bits // 32), "uint32", name="w")
        own = [words, te.placeholder((EXPERTS, COLUMNS, DEPTH // 32), "float16", name="s")]
    made = expert_product(x, number, own, shared_by=shared_by, bits=bits % 16)
    return main_module(te.create_prim_func([x, number, *own, made], index_dtype_override="int64"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "tile",
    [DirectTile(tiles=1, warps=(1, 2), unroll=1, depth=2), DirectTile(tiles=1, warps=(2, 4), unroll=1, depth=1)],
    ids=["many chunks of numbers", "warps along columns"],
)
@pytest.mark.parametrize(("bits", "e4m3"), [(16, False), (8, False), (4, False), (8, True)])
@pytest.mark.parametrize("shared_by", [CHOSEN, 1], ids=["rows in common", "rows of their own"])
@pytest.mark.few(2)
def test_each_row_has_the_products_of_its_experts(
    shared_by: int, bits: int, e4m3: bool, tile: DirectTile, tmp_path: Path
) -> None:
    rows, chance = 45, np.random.default_rng(bits)
    workload = match(_module(shared_by, bits, e4m3=e4m3), H200)
    assert workload is not None
    source = source_of(tvm.tirx.build(build(workload, tile).mod, target=H200))
    parts = [weights(bits, COLUMNS, DEPTH, seed=each, e4m3=e4m3) for each in range(EXPERTS)]
    own = [np.stack(each) for each in zip(*(stored for stored, _ in parts), strict=True)]
    numbers = np.stack([chance.permutation(EXPERTS - 1)[:CHOSEN] for _ in range(rows)]).astype(np.int32)
    x = chance.standard_normal((rows if shared_by > 1 else rows * CHOSEN, DEPTH)).astype(np.float16)
    out = np.full((rows * CHOSEN + 1, COLUMNS), 7, np.float16)
    given = {"x": x, "number": numbers, "w": own[0], "s": own[-1], "expert_rows": out, "n": rows}
    run(source, given, (-(-COLUMNS // tile.columns), EXPERTS), tmp_path)
    flat = numbers.reshape(-1)
    expected = np.stack([x[at // shared_by].astype(np.float32) @ parts[e][1].T for at, e in enumerate(flat)])
    np.testing.assert_allclose(out[:-1], expected, rtol=4e-3, atol=4e-2)
    assert (out[-1] == 7).all()


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("rows", [None, 1], ids=["open", "one"])
def test_open_and_known_rows_have_a_kernel_that_is_checked_and_compiled(rows: int | None, bits: int) -> None:
    mod = _module(CHOSEN, bits, rows)
    workload = match(mod, H200)
    assert workload is not None
    (candidate,) = candidates(workload, default_device())
    made = build(workload, candidate.tile).mod
    check_function(made["main"], mod["main"], H200)
    assert "experts" in source_of(tvm.tirx.build(made, target=H200))


def test_other_functions_have_none() -> None:
    assert match(open_linear(64, 128), H200) is None
    assert open_sizes(open_linear(64, 128), TARGET) is None
