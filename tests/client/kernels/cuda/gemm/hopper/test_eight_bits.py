"""Products of operands of 8 bits for warpgroups: run by a GPU of NumPy, and compiled by TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import tirx

from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm.hopper import eight_bits, rule
from tunehub.kernels.cuda.gemm.hopper.bulk import bulk_kernel
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile, PromotedTile
from tunehub.kernels.cuda.gemm.hopper.open_bulk import over_all_rows
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic import eight_bits as open_eight_bits
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda import nvrtc

from ...scheduled import H200
from .bulk_emulator import run_bulk
from .byte_products import byte_arrays, byte_product, expected

pytestmark = pytest.mark.slow

E4M3, E5M2, S8, U8 = "float8_e4m3fn", "float8_e5m2", "int8", "uint8"
CASES: dict[str, tuple[BulkTile, tuple[str, str], str]] = {
    "floats": (PromotedTile(groups=(2, 1), rows=64, columns=64, stages=3), (E4M3, E5M2), "float16"),
    "floats, halves": (PromotedTile(groups=(1, 1), rows=64, columns=256, stages=3), (E4M3, E4M3), "float32"),
    "floats, two instructions": (
        PromotedTile(groups=(2, 1), rows=128, columns=128, stages=3, shared=(1, 2)), (E5M2, E5M2), "bfloat16",
    ),
    "floats, K divided": (
        PromotedTile(groups=(1, 2), rows=64, columns=32, stages=3, cluster=2), (E4M3, E4M3), "float16",
    ),
    "floats, K divided, halves": (
        PromotedTile(groups=(2, 1), rows=64, columns=256, stages=3, cluster=2), (E4M3, E4M3), "float16",
    ),
    "integers": (BulkTile(groups=(2, 1), rows=128, columns=64, stages=3, shared=(1, 2)), (S8, S8), S8),
    "integers, K divided": (BulkTile(groups=(2, 1), rows=64, columns=64, stages=3, cluster=2), (U8, S8), "float16"),
}  # fmt: skip


def _kernel(mod: Any, tile: BulkTile) -> Any:
    found = eight_bits.matmul_in(mod)
    assert found is not None
    return bulk_kernel(product_of(mod, found), tile, default_device())


@pytest.mark.no_cover
@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(2)
def test_results_are_right(case: str) -> None:
    extents, (tile, dtypes, out) = (200, 136, 592), CASES[case]
    arrays = byte_arrays(*extents, dtypes, out, seed=len(case))
    run_bulk(_kernel(byte_product(*extents, dtypes, out), tile), *arrays, seed=len(case))
    wanted, within = expected(*arrays), {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}.get(out, 0.0)
    assert np.abs(arrays[-1].astype("float64") - wanted).max() <= within * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("dtypes", "instruction"),
    [((E4M3, E5M2), "m64n{}k32.f32.e4m3.e5m2"), ((U8, S8), "m64n{}k32.s32.u8.s8")],
    ids=["floats", "integers"],
)
def test_the_rule_serves_with_instructions_of_8_bits(dtypes: tuple[str, str], instruction: str) -> None:
    mod = byte_product(1000, 4096, 4096, dtypes, "float16")
    found = by_one(eight_bits, mod, H200)
    assert found is not None
    schedule, own_s = found
    assert own_s is not None and 1e-5 < own_s < 1e-4
    library = tvm.tirx.build(schedule.mod, target=H200)
    best = next(iter(eight_bits.candidates(eight_bits.match(mod, H200), default_device()))).tile
    columns = best.together if isinstance(best, PromotedTile) else best.columns
    assert instruction.format(columns) in nvrtc.source_of(library)


@pytest.mark.no_cover
@pytest.mark.parametrize("case", ["floats", "integers, K divided"])
@pytest.mark.few(1)
def test_all_of_an_open_number_of_rows_are_computed(case: str) -> None:
    extents, (tile, dtypes, out) = (150, 136, 592), CASES[case]
    whole = open_function(byte_product(tirx.Var("n", "int64"), *extents[1:], dtypes, out)["main"])
    assert whole is not None
    arrays = byte_arrays(*extents, dtypes, out, seed=1)
    run_bulk(over_all_rows(whole, tile, default_device(), find=eight_bits.matmul_in), *arrays, seed=1)
    wanted = expected(*arrays)
    assert np.abs(arrays[-1].astype("float64") - wanted).max() <= 1e-3 * np.abs(wanted).max()


def test_an_open_number_of_rows_has_kernels_for_ranges_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_eight_bits, "_KERNELS", 2)
    mod = byte_product(tirx.Var("n", "int64"), 1024, 512, (E4M3, E4M3), "float16")
    found = open_eight_bits.open_sizes(mod, H200)
    assert found is not None
    library = tvm.tirx.build(found.mod, target=H200)
    assert nvrtc.source_of(library).count("__global__") >= 4  # declared and defined


@pytest.mark.parametrize(
    ("extents", "dtypes"),
    [((64, 128, 250), (S8, S8)), ((64, 128, 264), (E4M3, E4M3))],
    ids=["rows that no copy begins at", "rows of whole words alone"],
)
def test_what_the_copy_engine_cannot_take_is_left_to_others(extents: tuple[int, int, int], dtypes: Any) -> None:
    mod = byte_product(*extents, dtypes, "float32")
    assert eight_bits.matmul_in(mod) is None
    if dtypes[0] == E4M3:  # no other rule has a reason
        with pytest.raises(NoTileError, match="no multiples of 16"):
            by_one(eight_bits, mod, H200)
    else:
        assert eight_bits.match(mod, H200) is None


def test_sums_and_accumulators_have_registers() -> None:
    """Fewer than threads may have, beside what else a thread needs."""
    for tile in eight_bits.promoted_tiles(_halves(4096), default_device()):
        own = (tile.rows * tile.columns + 64 * tile.together) // 128
        assert own <= (128 if tile.registers is None and tile.multiplying > 128 else 200)


def _halves(size: int) -> Any:
    found = eight_bits.matmul_in(byte_product(size, size, size, (E4M3, E4M3), "float16"))
    assert found is not None
    return eight_bits.as_halves(found)


def test_a_target_is_asked_for_warpgroups() -> None:
    mod = byte_product(64, 128, 256, (S8, S8), "float32")
    assert rule.serves(H200)
    assert eight_bits.match(mod, tvm.target.Target({"kind": "cuda", "arch": "sm_80"})) is None
