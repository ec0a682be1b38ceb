"""Tuning on a GPU: what is handed out, written down and gone on with. Fake sessions stand for the GPU."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

sys.path.append(str(Path(__file__).parents[2] / "fakes"))  # workers import the fakes by name, too

from cuda_fakes import DEFAULT_S, FakeBuilder, FakeSearcher

from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_builder.tuning.scheduler.cuda import CudaOptions, CudaTaskRecord, default_journal, tune_on_gpu
from tunehub_builder.tuning.tasks import TuningTask
from tunehub_registry.record import ScheduleRecord

pytestmark = pytest.mark.slow

TARGET = {"kind": "cuda", "arch": "sm_80"}
OPTIONS = CudaOptions(batch=2, searchers=1, trials=6)
COUNTS = {"a": {"net": 1}, "b": {"net": 3}}


def _task(name: str) -> TuningTask:
    import tvm
    from tvm import te

    data = te.placeholder((8,), name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, te.compute((8,), lambda i: data[i] + 1.0)])})
    return TuningTask(name=name, exact=name, anchor=None, count=1, networks=("net",), mod=mod)


def _tune(directory: Path, planned: dict[str, list[Any]], options: CudaOptions = OPTIONS) -> tuple[str, ...]:
    make_builders = [functools.partial(FakeBuilder, str(directory / "log"))] * 2
    return tune_on_gpu(
        [_task("a"), _task("b")],
        COUNTS,
        TARGET,
        directory,
        PoolOptions(workers=2, threads=1, log=str(directory / "native")),
        options,
        make_builders=make_builders,
        make_searcher=functools.partial(FakeSearcher, planned),
    ).notes


def _tried(directory: Path) -> list[tuple[str, Any, bool]]:
    return sorted((trial.task, trial.trace[0], trial.error is None) for trial in Journal(directory).trials())


def test_every_candidate_is_tried_once_and_the_defaults_first(tmp_path: Path) -> None:
    assert _tune(tmp_path, {"a": [[0.5], [0.4], [0.3]], "b": [[0.2]]}) == ()
    assert _tried(tmp_path) == [("a", 0.3, True), ("a", 0.4, True), ("a", 0.5, True), ("b", 0.2, True)]
    defaults = sorted((each.task, each.run_s) for each in default_journal(tmp_path).entries())
    assert defaults == [("a", (DEFAULT_S,)), ("b", (DEFAULT_S,))]
    log = (tmp_path / "log").read_text().split("\n")
    assert log[0].endswith("default")
    assert (log.count("a default"), log.count("b default")) == (1, 1)


def test_a_candidate_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    assert _tune(tmp_path, {"a": [["dies"], ["fails"], [0.4]], "b": [[0.2], [0.1]]}) == ()
    assert sum(trial.error is None for trial in Journal(tmp_path).trials()) == 3
    errors = {str(trial.trace[0]): trial.error for trial in Journal(tmp_path).trials()}
    assert errors["0.4"] is None
    assert errors["fails"] == "refused"
    assert "crashed its process (exit code 3)" in (errors["dies"] or "")


def test_a_second_run_goes_on(tmp_path: Path) -> None:
    planned = {"a": [[0.5], [0.4]], "b": [[0.2], [0.1]]}
    _tune(tmp_path, {"a": planned["a"], "b": []})
    before = _tried(tmp_path)
    _tune(tmp_path, planned)
    assert [trial for trial in _tried(tmp_path) if trial in before] == before
    assert len(_tried(tmp_path)) == 4
    assert (tmp_path / "log").read_text().count("default") == 2


def test_no_more_trials_than_asked_for(tmp_path: Path) -> None:
    _tune(tmp_path, {"a": [[1.0 / n] for n in range(1, 9)], "b": []}, CudaOptions(batch=2, searchers=1, trials=3))
    assert len(_tried(tmp_path)) == 3


def test_what_nobody_has_tried_promises_most() -> None:
    """Of equal workloads the untried is first; a fast one has little left; the rest falls with each batch."""

    def record(**fields: Any) -> CudaTaskRecord:
        made = CudaTaskRecord(task=None, module="", floor_s=1e-6, default_s=1e-3, share=1.0)  # type: ignore[arg-type]
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    untried, tried = record(), record(trials=[None] * 32, best_s=9e-4)
    stale, at_floor = record(trials=[None] * 32, best_s=9e-4, stale=2), record(best_s=1.01e-6)
    assert untried.promise() > tried.promise() > stale.promise() > at_floor.promise() > 0


class Records(EmptyLookup):
    """A record for each of some workloads."""

    def __init__(self, traces: dict[str, Any]) -> None:
        self._traces = traces

    def by_exact(self, key: str) -> Candidate | None:
        if key not in self._traces:
            return None
        record = ScheduleRecord(exact=key, op="x", run_s=(1.0,), source="x", trace=(self._traces[key],))
        return Candidate(record=record, rung="exact", package="p")


def test_records_are_the_first_trials(tmp_path: Path) -> None:
    options = CudaOptions(batch=2, searchers=1, trials=6, records=Records({"a": 0.1}))
    assert _tune(tmp_path, {"a": [[0.5]], "b": [[0.2]]}, options) == ()
    trials = [(trial.task, trial.trace[0], trial.source) for trial in Journal(tmp_path).trials()]
    assert [trial for trial in trials if trial[0] == "a"] == [
        ("a", 0.1, "registry p, exact"), ("a", 0.5, "evolutionary")
    ]  # fmt: skip
    assert [trial for trial in trials if trial[0] == "b"] == [("b", 0.2, "evolutionary")]


def test_a_record_that_ends_the_search_leaves_the_workload_to_it(tmp_path: Path) -> None:
    options = CudaOptions(batch=2, searchers=1, trials=6, records=Records({"a": "dies"}))
    (problem,) = _tune(tmp_path, {"a": [[0.5]], "b": [[0.2]]}, options)
    assert problem.startswith("a: the search ended")
    assert _tried(tmp_path) == [("a", 0.5, True), ("b", 0.2, True)]
