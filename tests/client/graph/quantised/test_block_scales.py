"""Floats of 8 bits with scales of blocks in a graph: their product is one kernel, with results of numpy, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import relax
from tvm.relax import op

from tunehub.graph.products import gpu_products
from tunehub.tir.nodes import calls_in, operator_of, tensor_class

from ...kernels.cuda.scheduled import H200

pytestmark = pytest.mark.slow
E4M3, ROWS, COLUMNS, DEPTH = "float8_e4m3fn", 5, 128, 256


def _product(columns: int = 128) -> Any:
    """Of rows with scales for 128 of K, and weights with scales for as many ``columns``, too."""
    tensor = tensor_class()
    x, w = relax.Var("x", tensor((ROWS, DEPTH), E4M3)), relax.Var("w", tensor((COLUMNS, DEPTH), E4M3))
    of_x = relax.Var("of_x", tensor((ROWS, DEPTH // 128), "float32"))
    of_w = relax.Var("of_w", tensor((COLUMNS // columns, DEPTH // 128), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, of_x, w, of_w]):
        with builder.dataflow():
            wide_x = builder.emit(op.multiply(op.astype(x, "float32"), op.repeat(of_x, 128, 1)))
            scales = builder.emit(op.repeat(op.repeat(of_w, columns, 0), 128, -1))
            wide_w = builder.emit(op.multiply(scales, builder.emit(op.astype(w, "float32"))))
            result = builder.emit_output(op.matmul(wide_x, op.permute_dims(wide_w)))
        builder.emit_func_output(result)
    with H200:
        return gpu_products(builder.get())


def test_scales_of_blocks_are_part_of_a_product() -> None:
    mod = _product()
    assert [operator_of(call) for call in calls_in(mod)] == ["relax.call_tir"]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((n, DEPTH)).astype(E4M3) for n in (ROWS, COLUMNS))
    of_x, of_w = (rng.uniform(0.5, 1.0, (n, DEPTH // 128)).astype("float32") for n in (ROWS, 1))
    wide_x, wide_w = (a.astype("float32") * np.repeat(s, 128, 1) for a, s in ((x, of_x), (w, of_w)))
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, (x, of_x, w, of_w))).numpy()
    np.testing.assert_allclose(found, wide_x @ wide_w.T, atol=0.1)  # TVM computes what is of 8 bits in float16 there


def test_scales_of_each_column_stay() -> None:
    assert "relax.repeat" in [operator_of(call) for call in calls_in(_product(columns=1))]
