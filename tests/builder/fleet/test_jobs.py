"""The jobs of a fleet in threads of this process: what candidates do to their children, and what comes of it."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

sys.path.append(str(Path(__file__).parents[1] / "fakes"))  # workers import the fakes by name, too

from cuda_fakes import FakeSearcher
from fleet_fakes import FakeDevice

from tunehub_builder.exceptions import TuningError
from tunehub_builder.fleet.dask import DaskEngine
from tunehub_builder.fleet.jobs import JobSettings, facts
from tunehub_builder.fleet.pool import Fleet, FleetPool, ThreadEngine, slots
from tunehub_builder.fleet.worker import MachineTurn
from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.runner.messages import MeasureOptions
from tunehub_builder.tuning.runner.pool import PoolOptions, RunnerResult
from tunehub_builder.tuning.runner.worker import TraceSession
from tunehub_builder.tuning.scheduler.cuda import CudaOptions, tune_on_gpu
from tunehub_builder.tuning.target import tvm_versions
from tunehub_builder.tuning.tasks import TuningTask
from tunehub_builder.tuning.work_directory import TaskEntry

pytestmark = pytest.mark.slow

OPTIONS = PoolOptions(workers=1, threads=1)


def settings_of(
    target: dict[str, Any], make_session: Any = TraceSession, versions: tuple[str, str] | None = None
) -> JobSettings:
    found = versions or tvm_versions()
    return JobSettings(
        target=target, versions=found, make_session=make_session, options=OPTIONS, measure=MeasureOptions()
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[ThreadEngine]:
    with ThreadEngine(1) as engine:
        yield engine


def pool_of(engine: ThreadEngine, settings: JobSettings) -> FleetPool:
    return FleetPool(Fleet(engine=engine, machine={}), settings, "llvm-x")


def results(pool: FleetPool, count: int) -> dict[tuple[str, int], RunnerResult]:
    found: dict[tuple[str, int], RunnerResult] = {}
    while len(found) < count:
        found |= {(each.task, each.number): each.result for each in pool.results()}
    return found


def test_a_crash_costs_only_its_own_candidate(
    engine: ThreadEngine, target: dict[str, Any], task: TaskEntry, good_traces: list[Any], crashing_trace: Any
) -> None:
    pool = pool_of(engine, settings_of(target))
    assert pool.at_once == 2
    pool.add_task(task.exact, task.module)
    pool.submit(task.exact, [good_traces[0], crashing_trace, [[], []], good_traces[1]], None)
    found = results(pool, 4)
    errors = [found[task.exact, number].error for number in range(4)]
    assert "crashed its process" in str(errors[1])
    assert [error is None for error in errors] == [True, False, True, True]
    assert all(seconds > 0 for number in (0, 2, 3) for seconds in found[task.exact, number].run_s)


def test_another_tvm_is_refused(engine: ThreadEngine, target: dict[str, Any], task: TaskEntry) -> None:
    pool = pool_of(engine, settings_of(target, versions=("0.1", "0.2")))
    pool.add_task(task.exact, task.module)
    pool.submit(task.exact, [[[], []]], None)
    with pytest.raises(TuningError, match=r"this run 0\.1 \(apache-tvm-ffi 0\.2\): install the same"):
        pool.results()


def test_a_workload_that_cannot_be_loaded_is_no_candidates_fault(engine: ThreadEngine, target: dict[str, Any]) -> None:
    pool = pool_of(engine, settings_of(target))
    pool.add_task("broken", "not JSON")
    pool.submit("broken", [[[], []]], None)
    with pytest.raises(TuningError, match="cannot load a workload"):
        pool.results()


def test_a_worker_that_is_not_what_it_offers_says_so() -> None:
    with pytest.raises(TuningError, match="a worker that offers cuda-gt9 cannot measure for it"):
        facts("cuda-gt9")


def test_the_tuner_on_gpus_works_through_a_fleet(tmp_path: Path, engine: ThreadEngine, matmul: Any) -> None:
    plan: dict[str, list[Any]] = {"a": [[0.5], ["fails"]], "b": [[0.2]]}
    tasks = [TuningTask(name=n, exact=n, anchor=None, count=1, networks=("net",), mod=matmul) for n in plan]
    target = {"kind": "cuda", "arch": "sm_80"}
    problems = tune_on_gpu(
        tasks,
        {name: {"net": 1} for name in plan},
        target,
        tmp_path,
        OPTIONS,
        CudaOptions(batch=2, searchers=1, trials=6),
        builders=slots(pool_of(engine, settings_of(target, FakeDevice))),
        make_searcher=functools.partial(FakeSearcher, plan),
    ).notes
    found = sorted((trial.task, str(trial.trace[0]), trial.run_s, trial.error) for trial in Journal(tmp_path).trials())
    assert problems == ()
    assert found == [("a", "0.5", (0.5,), None), ("a", "fails", (), "refused"), ("b", "0.2", (0.2,), None)]


def test_one_measures_or_several_build(tmp_path: Path) -> None:
    builders, measurer, late = [MachineTurn(tmp_path) for _ in range(2)], MachineTurn(tmp_path), MachineTurn(tmp_path)
    for builder in builders:
        builder.share()
    order: list[str] = []

    def enter(name: str, take: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: (take(), order.append(name)))
        thread.start()
        thread.join(0.3)
        return thread

    measuring = enter("measures", measurer.take)
    building = enter("builds", late.share)  # not before the one who waits
    builders[0].leave()
    assert order == []
    builders[1].leave()
    measuring.join(10)
    assert order == ["measures"]
    measurer.leave()
    building.join(10)
    assert order == ["measures", "builds"]
    late.leave()


class KilledWorker(Exception):
    """As dask's."""


class Failed:
    """A future of dask's that failed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KilledWorker("x"), RunnerResult, "lost with every worker"),
        (TuningError("wrong TVM"), TuningError, "^wrong TVM$"),
        (OSError("gone"), TuningError, "OSError: gone; what was measured is in the work directory"),
    ],
)
def test_what_ends_workers_is_a_failed_candidate_and_the_rest_ends_the_run(
    error: Exception, kind: type[Any], text: str
) -> None:
    engine, answers = DaskEngine("dask://x:1"), []
    engine._open["key"] = object()
    engine._done("key", answers.append, Failed(error))
    engine._done("key", answers.append, Failed(error))  # no longer open
    (answer,) = answers
    assert isinstance(answer, kind)
    assert re.search(text, str(answer.error if isinstance(answer, RunnerResult) else answer))
