"""Kernels for warpgroups whose operands the copy engine brings: run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from tunehub.tir.cuda.ptx.function import Function

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm

from tunehub.kernels.cuda.gemm.hopper import bulk, rule
from tunehub.kernels.cuda.gemm.hopper.bulk import bulk_kernel
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile, suits, tiles
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.hopper.rule import matmul_in
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda import nvrtc
from tunehub.tir.cuda.check import fault
from tunehub.tir.cuda.fault import Fault, NotSimulated
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import buffer_shapes

from ......sweeps import covering, swept
from ...scheduled import H200
from ..half_products import every_other_row, half_product
from .bulk_emulator import run_bulk

pytestmark = pytest.mark.slow

TILES = {
    "alone": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3),
    "rows in common": BulkTile(groups=(1, 1), rows=64, columns=96, stages=4, shared=(1, 2)),
    "weights in common": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3, shared=(2, 1)),
    "both": BulkTile(groups=(1, 1), rows=64, columns=32, stages=3, shared=(2, 2)),
    "two instructions": BulkTile(groups=(2, 1), rows=128, columns=64, stages=3, shared=(1, 2)),
    "more registers": BulkTile(groups=(2, 1), rows=128, columns=192, stages=3),
    "K divided": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3, cluster=4),
    "K divided, both in common": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3, cluster=2, shared=(2, 2)),
}
SMALL = half_product(1, 200, 136, 328, transposed=(False, True))


def _kernel(mod: Any, tile: BulkTile) -> Any:
    matmul = matmul_in(mod)
    assert matmul is not None
    return bulk_kernel(product_of(mod, matmul), tile, default_device())


def _assert_right(mod: Any, tile: BulkTile, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in buffer_shapes(mod["main"])]
    arrays[-1][...] = np.nan
    run_bulk(_kernel(mod, tile), *arrays, seed=seed)
    own = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(mod, "llvm")(*own)
    expected, most = own[-1].numpy().astype("float32"), 2e-3 if arrays[-1].dtype == "float16" else 2e-2
    assert np.abs(arrays[-1].astype("float32") - expected).max() <= most * np.abs(expected).max()


def _at_most(count: int) -> Callable[[BulkTile, int, GpuDevice], int]:
    """Few clusters, which compute several tiles each, one after the other."""
    return lambda tile, clusters, _: clusters if tile.cluster > 1 else min(clusters, count)


@pytest.mark.no_cover
@pytest.mark.parametrize(("several", "tile"), covering([False, True], list(TILES)))
@pytest.mark.few(3)
def test_results_are_right(tile: str, several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BulkTile, "started", _at_most(2 if several else 1 << 20))
    _assert_right(SMALL, TILES[tile], seed=len(tile))


@pytest.mark.no_cover
@pytest.mark.parametrize("shared", [(2, 1), (1, 2)])
def test_blocks_of_a_cluster_beyond_the_end_write_nothing(shared: tuple[int, int]) -> None:
    """Three blocks along the rows and three along the columns."""
    tile = BulkTile(groups=(1, 1), rows=64, columns=64, stages=3, shared=shared)
    _assert_right(half_product(1, 192, 192, 256, transposed=(False, True)), tile, seed=0)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", swept(range(3), range(60)))
@pytest.mark.few(1)
def test_random_products_are_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    monkeypatch.setattr(BulkTile, "started", _at_most(rng.randint(1, 4)))
    monkeypatch.setattr(BulkTile, "band", lambda _, high: 2 if high % 2 == 0 else 1)
    rows, columns, depth = rng.randint(100, 300), rng.randint(100, 300), 8 * rng.randint(40, 70)
    dtype = rng.choice(["float16", "bfloat16"])
    mod = half_product(1, rows, columns, depth, transposed=(False, True), dtype=dtype)
    matmul = matmul_in(mod)
    assert matmul is not None
    _assert_right(mod, rng.choice(list(tiles(matmul, default_device()))), seed)


@pytest.mark.no_cover
def test_a_copy_that_comes_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who brings does not wait until what was there is read."""
    real = bulk.BulkWriter._producer

    def impatient(self: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bulk, "mbarrier_wait", lambda **_: Function("tunehub_ring_registers_0", ""))
            return real(self)

    monkeypatch.setattr(bulk.BulkWriter, "_producer", impatient)
    with pytest.raises(AssertionError):
        _assert_right(SMALL, TILES["alone"], seed=0)


@pytest.mark.no_cover
def test_a_block_that_ends_before_others_have_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others say at its barriers that they have."""
    nothing = Function("tunehub_ring_registers_0", "")
    monkeypatch.setattr(bulk.BulkWriter, "_drain", lambda _: nothing())
    with pytest.raises(AssertionError, match="has ended"):
        _assert_right(SMALL, TILES["both"], seed=0)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.few(2)
def test_kernels_compile_with_maps_of_both_operands(tile: str) -> None:
    function = rule.for_own_target(_kernel(SMALL, TILES[tile]), H200)
    check_function(function.without_attr("target"), SMALL["main"], H200)
    library = tvm.tirx.build(tvm.IRModule({"main": function}), target=H200)
    source = nvrtc.source_of(library)
    assert source.count("const __grid_constant__ CUtensorMap") == 4  # of a declaration and a definition
    assert "cp.async.bulk.tensor.2d" in source
    assert ("multicast::cluster [" in source) == (TILES[tile].shared != (1, 1))
    assert "runtime.cuTensorMapEncodeTiled" in library.inspect_source()


def test_nothing_is_found_wrong_but_too_much_shared_memory() -> None:
    mod = half_product(1, 2048, 2048, 2048, transposed=(False, True))
    tile = BulkTile(groups=(2, 1), rows=64, columns=256, stages=4, shared=(2, 1))
    assert fault(_kernel(mod, tile), H200) == NotSimulated("a function of CUDA C++")
    found = fault(_kernel(mod, BulkTile(groups=(2, 1), rows=64, columns=256, stages=5)), H200)
    assert isinstance(found, Fault) and found.rule == "shared_memory"


def test_every_tile_of_a_large_product_fits() -> None:
    matmul = matmul_in(half_product(1, 1024, 6144, 4096, transposed=(False, True)))
    assert matmul is not None
    found = list(tiles(matmul, default_device()))
    assert {tile.registers for tile in found} == {None, (24, 240)}
    assert {tile.shared for tile in found} >= {(1, 1), (2, 1), (1, 2), (2, 2)}
    assert all(tile.shared_bytes <= 227 << 10 and tile.threads <= 384 for tile in found)


def test_operands_that_are_no_matrices_are_refused() -> None:
    """The copy engine is told of rows that lie behind each other."""
    with pytest.raises(ValueError, match="no matrix whose rows lie behind each other"):
        _kernel(every_other_row(300, 512, 512), TILES["alone"])


@pytest.mark.parametrize(
    ("mod", "served"),
    [
        (half_product(1, 1024, 1024, 2048, transposed=(False, True)), True),
        (half_product(2, 1024, 1024, 2048, transposed=(False, True)), False),
        (half_product(1, 1024, 1024, 2048, transposed=(False, False)), False),
        (half_product(1, 8, 1024, 2048, transposed=(False, True)), False),
    ],
    ids=["a matrix", "a batch", "weights turned", "few rows"],
)
def test_it_serves_matrices_alone(mod: Any, served: bool) -> None:
    matmul = matmul_in(mod)
    assert matmul is not None and suits(matmul) is served
