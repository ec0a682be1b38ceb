"""Tiles for tensor cores by rule: which functions get one, that it is the cheapest, and what is left to TVM. No GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm import tiles as cuda_tiles
from tunehub.kernels.cuda.gemm.hopper import rule as hopper
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.tensor_core import rule as tensor_core_rule
from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.cost import counts, seconds
from tunehub.kernels.cuda.gemm.tensor_core.rule import ranked
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, apply, matmul_of, tile_of, tiles
from tunehub.kernels.cuda.promises import half_product_s
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.cuda import headers
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.intrinsics import import_intrinsics
from tunehub.tir.traces import export_trace

from ......sweeps import swept
from ...scheduled import H200
from ..half_products import half_conv, half_nhwc_conv, half_product
from .products import CASES, dense, narrow_conv, run

pytestmark = pytest.mark.slow
DEVICE = default_device()


SHAPES = {
    "uneven": half_product(1, 50, 37, 75, transposed=(False, False)),
    "weights as they lie": half_product(1, 33, 48, 64, transposed=(False, True)),
    "first transposed": half_product(1, 48, 33, 70, transposed=(True, False)),
    "both transposed": half_product(2, 20, 40, 36, transposed=(True, True)),
    "strided": half_conv(9, 20, 24, 3, 2),
    "dilated": half_conv(9, 8, 17, 3, 1, dilation=2),
    "in a batch": half_conv(6, 16, 16, 1, 1, batch=3),
    "NHWC": half_nhwc_conv(),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(1)
def test_the_cheapest_tile_serves_and_passes_the_check(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_core_rule, "default_s", lambda *_: 1.0)  # TVM's own schedule would do for the smallest
    mod = CASES[case]()
    found, matmul = by_one(tensor_core_rule, mod, H200), matmul_of(mod)
    assert found is not None and matmul is not None
    schedule, expected = found
    tile = tile_of(export_trace(schedule.trace))
    assert expected == min(seconds(matmul, each, DEVICE) for each in tiles(matmul))
    assert tile == ranked(matmul, 1, DEVICE)[0]


@pytest.mark.no_cover  # the sketch is covered where it replays
@pytest.mark.parametrize("shape", swept(["uneven", "strided"], SHAPES))
@pytest.mark.few(1)
def test_results_are_right_for_any_extents(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, without the intrinsics: threads become loops, which take turns at what they share."""
    monkeypatch.setattr(tensor_core, "_tensorize", lambda *_: None)
    mod = SHAPES[shape]
    matmul = matmul_of(mod)
    assert matmul is not None
    expected = run(mod)
    plain = [tile for tile in ranked(matmul, 400, DEVICE) if not tile.pipelined]
    for tile in plain[:: max(1, len(plain) // 2)]:
        schedule = tensor_core.apply(mod, matmul, tile)
        looped = threads_as_loops(schedule.mod, scopes=r"local|shared.*|wmma.*", all_loops=True)
        assert np.abs(run(looped) - expected).max() <= 2e-3 * np.abs(expected).max()


def test_a_large_product_has_large_tiles_with_shared_memory_that_is_asked_for() -> None:
    mod = dense(1024, 6144, 512)
    found, matmul = by_one(tensor_core_rule, mod, H200), matmul_of(mod)
    assert found is not None and matmul is not None
    tile = ranked(matmul, 1, DEVICE)[0]
    assert tile.block[:2] == (128, 128) and tensor_core.shared_memory(tile) > 48 << 10
    assert tile_of(export_trace(found[0].trace)) == tile


def test_windows_with_channels_last_are_for_warpgroups() -> None:
    """Tiles of this sketch promise less and took up to 3.3 times as long."""
    mod = SHAPES["NHWC"]
    matmul = matmul_of(mod)
    assert matmul is not None and by_one(tensor_core_rule, mod, H200) is not None
    found = by_one(hopper, mod, H200)
    assert found is not None and found[1] > seconds(matmul, ranked(matmul, 1, DEVICE)[0], DEVICE)
    assert half_product_s(mod, H200) == found[1]
    served = schedule_function(mod["main"], H200, EmptyLookup())[0].served
    assert served is not None and served.predicted_s == found[1]


@pytest.mark.parametrize(("columns", "template"), [(200, "tensor_cores"), (197, "cuda_tiles")])
def test_bfloat16_is_for_warpgroups_or_plain_tiles(columns: int, template: str) -> None:
    """This sketch has none: what its tiles would promise keeps nothing from others."""
    mod = half_product(1, 16, columns, 1024, transposed=(False, False), dtype="bfloat16")
    outcome, _ = schedule_function(mod["main"], H200, EmptyLookup())
    assert outcome.served is not None and outcome.served.template == template
    assert outcome.served.predicted_s == half_product_s(mod, H200)


def test_large_products_in_bfloat16_that_warpgroups_do_not_take_are_left_to_tvm() -> None:
    mod = half_product(1, 5832, 320, 15, transposed=(False, True), dtype="bfloat16")
    assert by_one(cuda_tiles, mod, H200) is None and half_product_s(mod, H200) is None


def test_what_tvm_itself_does_well_is_left_to_it() -> None:
    """Operands that both lie along K, and rows for several blocks of 128 x 128: dlight took 72 µs, tiles 100."""
    mod = half_product(1, 256, 6144, 4096, transposed=(False, True))
    with pytest.raises(NoTileError, match=r"TVM's own schedule should take 74\.4 µs.* must promise 1\.25 times"):
        by_one(tensor_core_rule, mod, H200)


def test_rows_of_the_benchmark_are_the_products_that_the_rule_reads() -> None:
    """Orders in memory, which decide what TVM's own schedule takes, of a convolution and of both kinds of products."""
    matmuls = [
        matmul_of(half_conv(14, 256, 256, 3, 1)),
        *(matmul_of(half_product(1, 128, 768, 768, transposed=(False, last))) for last in (True, False)),
    ]
    orders = [(m.rows_first, m.k_last, m.columns_first, m.window) for m in matmuls if m is not None]
    assert orders == [(True, True, True, 9), (False, True, False, 1), (False, False, False, 1)]


def test_another_tile_serves_where_the_likeliest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = dense()
    matmul = matmul_of(mod)
    assert matmul is not None
    first, second = ranked(matmul, 2, DEVICE)

    def refused(mod: Any, matmul: Any, tile: Any) -> Any:
        if tile == first:
            raise ValueError("not this one")
        return tensor_core.apply(mod, matmul, tile)

    monkeypatch.setattr(tensor_core_rule, "apply", refused)
    found = by_one(tensor_core_rule, mod, H200)
    assert found is not None and tile_of(export_trace(found[0].trace)) == second
    monkeypatch.setattr(tensor_core_rule, "_ATTEMPTS", 1)
    with pytest.raises(ValueError, match="not this one"):
        by_one(tensor_core_rule, mod, H200)


def test_a_function_without_a_record_runs_on_tensor_cores() -> None:
    scheduled, function = schedule_function(dense()["main"], H200, EmptyLookup())
    assert scheduled.served is not None and function is not None
    assert (scheduled.served.rung, scheduled.served.template) == ("template", tensor_core_rule.NAME)
    assert scheduled.served.predicted_s is not None and scheduled.served.predicted_s < 1e-4
    assert "wmma" in function.script()


def test_few_outputs_are_for_plain_tiles() -> None:
    """Tensor cores would multiply 3 of 16 columns: on an H200 such a kernel took 1.9 times as long as TVM's own."""
    scheduled, _ = schedule_function(narrow_conv()["main"], H200, EmptyLookup())
    assert scheduled.served is not None and scheduled.served.template == cuda_tiles.NAME
    (rejected,) = [each.reason for each in scheduled.rejected if each.template == tensor_core_rule.NAME]
    assert re.fullmatch(r"another kernel should take 3\.\d+ µs, this one \d\.\d+", rejected)
    wide = half_conv(28, 64, 64, 3, 1)
    found = by_one(tensor_core_rule, wide, H200)
    assert found is not None and cuda_tiles.reduction_block_of(wide, narrow=True) is None


def test_loads_in_pieces_cost_what_they_take() -> None:
    """Rows of 147 numbers: of tiles without loads that are under way, those with them are cheaper."""
    odd, even = (matmul_of(half_product(1, 197, 128, k, transposed=(False, True))) for k in (147, 160))
    assert odd is not None and even is not None
    tile = TensorTile(warps=(2, 2), fragments=(1, 1), k_fragments=4, vectors=(1, 1))
    assert counts(odd, tile, DEVICE)["pieces"] == 3 * (32 * 64 + 32 * 64) / 128
    assert counts(even, tile, DEVICE)["pieces"] == counts(odd, replace(tile, pipelined=True), DEVICE)["pieces"] == 0
    assert ranked(odd, 1, DEVICE)[0].pipelined


@pytest.mark.parametrize(("dtype", "total"), [("float32", "float32"), ("float16", "float16")])
def test_other_types_are_none_of_its_business(dtype: str, total: str) -> None:
    assert by_one(tensor_core_rule, dense(dtype=dtype, total=total), H200) is None


def test_products_with_a_vector_are_none_of_its_business() -> None:
    assert by_one(tensor_core_rule, half_product(1, 1, 64, 64, transposed=(False, True)), H200) is None


def test_a_missing_header_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda_fp16.h", "mma.h"):
        (tmp_path / name).touch()
    monkeypatch.setattr(headers, "header_folders", lambda: (str(tmp_path),))
    with pytest.raises(NoTileError, match=r"crt/mma\.h is not in .*pip install .*nvidia-cuda-crt"):
        by_one(tensor_core_rule, dense(), H200)
    (tmp_path / "crt").mkdir()
    (tmp_path / "crt" / "mma.h").touch()
    assert by_one(tensor_core_rule, dense(), H200) is not None


@pytest.mark.parametrize(("channels", "kernel"), [(64, 7), (64, 3)])
def test_weights_of_windows_that_are_loaded_ahead_are_code_that_compiles(channels: int, kernel: int) -> None:
    """TVM wrote vectors of eight indices, which CUDA does not have, where a window is no multiple of eight."""
    mod = half_conv(13, channels, 27, kernel, 1)
    found = matmul_of(mod)
    assert found is not None
    import_intrinsics("tvm.s_tir.tensor_intrin.cuda")
    ahead = sorted((tile for tile in tiles(found) if tile.pipelined), key=lambda tile: -tile.vectors[1])
    for depth in (32, 64):
        tile = next(each for each in ahead if each.block[2] == depth)
        source = source_of(tvm.tirx.build(apply(mod, found, tile).mod, target=H200))
        assert "make_longlong4" not in source
