"""Tuning on a GPU: many workloads at once, so that searching, building and measuring overlap.

Three kinds of work share the machine. Searchers propose a batch for one workload at a time; builders build a candidate
each and measure it when the GPU is theirs (:mod:`tunehub_builder.tuning.runner.cuda_worker`); this process hands out
the work and writes the journal. Which workload is next follows from what there is to gain, see :class:`CudaTaskRecord`.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from statistics import geometric_mean
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup, RecordLookup
from tunehub.tir.nodes import buffer_shapes
from tunehub_builder.tuning.journal import Journal, LineJournal, Trial, mean
from tunehub_builder.tuning.progress import Progress, TrialCount, TrialTotals
from tunehub_builder.tuning.runner import cuda_worker
from tunehub_builder.tuning.runner.cuda_worker import tensor_bytes
from tunehub_builder.tuning.runner.messages import Attempt, MeasureOptions, RunnerResult, SearchRequest
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker, WorkerPort, warm_up
from tunehub_builder.tuning.scheduler import loop
from tunehub_builder.tuning.scheduler.loop import TaskRecord, TaskRecords
from tunehub_builder.tuning.scheduler.order import operations
from tunehub_builder.tuning.search.cuda import KnobSearchSession, SearchSession
from tunehub_builder.tuning.search.warm_start import KnownCandidates, Seed, known_of
from tunehub_builder.tuning.tasks import TuningTask

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, PrimFunc

_OPERATIONS_PER_S, _LAUNCH_S = 5e13, 1.5e-6  # of a large GPU: what no schedule can beat
_REAL_GAIN = 0.98  # of the best time before: a batch that reaches this was worth it
_PATIENCE = 0.7  # what a batch without a gain leaves of a workload's promise
_UNTRIED, _HALF_AT = 0.65, 16  # of its time a workload loses, typically; the share left falls by half with 16 trials
_AHEAD = 4  # candidates waiting for each builder
_SEARCH_LIMIT_S = 180.0  # for one batch; a start with all intrinsics of CUDA takes 15 s
OF_GPU = MeasureOptions(repeats=4, min_repeat_s=0.002, cutoff=1.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaOptions:
    """``trials``: most trials of a workload; ``minutes``: when the run ends, None when all trials are made.

    ``batch`` candidates are proposed at a time, by ``searchers`` processes with ``search_threads`` each: by default
    one for every three that build. ``records`` are where a warm start begins. ``total``: most trials of all workloads
    together; ``defaults``: TVM's own schedule of each workload is measured before all. ``knobs``: candidates are tiles
    of the client's rules, as knobs.
    """

    trials: int = 512
    total: int | None = None
    defaults: bool = True
    knobs: bool = False
    batch: int = 32
    minutes: float | None = None
    seed: int = 0
    searchers: int | None = None
    search_threads: int = 1
    records: RecordLookup = field(default_factory=EmptyLookup)


class DefaultTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What TVM's own schedule of a workload takes: a line of ``defaults.jsonl``. Seconds, or why there are none."""

    task: str
    run_s: tuple[float, ...] = ()
    error: str | None = None
    points: tuple[tuple[int, ...], ...] = ()

    @property
    def mean_s(self) -> float:
        """Mean of the measured times in seconds, infinite for a failure; as :attr:`Trial.mean_s` of sizes."""
        return geometric_mean(self.run_s) if self.points and self.run_s else mean(self.run_s)


def default_journal(directory: Path) -> LineJournal[DefaultTime]:
    """The journal of the defaults' times in a work directory."""
    return LineJournal(directory / "defaults.jsonl", DefaultTime)


