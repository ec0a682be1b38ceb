"""The tuning loop: for every task, propose candidates, build and measure them, write each trial to the journal."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from tunehub.records.lookup import EmptyLookup, RecordLookup
from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.progress import Progress
from tunehub_builder.tuning.runner.pool import RunnerResult
from tunehub_builder.tuning.search.evolutionary import EvolutionarySearch
from tunehub_builder.tuning.search.knobs import WHOLE, KnobSearch
from tunehub_builder.tuning.search.register_tiles import RegisterTileSearch
from tunehub_builder.tuning.search.strategy import SearchStrategy
from tunehub_builder.tuning.search.warm_start import searches, seeds_of
from tunehub_builder.tuning.tasks import TuningTask


class SchedulerOptions(Protocol):
    """How the candidates of a task are found: the searches, one after the other, each with its most trials.

    ``batch``: candidates that are built before the first of them is measured; ``planned``: trials of a task, for the
    estimate of progress before any task is finished.
    """

    @property
    def batch(self) -> int: ...

    @property
    def planned(self) -> int: ...

    def plan(self, task: TuningTask, target: Any) -> list[tuple[SearchStrategy, int]]: ...


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

    def outcomes(self) -> Sequence[tuple[str, int, RunnerResult]]:
        """Wait for one or more candidates to be measured: workload, number in the batch, outcome."""
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

    def plan(self, task: TuningTask, target: Any) -> list[tuple[SearchStrategy, int]]:
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

    def plan(self, task: TuningTask, target: Any) -> list[tuple[SearchStrategy, int]]:
        """As the port says."""
        proposed = self.proposed.get(task.exact, ())
        search = KnobSearch(task.mod, target, proposed)
        seeds = searches(seeds_of(task, target, self.records, knobs=True))
        own: list[tuple[SearchStrategy, int]] = [(search, 1)] if seeds else []
        return [*own, *seeds, (search, self.trials + len(proposed))]


def tune(
    tasks: Sequence[TuningTask],
    target: Any,
    directory: Path,
    pool: Pool,
    options: SchedulerOptions,
    show: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Tune ``tasks`` in ``directory``; trials that its journal already holds count and are not measured again.

    Raises WorkDirectoryError when the journal cannot be read or written.
    """
    import tvm

    journal = Journal(directory)
    state = _State(tasks, _known_trials(journal, tasks), options)
    waiting = deque(tasks)
    under_way: dict[str, _Search] = {}

    def go_on(search: _Search) -> None:
        batch = search.next_batch()
        if batch:
            under_way[search.task.exact] = search
            pool.submit(search.task.exact, batch, _best_s(search.trials))
        else:
            under_way.pop(search.task.exact, None)
            show(state.finish(search.task))

    while waiting or under_way:
        while waiting and len(under_way) < pool.at_once:
            task = waiting.popleft()
            pool.add_task(task.exact, tvm.ir.save_json(task.mod))
            go_on(_Search(task, options.plan(task, target), state.known[task.exact], options.batch))
        measured = pool.outcomes() if under_way else ()
        for key, number, outcome in measured:
            trial = under_way[key].trial(number, outcome)
            journal.append(trial)
            state.add(trial)
        for key in dict.fromkeys(key for key, _, _ in measured):
            show(state.progress(under_way[key].task))
            if not under_way[key].open:
                go_on(under_way[key])


def _known_trials(journal: Journal, tasks: Sequence[TuningTask]) -> dict[str, list[Trial]]:
    """The trials of each task that the journal holds."""
    journal.heal()
    known: dict[str, list[Trial]] = {task.exact: [] for task in tasks}
    for trial in journal.trials():
        if trial.task in known:
            known[trial.task].append(trial)
    return known


class _Search:
    """The searches of one task, one after the other. ``trials``: all of the task's, to which others add."""

    def __init__(
        self, task: TuningTask, plan: Iterable[tuple[SearchStrategy, int]], trials: Sequence[Trial], batch: int
    ) -> None:
        self.task, self.trials, self._most = task, trials, batch
        self._plan = deque(plan)
        self._batch: list[Any] = []
        self.open: set[int] = set()

    def next_batch(self) -> list[Any]:
        """What to measure next; nothing at the end."""
        self._batch = []
        while self._plan and not self._batch:
            source, limit = self._plan[0]
            spent = sum(trial.source == source.name for trial in self.trials)
            self._batch = source.propose(self.trials, min(self._most, limit - spent)) if spent < limit else []
            if not self._batch:
                self._plan.popleft()
        self.open = set(range(len(self._batch)))
        return self._batch

    def trial(self, number: int, outcome: RunnerResult) -> Trial:
        """What became of a candidate of the batch."""
        self.open.remove(number)
        return _trial(self.task, self._batch[number], self._plan[0][0].name, outcome)


def _best_s(trials: Sequence[Trial]) -> float | None:
    return min((trial.mean_s for trial in trials if trial.run_s), default=None)


def _trial(task: TuningTask, candidate: Any, source: str, outcome: RunnerResult) -> Trial:
    run_s, error = outcome.run_s, outcome.error
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in run_s):
        run_s, error = (), f"the timer gave {run_s} s"  # JSON has no NaN, and a time of 0 would win
    if isinstance(candidate, KnobChoice):
        return Trial(task=task.exact, choice=candidate, source=source, run_s=run_s, error=error)
    return Trial(task=task.exact, trace=candidate, source=source, run_s=run_s, error=error)


class _State:
    """Trials by task, and the counts that progress needs."""

    def __init__(self, tasks: Sequence[TuningTask], known: dict[str, list[Trial]], options: SchedulerOptions) -> None:
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
