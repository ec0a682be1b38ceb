"""From all trials to the few best of each workload: one pass over the journal, a handful of trials in memory."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from tunehub_builder.tuning.best_so_far import BestSoFar
from tunehub_builder.tuning.journal import Journal, Trial
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory

FINALISTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Distilled:
    """One workload with its best trials, the fastest first (none when all failed), and how many it has in all.

    ``preferred`` is the number of the one with its template's default knobs, which others must beat. ``trials`` are
    those of the template's newest version, ``trials_of_all_versions`` with those of older ones; ``so_far`` is how the
    best time of the former fell. ``beside_rule``: they are compared with what serves without a record, too.
    """

    task: TaskEntry
    best: tuple[Trial, ...]
    trials: int
    so_far: BestSoFar = field(default_factory=BestSoFar, compare=False)
    trials_of_all_versions: int = 0
    preferred: int | None = None
    beside_rule: bool = False

    @property
    def digest(self) -> str:
        """Names this choice of finalists: a verdict on other ones is out of date."""
        candidates = [msgspec.to_builtins(trial.candidate) for trial in self.best]
        text = json.dumps(
            [*candidates, *(["beside the rule", "from memory, too"] if self.beside_rule else [])], separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def distill(directory: WorkDirectory, top: int = FINALISTS, *, beside_rule: bool = False) -> list[Distilled]:
    """The best ``top`` trials of each static workload of ``directory``, in the order of ``tasks.jsonl``.

    A failed trial, or one with a time that is no positive number, is never among them. Of a template's trials only
    those of its newest version count, and that with its default knobs is among the best however slow it was.
    Raises WorkDirectoryError.
    """
    tasks = {task.exact: task for task in directory.tasks() if not task.points}
    found = best_trials(Journal(directory.path).trials(), top)
    return [_distilled(task, found.get(key) or BestTrials(top=top), beside_rule) for key, task in tasks.items()]


@dataclass(kw_only=True, slots=True)
class BestTrials:
    """The fastest ``top`` trials of a task, of its template's newest version (0: of no template) alone.

    ``default`` is the first of that version: the tuner measures the template's default knobs first. ``so_far`` counts
    those of that version, ``all_trials`` all.
    """

    top: int
    version: int = 0
    default: Trial | None = None
    so_far: BestSoFar = field(default_factory=BestSoFar)
    all_trials: int = 0
    _heap: list[tuple[float, int, Trial]] = field(default_factory=list)

    @property
    def best(self) -> list[Trial]:
        """The fastest first, and the earlier of equals."""
        return [trial for _, _, trial in sorted(self._heap, reverse=True)]

    def add(self, trial: Trial) -> None:
        """Take the next trial of the task."""
        self.all_trials += 1
        version = 0 if trial.choice is None else trial.choice.version
        if version > self.version:
            self.version, self.default, self.so_far, self._heap = version, None, BestSoFar(), []
        elif version < self.version:
            return
        self.so_far.add(trial.mean_s if is_measured(trial) else math.inf)
        if trial.choice is not None and self.default is None:
            self.default = trial
        if is_measured(trial):
            heapq.heappush(self._heap, (-trial.mean_s, -self.so_far.trials, trial))
            if len(self._heap) > self.top:
                heapq.heappop(self._heap)


def best_trials(trials: Iterable[Trial], top: int) -> dict[str, BestTrials]:
    """The fastest ``top`` trials of each task."""
    found: dict[str, BestTrials] = {}
    for trial in trials:
        if trial.task not in found:
            found[trial.task] = BestTrials(top=top)
        found[trial.task].add(trial)
    return found


def _distilled(task: TaskEntry, found: BestTrials, beside_rule: bool) -> Distilled:
    best, default, preferred = found.best, found.default, None
    if default is not None and is_measured(default):
        if default not in best:
            best = [*best[:-1], default]
        preferred = best.index(default)
    return Distilled(
        task=task,
        best=tuple(best),
        trials=found.so_far.trials,
        so_far=found.so_far,
        trials_of_all_versions=found.all_trials,
        preferred=preferred,
        beside_rule=beside_rule,
    )


def is_measured(trial: Trial) -> bool:
    """True when the trial ended well and all its times are positive, finite numbers."""
    return trial.error is None and bool(trial.run_s) and all(math.isfinite(s) and s > 0 for s in trial.run_s)
