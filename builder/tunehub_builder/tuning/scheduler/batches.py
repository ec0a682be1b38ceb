"""Tuning on CPUs and with fleets of them: batches of candidates for one task after the other."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tunehub.records.lookup import EmptyLookup, RecordLookup
from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.progress import Progress, TrialCount, TrialTotals
from tunehub_builder.tuning.runner.messages import Finished, RunnerResult
from tunehub_builder.tuning.scheduler import loop
from tunehub_builder.tuning.scheduler.loop import TaskRecord, TaskRecords, trial_of
from tunehub_builder.tuning.search.evolutionary import EvolutionarySearch
from tunehub_builder.tuning.search.knobs import WHOLE, KnobSearch
from tunehub_builder.tuning.search.register_tiles import RegisterTileSearch
from tunehub_builder.tuning.search.strategy import SearchStrategy
from tunehub_builder.tuning.search.warm_start import searches, seeds_of
from tunehub_builder.tuning.tasks import TuningTask

if TYPE_CHECKING:
    from tunehub.target.types import Target


class SchedulerOptions(Protocol):
    """How the candidates of a task are found: the searches, one after the other, each with its most trials.

    ``batch``: candidates that are built before the first of them is measured; ``planned``: trials of a task, for the
    estimate of progress before any task is finished.
    """

    @property
    def batch(self) -> int: ...

    @property
    def planned(self) -> int: ...

    def plan(self, task: TuningTask, target: Target) -> list[tuple[SearchStrategy, int]]: ...


class Pool(Protocol):
    """Whatever builds and measures candidates: processes of this machine, or a fleet.

    ``at_once``: workloads whose batches it wants to have at the same time.
    """

    @property
    def at_once(self) -> int: ...

    def add_task(self, task: str, module: str) -> None:
        """Make a workload known: ``module`` is its IRModule as TVM's JSON."""

    def submit(self, task: str, candidates: Sequence[Any], best_s: float | None) -> None:
        """Take a batch of a workload that has none; ``best_s`` is the workload's best time so far in seconds."""

    def results(self) -> Sequence[Finished]:
        """Wait for one or more candidates to be measured."""
        ...


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

    def plan(self, task: TuningTask, target: Target) -> list[tuple[SearchStrategy, int]]:
        """As the port says."""
        threads = os.cpu_count() or 1
        search = EvolutionarySearch(task.mod, target, seed=self.seed, threads=threads, batch=self.batch)
        first = searches(seeds_of(task, target, self.records, knobs=False))
        return [*first, (RegisterTileSearch(task.mod, self.vector), self.trials), (search, self.search_trials)]


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

    def plan(self, task: TuningTask, target: Target) -> list[tuple[SearchStrategy, int]]:
        """As the port says."""
        proposed = self.proposed.get(task.exact, ())
        search = KnobSearch(task.mod, target, proposed)
        seeds = [] if task.points else searches(seeds_of(task, target, self.records, knobs=True))
        own: list[tuple[SearchStrategy, int]] = [(search, 1)] if seeds else []
        return [*own, *seeds, (search, self.trials + len(proposed))]


def tune(
    tasks: Sequence[TuningTask],
    target: Target,
    directory: Path,
    pool: Pool,
    options: SchedulerOptions,
    show: Callable[[Progress], None] = lambda progress: None,
) -> TrialTotals:
    """Tune ``tasks`` in ``directory``; trials that its journal already holds count and are not measured again.

    Raises WorkDirectoryError when the journal cannot be read or written.
    """
    count = TrialCount(len(tasks), show)
    records = TaskRecords((TaskRecord(task=task) for task in tasks), Journal(directory), count)
    loop.run(BatchScheduler(records, target, pool, options, count), count)
    return count.totals()


class BatchScheduler:
    """Task after task in their order, batch after batch; as many tasks at a time as the ``pool`` wants."""

    def __init__(
        self, records: TaskRecords[TaskRecord], target: Target, pool: Pool, options: SchedulerOptions, count: TrialCount
    ) -> None:
        self._target, self._pool, self._options, self._count = target, pool, options, count
        self.write = records.write
        self._waiting = deque(records.by_key.values())
        self._under_way: dict[str, _Search] = {}
        self._finished: list[int] = []  # trials of each task that is

    def hand_out(self) -> bool:
        """As the port says."""
        import tvm

        while self._waiting and len(self._under_way) < self._pool.at_once:
            record = self._waiting.popleft()
            self._pool.add_task(record.task.exact, tvm.ir.save_json(record.task.mod))
            self._submit(_Search(record, self._options.plan(record.task, self._target), self._options.batch))
        return bool(self._under_way)

    def results(self) -> list[Trial]:
        """As the port says."""
        return [self._under_way[each.task].trial(each.number, each.result) for each in self._pool.results()]

    def go_on(self, trials: Sequence[Trial]) -> None:
        """As the port says."""
        for key in dict.fromkeys(trial.task for trial in trials):
            search = self._under_way[key]
            self._show(search.record)
            if not search.open:
                self._submit(search)

    def _submit(self, search: _Search) -> None:
        record, batch = search.record, search.next_batch()
        if batch:
            self._under_way[record.task.exact] = search
            best_s = record.best_s if math.isfinite(record.best_s) else None
            self._pool.submit(record.task.exact, batch, best_s)
        else:
            self._under_way.pop(record.task.exact, None)
            self._finished.append(len(record.trials))
            self._show(record, finished=True)

    def _show(self, record: TaskRecord, *, finished: bool = False) -> None:
        done, tasks = sum(self._finished), len(self._finished)
        each = done / tasks if tasks else self._options.planned
        self._count.planned = round(done + each * (self._count.tasks - tasks))
        self._count.step(record.task, tasks + (not finished), record.best_s, finished=finished)


class _Search:
    """The searches of one task, one after the other."""

    def __init__(self, record: TaskRecord, plan: Iterable[tuple[SearchStrategy, int]], batch: int) -> None:
        self.record, self._most = record, batch
        self._plan = deque(plan)
        self._batch: list[Any] = []
        self.open: set[int] = set()

    def next_batch(self) -> list[Any]:
        """What to measure next; nothing at the end."""
        self._batch = []
        trials = self.record.trials
        while self._plan and not self._batch:
            source, limit = self._plan[0]
            spent = sum(trial.source == source.name for trial in trials)
            self._batch = source.propose(trials, min(self._most, limit - spent)) if spent < limit else []
            if not self._batch:
                self._plan.popleft()
        self.open = set(range(len(self._batch)))
        return self._batch

    def trial(self, number: int, result: RunnerResult) -> Trial:
        """What became of a candidate of the batch."""
        self.open.remove(number)
        return trial_of(self.record.task, self._batch[number], self._plan[0][0].name, result)
