"""The kernel for products with few rows: its CUDA code, as TVM puts it into a function, computes the right results.

On a CPU: threads take turns, copies happen where they are waited for, tensor cores are loops. No GPU.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

import tvm

from tunehub.kernels.cuda.gemm.hopper.rule import for_own_target
from tunehub.kernels.cuda.low_batch.product import find_product
from tunehub.kernels.cuda.low_batch.schedule import apply
from tunehub.kernels.cuda.low_batch.shared_memory import fits
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.nodes import main_module

from .....sweeps import swept
from ..scheduled import H200
from .on_cpu import run, weights
from .products import product

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    """A product with a bias, and a tile."""

    rows: tuple[int, ...]
    columns: int
    depth: int
    bits: int
    tile: AnyTile
    dtype: str = "float16"
    e4m3: bool = False


def _registers(tiles: int, along: int, deep: int, unroll: int, depth: int) -> DirectTile:
    return DirectTile(tiles=tiles, warps=(along, deep), unroll=unroll, depth=depth)


def _staged(tiles: int, along: int, deep: int, stages: int, depth: int, held: bool = False) -> StagedTile:
    return StagedTile(tiles=tiles, warps=(along, deep), stages=stages, depth=depth, held=held)


def _wgmma(groups: int, stages: int, depth: int) -> WgmmaTile:
    return WgmmaTile(groups=groups, cluster=1, stages=stages, depth=depth)


FIRST = [
    Case((5,), 100, 264, 16, _registers(1, 1, 4, 1, 3)),  # columns and K that no block divides
    Case((1, 50), 128, 520, 16, _registers(2, 4, 1, 1, 2)),
    Case((3,), 96, 192, 4, _registers(1, 2, 2, 1, 2)),
    Case((2, 9), 128, 1088, 8, _registers(1, 2, 1, 2, 3)),
    Case((1,), 50, 64, 4, _registers(1, 1, 8, 1, 2)),
    Case((1,), 64, 1024, 4, _staged(1, 1, 4, 2, 256)),  # whole slices
    Case((9,), 100, 1056, 4, _staged(1, 2, 2, 2, 256)),  # an odd number of groups
    Case((8,), 192, 1024, 4, _staged(2, 3, 4, 2, 128)),  # columns of three warps
    Case((1,), 100, 1024, 4, _staged(3, 1, 8, 4, 128)),  # fewer slices than stages
    Case((16,), 96, 896, 4, _staged(3, 1, 7, 2, 128)),  # three tiles, a number of teams that is no power of two
    Case((16,), 96, 1024, 4, _staged(2, 1, 4, 2, 128, held=True)),
    Case((3,), 100, 1056, 4, _staged(2, 2, 2, 1, 256, held=True)),  # a part of a slice, fewer rows than a tile
    Case((20,), 50, 736, 4, _staged(4, 1, 2, 1, 128)),  # scales before sums
    Case((2, 9), 128, 1088, 8, _staged(2, 1, 2, 3, 128)),
    Case((33,), 40, 96, 8, _staged(2, 2, 2, 1, 64)),
    Case((1, 40), 96, 264, 16, _staged(1, 4, 2, 3, 64)),
    Case((9,), 128, 512, 4, _wgmma(2, 3, 128)),  # whole slices
    Case((33,), 100, 352, 4, _wgmma(1, 4, 128)),  # columns that no block divides, an odd number of groups
    Case((2, 20), 72, 800, 4, _wgmma(1, 3, 256)),
    Case((17,), 136, 544, 8, _wgmma(2, 3, 128)),
    Case((24,), 96, 264, 16, _wgmma(1, 3, 128)),
    Case((40,), 64, 8, 16, _staged(1, 2, 2, 2, 64)),
    Case((5,), 100, 352, 4, _registers(1, 1, 4, 1, 2), "bfloat16"),
    Case((2, 9), 72, 1088, 8, _registers(1, 2, 1, 2, 2), "bfloat16"),
    Case((2, 9), 72, 1088, 8, _registers(1, 2, 1, 2, 2), e4m3=True),
    Case((5,), 100, 352, 8, _registers(2, 1, 4, 1, 2), "bfloat16", e4m3=True),
    Case((7,), 100, 1056, 8, _staged(2, 1, 4, 2, 128), e4m3=True),
    Case((33,), 40, 96, 8, _staged(2, 2, 2, 1, 64), "bfloat16", e4m3=True),
    Case((17,), 136, 544, 8, _wgmma(2, 3, 128), e4m3=True),
    Case((40,), 72, 800, 8, _wgmma(1, 4, 256), "bfloat16", e4m3=True),
]


def _random_tile(chance: random.Random, bits: int) -> AnyTile:
    along, deep = chance.choice([1, 2, 4]), chance.choice([1, 2, 4])
    if chance.random() < 0.3:
        return _wgmma(chance.choice([1, 2]), chance.choice([3, 4]), 128 if bits == 16 else chance.choice([128, 256]))
    if chance.random() < 0.3:
        return _registers(chance.choice([1, 2]), along, deep, chance.choice([1, 2]), 2)
    depth = chance.choice([64, 128] if bits == 16 else [64, 128, 256])
    held = bits == 4 and chance.random() < 0.5
    return _staged(chance.choice([1, 2, 4]), along, deep, chance.choice([1, 2, 3]), depth, held)


def _random_cases(count: int) -> list[Case]:
    found: list[Case] = []
    chance = random.Random(19)
    while len(found) < count:
        bits = chance.choice([16, 4, 4, 8])
        columns, depth = chance.randint(1, 150), chance.randint(1, 40) * (8 if bits == 16 else 32)
        found.append(Case((chance.randint(1, 64),), columns, depth, bits, _random_tile(chance, bits)))
    return found


@pytest.mark.no_cover  # the schedule is covered where none of it is run
@pytest.mark.parametrize("case", swept(FIRST, [*FIRST, *_random_cases(60)]), ids=str)
@pytest.mark.few(2)
def test_results_are_right(case: Case, tmp_path: Path) -> None:
    assert _apart(case, tmp_path) < (2e-3 if case.dtype == "float16" else 2e-2)


@pytest.mark.few(1)
@pytest.mark.no_cover
@pytest.mark.parametrize(
    "tile", [_staged(3, 2, 2, 2, 128), _staged(3, 2, 2, 2, 128, held=True)], ids=["shared", "held"]
)
def test_small_numbers_keep_their_digits(tile: StagedTile, tmp_path: Path) -> None:
    assert _apart(Case((8,), 96, 1024, 4, tile), tmp_path, 1e-4) < 2e-3


def _apart(case: Case, tmp_path: Path, size: float = 1.0) -> float:
    """How far results with x of that ``size`` are from those in float32, of the largest one."""
    mod = product(*case[:4], case.dtype, e4m3=case.e4m3)
    found = find_product(mod)
    assert found is not None
    tile = case.tile
    if not fits(found.extents, tile, 227 << 10):
        pytest.skip("more shared memory than a block has")
    scheduled = apply(mod, found, tile)
    if isinstance(tile, WgmmaTile):
        scheduled = main_module(for_own_target(scheduled["main"], H200))
    source = source_of(tvm.tirx.build(scheduled, target=H200))
    chance, kind = np.random.default_rng(case.columns), np.dtype(case.dtype).type
    x, bias = (
        (chance.standard_normal(shape) * size).astype(kind) for shape in ((*case.rows, case.depth), case.columns)
    )
    given, wide = weights(case.bits, case.columns, case.depth, seed=case.depth, kind=kind, e4m3=case.e4m3)
    out = np.full((*case.rows, case.columns), np.nan, kind)
    arrays = {"x": x, "bias": bias, "out": out, **dict(zip(("weight", "scale"), given, strict=False))}
    run(source, arrays, (-(-case.columns // tile.columns), 1), tmp_path)
    expected = x.astype(np.float32) @ wide.T + bias.astype(np.float32)
    return float(np.abs(out.astype(np.float32) - expected).max() / np.abs(expected).max())
