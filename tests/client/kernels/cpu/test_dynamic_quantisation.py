"""Tensors quantised by their own extremes are numpy's, to the last integer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import tirx

from tunehub.kernels.cpu.dynamic_quantisation import quantising_function

from ....cpu_features import AVX2, AVX512, cpu, here

Array = npt.NDArray[Any]
pytestmark = pytest.mark.slow

LANES = {AVX512: 16, AVX2: 8, "x86-64": 4}


def expected(x: Array) -> tuple[Array, Array, Array]:
    low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    scale = np.float32(high - low) / np.float32(255) or np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return np.clip(np.rint(x / scale) + zero, 0, 255), scale, zero


@pytest.mark.few(8)
@pytest.mark.parametrize("model", here(AVX512, AVX2, "x86-64"))
@pytest.mark.parametrize("shape", [(1, 1, 896), (2, 7, 48), (3, 40, 512)])
@pytest.mark.parametrize("open_rows", [True, False])
def test_integers_scale_and_zero_point_are_exact(model: str, shape: tuple[int, ...], open_rows: bool) -> None:
    extents = [tirx.Var("batch", "int64") if open_rows else shape[0], *shape[1:]]
    function = quantising_function(extents, LANES[model]).with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), target=cpu(model))
    rng = np.random.default_rng(1)
    for x in (rng.standard_normal(shape), rng.uniform(1, 2, shape), rng.uniform(-2, -1, shape), np.zeros(shape)):
        given = x.astype("float32")
        results = [
            tvm.runtime.tensor(np.full(*each)) for each in ((shape, 9, "uint8"), ((), 9, "float32"), ((), 9, "uint8"))
        ]
        library["main"](tvm.runtime.tensor(given), *results)
        for found, wanted in zip(results, expected(given), strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)
