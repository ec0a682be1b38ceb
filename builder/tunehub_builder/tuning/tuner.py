"""The tuning loop: for every task, propose candidates, build and measure them, write each trial to the journal."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from tunehub.lookup import EmptyLookup, RecordLookup
from tunehub_builder.progress import Progress
from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.knob_search import WHOLE, KnobSearch
from tunehub_builder.tuning.pool import Outcome, WorkerPool
from tunehub_builder.tuning.search import CandidateSource, EvolutionarySearch, SketchSearch
from tunehub_builder.tuning.tasks import TuningTask
from tunehub_builder.tuning.warm_start import searches, seeds_of


class Options(Protocol):
    """How the candidates of a task are found: the searches, one after the other, each with its most trials.

    ``batch``: candidates that are built before the first of them is measured; ``planned``: trials of a task, for the
    estimate of progress before any task is finished.
    """

    @property
    def batch(self) -> int: ...

    @property
    def planned(self) -> int: ...

    def plan(self, task: TuningTask, target: Any) -> list[tuple[CandidateSource, int]]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TunerOptions:
    """Of the tuner meta_schedule. ``trials``: most trials of a task that a sketch serves, ``search_trials``: of
    MetaSchedule's search, which comes after the sketches or alone. ``vector``: float32 elements in the target's widest
    vector register. What ``records`` propose is measured first, besides those trials."""

    trials: int = 64
    search_trials: int = 32
    batch: int = 16
    vector: int = 16
    seed: int = 0
    records: RecordLookup = field(default_factory=EmptyLookup)

    @property
    def planned(self) -> int:
        """As the port says."""
        return self.trials + self.search_trials

    def plan(self, task: TuningTask, target: Any) -> list[tuple[CandidateSource, int]]:
        """As the port says."""
        threads = os.cpu_count() or 1
        search = EvolutionarySearch(task.mod, target, seed=self.seed, threads=threads, batch=self.batch)
        first = searches(seeds_of(task, target, self.records, knobs=False))
        return [*first, (SketchSearch(task.mod, self.vector), self.trials), (search, self.search_trials)]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnobOptions:
    """Of the tuner template. ``trials``: most choices of knobs that are measured of a task, besides those that are
    ``proposed`` for it (by its exact key), or by ``records``. The template's own choice comes before any of them."""

    trials: int = 32
    batch: int = 8
    proposed: Mapping[str, Sequence[KnobChoice]] = field(default_factory=dict)
    records: RecordLookup = field(default_factory=EmptyLookup)

    @property
    def planned(self) -> int:
        """As the port says."""
        return min(self.trials, WHOLE)

    def plan(self, task: TuningTask, target: Any) -> list[tuple[CandidateSource, int]]:
        """As the port says."""
        proposed = self.proposed.get(task.exact, ())
        search = KnobSearch(task.mod, target, proposed)
        seeds = searches(seeds_of(task, target, self.records, knobs=True))
        own: list[tuple[CandidateSource, int]] = [(search, 1)] if seeds else []
        return [*own, *seeds, (search, self.trials + len(proposed))]


def tune(
    tasks: Sequence[TuningTask],
    target: Any,
    directory: Path,
    pool: WorkerPool,
    options: Options,
    show: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Tune ``tasks`` in ``directory``; trials that its journal already holds count and are not measured again.

    Raises WorkDirectoryError when the journal cannot be read or written.
    """
    journal = Journal(directory)
    journal.heal()
    known: dict[str, list[Trial]] = defaultdict(list)
    for trial in journal.trials():
        known[trial.task].append(trial)
    state = _State(tasks, {task.exact: known[task.exact] for task in tasks}, options)
    for task in tasks:
        _tune_task(task, target, journal, pool, options, state, show)
        show(state.finish(task))


def _tune_task(
    task: TuningTask,
    target: Any,
    journal: Journal,
    pool: WorkerPool,
    options: Options,
    state: _State,
    show: Callable[[Progress], None],
) -> None:
    import tvm

    trials = state.known[task.exact]
    pool.add_task(task.exact, tvm.ir.save_json(task.mod))
    for source, limit in options.plan(task, target):
        while True:
            spent = sum(trial.source == source.name for trial in trials)
            batch = source.propose(trials, min(options.batch, limit - spent)) if spent < limit else []
            if not batch:
                break
            outcomes = pool.run(task.exact, batch, _best_s(trials))
            for candidate, outcome in zip(batch, outcomes, strict=True):
                trial = _trial(task, candidate, source.name, outcome)
                journal.append(trial)
                state.add(trial)
            show(state.progress(task))


def _best_s(trials: Sequence[Trial]) -> float | None:
    return min((trial.mean_s for trial in trials if trial.run_s), default=None)


def _trial(task: TuningTask, candidate: Any, source: str, outcome: Outcome) -> Trial:
    run_s, error = outcome.run_s, outcome.error
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in run_s):
        run_s, error = (), f"the timer gave {run_s} s"  # JSON has no NaN, and a time of 0 would win
    if isinstance(candidate, KnobChoice):
        return Trial(task=task.exact, choice=candidate, source=source, run_s=run_s, error=error)
    return Trial(task=task.exact, trace=candidate, source=source, run_s=run_s, error=error)


class _State:
    """Trials by task, and the counts that progress needs."""

    def __init__(self, tasks: Sequence[TuningTask], known: dict[str, list[Trial]], options: Options) -> None:
        self.known = known
        self._count = len(tasks)
        self._options = options
        self._start = monotonic()
        self._finished: list[int] = []
        self._measured = 0
        self._done = sum(map(len, known.values()))
        self._failed = sum(trial.error is not None for trials in known.values() for trial in trials)

    def add(self, trial: Trial) -> None:
        self.known[trial.task].append(trial)
        self._measured += 1
        self._done += 1
        self._failed += trial.error is not None

    def finish(self, task: TuningTask) -> Progress:
        self._finished.append(len(self.known[task.exact]))
        return self.progress(task, finished=True)

    def progress(self, task: TuningTask, *, finished: bool = False) -> Progress:
        left = self._count - len(self._finished)
        each = sum(self._finished) / len(self._finished) if self._finished else self._options.planned
        already = self._done - sum(self._finished)
        return Progress(
            task=task,
            position=len(self._finished) + (not finished),
            tasks=self._count,
            done=self._done,
            planned=max(self._done, round(self._done - already + each * left)),
            failed=self._failed,
            measured_now=self._measured,
            elapsed_s=monotonic() - self._start,
            best_s=_best_s(self.known[task.exact]) or math.inf,
            finished=finished,
        )
