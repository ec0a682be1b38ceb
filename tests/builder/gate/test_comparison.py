"""Which finalist wins, by samples alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.gate.comparison import (
    Answer,
    BuildLimits,
    ComparedFinalists,
    Finalist,
    FinalistComparison,
    FinalistRules,
    WorkerLostError,
)
from tunehub_builder.gate.workloads import WorkloadCase, _WorkerRunner

pytestmark = pytest.mark.fast

PLAN = MeasuringPlan(rounds=3, sample_s=0.01)
DEFAULT_S = (1.0, 1.0, 1.0)


def rules(preferred: int | None = None) -> FinalistRules:
    return FinalistRules(plan=PLAN, tolerance=1e-4, preferred=preferred, min_gain=1.01)


def decide(*samples: tuple[float, ...], preferred: int | None = None) -> ComparedFinalists:
    finalists = [Finalist(source="template", tuning_s=1.0, run_s=run_s, difference=0.0) for run_s in samples]
    return FinalistComparison.of(finalists, rules(preferred)).decide(DEFAULT_S)


def test_the_fastest_wins() -> None:
    assert (decide((0.5, 0.5), (0.4, 0.4)).winner, decide((0.5, 0.5), (0.4, 0.4)).reason) == (1, None)


def test_a_preferred_finalist_wins_unless_another_is_clearly_faster() -> None:
    assert decide((0.5, 0.5), (0.4, 0.4), preferred=0).winner == 1
    assert decide((0.5, 0.5), (0.498, 0.498), preferred=0).winner == 0
    assert decide((0.5, 0.7, 0.3, 0.5), (0.4, 0.4, 0.4, 0.4), preferred=0).winner == 0  # within the noise


def test_a_preferred_finalist_that_is_out_has_no_say() -> None:
    finalists = [
        Finalist(source="template", tuning_s=1.0, reason="does not build"),
        Finalist(source="template", tuning_s=1.0, run_s=(0.5, 0.5), difference=0.0),
    ]
    assert FinalistComparison.of(finalists, rules(0)).decide(DEFAULT_S).winner == 1


def test_whoever_wins_must_beat_the_default() -> None:
    found = decide((1.0, 1.0), (0.99, 0.99), preferred=0)
    assert "times as fast as the default schedule" in str(found.reason)


class _NoDevice:
    """Builds; nothing runs, and whatever is timed ends the process. A build of nothing fails, as a worker's does."""

    numbers: Sequence[int] = ()

    def start_build(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def built(self) -> Answer:
        return ("ok", [None] * (1 + len(self.numbers))) if self.numbers else ("error", "list index out of range")

    def difference(self, position: int) -> Answer:
        return "error", "no device"

    def time(self, position: int | None, runs: int) -> float:
        raise WorkerLostError("the timer gave nothing")

    def time_cold(self, position: int, runs: int) -> float | None:
        raise AssertionError("nothing runs")


def test_when_nothing_runs_the_reason_is_why_and_not_what_a_second_try_of_nothing_says() -> None:
    finalists = [Finalist(source="template", tuning_s=1.0), Finalist(source="template", tuning_s=2.0)]
    found = FinalistComparison.of(finalists, rules()).run(_NoDevice(), ("ok", [None, None, None]))
    assert (found.winner, found.reason) == (None, "does not run: no device")


@pytest.mark.parametrize(("own_s", "admitted"), [(0.55, True), (0.497, True), (0.45, False)])
def test_who_wins_is_no_slower_than_what_serves_without_a_record(own_s: float, admitted: bool) -> None:
    samples = ((0.5, 0.5), (0.6, 0.6), (own_s, own_s))
    finalists = [Finalist(source="template", tuning_s=1.0, run_s=run_s, difference=0.0) for run_s in samples]
    compared = FinalistComparison.of(finalists, replace(rules(), own=2)).decide(DEFAULT_S)
    assert compared.winner == 0, "the rule wins nothing"
    assert (compared.reason is None) == admitted
    assert admitted or compared.reason == "0.9 times as fast as what serves without a record"


class _Timed:
    """A finalist that wins in the cache, and takes ``cold_s`` with operands from memory where the rule takes 1 s."""

    def __init__(self, cold_s: float | None) -> None:
        self._hot, self._cold = {None: 2.0, 0: 0.5, 1: 0.6}, {0: cold_s, 1: 1.0}

    def start_build(self, numbers: Sequence[int]) -> None:
        raise AssertionError("it was built")

    def built(self) -> Answer:
        raise AssertionError("it was built")

    def difference(self, position: int) -> Answer:
        return "ok", 0.0

    def time(self, position: int | None, runs: int) -> float:
        return self._hot[position]

    def time_cold(self, position: int, runs: int) -> float | None:
        return self._cold[position]


@pytest.mark.parametrize(("cold_s", "admitted"), [(0.9, True), (1.005, True), (1.25, False), (None, True)])
def test_who_wins_in_the_cache_must_not_lose_with_operands_from_memory(cold_s: float | None, admitted: bool) -> None:
    finalists = [Finalist(source="template", tuning_s=1.0), Finalist(source="rule", tuning_s=0.0)]
    compared = FinalistComparison.of(finalists, replace(rules(), own=1)).run(_Timed(cold_s), ("ok", [None] * 3))
    assert (compared.winner, compared.reason is None) == (0, admitted)
    assert admitted or compared.reason == "0.8 times as fast as what serves without a record, operands from memory"
    assert compared.finalists[0].cold_s == (() if cold_s is None else (cold_s,) * PLAN.rounds)


@pytest.mark.parametrize(("cold_s", "found"), [(2.0, 2.0), (None, 1.0)])
def test_where_rules_say_so_all_is_timed_with_operands_from_memory(cold_s: float | None, found: float) -> None:
    class _Worker:
        alive = True

        def ask(self, request: tuple[Any, ...], _limit: float) -> Answer:
            return "ok", {"time_cold": cold_s, "time": 1.0}[request[0]]

    limits = BuildLimits(build_s=1.0, run_s=1.0)
    for cold, seconds in ((True, found), (False, 1.0)):
        case: WorkloadCase[None] = WorkloadCase(
            task="t", module="", finalists=(), rules=replace(rules(), cold=cold), request=tuple, verdict=lambda _: None
        )
        runner = _WorkerRunner(worker=_Worker(), case=case, limits=limits)  # type: ignore[arg-type]
        assert (runner.time(None, 1), runner.time(0, 1)) == (seconds, seconds)


def test_what_no_rule_serves_is_judged_by_the_default_alone() -> None:
    finalists = [
        Finalist(source="template", tuning_s=1.0, run_s=(0.5, 0.5), difference=0.0),
        Finalist(source="rule", tuning_s=0.0, reason="does not build: no rule serves it"),
    ]
    assert FinalistComparison.of(finalists, replace(rules(), own=1)).decide(DEFAULT_S).reason is None
