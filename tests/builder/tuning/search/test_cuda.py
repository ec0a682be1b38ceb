"""The search for CUDA starts with what records propose, then with the client's rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi

from tunehub.kernels.cpu import KnobError
from tunehub.kernels.cuda.gemm.rule import ranked
from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
from tunehub.kernels.devices.known import device_of
from tunehub.records.lookup import Candidate
from tunehub.tir.cuda.thread_extents import thread_tag
from tunehub.tir.nodes import statements_in
from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_builder.tuning.runner.cuda_worker import CudaKnobSession
from tunehub_builder.tuning.runner.messages import SearchRequest
from tunehub_builder.tuning.search.cuda import FIRST, SOURCE, CudaSearch, KnobSearchSession, SearchSession
from tunehub_builder.tuning.search.knobs import RULE, space_of
from tunehub_builder.tuning.search.strategy import trace_id
from tunehub_builder.tuning.search.warm_start import KnownCandidates
from tunehub_builder.tuning.tasks import TuningTask, task_of
from tunehub_registry.record import ScheduleRecord

pytestmark = pytest.mark.slow

CONFIG = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
TARGET = tvm.target.Target(CONFIG)


def convolution(channels: int, filters: int) -> TuningTask:
    """It has more results than split-K is for, whose tiles take most of the time to make."""
    data, weight = (
        te.placeholder((1, channels, 128, 128), name="data"),
        te.placeholder((filters, channels, 1, 1), name="w"),
    )
    sums = topi.nn.relu(topi.nn.conv2d(data, weight, 1, 0, 1))
    task = task_of("net", "conv", te.create_prim_func([data, weight, sums]).with_attr("global_symbol", "main"), 1)
    assert task is not None
    return task


def test_the_first_candidates_are_of_the_rule_and_by_chance() -> None:
    mod = convolution(64, 64).mod
    found = reduction_block_of(mod)
    assert found is not None and found.problem is not None
    best = ranked(found.problem, device_of(TARGET), shared_memory=49152, threads=1024, count=1)[0]
    proposed = CudaSearch(mod, TARGET, seed=0, threads=1).propose([], 32)
    tiles = [[tuple(value) for _, value in decisions if isinstance(value, list)] for _, decisions in proposed]
    assert len(tiles) == FIRST
    wanted = [*zip(best.virtual, best.threads, best.inner, strict=True)]
    of_rule = [each for each in tiles if [tile[1:4] for tile in each[:4]] == wanted]
    assert any([tile[1] for tile in each[4:]] == list(best.step) for each in of_rule)
    assert len({tuple(each) for each in tiles}) > FIRST // 2


def test_an_earlier_run_without_the_rule_gets_its_tiles_once() -> None:
    task = convolution(64, 64)
    ruled = set(CudaSearch(task.mod, TARGET, seed=0, threads=1)._by_rule())
    by_chance = [
        trace
        for trace in CudaSearch(task.mod, TARGET, seed=2, threads=1).propose([], 32)
        if trace_id(trace) not in ruled
    ]
    trials = [Trial(task=task.exact, trace=trace, source=SOURCE, run_s=(1e-5,)) for trace in by_chance]
    search = CudaSearch(task.mod, TARGET, seed=0, threads=1)
    first, second = (list(map(trace_id, search.propose(trials, 16))) for _ in range(2))
    assert ruled and ruled <= set(first)
    assert not ruled & set(second)
    assert len(first) == len(set(first)) == 16


def test_records_come_first_and_the_search_goes_on_around_them() -> None:
    """The record of the very workload, one of another shape adapted, then tiles of the rule and variations of both."""
    own, other = convolution(64, 64), convolution(128, 64)
    session = SearchSession(1)
    session.task(own.exact, str(tvm.ir.save_json(own.mod)))
    made = {
        task.exact: json.loads(list(CudaSearch(task.mod, TARGET, seed=1, threads=1)._by_rule())[position])
        for task, position in ((own, 0), (other, -1))  # another tile, or adapting would make the same of it
    }

    def candidate(task: TuningTask, rung: str) -> Candidate:
        record = ScheduleRecord(
            exact=task.exact, op="conv", run_s=(1e-5,), source="x", trace=tuple(made[task.exact]), **task.classes
        )
        return Candidate(record=record, rung=rung, package="cuda-x 1.0")  # type: ignore[arg-type]

    known = [
        KnownCandidates(how="exact", most=1, candidates=[candidate(own, "exact")]),
        KnownCandidates(how="transfer", most=4, candidates=[candidate(other, "transfer")]),
    ]

    def request(news: list[Trial], records: Sequence[KnownCandidates] = ()) -> SearchRequest:
        return SearchRequest(task=own.exact, target=CONFIG, news=news, limit=32, seed=0, known=records)

    seeds = session.propose(request([], known))
    assert [seed.source for seed in seeds] == ["registry cuda-x 1.0, exact", "registry cuda-x 1.0, transfer"]
    assert seeds[0].candidate == made[own.exact]
    trials = [Trial(task=own.exact, trace=s.candidate, source=s.source, run_s=(1e-5,)) for s in seeds]
    found = session.propose(request(trials))
    assert len(found) == FIRST and {seed.source for seed in found} == {SOURCE}
    ids = [trace_id(seed.candidate) for seed in (*seeds, *found)]
    assert len(set(ids)) == len(ids)
    again = SearchSession(1)
    again.task(own.exact, str(tvm.ir.save_json(own.mod)))
    assert {seed.source for seed in again.propose(request(trials, known))} == {SOURCE}


def test_the_tuner_of_templates_proposes_the_rules_tiles_and_the_worker_builds_them(tmp_path: Path) -> None:
    task = convolution(64, 64)
    searches = KnobSearchSession(threads=1)
    searches.task(task.exact, str(tvm.ir.save_json(task.mod)))
    proposed = searches.propose(request(task, []))
    assert [seed.source for seed in proposed] == ["cuda_tiles 1"] * 16
    trials = [Trial(task=task.exact, choice=seed.candidate, source=seed.source, run_s=(1e-5,)) for seed in proposed]
    assert searches.propose(request(task, trials)) == []
    session = CudaKnobSession(str(tmp_path / "lock"))
    session.task(task.exact, str(tvm.ir.save_json(task.mod)))
    made = [session.candidate(task.exact, CONFIG, each)["main"] for each in (proposed[0].candidate, RULE)]
    assert all(thread_tag(each) for each in map(first_loop, made)), "and what serves without a record, for the gate"


def request(task: TuningTask, news: Sequence[Trial]) -> SearchRequest:
    return SearchRequest(task=task.exact, target=CONFIG, news=news, limit=32, seed=0)


def first_loop(function: Any) -> Any:
    return next(each for each in statements_in(function.body) if type(each).__name__ == "For")


def test_an_open_workload_has_a_choice_for_each_of_some_sizes(tmp_path: Path) -> None:
    rows = tvm.tirx.Var("rows", "int64")
    first = te.placeholder([rows, tvm.tirx.IntImm("int64", 64)], name="first")
    second = te.placeholder([tvm.tirx.IntImm("int64", 64)] * 2, name="second")
    function = te.create_prim_func([first, second, topi.nn.relu(topi.nn.matmul(first, second))])
    task = task_of("net", "dense", function.with_attr("global_symbol", "main"), 1, {"rows": (1, 16, 128)})
    assert task is not None and task.points == ((1,), (16,), (128,))
    space = [choice for choice in space_of(task.mod, TARGET) if choice != RULE]
    assert len({choice.knobs["length"] for choice in space}) > 1
    session = CudaKnobSession(str(tmp_path / "lock"))
    session.task(task.exact, str(tvm.ir.save_json(task.mod)))
    built = session.candidate(task.exact, CONFIG, space[-1])["main"]
    assert thread_tag(first_loop(built)) == "blockIdx.x"
    refused = KnobChoice(template="cuda_tiles", version=1, knobs={**space[-1].knobs, "length": 0})
    with pytest.raises(KnobError, match="pieces of 0"):
        session.candidate(task.exact, CONFIG, refused)
