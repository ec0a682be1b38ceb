"""The publish gate: of each workload's finalists, the one that is right, and faster than the default beyond the noise.

A tuning run measures a candidate for a few milliseconds. Here the finalists and the default are measured in turns, so
that a slow phase of the machine hits all of them. What the finalists are, and how they are built, is the business of a
:class:`WorkloadBackend`, one for each generation of TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tunehub.compiler.measure.session import packed, unpacked
from tunehub_builder.gate.comparison import (
    Answer,
    BuildLimits,
    ComparedFinalists,
    Finalist,
    FinalistComparison,
    FinalistRules,
    WorkerLostError,
)
from tunehub_builder.gate.journal import judge_due
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import Worker

_Entry = TypeVar("_Entry")
_Verdict = TypeVar("_Verdict")
_DEFAULT = 0  # its number in a worker


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadCase(Generic[_Verdict]):
    """One workload at the gate. A worker that has loaded ``module`` under the name ``task`` builds the default and
    the finalists with some numbers at the ``request``; ``verdict`` says what a comparison means."""

    task: str
    module: str
    finalists: Sequence[Finalist]
    rules: FinalistRules
    request: Callable[[Sequence[int]], tuple[object, ...]]
    verdict: Callable[[ComparedFinalists], _Verdict]


class WorkloadBackend(Protocol[_Entry, _Verdict]):
    """A work directory's workloads, for one generation of TVM.

    A worker's session answers ``difference`` and ``time`` by the numbers of :mod:`tunehub.compiler.measure.session`, on
    a GPU
    ``time_cold``, too.
    """

    @property
    def journal(self) -> LineJournal[_Verdict]: ...

    @property
    def limits(self) -> BuildLimits: ...

    def entries(self) -> Sequence[_Entry]:
        """The workloads with their best records. Raises WorkDirectoryError."""

    def wanted(self, entry: _Entry) -> Mapping[Hashable, str]:
        """The key of the entry's verdict with the digest of its finalists; nothing when there are none."""

    def cases(self, entries: Sequence[_Entry]) -> Sequence[WorkloadCase[_Verdict]]:
        """What to measure of these entries. Raises NetworkError."""

    def workers(self, count: int) -> AbstractContextManager[Sequence[Sequence[Worker]]]:
        """Processes that build and run, those of each device together. Raises TuningError if one cannot be started."""


def check_workloads(
    backend: WorkloadBackend[_Entry, _Verdict], resources: Resources, show: Callable[[_Verdict, int, int], None]
) -> list[_Verdict]:
    """Judge what is due, in a directory that the caller holds locked; return the verdicts on all its workloads.

    ``show``: see :func:`judge_due`. Raises WorkDirectoryError, TuningError and what the backend raises.
    """

    def judge_entries(due: Sequence[_Entry]) -> Iterator[list[_Verdict]]:
        cases = backend.cases(due)
        with backend.workers(min(resources.workers, len(cases))) as workers:
            for verdict in judge_on(cases, workers, backend.limits):
                yield [verdict]

    return judge_due(backend.journal, backend.entries(), backend.wanted, resources.threads, judge_entries, show)


def judge_on(
    cases: Iterable[WorkloadCase[_Verdict]], workers: Sequence[Sequence[Worker]], limits: BuildLimits
) -> Iterator[_Verdict]:
    """As :func:`judge`, on several devices at once: ``workers`` are those of each. Raises as that."""
    return judge_at_once(cases, workers, partial(judge, limits=limits), partial(stop_workers, workers))


def stop_workers(places: Sequence[Sequence[Worker]]) -> None:
    """End the processes of all ``places``, whatever they are at."""
    for worker in (worker for place in places for worker in place):
        worker.stop(at_once=True)


def judge(
    cases: Iterable[WorkloadCase[_Verdict]], workers: Sequence[Worker], limits: BuildLimits
) -> Iterator[_Verdict]:
    """Yield a verdict for each case: built on all workers at once, measured one at a time.

    Raises TuningError when a worker cannot be started.
    """
    remaining = iter(cases)
    while chunk := list(islice(remaining, len(workers))):
        runners = [_WorkerRunner(worker=w, case=case, limits=limits) for w, case in zip(workers, chunk, strict=False)]
        found = [FinalistComparison.of(case.finalists, case.rules) for case in chunk]
        for runner, comparison in zip(runners, found, strict=True):
            if comparison.running:
                runner.start_build(comparison.running)
        built = [runner.built() if c.running else None for runner, c in zip(runners, found, strict=True)]
        for runner, comparison, answer in zip(runners, found, built, strict=True):
            # None: there is no finalist that may be built
            yield runner.case.verdict(comparison.decide() if answer is None else comparison.run(runner, answer))


@dataclass(frozen=True, kw_only=True, slots=True)
class _WorkerRunner(Generic[_Verdict]):
    """A workload's place in a worker."""

    worker: Worker
    case: WorkloadCase[_Verdict]
    limits: BuildLimits

    def start_build(self, numbers: Sequence[int]) -> None:
        """As the port says."""
        self.worker.load(self.case.task, self.case.module)
        self.worker.send(self.case.request(numbers))

    def built(self) -> Answer:
        """As the port says."""
        return self.worker.receive(self.limits.build_s, "build")

    def difference(self, position: int) -> Answer:
        """As the port says."""
        return self._ask("difference", unpacked(position), _DEFAULT)

    def time(self, position: int | None, runs: int) -> float:
        """As the port says; a timer that fails leaves no usable state either."""
        number = _DEFAULT if position is None else packed(position)
        cold_s = self._time_cold(number, runs) if self.case.rules.cold else None
        if cold_s is not None:
            return cold_s
        kind, value = self._ask("time", number, runs)
        if kind != "ok" or not value > 0:
            raise WorkerLostError(f"the timer gave {value}")
        return float(value)

    def time_cold(self, position: int, runs: int) -> float | None:
        """As the port says."""
        return self._time_cold(packed(position), runs)

    def _time_cold(self, number: int, runs: int) -> float | None:
        kind, value = self._ask("time_cold", number, runs)
        return float(value) if kind == "ok" and value is not None else None

    def _ask(self, *request: object) -> Answer:
        kind, value = self.worker.ask(request, self.limits.run_s)
        if not self.worker.alive:
            raise WorkerLostError(value)
        return kind, value
