"""The tuning loop: for every task, propose candidates, build and measure them, write each trial to the journal."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tunehub_builder.progress import Progress
from tunehub_builder.tuning.journal import Journal, Trial
from tunehub_builder.tuning.pool import Outcome, WorkerPool
from tunehub_builder.tuning.search import CandidateSource, EvolutionarySearch, SketchSearch
from tunehub_builder.tuning.tasks import TuningTask


@dataclass(frozen=True, kw_only=True, slots=True)
class TunerOptions:
    """``trials``: most trials of a task that a sketch serves, ``search_trials``: of MetaSchedule's search, which comes
    after the sketches or alone. ``vector``: float32 elements in the target's widest vector register."""

    trials: int = 64
    search_trials: int = 32
    batch: int = 16
    vector: int = 16
    seed: int = 0


def tune(
    tasks: Sequence[TuningTask],
    target: Any,
    directory: Path,
    pool: WorkerPool,
    options: TunerOptions,
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
    options: TunerOptions,
    state: _State,
    show: Callable[[Progress], None],
) -> None:
    import tvm

    trials = state.known[task.exact]
    pool.add_task(task.exact, tvm.ir.save_json(task.mod))
    for source, limit in _plan(task, target, options):
        while True:
            spent = sum(trial.source == source.name for trial in trials)
            batch = source.propose(trials, min(options.batch, limit - spent)) if spent < limit else []
            if not batch:
                break
            outcomes = pool.run(task.exact, batch, _best_s(trials))
            for trace, outcome in zip(batch, outcomes, strict=True):
                trial = _trial(task, trace, source.name, outcome)
                journal.append(trial)
                state.add(trial)
            show(state.progress(task))


def _best_s(trials: Sequence[Trial]) -> float | None:
    return min((trial.mean_s for trial in trials if trial.run_s), default=None)


def _trial(task: TuningTask, trace: Any, source: str, outcome: Outcome) -> Trial:
    run_s, error = outcome.run_s, outcome.error
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in run_s):
        run_s, error = (), f"the timer gave {run_s} s"  # JSON has no NaN, and a time of 0 would win
    return Trial(task=task.exact, trace=trace, source=source, run_s=run_s, error=error)


def _plan(task: TuningTask, target: Any, options: TunerOptions) -> list[tuple[CandidateSource, int]]:
    threads = os.cpu_count() or 1
    search = EvolutionarySearch(task.mod, target, seed=options.seed, threads=threads, batch=options.batch)
    return [(SketchSearch(task.mod, options.vector), options.trials), (search, options.search_trials)]


class _State:
    """Trials by task, and the counts that progress needs."""

    def __init__(self, tasks: Sequence[TuningTask], known: dict[str, list[Trial]], options: TunerOptions) -> None:
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
        each = sum(self._finished) / len(self._finished) if self._finished else self._first_guess()
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

    def _first_guess(self) -> int:
        return self._options.trials + self._options.search_trials
