"""How programs are compared by time: in turns, warm, by medians, and a gain counts when it exceeds the noise.

In turns, so that a slow phase of the machine meets all. A timer repeats what other programs disturb, see
:mod:`tunehub.compiler.measure.quiet`; here are the rules, which know no clock but the timers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

MARGIN = 1.02  # times as fast: less is no gain, wherever tunehub compares measured times
_SLOW_S = 0.1  # a first run that takes so long says enough
_ENOUGH = 4  # samples of which quartiles say how they vary
Timer = Callable[[int], float]  # of a number of runs: mean seconds of one
_Name = TypeVar("_Name")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuringPlan:
    """In each of ``rounds`` every program gives a sample: the mean of enough runs for ``sample_s``. In seconds.

    ``pause_s`` before each sample: idle threads of another runtime's pool spin for a while and would take its cores.
    Threads that have slept often share one core at first, so a program runs for ``warm_up_s`` after each pause; without
    pauses all programs do so together, once, in turns. One whose run takes longer than that is not warmed up.
    A program takes part for ``budget_s`` in all, but twice at least, and only once when its first run takes more than
    ``cutoff`` times the fastest's. ``only_first``: the budget is the first program's, a default that may be a thousand
    times slower; the others give all their samples.
    """

    rounds: int
    sample_s: float
    warm_up_s: float = 0.0
    pause_s: float = 0.0
    budget_s: float = math.inf
    only_first: bool = False
    cutoff: float = math.inf


def in_turns(
    timers: Mapping[_Name, Timer],
    plan: MeasuringPlan,
    sleep: Callable[[float], None] = time.sleep,
    *,
    rough: Mapping[_Name, Timer] | None = None,
) -> dict[_Name, tuple[float, ...]]:
    """Samples by program: seconds of one run. What a timer raises ends it.

    ``rough``: timers for first runs and warm-ups, which need no patience with other programs; None: the same ones.
    """
    rough = timers if rough is None else rough
    run_s = {name: _first(rough[name]) for name in timers}
    limit = plan.cutoff * min(run_s.values(), default=0.0)
    running = [name for name in timers if run_s[name] <= limit]
    samples = {name: [] if name in running else [run_s[name]] for name in timers}
    budgets = {name: math.inf if plan.only_first and place else plan.budget_s for place, name in enumerate(timers)}
    for name in running:
        if 2 * run_s[name] > budgets[name]:  # two runs are all, and one has been made
            samples[name].append(run_s[name])
    if not plan.pause_s:
        _warm_up(rough, running, run_s, plan)
    for turn in range(max(plan.rounds, 2)):
        first = turn % len(running) if running else 0
        for name in running[first:] + running[:first]:
            runs = _runs(plan.sample_s, run_s[name])
            if len(samples[name]) >= 2 and (len(samples[name]) + 1) * runs * run_s[name] > budgets[name]:
                continue
            if plan.pause_s:
                sleep(plan.pause_s)
                _warm_up(rough, [name], run_s, plan)
                runs = _runs(plan.sample_s, run_s[name])
            samples[name].append(timers[name](runs))
    return {name: tuple(found) for name, found in samples.items()}


def wall_timer(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Timer:
    """A timer of ``run``, called again and again."""

    def timed(runs: int) -> float:
        began = clock()
        for _ in range(runs):
            run()
        return (clock() - began) / runs

    return timed


def _first(timer: Timer) -> float:
    once = timer(1)
    return once if once > _SLOW_S else min(once, timer(1))


def _runs(seconds: float, run_s: float) -> int:
    return max(1, round(seconds / max(run_s, 1e-7)))


def _warm_up(
    timers: Mapping[_Name, Timer], names: Iterable[_Name], run_s: dict[_Name, float], plan: MeasuringPlan
) -> None:
    """Run ``names`` in turns for ``warm_up_s`` in all; ``run_s`` learns from it."""
    spent, quick = 0.0, [name for name in names if run_s[name] < plan.warm_up_s]
    while quick and spent < plan.warm_up_s:
        for name in quick:
            runs = _runs(min(plan.sample_s, plan.warm_up_s), run_s[name])
            mean = timers[name](runs)
            spent += runs * mean
            run_s[name] = min(run_s[name], mean)


def _median(samples: Sequence[float]) -> float:
    from statistics import median  # imported when something was measured: a compile only asks for the margin

    return median(samples)


def interquartile_range(samples: Sequence[float]) -> float:
    """The distance between the quartiles, linearly interpolated; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = _quartiles(samples)
    return high - low


def _quartiles(samples: Sequence[float]) -> list[float]:
    from statistics import quantiles

    return quantiles(samples, n=4, method="inclusive")


def noise_reason(default_s: Sequence[float], run_s: Sequence[float], margin: float = MARGIN) -> str | None:
    """Why ``run_s`` are not faster than ``default_s`` beyond doubt, or None when they are."""
    default, tuned = _median(default_s), _median(run_s)
    noise = max(interquartile_range(default_s), interquartile_range(run_s))
    if default / tuned <= margin:
        return f"{default / tuned:.3g} times as fast as the default schedule; the least is {margin:.3g}"
    if default - tuned <= noise and not _is_far_apart(default_s, run_s):
        return f"the gain of {default - tuned:.3g} s is within the noise of {noise:.3g} s"
    return None


def _is_far_apart(default_s: Sequence[float], run_s: Sequence[float]) -> bool:
    """Whether three quarters of the one take over twice as long as three quarters of the other, however much they vary:
    times of a default that vary by more than all of a far shorter time say nothing against that."""
    if min(len(default_s), len(run_s)) < _ENOUGH:
        return False
    return _quartiles(default_s)[0] > 2 * _quartiles(run_s)[2]


def is_faster(run_s: Sequence[float], than_s: Sequence[float], margin: float = MARGIN) -> bool:
    """True when ``run_s`` are shorter than ``than_s`` by more than ``margin`` and beyond the noise."""
    return noise_reason(than_s, run_s, margin) is None


def is_lost_in_noise(default_s: Sequence[float], run_s: Sequence[float], margin: float = MARGIN) -> bool:
    """True for times that show a gain which their noise hides: on a quieter machine the decision may be another."""
    if not default_s or not run_s or _median(default_s) / _median(run_s) <= margin:
        return False
    return not is_faster(run_s, default_s, margin)


def fastest(samples: Mapping[_Name, Sequence[float]], preferred: _Name | None = None, margin: float = MARGIN) -> _Name:
    """The fastest by medians, the first of equals; ``preferred`` instead unless that one is clearly faster.

    Raises ValueError without samples.
    """
    least = min(samples, key=lambda name: _median(samples[name]))
    if preferred is None or preferred not in samples:
        return least
    return least if is_faster(samples[least], samples[preferred], margin) else preferred
