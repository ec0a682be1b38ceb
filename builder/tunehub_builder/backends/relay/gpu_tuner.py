"""Tuning on the GPUs of this machine with TVM <= 0.19: searching, building and measuring overlap, as for current TVM.

The loop is :class:`tunehub_builder.tuning.scheduler.cuda.OverlappingScheduler`. Trials are written in TVM's own
formats, the reasons of those that failed besides.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tunehub_builder.backends.relay.autotvm_history import since_best
from tunehub_builder.backends.relay.gpu_search import BATCH
from tunehub_builder.backends.relay.gpu_session import BUILD_SIGNAL, RUN_SIGNAL, GpuSession
from tunehub_builder.backends.relay.tuner import RelaySession
from tunehub_builder.backends.relay.work import CRASH, REASONS, FailedTrial, RelayTask
from tunehub_builder.tuning.journal import Trial, append_synced
from tunehub_builder.tuning.progress import TrialCount, TrialTotals
from tunehub_builder.tuning.runner.cuda_worker import CONTEXT_LOST, gpu_places
from tunehub_builder.tuning.runner.messages import RunnerResult
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker, warm_up
from tunehub_builder.tuning.scheduler import loop
from tunehub_builder.tuning.scheduler.cuda import (
    CudaOptions,
    CudaTaskRecord,
    OverlappingScheduler,
    default_journal,
    least_seconds,
)
from tunehub_builder.tuning.tasks import TuningTask

_ATTEMPT_LIMIT_S = 120.0  # with the wait for the GPU; building and measuring have limits of their own
_BUILDERS_OF_A_SEARCHER = 4
_REASON = re.compile(rf"(?:\w+: )?({'|'.join(REASONS)}): ")
_EXIT = re.compile(r"crashed its process \(exit code (-?\d+)\)")
_OF_EXIT_CODES = {-BUILD_SIGNAL: "BUILD_TIMEOUT", -RUN_SIGNAL: "RUN_TIMEOUT", CONTEXT_LOST: "RUNTIME_DEVICE"}


class RelayTrial(Trial, frozen=True, kw_only=True):
    """A trial whose failure has a name, one of ``work.REASONS``. ``trace`` is its configuration's index, or its text.

    ``at``: when it was made, in seconds since 1970.
    """

    failure: str | None = None
    at: float = 0.0

    @property
    def reason(self) -> str | None:
        """As the base says, by name."""
        return self.failure


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTask:
    """A task in the course of tuning: ``source`` makes it in another process, ``line`` writes a trial as TVM does,
    ``trials`` are those of earlier runs, ``most`` how many it may have."""

    entry: RelayTask
    source: str = field(repr=False)
    line: Callable[[RelayTrial], bytes] = field(repr=False)
    trials: Sequence[RelayTrial] = ()
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class _PatientRecord(CudaTaskRecord):
    """``patience``: the task ends after so many trials without a better one."""

    patience: int | None = None

    def may_propose(self, most: int) -> bool:
        """As the base says."""
        stale = self.patience is not None and since_best(self.trials) >= self.patience
        return not stale and CudaTaskRecord.may_propose(self, most)


class _LogRecords:
    """The records of some tasks, whose trials go to a log of TVM's; see ``CudaRecords``."""

    def __init__(self, session: RelaySession, tuner: str, tasks: Iterable[GpuTask], log: Path) -> None:
        self._tuner, self._log, self._failed = tuner, log, session.work.failed
        self._lines = {}
        self.by_key: dict[str, CudaTaskRecord] = {}
        for task in tasks:
            self._lines[task.entry.key] = task.line
            self.by_key[task.entry.key] = _record(task, session.options.early_stopping)

    def trial(self, task: TuningTask, candidate: Any, source: str, result: RunnerResult) -> Trial:
        """See ``CudaRecords``."""
        checked = result.checked()
        return RelayTrial(
            task=task.exact,
            trace=candidate,
            source=source,
            run_s=checked.run_s,
            error=checked.error,
            failure=reason_of(checked.error),
            at=time.time(),
        )

    def write(self, trials: Sequence[Trial]) -> None:
        """See ``CudaRecords``."""
        made = [trial for trial in trials if isinstance(trial, RelayTrial)]
        if not made:
            return
        append_synced(self._log, b"".join(self._lines[trial.task](trial) + b"\n" for trial in made))
        self._failed.append(
            *(
                FailedTrial(tuner=self._tuner, task=trial.task, reason=trial.failure, error=str(trial.error)[:240])
                for trial in made
                if trial.failure is not None
            )
        )
        for trial in made:
            self.by_key[trial.task].add(trial)


