"""Products of floats of 8 bits with scales of blocks: run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm.hopper import block_scales
from tunehub.kernels.cuda.gemm.hopper.bulk import bulk_kernel
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import PromotedTile
from tunehub.kernels.cuda.gemm.hopper.open_bulk import over_all_rows
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic import eight_bits as open_eight_bits
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda import nvrtc

from ...scheduled import H200
from .bulk_emulator import run_bulk
from .byte_products import block_scaled_arrays, block_scaled_expected, block_scaled_product, byte_product

pytestmark = pytest.mark.slow

TILES = {
    "halves": PromotedTile(groups=(2, 1), rows=64, columns=256, stages=3),
    "two instructions": PromotedTile(groups=(1, 1), rows=128, columns=64, stages=3, shared=(1, 2)),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(1)
def test_results_are_right(tile: str) -> None:
    extents = (200, 328, 464)
    mod, arrays = block_scaled_product(*extents), block_scaled_arrays(*extents)
    matmul = block_scales.matmul_in(mod)
    assert matmul is not None
    kernel = bulk_kernel(block_scales.block_scaled_product(mod, matmul), TILES[tile], default_device())
    run_bulk(kernel, *arrays, seed=1)
    wanted = block_scaled_expected(*arrays)
    assert np.abs(arrays[-1] - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.no_cover
def test_all_of_an_open_number_of_rows_are_computed() -> None:
    whole = open_function(block_scaled_product(tirx.Var("n", "int64"), 328, 464)["main"], shared=True)
    assert whole is not None
    arrays, own = block_scaled_arrays(150, 328, 464), default_device()
    kind = open_eight_bits._SCALED
    run_bulk(over_all_rows(whole, TILES["halves"], own, kind.writer, kind.find), *arrays, seed=1)
    wanted = block_scaled_expected(*arrays)
    assert np.abs(arrays[-1] - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_the_rule_serves() -> None:
    found = by_one(block_scales, block_scaled_product(1000, 4096, 4096, "float16"), H200)
    assert found is not None
    source = nvrtc.source_of(tvm.tirx.build(found[0].mod, target=H200))
    assert "k32.f32.e4m3.e4m3" in source


def _by_channel(columns: int, depth: int) -> Any:
    """A product of 64 rows whose second operand has a scale for each 128 of K of each of its rows."""
    a, b = (te.placeholder((n, depth), "float8_e4m3fn") for n in (64, columns))
    scales = te.placeholder((columns, depth // 128))
    k = te.reduce_axis((0, depth))

    def product(i: tirx.Var, j: tirx.Var) -> Any:
        return te.sum(a[i, k].astype("float32") * (b[j, k].astype("float32") * scales[j, k // 128]), axis=k)

    c = te.compute((64, columns), product)
    return tvm.IRModule({"main": te.create_prim_func([a, b, scales, c], index_dtype_override="int64")})


@pytest.mark.parametrize(
    "mod",
    [byte_product(64, 256, 512, ("float8_e4m3fn",) * 2, "float32"), _by_channel(256, 512)],
    ids=["scales of rows behind it", "scales of each column"],
)
def test_other_scales_are_left_to_others(mod: Any) -> None:
    assert block_scales.match(mod, H200) is None
