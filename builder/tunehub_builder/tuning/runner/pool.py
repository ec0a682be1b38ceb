"""The pool of workers: candidates are built on all of them, then measured one at a time on a quiet machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.runner.messages import Finished, MeasureOptions, RunnerResult
from tunehub_builder.tuning.runner.worker import TraceSession

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike

_START_LIMIT_S = 180.0  # importing TVM on a busy machine


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOptions:
    """Sizes and limits. ``threads`` is TVM's pool while measuring; limits in seconds for one candidate.

    ``log`` is the file that gets what workers print.
    """

    workers: int
    threads: int
    build_limit_s: float = 60.0
    measure_limit_s: float = 60.0
    log: str | None = None


class WorkerPort(Protocol):
    """Whatever answers requests, one at a time: a :class:`Worker`, or a fleet's slot. See there."""

    started: float

    @property
    def connection(self) -> Connection: ...

    @property
    def alive(self) -> bool: ...

    def load(self, task: str, module: str) -> None: ...

    def send(self, request: tuple[object, ...]) -> None: ...

    def receive(self, limit_s: float, what: str) -> tuple[str, Any]: ...

    def stop(self, *, at_once: bool = False) -> None: ...


class WorkerPool:
    """Long-lived workers behind one call, :meth:`run`. A worker that crashes or hangs is replaced.

    Use it as a context manager; leaving it ends the workers. It is a ``scheduler.batches.Pool``.
    """

    at_once = 1

    def __init__(
        self,
        options: PoolOptions,
        target: TargetLike,
        measure: MeasureOptions | None = None,
        make_session: Callable[[], Any] | None = None,
    ) -> None:
        """``make_session``: see :class:`Worker`."""
        self._options = options
        self._target = target
        self._measure = measure or MeasureOptions()
        self._workers = [Worker(options, make_session) for _ in range(options.workers)]
        self._modules: dict[str, str] = {}
        self._submitted: list[tuple[str, Sequence[Any], float | None]] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop(at_once=kind is not None)

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers, for requests other than :meth:`run`."""
        return self._workers

    def add_task(self, task: str, module: str) -> None:
        """Make a workload known: ``module`` is its IRModule as TVM's JSON."""
        self._modules[task] = module

    def submit(self, task: str, candidates: Sequence[Any], best_s: float | None) -> None:
        """Note what :meth:`results` is to do."""
        self._submitted.append((task, candidates, best_s))

    def results(self) -> list[Finished]:
        """Build and measure all that was submitted."""
        submitted, self._submitted = self._submitted, []
        return [
            Finished(task=batch[0], number=number, result=result)
            for batch in submitted
            for number, result in enumerate(self.run(*batch))
        ]

    def run(self, task: str, candidates: Sequence[Any], best_s: float | None) -> list[RunnerResult]:
        """Build and measure ``candidates`` of ``task``: traces, or choices of knobs. The results keep the order."""
        builders, results = self._build(task, candidates)
        for number, worker in builders.items():
            if number in results:  # lost with a crashed worker, and its second build failed
                continue
            results[number] = result = worker.measure(number, best_s, self._measure)
            if not worker.alive:
                self._rebuild_lost(task, candidates, worker, builders, results)
            if result.run_s:
                best_s = min(best_s or float("inf"), min(result.run_s))
        for worker in self._workers:
            worker.drop()
        return [results[number] for number in range(len(candidates))]

    def _build(self, task: str, candidates: Sequence[Any]) -> tuple[dict[int, Worker], dict[int, RunnerResult]]:
        """Build all; return which worker holds each candidate that was built, and the failures."""
        waiting = list(enumerate(candidates))[::-1]
        running: dict[Worker, int] = {}
        built: dict[int, Worker] = {}
        failed: dict[int, RunnerResult] = {}
        while waiting or running:
            for worker in self._workers:
                if waiting and worker not in running:
                    number, candidate = waiting.pop()
                    worker.start_build(number, task, self._modules[task], self._target, candidate)
                    running[worker] = number
            for worker in _ready(running, self._options.build_limit_s):
                number = running.pop(worker)
                error = worker.finish_build()
                if error is None:
                    built[number] = worker
                else:
                    failed[number] = RunnerResult(error=error)
                    if not worker.alive:
                        lost = [other for other, owner in built.items() if owner is worker]
                        waiting.extend((other, candidates[other]) for other in lost)
                        for other in lost:
                            del built[other]
        # One worker's after the other's: the threads of a process that has just measured spin for a while.
        return dict(sorted(built.items(), key=lambda item: (self._workers.index(item[1]), item[0]))), failed

    def _rebuild_lost(
        self,
        task: str,
        candidates: Sequence[Any],
        worker: Worker,
        builders: dict[int, Worker],
        results: dict[int, RunnerResult],
    ) -> None:
        """The crashed worker held candidates that are not measured yet: build them again, all but those that crash."""
        lost = [number for number, owner in builders.items() if owner is worker and number not in results]
        position = 0
        while position < len(lost):
            number = lost[position]
            worker.start_build(number, task, self._modules[task], self._target, candidates[number])
            _ready({worker: number}, self._options.build_limit_s)
            error = worker.finish_build()
            position += 1
            if error is not None:
                results[number] = RunnerResult(error=error)
                lost.remove(number)
                position = position - 1 if worker.alive else 0


