"""Products in half precision for tensor cores: what is one, and schedules that replay as they were made. No GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from benchmarks.shared.threads_as_loops import threads_as_loops

from tunehub.kernels.cuda.gemm.matmul import Axis
from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, apply, is_among, matmul_of, tile_of, tiles
from tunehub.tir.intrinsics import import_intrinsics
from tunehub_registry.trace_rules import required_features

from ......sweeps import swept
from .products import CASES, TARGET, conv, dense, narrow_conv, run, scores

pytestmark = pytest.mark.slow

CUDA = "tvm.s_tir.tensor_intrin.cuda"


def test_products_are_found_with_what_lies_where() -> None:
    found = matmul_of(dense())
    assert found is not None
    assert found.extents == (1, 64, 96, 128)
    assert (found.rows_first, found.k_last, found.columns_first) == (False, False, False)
    assert found.window == 1

    found = matmul_of(conv())
    assert found is not None
    assert found.extents == (1, 196, 64, 288)
    assert found.rows == (Axis(2, 14), Axis(3, 14))
    assert found.window == 9
    assert (found.rows_first, found.k_last, found.columns_first) == (True, True, True)

    found = matmul_of(scores())
    assert found is not None
    assert found.extents == (4, 64, 64, 32)
    assert found.k_last


@pytest.mark.parametrize(("dtype", "total"), [("float32", "float32"), ("float16", "float16")])
def test_other_types_are_left_to_others(dtype: str, total: str) -> None:
    assert matmul_of(dense(dtype=dtype, total=total)) is None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(3)
def test_tiles_keep_to_what_a_gpu_has(case: str) -> None:
    matmul = matmul_of(CASES[case]())
    assert matmul is not None
    found = list(tiles(matmul))
    assert 20 < len(found) == len(set(found))
    for tile in found:
        rows, columns, depth = tile.block
        assert tile.all_warps <= tensor_core.MOST_WARPS
        total, asked_for = tensor_core.shared_memory(tile), 4 * tile.groups * rows * columns >= 48 << 10
        assert total <= (99 << 10 if asked_for else 48 << 10)
        for size, vector in zip((rows * depth, columns * depth), tile.vectors, strict=True):
            assert size % (tile.threads * vector) == 0


@pytest.mark.parametrize(
    ("mod", "most"),
    [
        (dense(columns=90, inner=147), (1, 2)),
        (dense(columns=96, inner=20), (4, 8)),
        (narrow_conv(), (1, 2)),
    ],
    ids=["odd rows", "rows of 20", "windows of ten channels"],
)
def test_no_vector_goes_over_the_end_of_a_row(mod: Any, most: tuple[int, int]) -> None:
    """TVM would load its elements one by one. Records from before that may."""
    matmul = matmul_of(mod)
    assert matmul is not None
    found = list(tiles(matmul))
    assert tuple(max(tile.vectors[side] for tile in found) for side in (0, 1)) == most
    formerly = (1 if matmul.rows_first else 8, 8)
    assert any(is_among(matmul, replace(tile, vectors=formerly)) for tile in found)
    assert is_among(matmul, found[0]) and not is_among(matmul, replace(found[0], vectors=(1, 16)))


LOCAL_STAGE = ("dense", "conv")
KINDS = [
    *((case, False, False) for case in CASES),
    *((case, True, False) for case in LOCAL_STAGE),
    ("conv", False, True),
]


def _some(found: list[TensorTile]) -> Iterator[TensorTile]:
    """Two or three with each number of groups."""
    for groups in tensor_core.GROUPS:
        own = [tile for tile in found if tile.groups == groups]
        yield from own[:: max(1, len(own) // 2)]


@pytest.mark.parametrize(("case", "pipelined", "whole_windows"), KINDS)
@pytest.mark.few(1)
def test_a_schedule_replays_as_it_was_made(case: str, pipelined: bool, whole_windows: bool) -> None:
    import tvm

    from tunehub.compiler.schedule.apply import apply_exact
    from tunehub.tir.guard import check_function
    from tunehub.tir.traces import export_trace, import_trace

    import_intrinsics(CUDA)
    mod = CASES[case]()
    matmul = matmul_of(mod)
    assert matmul is not None
    chosen = [tile for tile in tiles(matmul) if (tile.pipelined, tile.whole_windows) == (pipelined, whole_windows)]
    assert chosen
    for tile in _some(chosen):
        schedule = apply(mod, matmul, tile)
        check_function(schedule.mod["main"], mod["main"], tvm.target.Target(TARGET))
        trace = json.loads(json.dumps(export_trace(schedule.trace)))
        assert required_features(trace) == {"sm_70"}
        assert tile_of(trace) == tile
        assert apply_exact(mod, import_trace(trace)).mod.script() == schedule.mod.script()


@pytest.mark.no_cover  # apply() is covered above
@pytest.mark.parametrize("kind", swept([("dense", False), ("conv", True)], [(case, False) for case in CASES]))
@pytest.mark.few(1)
def test_results_are_right_with_one_thread_for_all(kind: tuple[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, without the intrinsics: threads become loops, which take turns at what they share."""
    case, whole_windows = kind
    monkeypatch.setattr(tensor_core, "_tensorize", lambda *_: None)
    mod = CASES[case]()
    matmul = matmul_of(mod)
    assert matmul is not None
    expected = run(mod)
    chosen = sorted(tile for tile in tiles(matmul) if not tile.pipelined and tile.whole_windows == whole_windows)
    for tile in _some(chosen):
        looped = threads_as_loops(apply(mod, matmul, tile).mod, scopes=r"local|shared.*|wmma.*", all_loops=True)
        difference = np.abs(run(looped) - expected).max()
        assert difference <= 2e-3 * np.abs(expected).max()


def test_a_trace_of_another_kind_has_no_tile() -> None:
    assert tile_of([[["Split", ["l0", "None", 16], [True, False], ["l1", "l2"]]], []]) is None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(2)
def test_machine_code_has_products_of_tensor_cores(case: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    import tvm

    from tunehub.tir.cuda.nvrtc import Compiler, kernel_uses, source_of

    import_intrinsics(CUDA)
    compiler = Compiler("sm_90")
    compiler.install()
    mod = CASES[case]()
    matmul = matmul_of(mod)
    assert matmul is not None
    found = sorted(tiles(matmul))
    chosen = [found[len(found) // 2], *[tile for tile in found if tile.whole_windows][:1]]
    chosen += [tile for tile in found if tile.groups == 4][:1]
    for tile in chosen:
        library = tvm.tirx.build(apply(mod, matmul, tile).mod, target=tvm.target.Target(TARGET))
        source = source_of(library)
        assert "mma_sync" in source
        (use,) = kernel_uses(compiler.compile(source)).values()
        assert use.registers <= 255 and use.stack <= 16  # the assembler spares registers, TVM tells it to
