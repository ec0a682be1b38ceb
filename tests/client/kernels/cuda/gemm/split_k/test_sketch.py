"""Long sums in float32 divided among the threads of a block: schedules, their results on a CPU, the search. No GPU."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from benchmarks.shared.threads_as_loops import threads_as_loops

from tunehub.kernels.cuda.gemm.split_k import sketch as split_k
from tunehub.kernels.cuda.gemm.split_k.sketch import Side, SplitTile, all_tiles, apply, matmul_of, sides, tile_of
from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core
from tunehub.target.gpu_architectures import SM_80
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.search.cuda import FIRST, SOURCE, CudaSearch
from tunehub_builder.tuning.search.split_k import SplitKSearch, distance
from tunehub_builder.tuning.search.strategy import trace_id
from tunehub_registry.trace_rules import required_features

from ......sweeps import covering, swept
from ......unoptimised import UNOPTIMISED
from .products import CASES, TARGET, batched, conv, dense, strided

pytestmark = pytest.mark.slow

TILE = SplitTile(groups=4, threads=(8, 8), sums=(4, 4), depth=8, vectors=(4, 4))


def _tiles(matmul: Any) -> list[SplitTile]:
    found = all_tiles(matmul)
    return list(map(found.tile, range(len(found))))


def _chosen(case: str, count: int, pipelined: bool | None = None) -> tuple[Any, Any, list[SplitTile]]:
    """The workload, its matmul, and some of its tiles, the same in every run."""
    mod = CASES[case]()
    matmul = matmul_of(mod)
    assert matmul is not None
    found = [tile for tile in _tiles(matmul) if pipelined in (None, tile.pipelined)]
    return mod, matmul, Random(case).sample(found, count)


def test_products_are_found_with_what_lies_where() -> None:
    found = {name: matmul_of(case()) for name, case in CASES.items()}
    assert all(found.values())
    of = {name: sides(matmul) for name, matmul in found.items() if matmul is not None}
    assert of["dense"] == (Side(0, 64, True, 128), Side(1, 96, False, 96))
    assert of["scores"] == (Side(0, 32, True, 64), Side(1, 48, True, 64))
    assert of["transposed"] == (Side(0, 32, False, 32), Side(1, 64, False, 64))
    assert of["conv"] == (Side(1, 24, True, 288), Side(0, 49, False, 1, window=9))
    assert of["pointwise"] == (Side(1, 32, True, 64), Side(0, 196, False, 14))


def test_others_are_left_to_others() -> None:
    assert matmul_of(dense(dtype="float16")) is None
    assert matmul_of(dense(inner=32)) is None, "a short sum"
    assert matmul_of(dense(4096, 4096)) is None, "more results than were measured"
    assert matmul_of(batched(36, 64, 25088, 64)) is not None, "36 large products were measured"
    assert matmul_of(batched(64, 64, 25088, 64)) is None, "more of them were not"
    assert matmul_of(dense(1)) is None, "a product with a vector"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(3)
def test_tiles_keep_to_what_a_gpu_has(case: str) -> None:
    matmul = matmul_of(CASES[case]())
    assert matmul is not None
    found = _tiles(matmul)
    assert 20 < len(found) == len(set(found)) < 10_000
    for tile in found:
        assert tile.block_threads <= SM_80.threads and tile.block_threads % 32 == 0
        assert split_k.shared_memory(matmul, tile) <= SM_80.shared_memory
        assert split_k.registers(matmul, tile) * tile.block_threads <= 1 << 16
        assert math.prod(tile.sums) % tile.groups == 0
        padded = math.prod(-(-e // b) * b for e, b in zip((s.extent for s in sides(matmul)), tile.block, strict=False))
        assert padded <= 1.5 * math.prod(side.extent for side in sides(matmul))


def test_threads_load_whole_windows() -> None:
    for case in (conv(), strided()):
        matmul = matmul_of(case)
        assert matmul is not None
        for tile in _tiles(matmul):
            image = tile.vectors[1]
            assert image % 9 == 0 and tile.depth % 9 == 0 and tile.block[2] % image == 0


@pytest.mark.parametrize(("pipelined", "case"), covering([False, True], list(CASES)))
@pytest.mark.few(2)
def test_a_schedule_replays_as_it_was_made(case: str, pipelined: bool) -> None:
    import tvm

    from tunehub.compiler.schedule.apply import apply_exact
    from tunehub.tir.guard import check_function
    from tunehub.tir.traces import export_trace, import_trace

    mod, matmul, chosen = _chosen(case, 3, pipelined)
    for tile in chosen:
        schedule = apply(mod, matmul, tile)
        check_function(schedule.mod["main"], mod["main"], tvm.target.Target(TARGET))
        trace = json.loads(json.dumps(export_trace(schedule.trace)))
        assert required_features(trace) == frozenset()
        assert tile_of(trace) == tile
        assert tensor_core.tile_of(trace) is None
        assert apply_exact(mod, import_trace(trace)).mod.script() == schedule.mod.script()


@pytest.mark.no_cover  # apply() is covered above
@pytest.mark.parametrize("case", swept(("uneven", "conv"), CASES))
@pytest.mark.few(1)
def test_results_are_right_with_one_thread_for_all(case: str) -> None:
    """On a CPU threads become loops, each of which loads all that it needs; loads are pipelined as on a GPU."""
    mod, matmul, chosen = _chosen(case, 2, False)
    chosen += _chosen(case, 2, True)[2]
    expected = _run(mod)
    for tile in chosen:
        looped = threads_as_loops(
            apply(mod, matmul, tile).mod, all_loops=True
        )  # TVM stages loads of what is shared only
        found = _run(looped)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), tile


def _run(mod: Any) -> Any:
    import tvm

    from tunehub.tir.nodes import buffer_shapes

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype="float32") for shape, _ in buffer_shapes(mod["main"])]
    arrays[-1][...] = np.nan
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(mod, target=tvm.target.Target(UNOPTIMISED))["main"](*tensors)
    return tensors[-1].numpy()


def test_a_trace_of_another_kind_has_no_tile() -> None:
    splits = ["Split", ["l0", "None", 16], [True, False], ["l1", "l2"]]
    assert tile_of([[splits], []]) is None
    assert tile_of([[splits, ["RFactor", ["l2"], [0], ["b1"]]], []]) is None


def test_neighbours_differ_in_few_steps() -> None:
    from dataclasses import replace

    assert distance(TILE, TILE) == 0
    for change in ({"groups": 8}, {"threads": (8, 6)}, {"sums": (4, 8)}, {"depth": 4}, {"pipelined": True}):
        assert distance(TILE, replace(TILE, **change)) == 1
    assert distance(TILE, replace(TILE, threads=(16, 4), depth=32)) == 4


def test_the_search_varies_the_fastest_and_makes_nothing_twice() -> None:
    import tvm

    mod = dense()
    search = SplitKSearch.of(mod, tvm.target.Target(TARGET), Random(1))
    assert search is not None
    known: set[str] = set()
    for _ in range(3):
        made = search.make((), known, 5)
        assert len(made) == 5 and not known & set(made)
        known |= set(made)
    made = search.make((TILE,), known, 12)
    assert not known & set(made)
    near = [distance(TILE, tile) for text in made if (tile := tile_of(json.loads(text))) is not None]
    assert len(near) == 12 and sum(each <= 2 for each in near) >= 5
    assert SplitKSearch.of(dense(inner=32), tvm.target.Target(TARGET), Random(1)) is None


@pytest.mark.sweep
def test_tiles_are_among_the_first_candidates_and_more_come_when_they_are_fast() -> None:
    import tvm

    mod, target = dense(), tvm.target.Target(TARGET)
    search = CudaSearch(mod, target, seed=0, threads=1)
    first = search.propose([], 32)
    assert len(first) == FIRST
    assert 3 <= sum(tile_of(trace) is not None for trace in first) <= FIRST // 2
    trials = [
        Trial(task="t", trace=trace, source=SOURCE, run_s=(1e-6 if tile_of(trace) is not None else 1e-5,))
        for trace in first
    ]
    second = search.propose(trials, 16)
    assert {trace_id(trace) for trace in first}.isdisjoint(map(trace_id, second))
    assert sum(tile_of(trace) is not None for trace in second) >= 3
    resumed = CudaSearch(mod, target, seed=0, threads=1)  # which applies earlier trials again, for the cost model
    assert {trace_id(trace) for trace in first}.isdisjoint(map(trace_id, resumed.propose(trials, 16)))


@pytest.mark.parametrize(("pipelined", "case"), covering([False, True], list(CASES)))
@pytest.mark.few(2)
def test_machine_code_keeps_sums_in_registers(case: str, pipelined: bool) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    import tvm

    from tunehub.tir.cuda.nvrtc import Compiler, kernel_uses, source_of

    compiler = Compiler("sm_90")
    compiler.install()
    mod, matmul, (tile,) = _chosen(case, 1, pipelined)
    source = source_of(tvm.tirx.build(apply(mod, matmul, tile).mod, target=tvm.target.Target(TARGET)))
    (use,) = kernel_uses(compiler.compile(source)).values()
    assert use.stack <= 16 and use.registers <= split_k.registers(matmul, tile) + 32
    reserved = 1 << 10  # by the system, in each block
    assert use.shared_memory <= split_k.shared_memory(matmul, tile) + reserved
    assert "atomic" not in source
    if max(tile.vectors) == 4:
        assert "float4" in source