@dataclass(kw_only=True, slots=True)
class CudaTaskRecord(TaskRecord):
    """Times in seconds.

    ``share``: how much of each network's time a second of this workload is; ``floor_s``: what memory, arithmetic and
    a launch take at least. ``stale``: batches in a row without a real gain. ``seeded``: a search got the records known.
    """

    module: str
    floor_s: float
    default_s: float = math.inf
    waiting: deque[Seed] = field(default_factory=deque)
    open: int = 0
    proposing: bool = False
    seeded: bool = False
    exhausted: bool = False
    stale: int = 0
    before_s: float = math.inf
    told: int = 0
    share: float = 0.0

    @property
    def now_s(self) -> float:
        """Of the trials and the default."""
        return min(self.best_s, self.default_s)

    def promise(self) -> float:
        """How much there may be to gain by another batch, in shares of the networks' times."""
        now = self.now_s if math.isfinite(self.now_s) else 1e-3
        typical = now * _UNTRIED / (1 + len(self.trials) / _HALF_AT) * _PATIENCE**self.stale
        return max(min(typical, now - self.floor_s), 1e-9) * self.share

    def may_propose(self, most: int) -> bool:
        """True when its last batch is done, and there is more to try."""
        return not (self.exhausted or self.proposing or self.open or self.waiting) and len(self.trials) < most

    def batch_done(self) -> None:
        """Judge the batch that has just ended."""
        if self.trials:
            self.stale = 0 if self.best_s < _REAL_GAIN * self.before_s else self.stale + 1
            self.before_s = min(self.before_s, self.best_s)


