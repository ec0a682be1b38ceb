"""The table of trials of TVM <= 0.19: what the logs of a work directory say, had tuning been given up earlier."""

from __future__ import annotations

import math

import pytest
from benchmarks.relay_trials import by_network

from tunehub_builder.backends.relay.work import RelayTask

pytestmark = pytest.mark.fast


def task(key: str, operator: str, **counts: int) -> RelayTask:
    return RelayTask(tuner="autotvm", name=key, key=key, operator=operator, workload=[], counts=counts, flop=1.0)


TASKS = [task("direct", "a", net=2, other=1), task("winograd", "a", net=2, other=1), task("dense", "b", net=1)]
TRIALS = {
    ("autotvm", "direct"): [4.0, math.nan, 2.0],
    ("autotvm", "winograd"): [3.0, 3.0, 3.0, 1.0],
    ("autotvm", "dense"): [math.nan, 0.5],
}


def test_the_fastest_implementation_after_so_many_trials_counts_as_often_as_it_is_called() -> None:
    rows = {row.network: row for row in by_network(TASKS, TRIALS, (1, 2, 3, 100))}
    assert rows["net"].seconds == {1: math.inf, 2: 6.5, 3: 4.5, 100: 2.5}
    assert rows["other"].seconds == {1: 3.0, 2: 3.0, 3: 2.0, 100: 1.0}
    assert (rows["net"].operators, rows["net"].tasks) == (2, 3)


def test_it_says_how_many_tasks_had_so_many_trials() -> None:
    (_, row) = sorted(by_network(TASKS, TRIALS, (2, 3, 4)), key=lambda row: row.tasks)
    assert row.complete == {2: 3, 3: 2, 4: 1}


def test_a_task_without_any_trial_has_no_time() -> None:
    (row,) = by_network([task("new", "c", net=1)], TRIALS, (20,))
    assert row.seconds == {20: math.inf}
    assert row.complete == {20: 0}
