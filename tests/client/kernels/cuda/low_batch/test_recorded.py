"""Tiles of products with few rows as knobs of records. No GPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.knobs import TileChoice, by_knobs, knob_space, read_tile
from tunehub.kernels.cuda.low_batch.choice import chosen
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents, find_product
from tunehub.kernels.cuda.low_batch.recorded import allows, worth_measuring
from tunehub.kernels.cuda.low_batch.tile import StagedTile
from tunehub.kernels.cuda.low_batch.weights import QUANTISED
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.guard import check_function

from ..scheduled import H200
from .products import product

pytestmark = pytest.mark.slow
DEVICE = default_device()
_ASKED = 227 << 10


def _choice(**changes: Any) -> TileChoice:
    knobs: dict[str, Any] = {"tiles": 2, "warps": [1, 12], "stages": 2, "depth": 128, "held": False}
    return TileChoice(template="low_batch", version=1, knobs={**knobs, **changes})


def test_a_record_may_name_a_tile_that_the_rule_does_not_choose() -> None:
    mod = product((4,), 256, 3072, 4)
    assert "WK = 12" in by_knobs(mod, H200, _choice()).mod["main"].script()
    scheduled, _ = schedule_function(mod["main"], H200, EmptyLookup())
    assert scheduled.schedule is not None and "WK = 12" not in scheduled.schedule.mod["main"].script()


@pytest.mark.parametrize("changes", [
    {"tiles": 0}, {"tiles": 9}, {"warps": [1, 17]}, {"warps": [-1, -1]}, {"warps": [1]}, {"stages": 5}, {"depth": 96},
    {"depth": 1 << 40}, {"held": 1}, {"unroll": 1}, {"tiles": "all"},
], ids=str)  # fmt: skip
def test_tiles_that_the_kernels_do_not_have_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(KnobError):
        by_knobs(product((4,), 256, 3072, 4), H200, _choice(**changes))


def test_operands_held_in_registers_are_for_weights_of_4_bits() -> None:
    with pytest.raises(KnobError, match="none of the tiles"):
        by_knobs(product((4,), 256, 3072, 8), H200, _choice(held=True))


# Rows, columns and K of products of language models with weights of 4 bits, and the tile that was the fastest for each.
_MEASURED = [
    (1, 3584, 18944, (2, 1, 16, 2, 128)),
    (4, 3072, 3072, (2, 1, 12, 2, 128)),
    (4, 9216, 3072, (2, 3, 4, 2, 128)),
    (4, 16384, 3072, (4, 2, 4, 2, 128)),
    (8, 3072, 3072, (2, 1, 12, 2, 128)),
    (8, 3584, 3584, (2, 1, 7, 2, 128)),
    (8, 9216, 3072, (2, 3, 4, 2, 128)),
    (8, 16384, 3072, (4, 2, 4, 2, 128)),
    (8, 28672, 4096, (4, 1, 4, 2, 256)),
    (8, 37888, 3584, (2, 3, 4, 2, 128)),
    (16, 9216, 3072, (3, 2, 4, 2, 128)),
    (16, 16384, 3072, (2, 4, 4, 2, 128)),
    (16, 37888, 3584, (3, 2, 2, 2, 128, 1)),
]


@pytest.mark.parametrize(("rows", "columns", "depth", "found"), _MEASURED)
def test_every_tile_that_was_the_fastest_for_some_product_is_worth_measuring(
    rows: int, columns: int, depth: int, found: tuple[int, ...]
) -> None:
    extents = LowBatchExtents(rows=rows, columns=columns, depth=depth, weights=QUANTISED[0])
    tiles, along, deep, stages, length, *held = found
    tile = StagedTile(tiles=tiles, warps=(along, deep), stages=stages, depth=length, held=bool(held))
    space = list(worth_measuring(extents, _ASKED, True, DEVICE))
    assert tile in space and allows(extents, tile, _ASKED, True)
    assert space[0] == chosen(extents, _ASKED, DEVICE, True) and len(space) == len(set(space)) > 8


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_what_is_worth_measuring_begins_with_the_rules_tile_and_is_right(bits: int) -> None:
    mod = product((8,), 4096, 4096, bits)
    found = find_product(mod)
    assert found is not None
    space = knob_space(mod, H200)
    assert 2 < len(space) <= 16 and read_tile(space[0]) == chosen(found.extents, _ASKED, DEVICE, True)
    assert {each.template.partition("_direct")[0] for each in space} == {"low_batch"}
    for each in (space[0], space[-1]):
        check_function(by_knobs(mod, H200, each).mod["main"], mod["main"], H200)


@pytest.mark.skipif(not warpgroups.serves(H200), reason="needs TVM 0.27")
def test_where_warpgroups_are_as_fast_tiles_of_these_are_measured() -> None:
    assert {each.template for each in knob_space(product((64,), 4096, 4096, 16), H200)} == {
        "bulk_copies",
        "warpgroups",
        "tensor_cores",
    }