def tune_on_gpu(
    tasks: Sequence[TuningTask],
    counts: Mapping[str, Mapping[str, int]],
    target: Mapping[str, Any],
    directory: Path,
    pool: PoolOptions,
    options: CudaOptions,
    show: Callable[[Progress], None] = lambda progress: None,
    *,
    builders: Sequence[WorkerPort] = (),
    make_builders: Sequence[Callable[[], Any]] = (),
    make_searcher: Callable[[], Any] | None = None,
) -> TrialTotals:
    """Tune ``tasks`` in ``directory``; what its journals hold counts and is not measured again.

    ``counts``: calls by network of each workload, by its exact key. ``pool.workers`` build and measure. The notes are
    what went wrong. Raises WorkDirectoryError when a journal cannot be read or written, TuningError when a worker
    cannot start.

    ``builders`` serve instead of processes of this machine; their attempts take as long as a fleet needs.
    ``make_builders`` and ``make_searcher``, which can be pickled, make the sessions of the workers: by default
    ``CudaSession``s, spread over the GPUs, and a :class:`SearchSession`.
    """
    import tvm

    limit_s = math.inf if builders else pool.build_limit_s
    half = any(cuda_worker.takes_half(task.mod["main"]) for task in tasks)
    kind = cuda_worker.CudaKnobSession if options.knobs else cuda_worker.CudaSession
    makers = make_builders or cuda_worker.makers(directory, pool.workers, half=half, kind=kind)
    builders = builders or [Worker(pool, make) for make in makers]  # they start while this process reads
    searcher = KnobSearchSession if options.knobs else SearchSession
    make_searcher = make_searcher or functools.partial(searcher, options.search_threads)
    searchers = [Worker(pool, make_searcher) for _ in range(options.searchers or max(1, len(builders) // 3))]
    try:
        new = (
            CudaTaskRecord(task=task, module=str(tvm.ir.save_json(task.mod)), floor_s=_floor_of(task)) for task in tasks
        )
        defaults, count = default_journal(directory), TrialCount(len(tasks), show)
        records = TaskRecords(new, Journal(directory), count)
        _resume_defaults(records.by_key, defaults)
        warm_up([*builders, *searchers], dict(target))
        scheduler = OverlappingScheduler(
            records, counts, dict(target), options, defaults, count, builders, searchers, limit_s
        )
        loop.run(scheduler, count)
        return count.totals(scheduler.problems)
    finally:
        for worker in (*builders, *searchers):
            worker.stop(at_once=True)


def _resume_defaults(records: Mapping[str, CudaTaskRecord], defaults: LineJournal[DefaultTime]) -> None:
    defaults.heal()
    for default in defaults.entries():
        if default.task in records and default.points == records[default.task].task.points:
            records[default.task].default_s = default.mean_s
    for record in records.values():
        record.before_s = record.best_s


def _floor_of(task: TuningTask) -> float:
    """:func:`floor_s`; of a symbolic workload, whose time is a mean over its sizes, that of a launch."""
    return _LAUNCH_S if task.points else floor_s(task.mod["main"], task.mod)


def floor_s(function: PrimFunc, mod: IRModule) -> float:
    """Seconds that a large GPU takes at least: for the bytes of the parameters, the operations, and a launch."""
    return least_seconds(sum(tensor_bytes(*shape) for shape in buffer_shapes(function)), operations(mod))


def least_seconds(size: int, operations: float) -> float:
    """Seconds that a large GPU takes at least for ``size`` bytes and so many operations."""
    return _LAUNCH_S + max(size / default_device().bandwidth, operations / _OPERATIONS_PER_S)


class CudaRecords(Protocol):
    """The workloads in the course of tuning, and where their trials are written. See ``loop.TaskRecords``."""

    by_key: dict[str, CudaTaskRecord]

    def trial(self, task: TuningTask, candidate: Any, source: str, result: RunnerResult) -> Trial: ...

    def write(self, trials: Sequence[Trial]) -> None: ...


class OverlappingScheduler:
    """Searches, builds and measures at the same time; the workload with the most promise is next."""

    def __init__(
        self,
        records: CudaRecords,
        counts: Mapping[str, Mapping[str, int]],
        target: dict[str, Any],
        options: CudaOptions,
        defaults: LineJournal[DefaultTime],
        count: TrialCount,
        builders: Sequence[WorkerPort],
        searchers: Sequence[WorkerPort],
        limit_s: float,
    ) -> None:
        """``limit_s``: of one attempt. The workers have started."""
        self._records, self.write, self._trial = records.by_key, records.write, records.trial
        self._counts, self._target, self._options = counts, target, options
        self._defaults, self._count, self._limit_s = defaults, count, limit_s
        self._builders, self._searchers = builders, searchers
        self.problems: list[str] = []
        self._building: dict[WorkerPort, tuple[CudaTaskRecord, Seed | None]] = {}
        self._searching: dict[WorkerPort, tuple[CudaTaskRecord, list[KnownCandidates]]] = {}
        untimed = (r for r in self._records.values() if options.defaults and not math.isfinite(r.default_s))
        self._untimed = deque(untimed)
        self._weigh()

    def hand_out(self) -> bool:
        """As the port says; when the time is up, what is being measured ends."""
        late = self._over()
        if not late:
            for worker in self._builders:
                if worker not in self._building and (self._over() or not self._give_candidate(worker)):
                    break
            if not self._untimed:
                self._give_searches()
        return bool(self._building or (self._searching and not late))

    def _over(self) -> bool:
        """Whether the time is up, or the trials of all workloads together are made or being made."""
        options = self._options
        if options.minutes is not None and self._count.elapsed_s > options.minutes * 60:
            return True
        return options.total is not None and self._count.trials + len(self._building) >= options.total

    def results(self) -> list[Trial]:
        """As the port says."""
        trials: list[Trial] = []
        for worker in self._answered():
            if worker in self._searching:
                self._proposed(worker, *self._searching.pop(worker))
            else:
                trials += self._attempted(worker, *self._building.pop(worker))
        return trials

    def go_on(self, trials: Sequence[Trial]) -> None:
        """As the port says."""
        over = [self._records[key] for key in dict.fromkeys(trial.task for trial in trials)]
        over = [record for record in over if not record.open and not record.waiting]
        for record in over:
            record.batch_done()
        if over:
            self._weigh()
        if trials:
            self._show()

    def _weigh(self) -> None:
        """The share of a second of each workload in the networks' times, which are sums of the best times so far."""
        totals: dict[str, float] = defaultdict(float)
        known = [s for s in self._records.values() if math.isfinite(s.now_s)]
        for record in known:
            for network, count in self._counts[record.task.exact].items():
                totals[network] += count * record.now_s
        for record in self._records.values():
            calls = self._counts[record.task.exact].items()
            record.share = sum(count / max(totals.get(network, 0.0), 1e-4) for network, count in calls)

    def _give_candidate(self, worker: WorkerPort) -> bool:
        if self._untimed:
            record, seed = self._untimed.popleft(), None
        else:
            ready = max((s for s in self._records.values() if s.waiting), key=CudaTaskRecord.promise, default=None)
            if ready is None:
                return False
            record, seed = ready, ready.waiting.popleft()
            record.open += 1
        worker.load(record.task.exact, record.module)
        best = None if seed is None else record.now_s
        best = best if best is not None and math.isfinite(best) else None
        trace = None if seed is None else seed.candidate
        attempt = Attempt(task=record.task.exact, target=self._target, candidate=trace, best_s=best, options=OF_GPU)
        self._send(worker, ("attempt", attempt))
        self._building[worker] = (record, seed)
        return True

    def _give_searches(self) -> None:
        waiting = sum(len(record.waiting) for record in self._records.values())
        for number, worker in enumerate(self._searchers):
            if worker in self._searching or waiting > _AHEAD * len(self._builders):
                continue
            mine = list(self._records.values())[number :: len(self._searchers)]
            open_ones = [record for record in mine if record.may_propose(self._options.trials)]
            if open_ones:
                self._search(worker, max(open_ones, key=CudaTaskRecord.promise))

    def _search(self, worker: WorkerPort, record: CudaTaskRecord) -> None:
        if not worker.alive:
            for other in list(self._records.values())[self._searchers.index(worker) :: len(self._searchers)]:
                other.told = 0
        worker.load(record.task.exact, record.module)
        news, record.told = record.trials[record.told :], len(record.trials)
        limit = min(self._options.batch, self._options.trials - len(record.trials))
        known = [] if record.seeded else _found(record.task, self._options.records)
        record.proposing = record.seeded = True
        request = SearchRequest(
            task=record.task.exact,
            target=self._target,
            news=news,
            limit=limit,
            seed=self._options.seed,
            known=known,
        )
        self._send(worker, ("propose", request))
        self._searching[worker] = (record, known)

    def _send(self, worker: WorkerPort, request: tuple[object, ...]) -> None:
        worker.started = monotonic()
        worker.send(request)

    def _answered(self) -> list[WorkerPort]:
        """Workers that have answered, died, or used up their time; waits for one at least, a second at most."""
        busy = [*self._building, *self._searching]
        answered = wait([worker.connection for worker in busy], 1.0)
        now = monotonic()
        return [w for w in busy if w.connection in answered or now - w.started >= self._most_s(w)]

    def _most_s(self, worker: WorkerPort) -> float:
        return _SEARCH_LIMIT_S if worker in self._searching else self._limit_s

    def _proposed(self, worker: WorkerPort, record: CudaTaskRecord, known: Sequence[KnownCandidates]) -> None:
        kind, value = worker.receive(0.0, "search")
        record.proposing = False
        record.waiting.extend(value if kind == "ok" else ())
        record.exhausted = not record.waiting and not known  # a record that ends the search does so once
        if kind != "ok":
            self.problems.append(f"{record.task.name}: the search ended: {value}")

    def _attempted(self, worker: WorkerPort, record: CudaTaskRecord, seed: Seed | None) -> list[Trial]:
        """The trial that has ended; none for a default, which has a journal of its own."""
        result = RunnerResult.of(*worker.receive(0.0, "attempt"))
        if seed is not None:
            record.open -= 1
            return [self._trial(record.task, seed.candidate, seed.source, result)]
        result = result.checked()
        default = DefaultTime(task=record.task.exact, run_s=result.run_s, error=result.error, points=record.task.points)
        self._defaults.append(default)
        record.default_s = default.mean_s
        self._weigh()
        return []

    def _show(self) -> None:
        most, records = self._options.trials, list(self._records.values())
        over = [record for record in records if record.exhausted or len(record.trials) >= most]
        planned = sum(len(record.trials) if record in over else most for record in records)
        self._count.planned = planned if self._options.total is None else min(planned, self._options.total)
        current = max(records, key=CudaTaskRecord.promise)
        self._count.step(current.task, min(len(over) + 1, len(records)), current.now_s)


def _found(task: TuningTask, records: RecordLookup) -> list[KnownCandidates]:
    """What may suit ``task``, read and ready to be sent; adapting it, which takes longer, is the searcher's."""
    groups = known_of(task, records, knobs=False)
    found = [replace(group, candidates=list(group.candidates)) for group in groups]
    return [group for group in found if group.candidates]
