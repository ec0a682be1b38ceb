"""From all trials to the few best of each workload: one pass over the journal, a handful of trials in memory."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord

FINALISTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Distilled:
    """One workload with its best trials, the fastest first (none when all failed), and how many it has in all.

    ``preferred`` is the number of the one with its template's own choice of knobs, which others must beat.
    """

    task: TaskEntry
    best: tuple[Trial, ...]
    trials: int
    preferred: int | None = None

    @property
    def digest(self) -> str:
        """Names this choice of finalists: a verdict on other ones is out of date."""
        text = json.dumps([msgspec.to_builtins(trial.candidate) for trial in self.best], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def distill(directory: WorkDirectory, top: int = FINALISTS) -> list[Distilled]:
    """The best ``top`` trials of each workload of ``directory``, in the order of ``tasks.jsonl``.

    A failed trial, or one with a time that is no positive number, is never among them. Of a template's trials only
    those of its newest version count, and that with its own choice of knobs is among the best however slow it was.
    Raises WorkDirectoryError.
    """
    tasks = {task.exact: task for task in directory.tasks()}
    own = own_choices(Journal(directory.path).trials())
    best, counts = best_trials(newest(Journal(directory.path).trials(), own), top)
    return [_distilled(task, best.get(key, []), own.get(key), counts.get(key, 0)) for key, task in tasks.items()]


def own_choices(trials: Iterable[Trial]) -> dict[str, Trial]:
    """By task the first trial of its template's newest version: the tuner measures the template's own choice first."""
    found: dict[str, Trial] = {}
    for trial in trials:
        known = found.get(trial.task)
        if trial.choice is not None and (known is None or _version(trial) > _version(known)):
            found[trial.task] = trial
    return found


def newest(trials: Iterable[Trial], own: Mapping[str, Trial]) -> Iterator[Trial]:
    """Those of ``trials`` that are of the same version of a template as their task's in ``own``, or of no template."""
    return (trial for trial in trials if _version(trial) == _version(own.get(trial.task, trial)))


def _version(trial: Trial) -> int:
    return 0 if trial.choice is None else trial.choice.version


def _distilled(task: TaskEntry, best: list[Trial], own: Trial | None, trials: int) -> Distilled:
    preferred = None
    if own is not None and is_measured(own):
        if own not in best:
            best = [*best[:-1], own]
        preferred = best.index(own)
    return Distilled(task=task, best=tuple(best), trials=trials, preferred=preferred)


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


def as_record(task: TaskEntry, trial: Trial, default_s: float | None = None) -> AnyRecord:
    """The trial in the format of packages. Its times are those of the tuning run, until the gate measures again."""
    common: dict[str, Any] = {
        "exact": task.exact,
        "anchor": task.anchor,
        "op_class": task.op_class,
        "extents": task.extents,
        "anchor_class": task.anchor_class,
        "anchor_extents": task.anchor_extents,
        "op": task.name,
        "run_s": trial.run_s,
        "default_s": default_s,
        "networks": tuple(sorted(task.counts)),
        "source": trial.source,
    }
    if trial.choice is None:
        return ScheduleRecord(trace=tuple(trial.trace), **common)
    return TemplateRecord(**msgspec.to_builtins(trial.choice), **common)


def as_trial(record: AnyRecord) -> Trial:
    """The inverse of :func:`as_record`, as far as a trial goes."""
    choice, trace = None, None
    if isinstance(record, TemplateRecord):
        choice = KnobChoice(template=record.template, version=record.version, knobs=record.knobs)
    else:
        trace = list(record.trace)
    return Trial(task=record.exact, trace=trace, choice=choice, source=record.source, run_s=record.run_s)
