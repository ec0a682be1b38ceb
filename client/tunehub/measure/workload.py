"""The candidates of one workload against TVM's default, in a worker process: built, compared, timed in turns.

A candidate whose process crashes or hangs gets one more chance, since it may not be to blame; then it is out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tunehub.measure.candidates import Task, line_of
from tunehub.measure.samples import difference_reason, noise_reason
from tunehub.measure.session import DEFAULT, packed, unpacked
from tunehub.measure.worker_process import WorkerProcess
from tunehub.relax.workload import workload_text

NONE = -1  # the number of TVM's default among candidates
_STRIKES = 2
_RUNS_COMPARED = 5
_CUTOFF = 2.0  # a first run above so many times the fastest's ends a candidate
_MIN_GAIN = 1.02  # what another candidate must gain on the one that would be used without measuring
_SLOW_S = 0.1  # a first run is repeated unless it takes so long


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that a request may take before its candidate is given up, and how long a candidate is timed:
    ``rounds`` samples, each the mean of runs for ``sample_s``."""

    build_s: float = 60.0
    run_s: float = 30.0
    rounds: int = 7
    sample_s: float = 0.01


class NotMeasurableError(Exception):
    """Nothing can be said about a workload: its default cannot be built or run here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Samples in seconds by the number of a candidate (``NONE``: TVM's default), and why others have none."""

    samples: Mapping[int, tuple[float, ...]]
    reasons: Mapping[int, str] = field(default_factory=dict)


def fastest(samples: Mapping[int, Sequence[float]], chosen: int) -> int:
    """The number of the fastest by medians. ``chosen``, what would be used without measuring, stays unless that one is
    faster beyond the noise."""
    least = min(samples, key=lambda number: (median(samples[number]), number))
    if chosen in samples and noise_reason(samples[chosen], samples[least], _MIN_GAIN) is not None:
        return chosen
    return least


class Race:
    """One workload's candidates in one worker process, which is theirs alone until :meth:`run` ends."""

    def __init__(self, worker: WorkerProcess, task: Task, target: str, limits: Limits) -> None:
        self._worker, self._task, self._target, self._limits = worker, task, target, limits
        self._module = workload_text(task.mod["main"])
        self._running = list(range(len(task.records)))
        self._built: set[int] = set()
        self._compared: set[int] = set()
        self._strikes: Counter[int] = Counter()
        self._reasons: dict[int, str] = {}

    def build(self) -> None:
        """Build all candidates. Others may build at the same time. Raises NotMeasurableError, OSError."""
        self._retrying(self._build)

    def run(self) -> Result:
        """Compare and time what is built, while nothing else runs. Raises NotMeasurableError, OSError."""
        samples: dict[int, tuple[float, ...]] = {}

        def measure() -> None:
            self._build()
            self._compare()
            samples.update(self._time())

        self._retrying(measure)
        self._worker.ask(("drop",), self._limits.run_s)
        return Result(samples=samples, reasons=dict(self._reasons))

    def _retrying(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
                return
            except _LostError as lost:
                self._built.clear()
                self._strikes[lost.number] += 1
                if self._strikes[lost.number] >= _STRIKES:
                    self._reject(lost.number, str(lost))

    def _build(self) -> None:
        task, limit = self._task, self._limits.build_s
        if not self._worker.alive:
            self._worker.start()
        if not self._built:
            self._must(("task", task.exact, self._module), limit)
            self._must(("build_default", DEFAULT, task.exact, self._target), limit)
            self._built.add(NONE)
        for number in [number for number in self._running if number not in self._built]:
            request = ("build_record", number, task.exact, self._target, line_of(task.records[number]))
            kind, value = self._ask(number, request, limit)
            if kind == "ok":
                self._built.add(number)
            elif number == 0 and task.chosen:  # it works for a compile: nothing can be said against it
                raise NotMeasurableError(f"what is used without measuring cannot be built alone: {value}")
            else:
                self._reject(number, f"does not build: {value}")

    def _compare(self) -> None:
        waiting = [number for number in self._running if number not in self._compared]
        if waiting:
            self._must(("refer", DEFAULT), self._limits.run_s)
        for number in waiting:
            request = ("difference", unpacked(number), DEFAULT, _RUNS_COMPARED)
            kind, value = self._ask(number, request, self._limits.run_s)
            if kind != "ok":
                self._reject(number, f"does not run: {value}")
            elif reason := difference_reason(value, self._task.tolerance):
                self._reject(number, reason)
            self._compared.add(number)

    def _time(self) -> dict[int, tuple[float, ...]]:
        numbers = [NONE, *self._running]
        samples = {number: [self._first(number)] for number in numbers}
        first = {number: values[0] for number, values in samples.items()}
        best = min(first.values())
        contenders = [number for number in numbers if first[number] <= _CUTOFF * best]
        for number in contenders:
            samples[number].clear()
        for turn in range(self._limits.rounds):
            for number in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                samples[number].append(self._sample(number, max(1, int(self._limits.sample_s / first[number]))))
        return {number: tuple(values) for number, values in samples.items()}

    def _first(self, number: int) -> float:
        once = self._sample(number, 1)
        return once if once > _SLOW_S else min(once, self._sample(number, 1))

    def _sample(self, number: int, runs: int) -> float:
        kind, value = self._ask(number, ("time", DEFAULT if number == NONE else packed(number), runs),
                                self._limits.run_s)  # fmt: skip
        if kind != "ok" or not value > 0:
            self._reject(number, f"cannot be timed: {value}")
            raise _LostError(number, str(value))
        return float(value)

    def _must(self, request: tuple[Any, ...], limit_s: float) -> None:
        """A request without which nothing can be measured."""
        kind, value = self._ask(NONE, request, limit_s)
        if kind != "ok":
            raise NotMeasurableError(f"{request[0]}: {value}")

    def _ask(self, number: int, request: tuple[Any, ...], limit_s: float) -> tuple[str, Any]:
        """Raises _LostError with ``number`` when the request ends the process."""
        kind, value = self._worker.ask(request, limit_s)
        if not self._worker.alive:
            raise _LostError(number, str(value))
        return kind, value

    def _reject(self, number: int, reason: str) -> None:
        if number == NONE:
            raise NotMeasurableError(reason)
        self._reasons[number] = reason
        if number in self._running:
            self._running.remove(number)


class _LostError(Exception):
    """The process ended at a request about the candidate ``number``."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
