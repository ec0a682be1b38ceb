"""How programs are compared by time, with timers that need no machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count

import pytest

from tunehub.comparison.protocol import MeasuringPlan, Timer, fastest, in_turns, is_faster, is_lost_in_noise, wall_timer

pytestmark = pytest.mark.fast

Call = tuple[str, int]


class Machine:
    """Programs that take as long as they are told; notes who ran, and when there was a pause."""

    def __init__(self, **run_s: float) -> None:
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self.timers: dict[str, Timer] = {name: self._timer(name, seconds) for name, seconds in run_s.items()}

    def _timer(self, name: str, seconds: float) -> Timer:
        def timed(runs: int) -> float:
            self.calls.append((name, runs))
            return seconds

        return timed

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.calls.append(("pause", 0))

    def measure(self, plan: MeasuringPlan) -> dict[str, tuple[float, ...]]:
        return in_turns(self.timers, plan, self.sleep)


def test_programs_take_turns_and_nobody_is_always_first() -> None:
    machine = Machine(a=0.001, b=0.002)
    found = machine.measure(MeasuringPlan(rounds=3, sample_s=0.01))
    assert found == {"a": (0.001,) * 3, "b": (0.002,) * 3}
    assert machine.calls[4:] == [("a", 10), ("b", 5), ("b", 5), ("a", 10), ("a", 10), ("b", 5)]


def test_a_slow_program_takes_part_as_long_as_its_budget_lasts_but_twice() -> None:
    plan = MeasuringPlan(rounds=7, sample_s=0.01, budget_s=1.0)
    assert [len(samples) for samples in Machine(a=0.001, b=0.25, c=0.6).measure(plan).values()] == [7, 4, 2]
    machine = Machine(a=40.0)
    assert machine.measure(plan) == {"a": (40.0, 40.0)}
    assert machine.calls == [("a", 1), ("a", 1)], "its first run counts"


def test_a_budget_may_be_for_the_first_program_alone() -> None:
    plan = MeasuringPlan(rounds=7, sample_s=0.01, budget_s=1.0, only_first=True)
    assert [len(samples) for samples in Machine(a=0.25, b=0.001, c=0.6).measure(plan).values()] == [4, 7, 7]


def test_what_is_far_behind_after_its_first_run_is_not_measured_on() -> None:
    machine = Machine(a=0.001, b=0.003)
    assert machine.measure(MeasuringPlan(rounds=5, sample_s=0.01, cutoff=2.0)) == {"a": (0.001,) * 5, "b": (0.003,)}


def test_after_a_pause_a_program_is_warmed_up_and_one_that_is_slower_than_that_is_not() -> None:
    machine = Machine(a=0.01, b=0.3)
    machine.measure(MeasuringPlan(rounds=2, sample_s=0.02, warm_up_s=0.04, pause_s=0.05))
    warm_a = [("pause", 0), ("a", 2), ("a", 2), ("a", 2)]
    assert machine.calls[3:] == [*warm_a, ("pause", 0), ("b", 1), ("pause", 0), ("b", 1), *warm_a]
    assert machine.pauses == [0.05] * 4


def test_without_pauses_all_are_warmed_up_together_once() -> None:
    machine = Machine(a=0.01, b=0.01)
    machine.measure(MeasuringPlan(rounds=2, sample_s=0.02, warm_up_s=0.08))
    assert machine.calls[4:] == [("a", 2), ("b", 2), ("a", 2), ("b", 2), ("a", 2), ("b", 2), ("b", 2), ("a", 2)]


def test_a_cold_first_run_does_not_decide_how_many_runs_a_sample_has() -> None:
    times: Iterator[float] = iter([0.08, 0.08])
    runs: list[int] = []

    def timed(number: int) -> float:
        runs.append(number)
        return next(times, 0.01)

    in_turns({"a": timed}, MeasuringPlan(rounds=2, sample_s=0.1, warm_up_s=0.1), lambda _: None)
    assert runs[-2:] == [10, 10]


def test_what_a_timer_raises_ends_it_and_nothing_is_measured_of_nothing() -> None:
    def broken(_: int) -> float:
        raise OSError

    with pytest.raises(OSError):
        in_turns({"a": broken}, MeasuringPlan(rounds=3, sample_s=0.01))
    assert in_turns({}, MeasuringPlan(rounds=3, sample_s=0.01)) == {}


def test_a_wall_timer_gives_the_mean_of_its_runs() -> None:
    ticks, runs = count(0.0, 6.0), []
    assert wall_timer(lambda: runs.append(1), lambda: next(ticks))(3) == 2.0
    assert len(runs) == 3


def test_a_gain_counts_beyond_the_margin_and_the_noise() -> None:
    assert is_faster((0.9, 0.9), (1.0, 1.0))
    assert not is_faster((0.99, 0.99), (1.0, 1.0))
    assert is_faster((0.99, 0.99), (1.0, 1.0), 1.0)
    noisy = (0.9, 0.6, 1.2, 0.9)
    assert not is_faster(noisy, (1.0, 1.0))


def test_only_a_gain_that_noise_hides_is_lost_in_it() -> None:
    noisy = (0.9, 0.6, 1.2, 0.9)
    assert is_lost_in_noise((1.0, 1.0), noisy)
    assert not is_lost_in_noise((1.0, 1.0), (0.5, 0.5)), "a clear gain"
    assert not is_lost_in_noise((1.0, 1.0), (1.0, 1.5)), "no gain at all"
    assert not is_lost_in_noise((), (1.0,))


def test_what_is_preferred_stays_unless_another_is_clearly_faster() -> None:
    samples = {"a": (1.0, 1.0), "b": (0.99, 0.99), "c": (math.inf,)}
    assert (fastest(samples), fastest(samples, "a"), fastest(samples, "x")) == ("b", "a", "b")
    assert fastest(samples, "a", 1.0) == "b"
    assert fastest({"a": (1.0,), "b": (1.0,)}) == "a"
