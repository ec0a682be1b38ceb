"""Products with few rows: which functions the kernel serves, with what, and which are left to others. No GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as product_of
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.low_batch import rule
from tunehub.kernels.cuda.low_batch.choice import chosen
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents, find_product
from tunehub.kernels.cuda.low_batch.shared_memory import fits
from tunehub.kernels.cuda.low_batch.tile import StagedTile, WgmmaTile
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, Format
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.guard import GuardError

from ..scheduled import H200
from .products import product

pytestmark = pytest.mark.slow
DEVICE = default_device()


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_few_rows_are_served_by_the_kernel(bits: int) -> None:
    scheduled, function = schedule_function(product((1, 8), 512, 256, bits)["main"], H200, EmptyLookup())
    assert scheduled.served is not None and function is not None
    assert (scheduled.served.rung, scheduled.served.template) == ("template", rule.NAME)
    assert scheduled.served.predicted_s == pytest.approx(2e-6 + 512 * 256 * (bits / 8 + (bits < 16) / 16) / 4e12)


def test_what_is_read_is_known_of_each_product() -> None:
    plain, quantised = find_product(product((2, 3), 40, 64, 16)), find_product(product((1,), 40, 64, 4))
    assert plain is not None and quantised is not None
    assert (plain.extents.rows, plain.extents.columns, plain.extents.depth) == (6, 40, 64)
    assert plain.extents.weights == Format(bits=16) and plain.scales is None and not plain.made_by
    assert quantised.extents.weights == QUANTISED[0] and quantised.made_by == ("dequantize",)
    assert [str(each.name) for each in (quantised.data, quantised.weights, quantised.scales)] == [
        "x",
        "weight",
        "scale",
    ]


def test_bfloat16_is_served_and_its_instructions_are_others() -> None:
    mod = product((4,), 64, 64, 16, "bfloat16")
    found = find_product(mod)
    assert found is not None and found.extents.weights.bfloat
    served = by_one(rule, mod, H200)
    assert served is not None and "BFLOAT = 1" in served[0].mod["main"].script()


def test_a_vector_in_half_precision_is_tvms_own() -> None:
    """dlight reads the weights at the speed of memory; quantised ones it does not."""
    with pytest.raises(NoTileError, match="product with a vector"):
        by_one(rule, product((1,), 64, 64, 16), H200)
    assert by_one(rule, product((1,), 64, 64, 4), H200) is not None


@pytest.mark.parametrize("bits", [4, 16])
def test_one_column_is_tvms_own(bits: int) -> None:
    """A single block would read all of x: 12 µs for 64 rows of 1,888, where TVM's own schedule takes 1.8."""
    with pytest.raises(NoTileError, match="one column"):
        by_one(rule, product((64,), 1, 1888, bits), H200)


def test_more_rows_are_left_to_warpgroups_where_there_are_some() -> None:
    mod = product((64,), 4096, 4096, 16)
    with pytest.raises(NoTileError, match="warpgroups"):
        by_one(rule, mod, H200)
    older = tvm.target.Target({**dict(H200.export()), "arch": "sm_80"})
    assert by_one(rule, mod, older) is not None


def test_older_gpus_are_refused() -> None:
    older = tvm.target.Target({**dict(H200.export()), "arch": "sm_75"})
    with pytest.raises(GuardError, match="sm_80"):
        by_one(rule, product((4,), 64, 64, 16), older)


def _other(data: tuple[int, ...], weight: tuple[int, ...], at: Any, dtype: str = "float16") -> Any:
    x, w = te.placeholder(data, dtype, name="x"), te.placeholder(weight, dtype, name="w")
    k = te.reduce_axis((0, 64), name="k")
    shape = (4, 48)
    out = te.compute(shape, lambda i, j: te.sum(at(x, w, i, j, k), axis=k), name="out")
    return tvm.IRModule({"main": te.create_prim_func([x, w, out], index_dtype_override="int64")})


def _wide(value: Any) -> Any:
    return value.astype("float32")


