"""The tuning loop: hand out work, write what comes of it to the journal, go on.

Which task is next, and what overlaps, is a :class:`TaskScheduler`'s: batches for one task after the other on CPUs, many
tasks at once on GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.progress import TrialCount
from tunehub_builder.tuning.runner.messages import RunnerResult

if TYPE_CHECKING:
    from tunehub_builder.tuning.tasks import TuningTask


@dataclass(kw_only=True, slots=True)
class TaskRecord:
    """A workload in the course of tuning: its trials, those of earlier runs too, and the best of their times in
    seconds."""

    task: TuningTask
    trials: list[Trial] = field(default_factory=list)
    best_s: float = math.inf

    def add(self, trial: Trial) -> None:
        """Count a trial."""
        self.trials.append(trial)
        self.best_s = min(self.best_s, trial.mean_s)


R = TypeVar("R", bound=TaskRecord)


class TaskRecords(Generic[R]):
    """The records of some workloads ``by_key``, and the journal that their trials are in."""

    def __init__(self, records: Iterable[R], journal: Journal, count: TrialCount) -> None:
        """Adds the trials that the journal holds. Raises WorkDirectoryError when it cannot be read."""
        self.by_key = {record.task.exact: record for record in records}
        self._journal = journal
        journal.heal()
        for trial in journal.trials():
            record = self.by_key.get(trial.task)
            if record is not None and trial.points == record.task.points:
                record.add(trial)
                count.known(1, {} if trial.reason is None else {trial.reason: 1})

    def trial(self, task: TuningTask, candidate: Any, source: str, result: RunnerResult) -> Trial:
        """What the journal says of a candidate."""
        return trial_of(task, candidate, source, result)

    def write(self, trials: Sequence[Trial]) -> None:
        """Add trials, which the journal gets first. Raises WorkDirectoryError when it cannot be written."""
        self._journal.append(*trials)
        for trial in trials:
            self.by_key[trial.task].add(trial)


class HasReason(Protocol):
    """A trial, as far as the loop is concerned."""

    @property
    def reason(self) -> str | None:
        """Why it failed, "" where that has no name; None when it did not."""
        ...


T = TypeVar("T", bound=HasReason)


class TaskScheduler(Protocol[T]):
    """Says what is done next, and has it done."""

    def hand_out(self) -> bool:
        """Give work to whoever is free; False when nothing is under way any more."""
        ...

    def results(self) -> Sequence[T]:
        """Wait until something has ended; the trials that came of it."""
        ...

    def write(self, trials: Sequence[T]) -> None:
        """Write trials down. Raises WorkDirectoryError when the disk refuses."""
        ...

    def go_on(self, trials: Sequence[T]) -> None:
        """Show these trials, which are written and counted, and decide what follows from them."""
        ...


def run(scheduler: TaskScheduler[T], count: TrialCount) -> None:
    """Tune until nothing is left to do. Raises what the scheduler raises."""
    while scheduler.hand_out():
        trials = scheduler.results()
        scheduler.write(trials)
        for trial in trials:
            count.measured(trial.reason)
        scheduler.go_on(trials)


def trial_of(task: TuningTask, candidate: Any, source: str, result: RunnerResult) -> Trial:
    """The journal's line for a candidate, a trace or a choice of knobs."""
    result = result.checked()
    kind = "choice" if isinstance(candidate, KnobChoice) else "trace"
    return Trial(
        task=task.exact,
        source=source,
        run_s=result.run_s,
        error=result.error,
        points=task.points,
        **{kind: candidate},
    )
