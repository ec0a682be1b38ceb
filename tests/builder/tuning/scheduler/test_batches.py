"""Batches of candidates for one task after the other. Fakes stand for TVM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.progress import Progress
from tunehub_builder.tuning.runner.messages import Finished, RunnerResult
from tunehub_builder.tuning.scheduler.batches import tune
from tunehub_builder.tuning.search.strategy import SearchStrategy
from tunehub_builder.tuning.search.warm_start import SeedSearch
from tunehub_builder.tuning.tasks import TuningTask

pytestmark = pytest.mark.fast


class Searches:
    """Two searches for each task; the first has three candidates, the second four, of which two may be measured."""

    batch, planned = 2, 5

    def plan(self, task: TuningTask, target: Any) -> list[tuple[SearchStrategy, int]]:
        one, two = ([[seconds] for seconds in found] for found in ((3.0, 2.0, math.nan), (1.0, 4.0, 5.0, 6.0)))
        return [(SeedSearch("one", one), 3), (SeedSearch("two", two), 2)]


class FakePool:
    """A candidate takes what it says."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.submitted: list[tuple[str, Sequence[Any], float | None]] = []
        self._waiting: list[Finished] = []

    def add_task(self, task: str, module: str) -> None:
        """Nothing to read."""

    def submit(self, task: str, candidates: Sequence[Any], best_s: float | None) -> None:
        self.submitted.append((task, candidates, best_s))
        for number, (seconds,) in enumerate(candidates):
            self._waiting.append(Finished(task=task, number=number, result=RunnerResult(run_s=(seconds,))))

    def results(self) -> list[Finished]:
        found, self._waiting = self._waiting[:3], self._waiting[3:]
        return found


def tasks(names: str) -> list[TuningTask]:
    import tvm

    mod = tvm.IRModule({})
    return [TuningTask(name=n, exact=n, anchor=None, count=1, networks=("net",), mod=mod) for n in names]


def test_searches_follow_each_other_and_each_task_has_a_best_time(tmp_path: Path) -> None:
    pool, shown = FakePool(1), list[Progress]()
    totals = tune(tasks("a"), None, tmp_path, pool, Searches(), shown.append)
    assert [best for _, _, best in pool.submitted] == [None, 2.0, 2.0]
    assert [trial.source for trial in Journal(tmp_path).trials()] == ["one"] * 3 + ["two"] * 2
    assert (totals.trials, totals.failed, totals.measured_now, totals.failures) == (5, 1, 5, {})
    assert (shown[-1].finished, shown[-1].best_s, shown[-1].done, shown[-1].planned) == (True, 1.0, 5, 5)


def test_a_time_that_is_none_is_a_failure(tmp_path: Path) -> None:
    tune(tasks("a"), None, tmp_path, FakePool(1), Searches())
    errors = [trial.error for trial in Journal(tmp_path).trials() if trial.error]
    assert errors == ["the timer gave (nan,) s"]


def test_a_second_run_measures_what_is_left(tmp_path: Path) -> None:
    tune(tasks("a"), None, tmp_path, FakePool(1), Searches())
    pool = FakePool(2)
    totals = tune(tasks("ab"), None, tmp_path, pool, Searches())
    assert {task for task, _, _ in pool.submitted} == {"b"}
    assert (totals.trials, totals.measured_now) == (10, 5)
