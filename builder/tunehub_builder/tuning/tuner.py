"""The tuning loop: for every task, propose candidates, build and measure them, write each trial to the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tunehub_builder.tuning.journal import Journal, Trial
from tunehub_builder.tuning.pool import WorkerPool
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step of tuning, for whoever shows it: counts of trials, seconds since the start, the task's best time."""

    task: TuningTask
    done: int
    planned: int
    failed: int
    measured_now: int
    elapsed_s: float
    best_s: float


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
    import tvm

    journal = Journal(directory)
    journal.heal()
    known: dict[str, list[Trial]] = defaultdict(list)
    for trial in journal.trials():
        known[trial.task].append(trial)
    start = monotonic()
    measured = 0
    for position, task in enumerate(tasks):
        trials = known[task.exact]
        pool.add_task(task.exact, tvm.ir.save_json(task.mod))
        for source, limit in _plan(task, target, options):
            while True:
                spent = sum(trial.source == source.name for trial in trials)
                batch = source.propose(trials, min(options.batch, limit - spent)) if spent < limit else []
                if not batch:
                    break
                best = min((trial.mean_s for trial in trials), default=float("inf"))
                outcomes = pool.run(task.exact, batch, best if best < float("inf") else None)
                for trace, outcome in zip(batch, outcomes, strict=True):
                    trial = Trial(
                        task=task.exact, trace=trace, source=source.name, run_s=outcome.run_s, error=outcome.error
                    )
                    journal.append(trial)
                    trials.append(trial)
                measured += len(batch)
                show(_progress(task, tasks, position, known, measured, monotonic() - start))


def _plan(task: TuningTask, target: Any, options: TunerOptions) -> list[tuple[CandidateSource, int]]:
    import os

    threads = os.cpu_count() or 1
    search = EvolutionarySearch(task.mod, target, seed=options.seed, threads=threads, batch=options.batch)
    return [(SketchSearch(task.mod, options.vector), options.trials), (search, options.search_trials)]


def _progress(
    task: TuningTask,
    tasks: Sequence[TuningTask],
    position: int,
    known: dict[str, list[Trial]],
    measured: int,
    elapsed_s: float,
) -> Progress:
    trials = [trial for other in tasks for trial in known[other.exact]]
    done = len(trials)
    finished = sum(len(known[other.exact]) for other in tasks[: position + 1])
    return Progress(
        task=task,
        done=done,
        planned=max(done, round(finished / (position + 1) * len(tasks))),
        failed=sum(trial.error is not None for trial in trials),
        measured_now=measured,
        elapsed_s=elapsed_s,
        best_s=min((trial.mean_s for trial in known[task.exact]), default=float("inf")),
    )
