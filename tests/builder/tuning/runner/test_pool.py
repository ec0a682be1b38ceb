"""What candidates do to their workers, and what the pool makes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tunehub.compiler.workers import process
from tunehub.compiler.workers.fork_server import NewInterpreter
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.runner.messages import RunnerResult
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker, WorkerPool
from tunehub_builder.tuning.work_directory import TaskEntry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool(target: dict[str, Any], task: TaskEntry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    log = tmp_path_factory.mktemp("pool") / "log"
    options = PoolOptions(workers=1, threads=1, build_limit_s=20, measure_limit_s=20, log=str(log))
    # Their output is looked at, and one is killed by its number.
    with patch.object(process, "NewInterpreter", NewInterpreter), WorkerPool(options, target) as pool:
        pool.add_task(task.exact, task.module)
        yield pool


def measured(outcome: RunnerResult) -> bool:
    return outcome.error is None and all(seconds > 0 for seconds in outcome.run_s)


def process_id(worker: Worker) -> int:
    return int(worker._process.process.pid)


def test_a_crash_inside_tvm_costs_only_its_own_candidate(
    pool: WorkerPool, task: TaskEntry, good_traces: list[Any], crashing_trace: Any
) -> None:
    first, second, third, _ = good_traces
    outcomes = pool.run(task.exact, [first, second, crashing_trace, third], None)
    assert [measured(outcome) for outcome in outcomes] == [True, True, False, True]
    assert "crashed its process" in str(outcomes[2].error)


def test_a_trace_that_does_not_fit_is_a_failure_with_tvms_reason(pool: WorkerPool, task: TaskEntry) -> None:
    (outcome,) = pool.run(task.exact, [[[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []]], None)
    assert outcome.run_s == ()
    assert outcome.error


def test_a_crash_while_measuring_rebuilds_what_the_worker_held(
    pool: WorkerPool, task: TaskEntry, good_traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Worker.measure

    def crash_on_the_second(self: Worker, number: int, *others: Any) -> RunnerResult:
        if number == 1:
            os.kill(process_id(self), signal.SIGKILL)
        return measure(self, number, *others)

    monkeypatch.setattr(Worker, "measure", crash_on_the_second)
    outcomes = pool.run(task.exact, good_traces, None)
    assert [measured(outcome) for outcome in outcomes] == [True, False, True, True]
    assert "exit code -9" in str(outcomes[1].error)


@pytest.mark.usefixtures("new_interpreters")
def test_a_candidate_that_hangs_is_ended_at_its_limit(
    target: dict[str, Any], task: TaskEntry, good_traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Worker.start_build

    def hang_on_the_first(self: Worker, number: int, *others: Any) -> None:
        self.load(task.exact, task.module)
        if number == 0:
            os.kill(process_id(self), signal.SIGSTOP)
        start(self, number, *others)

    monkeypatch.setattr(Worker, "start_build", hang_on_the_first)
    options = PoolOptions(workers=1, threads=1, build_limit_s=4)
    with WorkerPool(options, target) as pool:
        pool.add_task(task.exact, task.module)
        outcomes = pool.run(task.exact, good_traces[:2], None)
    assert "longer than its limit" in str(outcomes[0].error)
    assert measured(outcomes[1])


def test_a_workload_that_no_worker_can_load_is_an_error_of_its_own(target: dict[str, Any]) -> None:
    options = PoolOptions(workers=1, threads=1)
    with WorkerPool(options, target) as pool:
        pool.add_task("broken", "not JSON")
        with pytest.raises(TuningError, match="cannot load a workload"):
            pool.run("broken", [[[], []]], None)


def test_workers_print_to_the_log_only(pool: WorkerPool) -> None:
    assert Path(str(pool._options.log)).exists()
