"""Rows in e4m3 with their scales: which functions get the kernel, and that it compiles. It is run on GPUs alone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.rows.narrowed import open_sizes
from tunehub.kernels.te.e4m3 import rows_in_e4m3
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.nodes import main_module

from ..scheduled import H200

pytestmark = pytest.mark.slow


def _function(length: int, dtype: str, *, halved: bool = False) -> Any:
    x = te.placeholder((1, tirx.Var("n", "int64"), length), dtype)
    scales, numbers = rows_in_e4m3(x)
    out = te.compute(scales.shape, lambda *at: scales(*at) / 2) if halved else scales
    return main_module(te.create_prim_func([x, out, numbers], index_dtype_override="int64"))


@pytest.mark.parametrize(("length", "dtype"), [(4096, "float16"), (136, "bfloat16")])
def test_rows_are_read_once_by_a_block_each(length: int, dtype: str) -> None:
    made = open_sizes(_function(length, dtype), H200)
    assert made is not None
    assert "::narrowed(" in source_of(tvm.tirx.build(made.mod, target=H200))


def test_other_functions_and_gpus_have_no_such_kernel() -> None:
    older = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_num_threads": 1024})
    assert open_sizes(_function(4096, "float16", halved=True), H200) is None
    assert open_sizes(_function(100, "float16"), H200) is None
    assert open_sizes(_function(4096, "float16"), older) is None