def warm_up(workers: Sequence[WorkerPort], target: TargetLike) -> None:
    """Let all processes import TVM and find their device at the same time; their sessions have a ``warm_up``.

    Raises TuningError when one cannot.
    """
    for worker in workers:
        worker.send(("warm_up", target))
    for worker in workers:
        kind, value = worker.receive(_START_LIMIT_S, "start")
        if kind != "ok":
            raise TuningError(f"a worker process cannot start: {value}")


def _ready(running: dict[Worker, int], limit_s: float) -> list[Worker]:
    """Wait until at least one worker has answered, died or used up its time; return those."""
    now = monotonic()
    timeout = max(0.0, min(worker.started + limit_s - now for worker in running))
    answered = wait([worker.connection for worker in running], timeout)
    late = monotonic()
    return [w for w in running if w.connection in answered or late - w.started >= limit_s]


class Worker(WorkerProcess):
    """A worker process of a tuner. The next request after one that has killed it starts a new one."""

    def __init__(self, options: PoolOptions, make_session: Callable[[], Any] | None = None) -> None:
        """``make_session``, which can be pickled, makes what answers the requests: a ``TraceSession`` by default."""
        self._options = options
        self.started = 0.0
        self._known: set[str] = set()
        super().__init__(
            make_session or TraceSession, threads=options.threads, log=options.log, without=SLOW_OPTIONAL_MODULES
        )

    def start(self) -> None:
        """As the base says."""
        super().start()
        self._known = set()

    def start_build(self, number: int, task: str, module: str, target: TargetLike, candidate: Any) -> None:
        """Ask for a build without waiting. Raises TuningError when the process does not take the workload."""
        self.load(task, module)
        self.started = monotonic()
        self.send(("build", number, task, target, candidate))

    def load(self, task: str, module: str) -> None:
        """Make a workload known to the process. Raises TuningError when that fails: no candidate is to blame."""
        if not self.alive:
            self.start()
        if task in self._known:
            return
        kind, value = self.ask(("task", task, module), _START_LIMIT_S)
        if kind != "ok":
            raise TuningError(
                f"a worker process cannot load a workload: {value}; see {self._options.log or 'its output'}"
            )
        self._known.add(task)

    def finish_build(self) -> str | None:
        """The error of the build in progress, or None. Ends a process that is out of time."""
        kind, value = self.receive(0.0, "build")
        return None if kind == "ok" else str(value)

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> RunnerResult:
        kind, value = self.ask(("measure", number, best_s, options), self._options.measure_limit_s)
        return RunnerResult.of(kind, value)

    def drop(self) -> None:
        if self.alive:
            self.ask(("drop",), self._options.measure_limit_s)
