"""The pool of workers: candidates are built on all of them, then measured one at a time on a quiet machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from time import monotonic
from types import TracebackType
from typing import Any

from tunehub_builder.tuning.worker import MeasureOptions, serve


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one candidate: times in seconds, or why there are none."""

    run_s: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOptions:
    """Sizes and limits. ``threads`` is TVM's pool while measuring; limits in seconds for one candidate."""

    workers: int
    threads: int
    build_limit_s: float = 60.0
    measure_limit_s: float = 60.0


class WorkerPool:
    """Long-lived workers behind one call, :meth:`run`. A worker that crashes or hangs is replaced.

    Use it as a context manager; leaving it ends the workers.
    """

    def __init__(self, options: PoolOptions, target: Any, measure: MeasureOptions | None = None) -> None:
        self._options = options
        self._target = target
        self._measure = measure or MeasureOptions()
        self._workers = [_Worker(options) for _ in range(options.workers)]
        self._modules: dict[str, str] = {}

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.stop()

    def add_task(self, task: str, module: str) -> None:
        """Make a workload known: ``module`` is its IRModule as TVM's JSON."""
        self._modules[task] = module

    def run(self, task: str, traces: Sequence[Any], best_s: float | None) -> list[Outcome]:
        """Build and measure ``traces`` for ``task``; the outcomes come in the same order."""
        builders, outcomes = self._build(task, traces)
        for number, worker in builders.items():
            if number in outcomes:  # lost with a crashed worker, and its second build failed
                continue
            outcome = worker.measure(number, best_s, self._measure)
            if outcome.error is not None and not worker.alive:
                self._rebuild_lost(task, traces, worker, number, builders, outcomes)
            outcomes[number] = outcome
            if outcome.run_s:
                best_s = min(best_s or float("inf"), min(outcome.run_s))
        for worker in self._workers:
            worker.drop()
        return [outcomes[number] for number in range(len(traces))]

    def _build(self, task: str, traces: Sequence[Any]) -> tuple[dict[int, _Worker], dict[int, Outcome]]:
        """Build all; return which worker holds each candidate that was built, and the failures."""
        waiting = list(enumerate(traces))[::-1]
        running: dict[_Worker, int] = {}
        built: dict[int, _Worker] = {}
        failed: dict[int, Outcome] = {}
        while waiting or running:
            for worker in self._workers:
                if waiting and worker not in running:
                    number, trace = waiting.pop()
                    worker.start_build(number, task, self._modules[task], self._target, trace)
                    running[worker] = number
            for worker in _ready(running, self._options.build_limit_s):
                number = running.pop(worker)
                error = worker.finish_build()
                if error is None:
                    built[number] = worker
                else:
                    failed[number] = Outcome(error=error)
                    if not worker.alive:
                        lost = [other for other, owner in built.items() if owner is worker]
                        waiting.extend((other, traces[other]) for other in lost)
                        for other in lost:
                            del built[other]
        return dict(sorted(built.items())), failed

    def _rebuild_lost(
        self,
        task: str,
        traces: Sequence[Any],
        worker: _Worker,
        crashed: int,
        builders: dict[int, _Worker],
        outcomes: dict[int, Outcome],
    ) -> None:
        """The crashed worker held other candidates that are not measured yet: build them again."""
        for number in [n for n, owner in builders.items() if owner is worker and n > crashed and n not in outcomes]:
            worker.start_build(number, task, self._modules[task], self._target, traces[number])
            _ready({worker: number}, self._options.build_limit_s)
            error = worker.finish_build()
            if error is not None:
                outcomes[number] = Outcome(error=error)


def _ready(running: dict[_Worker, int], limit_s: float) -> list[_Worker]:
    """Wait until at least one worker has answered, died or used up its time; return those."""
    now = monotonic()
    timeout = max(0.0, min(worker.started + limit_s - now for worker in running))
    answered = wait([worker.connection for worker in running], timeout)
    late = monotonic()
    return [w for w in running if w.connection in answered or late - w.started >= limit_s]


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._context = multiprocessing.get_context("spawn")
        self.started = 0.0
        self._start()

    @property
    def alive(self) -> bool:
        """False after the last request killed the process; the next request starts a new one."""
        return self._process is not None

    def start_build(self, number: int, task: str, module: str, target: Any, trace: Any) -> None:
        if self._process is None:
            self._start()
        if task not in self._known:
            if self._ask(("task", task, module), self._options.build_limit_s)[0] == "ok":
                self._known.add(task)
        self.started = monotonic()
        self._send(("build", number, task, target, trace))

    def finish_build(self) -> str | None:
        """The error of the build in progress, or None. Ends a process that is out of time."""
        kind, value = self._receive(0.0, "build")
        return None if kind == "ok" else str(value)

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> Outcome:
        kind, value = self._ask(("measure", number, best_s, options), self._options.measure_limit_s)
        return Outcome(run_s=value) if kind == "ok" else Outcome(error=str(value))

    def drop(self) -> None:
        if self._process is not None:
            self._ask(("drop",), self._options.measure_limit_s)

    def stop(self) -> None:
        if self._process is not None:
            self.connection.close()
            self._process.join(2)
            if self._process.is_alive():
                self._process.kill()
            self._process = None

    def _start(self) -> None:
        self.connection, child = self._context.Pipe()
        self._process: Any = self._context.Process(target=serve, args=(child, self._options.threads), daemon=True)
        self._process.start()
        child.close()
        self._known: set[str] = set()

    def _ask(self, request: tuple[Any, ...], limit_s: float) -> tuple[str, Any]:
        self._send(request)
        return self._receive(limit_s, request[0])

    def _send(self, request: tuple[Any, ...]) -> None:
        try:
            self.connection.send(request)
        except (BrokenPipeError, OSError):
            return  # the process is gone; receiving says so

    def _receive(self, limit_s: float, what: str) -> tuple[str, Any]:
        try:
            if self.connection.poll(limit_s):
                kind, value = self.connection.recv()
                return str(kind), value
            reason = f"the {what} took longer than its limit"
        except (EOFError, ConnectionResetError, OSError):
            reason = f"the {what} crashed its process"
        self._process.kill()
        self._process.join()
        self.connection.close()
        code, self._process = self._process.exitcode, None
        return "error", reason if "longer" in reason else f"{reason} (exit code {code})"

