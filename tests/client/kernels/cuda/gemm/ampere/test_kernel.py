"""Kernels for warps of products of integers: run by a GPU of NumPy, and followed by the static check."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm

from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm.ampere import rule
from tunehub.kernels.cuda.gemm.ampere.kernel import _WarpWriter, kernel
from tunehub.kernels.cuda.gemm.ampere.tiles import WarpTile, tiles
from tunehub.kernels.cuda.gemm.hopper import eight_bits
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda.check import fault
from tunehub.tir.cuda.fault import Fault
from tunehub.tir.nodes import buffer_shapes

from ......sweeps import covering, swept
from ...scheduled import H200
from ..half_products import half_product
from ..hopper.emulator import run
from ..integer_products import convolution_of_integers, product_of_integers

pytestmark = pytest.mark.slow

TILES = {
    "warps along both": WarpTile(warps=(2, 2), rows=32, columns=32, stages=3),
    "one warp": WarpTile(warps=(1, 1), rows=16, columns=32, stages=2),
    "many fragments": WarpTile(warps=(2, 1), rows=64, columns=64, stages=4),
}
MODULES = {
    "uneven": product_of_integers(70, 88, 336),
    "columns that no vector divides": product_of_integers(33, 90, 128, types=("int8", "int8")),
    "strided, padded by a zero point": convolution_of_integers(9, 32, 48, 3, 2, batch=2, zero=3),
    "added to": convolution_of_integers(6, 64, 80, 1, added=True, types=("int8", "uint8")),
}


def _kernel(mod: Any, tile: WarpTile) -> Any:
    workload = rule.match(mod, H200)
    assert workload is not None
    return kernel(product_of(mod, workload.matmul), tile, default_device().block_shared_memory)


def _random(shape: Any, dtype: str, rng: Any) -> Any:
    if dtype == "float32":
        return (10 ** rng.uniform(-6.5, -2.5, shape)).astype(dtype)
    low, high = (-1000, 1000) if dtype == "int32" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)


@pytest.mark.no_cover  # what writes kernels is covered by the check's test
@pytest.mark.parametrize(("tile", "name"), covering(list(TILES), list(MODULES)))
@pytest.mark.few(4)
def test_results_are_those_of_a_cpu_to_the_bit(name: str, tile: str) -> None:
    _assert_right(MODULES[name], _kernel(MODULES[name], TILES[tile]))


def _assert_right(mod: Any, written: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [_random(shape, dtype, rng) for shape, dtype in buffer_shapes(mod["main"])]
    run(written, *arrays)
    own = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(mod, "llvm")(*own)
    assert len(np.unique(arrays[-1])) > 10
    assert np.array_equal(arrays[-1], own[-1].numpy())


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", swept(range(2), range(60)))
def test_random_convolutions_are_right_by_warps_and_by_warpgroups(seed: int) -> None:
    rng = Random(seed)
    kernel, stride, types = rng.choice((1, 2, 3, 5)), rng.randint(1, 2), ("uint8", "int8")
    mod = convolution_of_integers(
        rng.randint(5, 12), 16 * rng.randint(1, 5), 4 * rng.randint(4, 30), kernel, stride, batch=rng.randint(1, 3),
        zero=rng.choice((0, 7)), types=(rng.choice(types), rng.choice(types)), added=rng.random() < 0.5,
    )  # fmt: skip
    workload, other = rule.match(mod, H200), eight_bits.match(mod, H200)
    assert workload is not None and other is not None
    _assert_right(mod, _kernel(mod, rng.choice(list(tiles(workload.matmul, default_device())))))
    _, tile = rng.choice([each for each in eight_bits.ranked(other.matmul, default_device(), 40) if _copies(each[1])])
    _assert_right(mod, eight_bits.build(other, tile).mod["main"])


def _copies(tile: Any) -> bool:
    """Whether it is of a kernel whose threads copy."""
    return isinstance(tile, WarpgroupTile)


@pytest.mark.parametrize(("tile", "name"), covering(list(TILES), list(MODULES)))
@pytest.mark.few(4)
def test_nothing_is_wrong_with_a_kernel(name: str, tile: str) -> None:
    assert fault(_kernel(MODULES[name], TILES[tile]), H200) is None


def test_what_is_added_to_products_is_copied_into_shared_memory() -> None:
    staged, plain = (_kernel(MODULES[name], TILES["warps along both"]).script() for name in ("added to", "uneven"))
    assert "reinterpret" in staged and "reinterpret" not in plain


def test_copies_into_what_is_still_read_are_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_WarpWriter, "_ahead", lambda self: self.tile.stages)
    found = fault(_kernel(product_of_integers(64, 64, 1024), TILES["warps along both"]), H200)
    assert isinstance(found, Fault) and found.rule == "race"


def test_the_rule_serves_a_convolution_by_the_tile_that_should_take_least() -> None:
    mod = convolution_of_integers(14, 64, 64, 3, batch=2)
    workload, found = rule.match(mod, H200), by_one(rule, mod, H200)
    assert workload is not None and found is not None
    first = next(iter(rule.candidates(workload, default_device())))
    assert (
        first.seconds
        == found[1]
        == min(
            rule.seconds(workload.matmul, tile, default_device()) for tile in tiles(workload.matmul, default_device())
        )
    )


def test_channels_that_no_copy_divides_and_other_types_are_left_to_others() -> None:
    with pytest.raises(NoTileError, match="16 neighbours"):
        by_one(rule, convolution_of_integers(9, 24, 32, 3), H200)
    assert rule.match(half_product(1, 64, 64, 64, transposed=(False, True)), H200) is None
    assert rule.match(product_of_integers(64, 64, 64), tvm.target.Target({"kind": "cuda", "arch": "sm_75"})) is None