OTHERS = {
    "weights [K, N]": _other((4, 64), (64, 48), lambda x, w, i, j, k: _wide(x[i, k]) * _wide(w[k, j])),
    "x [K, M]": _other((64, 4), (48, 64), lambda x, w, i, j, k: _wide(x[k, i]) * _wide(w[j, k])),
    "a part of x": _other((8, 64), (48, 64), lambda x, w, i, j, k: _wide(x[i + 1, k]) * _wide(w[j, k])),
    "every second row": _other((8, 64), (48, 64), lambda x, w, i, j, k: _wide(x[i * 2, k]) * _wide(w[j, k])),
    "sums in half precision": _other((4, 64), (48, 64), lambda x, w, i, j, k: x[i, k] * w[j, k]),
    "single precision": _other((4, 64), (48, 64), lambda x, w, i, j, k: x[i, k] * w[j, k], "float32"),
    "a difference": _other((4, 64), (48, 64), lambda x, w, i, j, k: _wide(x[i, k]) - _wide(w[j, k])),
    "65 rows": product((5, 13), 48, 64, 16),
    "K that no vector divides": product((4,), 48, 60, 16),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_functions_are_none_of_its_business(case: str) -> None:
    assert find_product(OTHERS[case]) is None


def test_every_tile_that_is_chosen_fits_shared_memory() -> None:
    for bits, rows, columns in product_of((16, 8, 4), (1, 5, 16, 17, 32, 64), (48, 4096, 6144, 12288, 28672)):
        form = next((each for each in QUANTISED if each.bits == bits), Format(bits=bits))
        for depth, asked, warpgroups in product_of((64, 3072, 14336), (99 << 10, 227 << 10), (False, True)):
            extents = LowBatchExtents(rows=rows, columns=columns, depth=depth, weights=form)
            assert fits(extents, chosen(extents, asked, DEVICE, warpgroups), asked)


@pytest.mark.parametrize("rows,columns", [(64, 3584), (64, 6144), (32, 28672)])
def test_quantised_weights_are_for_warpgroups_where_these_are_faster(rows: int, columns: int) -> None:
    extents = LowBatchExtents(rows=rows, columns=columns, depth=4096, weights=QUANTISED[0])
    asked = 227 << 10
    assert isinstance(chosen(extents, asked, DEVICE, True), WgmmaTile)
    assert not isinstance(chosen(extents, asked, DEVICE), WgmmaTile)  # an older GPU
    for other in (replace(extents, rows=16), replace(extents, columns=4096), replace(extents, depth=96)):
        assert not isinstance(chosen(other, asked, DEVICE, True), WgmmaTile)


def test_blocks_of_a_cluster_all_have_columns_and_a_part_of_k() -> None:
    extents = LowBatchExtents(rows=64, columns=6144, depth=4096, weights=QUANTISED[0])
    tile = chosen(extents, 227 << 10, DEVICE, True)
    assert isinstance(tile, WgmmaTile) and tile.cluster == 4
    for other in (replace(extents, columns=6144 + 64), replace(extents, depth=512 + 128)):
        assert not isinstance(chosen(other, 227 << 10, DEVICE, True), WgmmaTile)


@pytest.mark.parametrize("rows,stages", [(1, 4), (4, 2), (5, 2), (8, 2), (16, 2)])
def test_three_tiles_where_they_bring_all_blocks_a_place_at_once(rows: int, stages: int) -> None:
    extents = LowBatchExtents(rows=rows, columns=5120, depth=5120, weights=QUANTISED[0])
    own = StagedTile(tiles=3, warps=(1, 8), stages=stages, depth=128)
    assert chosen(extents, 227 << 10, DEVICE, True) == chosen(replace(extents, columns=6144), 227 << 10, DEVICE) == own
    others = [replace(extents, columns=each) for each in (4224, 6400)]
    others += [replace(extents, depth=each) for each in (8192, 5152)]
    others += [replace(extents, rows=17)]
    for other in others:
        assert chosen(other, 227 << 10, DEVICE) != own
    assert chosen(replace(extents, weights=QUANTISED[1]), 227 << 10, DEVICE) != own


@pytest.mark.parametrize("rows,columns,depth,own", [
    (16, 28672, 4096, StagedTile(tiles=3, warps=(1, 4), stages=2, depth=128, held=True)),
    (9, 128256, 4096, StagedTile(tiles=3, warps=(1, 4), stages=2, depth=128, held=True)),
    (16, 37888, 3584, StagedTile(tiles=3, warps=(1, 4), stages=2, depth=128, held=True)),
])  # fmt: skip
def test_x_of_wide_products_is_held_in_registers(rows: int, columns: int, depth: int, own: StagedTile) -> None:
    extents = LowBatchExtents(rows=rows, columns=columns, depth=depth, weights=QUANTISED[0])
    assert chosen(extents, 227 << 10, DEVICE, True) == own
    others = [replace(extents, rows=each) for each in (8, 17)]
    others += [replace(extents, columns=16384, depth=3072), replace(extents, weights=QUANTISED[1])]
    others += [replace(extents, depth=depth + 32)]  # scales of a row that are no whole words
    for other in others:
        tile = chosen(other, 227 << 10, DEVICE)
        assert not isinstance(tile, StagedTile) or not tile.held


def test_a_kernel_that_holds_x_may_have_as_many_registers_as_a_block_finds() -> None:
    for columns, bounds in ((28672, "__launch_bounds__(128, 1)"), (4096, "__launch_bounds__(256)")):
        served = by_one(rule, product((16,), columns, 4096, 4), H200)
        assert served is not None
        assert bounds in source_of(tvm.tirx.build(served[0].mod, target=H200))


def test_a_kernel_for_clusters_says_so_and_names_its_architecture() -> None:
    served = by_one(rule, product((64,), 6144, 4096, 4), H200)
    assert served is not None
    function = served[0].mod["main"]
    assert 'thread="clusterCtaIdx.x"' in function.script()
    assert str(function.attrs["target"].attrs["arch"]) == "sm_90a"
