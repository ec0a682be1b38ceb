"""From all trials to the few best of each workload: one pass over the journal, a handful of trials in memory."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from tunehub_builder.tuning.journal import Journal, Trial
from tunehub_builder.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.record import ScheduleRecord

FINALISTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Distilled:
    """One workload with its best trials, the fastest first (none when all failed), and how many it has in all."""

    task: TaskEntry
    best: tuple[Trial, ...]
    trials: int

    @property
    def digest(self) -> str:
        """Names this choice of finalists: a verdict on other ones is out of date."""
        text = json.dumps([trial.trace for trial in self.best], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def distill(directory: WorkDirectory, top: int = FINALISTS) -> list[Distilled]:
    """The best ``top`` trials of each workload of ``directory``, in the order of ``tasks.jsonl``.

    A failed trial, or one with a time that is no positive number, is never among them. Raises WorkDirectoryError.
    """
    tasks = {task.exact: task for task in directory.tasks()}
    best, counts = best_trials(Journal(directory.path).trials(), top)
    return [
        Distilled(task=task, best=tuple(best.get(key, ())), trials=counts.get(key, 0)) for key, task in tasks.items()
    ]


def best_trials(trials: Iterable[Trial], top: int) -> tuple[dict[str, list[Trial]], dict[str, int]]:
    """The fastest ``top`` trials by task, fastest first and the earlier of equals; and the number of all by task."""
    heaps: dict[str, list[tuple[float, int, Trial]]] = {}
    counts: dict[str, int] = {}
    for number, trial in enumerate(trials):
        counts[trial.task] = counts.get(trial.task, 0) + 1
        if not is_measured(trial):
            continue
        heap = heaps.setdefault(trial.task, [])
        heapq.heappush(heap, (-trial.mean_s, -number, trial))
        if len(heap) > top:
            heapq.heappop(heap)
    return {task: [trial for _, _, trial in sorted(heap, reverse=True)] for task, heap in heaps.items()}, counts


def is_measured(trial: Trial) -> bool:
    """True when the trial ended well and all its times are positive, finite numbers."""
    return trial.error is None and bool(trial.run_s) and all(math.isfinite(s) and s > 0 for s in trial.run_s)


def as_record(task: TaskEntry, trial: Trial) -> ScheduleRecord:
    """The trial in the format of packages, with the times of the tuning run. The gate measures again."""
    return ScheduleRecord(
        exact=task.exact,
        anchor=task.anchor,
        op=task.name,
        trace=tuple(trial.trace),
        run_s=trial.run_s,
        networks=tuple(task.counts),
        source=trial.source,
    )
