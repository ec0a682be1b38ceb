"""The candidates of one workload against TVM's default, in a worker process: built, compared, timed in turns.

A candidate whose process crashes or hangs gets one more chance, since it may not be to blame; then it is out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tunehub.comparison.difference import difference_reason
from tunehub.comparison.protocol import MeasuringPlan, in_turns
from tunehub.compiler.measure.candidates import Task
from tunehub.compiler.measure.session import DEFAULT, packed, unpacked
from tunehub.compiler.workers.process import WorkerProcess
from tunehub.tir.workload import workload_text
from tunehub_registry.any_record import encode_any_record

NONE = -1  # the number of TVM's default among candidates
_STRIKES = 2
_RUNS_COMPARED = 5
_PLAN = MeasuringPlan(rounds=7, sample_s=0.01, cutoff=2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that a request may take before its candidate is given up, and how candidates are timed."""

    build_s: float = 60.0
    run_s: float = 30.0
    plan: MeasuringPlan = _PLAN


class NotMeasurableError(Exception):
    """Nothing can be said about a workload: its default cannot be built or run here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateTimes:
    """Samples in seconds by the number of a candidate (``NONE``: TVM's default), and why others have none."""

    samples: Mapping[int, tuple[float, ...]]
    reasons: Mapping[int, str] = field(default_factory=dict)


class CandidateComparison:
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

    def run(self) -> CandidateTimes:
        """Compare and time what is built, while nothing else runs. Raises NotMeasurableError, OSError."""
        samples: dict[int, tuple[float, ...]] = {}

        def measure() -> None:
            self._build()
            self._compare()
            samples.update(self._time())

        self._retrying(measure)
        self._worker.ask(("drop",), self._limits.run_s)
        return CandidateTimes(samples=samples, reasons=dict(self._reasons))

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
            request = ("build_record", number, task.exact, self._target, encode_any_record(task.records[number]))
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
        timers = {number: partial(self._sample, number) for number in (NONE, *self._running)}
        return in_turns(timers, self._limits.plan)

    def _sample(self, number: int, runs: int) -> float:
        kind, value = self._ask(number, ("time", DEFAULT if number == NONE else packed(number), runs),
                                self._limits.run_s)  # fmt: skip
        if kind != "ok" or not value > 0:
            self._reject(number, f"cannot be timed: {value}")
            raise _LostError(number, str(value))
        return float(value)

    def _must(self, request: tuple[object, ...], limit_s: float) -> None:
        """A request without which nothing can be measured."""
        kind, value = self._ask(NONE, request, limit_s)
        if kind != "ok":
            raise NotMeasurableError(f"{request[0]}: {value}")

    def _ask(self, number: int, request: tuple[object, ...], limit_s: float) -> tuple[str, Any]:
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
