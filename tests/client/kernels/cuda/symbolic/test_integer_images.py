"""Convolutions of integers of an open number of images: by a GPU of NumPy, and what serves them. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper import eight_bits
from tunehub.kernels.cuda.gemm.hopper.open_rows import over_rows
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic.eight_bits import open_sizes

from ..gemm.hopper.emulator import run
from ..gemm.integer_products import convolution_of_integers
from ..scheduled import H200

pytestmark = pytest.mark.slow


def _convolution(batch: Any) -> Any:
    return convolution_of_integers(9, 32, 48, 3, 2, batch=batch, zero=3)


@pytest.mark.no_cover  # what writes kernels is covered by the next test
def test_results_are_those_of_a_cpu_to_the_bit() -> None:
    whole = open_function(_convolution(tirx.Var("n", "int64"))["main"])
    assert whole is not None
    tile = WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=3)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (3, 9, 10, 32)).astype("uint8"),
        rng.integers(-128, 128, (48, 3, 3, 32)).astype("int8"),
        rng.integers(-1000, 1000, 48).astype("int32"),
        (rng.random(48) * 2e-3).astype("float32"),
        np.zeros((3, 5, 5, 48), "uint8"),
    ]
    run(over_rows(whole, tile, eight_bits.matmul_in), *arrays)
    own = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(_convolution(3), "llvm")(*own)
    assert 0 < arrays[-1].mean() < 250 and np.array_equal(arrays[-1], own[-1].numpy())


def test_kernels_for_warpgroups_serve_windows_and_images_that_are_stepped_over() -> None:
    stepped = convolution_of_integers(8, 64, 64, 1, 2, batch=tirx.Var("n", "int64"))
    for mod in (_convolution(tirx.Var("n", "int64")), stepped):
        found = open_sizes(mod, H200)
        assert found is not None and "tunehub_wgmma_bytes" in found.mod.script()
