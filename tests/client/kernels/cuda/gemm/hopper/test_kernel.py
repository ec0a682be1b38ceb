"""Kernels for warpgroups: run by a GPU of NumPy, and followed by the static check."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tunehub.tir.cuda.ptx.cp_async import cp_async_commit
from tunehub.tir.cuda.ptx.function import Function

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, topi

from tunehub.kernels.cuda.gemm.hopper import kernel as kernels
from tunehub.kernels.cuda.gemm.hopper.kernel import kernel
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.hopper.rule import matmul_in
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, tiles
from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
from tunehub.tir.cuda.check import fault
from tunehub.tir.cuda.fault import Fault, NotSimulated
from tunehub.tir.nodes import buffer_shapes

from ......sweeps import covering, swept
from ...scheduled import H200
from ..half_products import half_nhwc_conv, half_product
from .emulator import run

pytestmark = pytest.mark.slow

TILES = {
    "one warpgroup": WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=4),
    "rows": WarpgroupTile(groups=(2, 1), rows=64, columns=64, stages=3),
    "columns": WarpgroupTile(groups=(1, 2), rows=64, columns=64, stages=3),
    "two instructions": WarpgroupTile(groups=(2, 1), rows=128, columns=64, stages=3),
    "K divided": WarpgroupTile(groups=(2, 1), rows=64, columns=64, stages=3, cluster=2),
    "K divided by more than there is": WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=4, cluster=4),
}
MODULES = {
    "weights as they lie": half_product(2, 150, 88, 328, transposed=(False, True)),
    "weights turned": half_product(2, 150, 88, 328, transposed=(False, False)),
    "columns that no vector divides": half_product(1, 70, 90, 64, transposed=(False, True)),
    "strided convolution": half_nhwc_conv(),
    "bfloat16": half_product(1, 70, 72, 136, transposed=(False, True), dtype="bfloat16"),
}


def _kernel(mod: Any, tile: WarpgroupTile) -> Any:
    matmul = matmul_in(mod)
    assert matmul is not None
    return kernel(product_of(mod, matmul), tile)


@pytest.mark.no_cover  # what writes kernels is covered by the check's test
@pytest.mark.parametrize(("tile", "name"), covering(list(TILES), list(MODULES)))
@pytest.mark.few(3)
def test_results_are_right(name: str, tile: str) -> None:
    _assert_right(MODULES[name], TILES[tile])


def _assert_right(mod: Any, tile: WarpgroupTile) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in buffer_shapes(mod["main"])]
    arrays[-1][...] = np.nan
    run(_kernel(mod, tile), *arrays)
    own = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(mod, "llvm")(*own)
    expected, most = own[-1].numpy().astype("float32"), 2e-3 if arrays[-1].dtype == "float16" else 2e-2
    assert np.abs(arrays[-1].astype("float32") - expected).max() <= most * np.abs(expected).max()


@pytest.mark.parametrize(("tile", "name"), covering(list(TILES), list(MODULES)))
@pytest.mark.few(4)
def test_nothing_is_wrong_with_a_kernel(name: str, tile: str) -> None:
    assert fault(_kernel(MODULES[name], TILES[tile]), H200) is None


def test_every_tile_that_suits_fits_the_shared_memory_of_a_block() -> None:
    mod = half_product(1, 512, 512, 4096, transposed=(False, True))
    matmul = matmul_of(mod)
    assert matmul is not None
    found = list(tiles(matmul))
    assert any(tile.shared_bytes > 128 << 10 for tile in found)
    largest = max(found, key=lambda tile: tile.shared_bytes)
    assert not isinstance(fault(_kernel(mod, largest), H200), Fault)


def test_a_block_that_takes_more_shared_memory_than_there_is_is_found() -> None:
    tile = WarpgroupTile(groups=(2, 1), rows=64, columns=128, stages=8)
    found = fault(_kernel(half_product(1, 128, 128, 64, transposed=(False, True)), tile), H200)
    assert isinstance(found, Fault) and found.rule == "shared_memory"


def test_a_ring_with_too_few_stages_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that go where others still read: each one goes two stages too far."""
    monkeypatch.setattr(kernels, "AHEAD", 0)
    tile = TILES["rows"]
    found = fault(_kernel(half_product(1, 128, 128, 1024, transposed=(False, True)), tile), H200)
    assert isinstance(found, Fault) and found.rule == "race"


def test_products_of_what_nobody_copied_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.KernelWriter, "_load_stage", lambda *_: [cp_async_commit()(), cp_async_commit()()])
    found = fault(_kernel(half_product(1, 64, 64, 256, transposed=(False, True)), TILES["one warpgroup"]), H200)
    assert isinstance(found, Fault) and found.rule == "unwritten_read"


def test_a_function_of_another_ones_source_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Function("tunehub_something", "void tunehub_something() {}")
    monkeypatch.setattr(kernels, "cp_async_commit", lambda: other)
    found = fault(_kernel(half_product(1, 64, 64, 64, transposed=(False, True)), TILES["one warpgroup"]), H200)
    assert found == NotSimulated("a function of CUDA C++")


def test_operands_that_start_between_copies_are_refused() -> None:
    """Columns 4 to 67 of a wider matrix lie behind each other, but no copy of 16 bytes begins at the fourth."""
    a = te.placeholder((64, 72), "float16", name="a")
    b = te.placeholder((64, 64), "float16", name="b")
    part = te.compute((64, 64), lambda i, j: a[i, j + 4], name="part")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute(
        (64, 64), lambda i, j: te.sum(part[i, k].astype("float32") * b[j, k].astype("float32"), axis=k), name="c"
    )
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c], index_dtype_override="int64")})
    with pytest.raises(ValueError, match="do not lie behind each other"):
        _kernel(mod, TILES["one warpgroup"])


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", swept(range(3), range(60)))
@pytest.mark.few(1)
def test_results_are_right_for_random_extents_and_tiles(seed: int) -> None:
    rng = Random(seed)
    rows, columns, depth = rng.randint(1, 150), 8 * rng.randint(5, 20), 8 * rng.randint(1, 60)
    mod = half_product(rng.randint(1, 2), rows, columns, depth, transposed=(False, rng.random() < 0.5))
    matmul = matmul_of(mod)
    if matmul is None:
        pytest.skip("a product of one row")
    tile = rng.choice(list(tiles(matmul)))
    _assert_right(mod, tile)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", swept(range(2), range(40)))
def test_random_convolutions_are_right(seed: int) -> None:
    rng = Random(seed)
    size, kernel, channels = rng.randint(5, 12), rng.choice((1, 2, 3, 5)), 8 * rng.randint(1, 6)
    x = te.placeholder((rng.randint(1, 3), size, size + 1, channels), "float16", name="x")
    w = te.placeholder((kernel, kernel, channels, 8 * rng.randint(5, 12)), "float16", name="w")
    strides, dilation = rng.randint(1, 2), rng.randint(1, 1 if kernel == 5 else 2)
    y = topi.nn.conv2d_nhwc(x, w, strides, rng.randint(0, kernel // 2), dilation, out_dtype="float32")
    z = te.compute(y.shape, lambda *i: te.max(y(*i), te.const(0, "float32")).astype("float16"), name="relu")
    mod = tvm.IRModule({"main": te.create_prim_func([x, w, z], index_dtype_override="int64")})
    matmul = matmul_of(mod)
    assert matmul is not None
    _assert_right(mod, rng.choice(list(tiles(matmul))))
