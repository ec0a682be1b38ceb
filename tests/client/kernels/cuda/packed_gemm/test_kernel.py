"""Products of many rows with packed weights: the kernel is run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm

from tunehub.kernels.cuda.gemm.hopper import rule
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.low_batch.weights import E4M3, QUANTISED, Format
from tunehub.kernels.cuda.packed_gemm.source import PackedSource
from tunehub.kernels.cuda.packed_gemm.tile import PackedTile
from tunehub.tir.cuda import nvrtc
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module

from .....sweeps import covering
from ..gemm.hopper.bulk_emulator import run_bulk
from ..low_batch.on_cpu import weights
from ..low_batch.products import quantised_open_product
from ..scheduled import H200
from .made import over_all_rows, two_clusters

pytestmark = pytest.mark.slow


def _tile(
    groups: int, rows: int, columns: int, stages: int, shared: tuple[int, int] = (1, 1), bits: int = 4, cluster: int = 1
) -> PackedTile:
    return PackedTile(
        groups=(1, groups), rows=rows, columns=columns, stages=stages, shared=shared, bits=bits, cluster=cluster
    )


TILES = {
    "alone": _tile(2, 64, 64, 3),
    "one": _tile(1, 24, 64, 2),
    "three warpgroups": _tile(3, 32, 64, 3),
    "two instructions": _tile(2, 32, 128, 3),
    "x in common": _tile(1, 64, 64, 3, (1, 2)),
    "weights in common": _tile(2, 48, 64, 3, (2, 1)),
    "both": _tile(1, 64, 64, 3, (2, 2)),
    "8 bits": _tile(2, 64, 64, 3, bits=8),
    "e4m3": _tile(2, 64, 64, 3, bits=8),
    "K divided": _tile(1, 16, 64, 2, cluster=2),
    "K divided, both in common": _tile(1, 32, 128, 2, (2, 1), cluster=2),
}
TYPES = {"float16": 2e-3, "bfloat16": 2e-2}  # and how far results may be apart
FORMS = {
    name: E4M3 if name == "e4m3" else {form.bits: form for form in QUANTISED}[tile.bits] for name, tile in TILES.items()
}


def _made(form: Format, tile: PackedTile, columns: int, depth: int, dtype: str = "float16") -> tuple[Any, Any]:
    """The kernel, and what it computes."""
    return over_all_rows(quantised_open_product(form, columns, depth, dtype=dtype), tile)


@pytest.mark.few(4)
@pytest.mark.no_cover  # what writes kernels is covered by the test that compiles them
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 136, 128), (67, 136, 544), (150, 256, 384)])
@pytest.mark.parametrize("tile", TILES)
def test_all_rows_are_computed_and_none_behind_them(
    tile: str, rows: int, columns: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkTile, "started", two_clusters)
    monkeypatch.setattr(BulkTile, "most_in_band", 2)
    _assert_right(tile, rows, columns, depth, "float16")


@pytest.mark.no_cover
@pytest.mark.parametrize("tile", ["alone", "8 bits", "e4m3"])
def test_bfloat16_is_computed_likewise(tile: str) -> None:
    _assert_right(tile, 70, 136, 256, "bfloat16")


def _assert_right(tile: str, rows: int, columns: int, depth: int, dtype: str) -> None:
    form, kind = FORMS[tile], np.dtype(dtype).type
    (words, scales), wide = weights(form.bits, columns, depth, seed=rows, kind=kind, e4m3=form.e4m3)
    chance = np.random.default_rng(rows)
    x, more = (chance.standard_normal((1, rows, size)).astype(kind) for size in (depth, columns))
    out = np.full((1, rows, columns), np.nan, kind)
    run_bulk(_made(form, TILES[tile], columns, depth, dtype)[0], x, words, scales, more, out, seed=rows)
    expected = x[0].astype("float32") @ wide.T + more[0].astype("float32")
    assert np.abs(out[0].astype("float32") - expected).max() <= TYPES[dtype] * np.abs(expected).max()


@pytest.mark.few(2)
@pytest.mark.parametrize(("dtype", "tile"), covering(list(TYPES), list(TILES)))
def test_it_is_checked_and_compiled(tile: str, dtype: str) -> None:
    function, original = _made(FORMS[tile], TILES[tile], 136, 544, dtype)
    check_function(function, original, H200)
    library = tvm.tirx.build(main_module(rule.for_own_target(function, H200)), target=H200)
    source = nvrtc.source_of(library)
    assert source.count("const __grid_constant__ CUtensorMap") == 4  # declared and defined
    _assert_all_of_the_state_is_there(source, tile)


def _assert_all_of_the_state_is_there(source: str, tile: str) -> None:
    """TVM had made its buffer one number long, as nothing but functions wrote the others."""
    state = PackedSource(columns=136, depth=544, form=FORMS[tile], tile=TILES[tile]).state
    assert f"uint state_ptr[{state}];" in source
