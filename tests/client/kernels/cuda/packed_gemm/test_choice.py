"""Which tiles of the kernel for packed weights there are, and which should take least. No GPU."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.kernels.cuda.gemm.hopper.tiles import SHARED_BYTES
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, Format
from tunehub.kernels.cuda.packed_gemm.choice import seconds, tiles
from tunehub.kernels.devices.known import default_device

pytestmark = pytest.mark.slow
DEVICE = default_device()


@pytest.mark.parametrize("form", QUANTISED, ids=["q4", "q8"])
def test_all_tiles_can_be_launched_and_have_stages_to_take_turns(form: Format) -> None:
    found = list(tiles(form.bits))
    assert found
    for tile in found:
        assert tile.shared_bytes <= SHARED_BYTES and tile.threads <= 1024 and tile.stages >= 2
        assert tile.stage_bytes % 1024 == 0 and tile.rows % 8 == 0 and tile.columns % 64 == 0


def _best(rows: int, columns: int, depth: int) -> tuple[int, int]:
    """Tiles of a product by the best tile, and rows of this."""
    extents = LowBatchExtents(rows=rows, columns=columns, depth=depth, weights=QUANTISED[0])
    tile = min(tiles(4), key=lambda each: seconds(extents, each, DEVICE))
    return math.prod(tile.over(rows, columns)), tile.rows


def test_few_columns_have_smaller_tiles_than_many() -> None:
    count, rows = _best(512, 4096, 4096)
    assert count <= DEVICE.multiprocessors
    assert rows <= _best(4096, 28672, 4096)[1]


def test_k_is_divided_where_all_clusters_are_there_at_a_time() -> None:
    divided = [tile for tile in tiles(4) if tile.cluster > 1]
    few, many = (LowBatchExtents(rows=rows, columns=4096, depth=14336, weights=QUANTISED[0]) for rows in (128, 4096))
    assert any(math.isfinite(seconds(few, tile, DEVICE)) for tile in divided)
    assert all(math.isinf(seconds(many, tile, DEVICE)) and tile.registers is None for tile in divided)


def test_time_is_never_less_than_weights_take_from_memory() -> None:
    extents = LowBatchExtents(rows=65, columns=28672, depth=4096, weights=QUANTISED[0])
    least = 28672 * 4096 * QUANTISED[0].bytes_of_weight / DEVICE.bandwidth
    assert all(seconds(extents, tile, DEVICE) > least for tile in tiles(4))