def tune_tasks(
    session: RelaySession,
    tuner: str,
    tasks: Sequence[GpuTask],
    log: Path,
    options: CudaOptions,
    make_session: Callable[..., GpuSession],
    make_searcher: Callable[[], Any],
    notes: Callable[[Mapping[str, int]], Iterable[str]],
) -> TrialTotals:
    """Tune ``tasks``; their trials go to ``log``.

    ``make_session`` takes the lock and the GPU of a worker that builds and measures. ``notes`` are made at the end, of
    the number of trials of each task. Raises TuningError when a worker cannot start, WorkDirectoryError when the disk
    refuses.
    """
    places = gpu_places(session.work.path, session.workers)
    pool = PoolOptions(
        workers=session.workers,
        threads=1,
        build_limit_s=_ATTEMPT_LIMIT_S,
        log=str(session.work.directory.log),
    )
    builders = [Worker(pool, partial(make_session, *place)) for place in places]
    searchers = [
        Worker(pool, make_searcher) for _ in range(min(len(tasks), max(1, len(builders) // _BUILDERS_OF_A_SEARCHER)))
    ]
    try:
        count = _count(session, tasks)
        records = _LogRecords(session, tuner, tasks, log)
        target = {"text": session.target}
        warm_up([*builders, *searchers], target)
        counts = {task.entry.key: task.entry.counts for task in tasks}
        unused = default_journal(session.work.path)
        scheduler = OverlappingScheduler(
            records, counts, target, options, unused, count, builders, searchers, _ATTEMPT_LIMIT_S
        )
        loop.run(scheduler, count)
        _show_all(records, count)
        made = {key: len(record.trials) for key, record in records.by_key.items()}
        return count.totals([*scheduler.problems, *notes(made)])
    finally:
        for worker in (*builders, *searchers):
            worker.stop(at_once=True)


def gpu_options(session: RelaySession, *, trials: int, total: int | None = None) -> CudaOptions:
    """The options of the loop: at most ``trials`` of a task, ``total`` of all."""
    options = session.options
    return CudaOptions(
        trials=trials, total=total, batch=BATCH, minutes=options.minutes, seed=options.seed, defaults=False
    )


def on_own_gpu(session: RelaySession) -> bool:
    """Whether the target is a GPU of this machine that tunehub's own workers measure on."""
    import tvm

    options = session.options
    kind = str(tvm.target.Target(session.target).kind.name)
    return kind == "cuda" and options.rpc is None and not options.local_runner


def reason_of(error: str | None) -> str | None:
    """The name of a failure that a worker told; None for none."""
    if error is None:
        return None
    named = _REASON.match(error)
    if named is not None:
        return named[1]
    crashed = _EXIT.search(error)
    if crashed is not None:
        return _OF_EXIT_CODES.get(int(crashed[1]), CRASH)
    return "RUN_TIMEOUT" if "took longer than its limit" in error else "UNKNOWN_ERROR"


def _record(task: GpuTask, patience: int | None) -> CudaTaskRecord:
    entry = task.entry
    known = TuningTask(
        name=entry.name,
        exact=entry.key,
        anchor=None,
        count=sum(entry.counts.values()),
        networks=tuple(entry.counts),
        mod=None,
    )
    # No records are proposed: AutoTVM learns from logs, the auto-scheduler has no shapes to transfer.
    record = _PatientRecord(
        task=known, module=task.source, floor_s=least_seconds(0, entry.flop), seeded=True, patience=patience
    )
    for trial in task.trials:
        record.add(trial)
    record.before_s = record.best_s
    return record


def _count(session: RelaySession, tasks: Sequence[GpuTask]) -> TrialCount:
    count = TrialCount(len(tasks), session.show)
    for task in tasks:
        count.known(len(task.trials), task.failures)
    return count


def _show_all(records: _LogRecords, count: TrialCount) -> None:
    """Show every task as finished."""
    count.planned = count.trials
    for position, record in enumerate(records.by_key.values(), 1):
        count.step(record.task, position, record.best_s, finished=True)
