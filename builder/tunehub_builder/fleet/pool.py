"""A fleet behind the pool's port: candidates are built anywhere, and measured where the device is.

An engine hands jobs to workers: threads of this process (:class:`ThreadEngine`), or dask.distributed's workers on any
number of machines (``fleet.dask``). The journal is written by the calling process alone: a job that is lost with
its worker runs again elsewhere, and only what comes back is a trial.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tunehub_builder.exceptions import TuningError
from tunehub_builder.fleet import jobs as fleet_jobs
from tunehub_builder.fleet.jobs import JobSettings
from tunehub_builder.fleet.worker import Facts
from tunehub_builder.tuning.runner.messages import Attempt, Finished, RunnerResult
from tunehub_builder.tuning.runner.rpc_board import Board, registered

_PATIENCE_S = 120.0  # without any worker or board that could measure
_LOOK_S = 5.0  # between two looks at who is there


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One candidate to build and measure. ``module``: the workload's IRModule as TVM's JSON; ``best_s``: its best time
    so far."""

    settings: JobSettings
    task: str
    module: str = field(repr=False)
    candidate: Any
    best_s: float | None


Answer = Callable[[RunnerResult | TuningError], None]
T = TypeVar("T")


class Engine(Protocol):
    """Runs jobs somewhere. Use it as a context manager; leaving it gives up what is not done.

    ``is_here``: all of its workers are on this machine.
    """

    name: str
    is_here: bool

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def find(self, target_name: str) -> Facts:
        """What the devices for a target are. Raises TuningError when there is none."""
        ...

    def devices(self, target_name: str) -> int:
        """How many workers can measure for the target now. Raises TuningError when nobody knows any more."""
        ...

    def threads(self) -> int:
        """How many jobs can run at the same time now."""
        ...

    def start(self, work: Work, device: str | None, answer: Answer) -> None:
        """Build a candidate and measure it on a worker that has the ``device``, or on any for None.

        ``answer`` is called once, in some thread: with the result, or with why the fleet cannot go on.
        """
        ...


class ThreadEngine:
    """Jobs in this process, each thread with a child of its own. For boards: they measure, this machine builds."""

    name = "threads"
    is_here = True

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="fleet")

    def __enter__(self) -> ThreadEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        fleet_jobs.end_children()
        self._executor.shutdown(wait=True)

    def find(self, target_name: str) -> Facts:
        """As the port says: this machine."""
        return fleet_jobs.facts(target_name)

    def devices(self, target_name: str) -> int:
        """As the port says: this machine."""
        del target_name
        return 1

    def threads(self) -> int:
        """As the port says."""
        return self._workers

    def start(self, work: Work, device: str | None, answer: Answer) -> None:
        """As the port says."""
        del device
        self._executor.submit(self._run, work, answer)

    def _run(self, work: Work, answer: Answer) -> None:
        try:
            built = fleet_jobs.build(work.settings, work.task, work.module, work.candidate)
            answer(fleet_jobs.measure(work.settings, built, work.best_s))
        except TuningError as error:
            answer(error)
        except Exception as error:  # nothing is to be lost in a thread
            answer(TuningError(f"a job failed: {error}"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Where a run's jobs run: an engine, and the board that measures when no worker does. ``machine``: hardware
    that measures, as ``machine.describe_machine`` says it."""

    engine: Engine
    machine: Mapping[str, str | int | float]
    board: Board | None = None

    @property
    def noted(self) -> dict[str, str]:
        """What a run notes of it: no addresses."""
        return {"engine": self.engine.name} | ({} if self.board is None else {"rpc_key": self.board.key})

    def devices(self, target_name: str) -> int:
        """How many devices can measure for the target now."""
        if self.board is not None:
            return registered(self.board).count(self.board.key)
        return self.engine.devices(target_name)


class FleetPool:
    """As ``runner.pool.WorkerPool``, for several workloads at once."""

    def __init__(self, fleet: Fleet, settings: JobSettings, target_name: str) -> None:
        self._fleet, self._settings, self._target_name = fleet, settings, target_name
        self._modules: dict[str, str] = {}
        self._answers: queue.SimpleQueue[Finished | TuningError] = queue.SimpleQueue()
        self._seen = monotonic()

    def __enter__(self) -> FleetPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The engine, which others may use, ends elsewhere."""

    @property
    def most(self) -> int:
        """Candidates that may be under way together: one for each thread, and two for each device besides."""
        return self._fleet.engine.threads() + 2 * self._fleet.devices(self._target_name)

    @property
    def at_once(self) -> int:
        """Workloads whose candidates are under way together: one for each device, and one whose batch is next."""
        return self._fleet.devices(self._target_name) + 1

    def add_task(self, task: str, module: str) -> None:
        """As the pool."""
        self._modules[task] = module

    def submit(self, task: str, candidates: Sequence[Any], best_s: float | None) -> None:
        """Hand a batch to the fleet."""
        for number, candidate in enumerate(candidates):
            self.start(task, candidate, best_s, partial(self._answered, task, number))

    def results(self) -> list[Finished]:
        """Wait for candidates to be done.

        Raises TuningError when the fleet cannot go on, or nobody has been there to measure for some minutes.
        """
        while True:
            with suppress(queue.Empty):
                found = [self._answers.get(timeout=_LOOK_S)]
                while not self._answers.empty():
                    found.append(self._answers.get())
                return [_expected(each) for each in found]
            self.require_devices()

    def start(self, task: str, candidate: Any, best_s: float | None, answer: Answer) -> None:
        """Hand one candidate to the fleet."""
        module = self._modules[task]
        work = Work(settings=self._settings, task=task, module=module, candidate=candidate, best_s=best_s)
        self._fleet.engine.start(work, None if self._fleet.board is not None else self._target_name, answer)

    def _answered(self, task: str, number: int, answer: RunnerResult | TuningError) -> None:
        if not isinstance(answer, TuningError):
            self._answers.put(Finished(task=task, number=number, result=answer))
        else:
            self._answers.put(answer)

    def require_devices(self) -> None:
        """Raise TuningError when it is long since anybody could measure."""
        if self._fleet.devices(self._target_name):
            self._seen = monotonic()
        elif monotonic() - self._seen > _PATIENCE_S:
            raise TuningError(
                f"no device for {self._target_name} has been there for {_PATIENCE_S:.0f} s; what was measured is in "
                "the work directory: start a worker or board again, and run the same command to go on"
            )


def _expected(answer: T | TuningError) -> T:
    """The answer. Raises the TuningError that came instead."""
    if isinstance(answer, TuningError):
        raise answer
    return answer


class FleetSlot:
    """One candidate at a time on its way through a fleet, for the tuner on GPUs: it looks like a ``pool.Worker``."""

    def __init__(self, pool: FleetPool) -> None:
        self._pool = pool
        self.connection: Connection
        self.connection, self._answered = multiprocessing.Pipe(duplex=False)
        self.started = 0.0
        self.alive = True

    def load(self, task: str, module: str) -> None:
        """As the worker."""
        self._pool.add_task(task, module)

    def send(self, request: tuple[Any, ...]) -> None:
        """As the worker: ``attempt`` goes to the fleet, and ``warm_up`` is nothing to it."""
        if request[0] == "attempt":
            attempt: Attempt = request[1]
            self._pool.start(attempt.task, attempt.candidate, attempt.best_s, self._answered.send)
        else:
            self._answered.send(RunnerResult())

    def receive(self, limit_s: float, what: str) -> tuple[str, Any]:
        """As the worker. Raises TuningError when the fleet cannot go on."""
        if not self.connection.poll(limit_s):
            return "error", f"the {what} was lost"
        answer: RunnerResult | TuningError = self.connection.recv()
        result = _expected(answer)
        return ("ok", result.run_s) if result.error is None else ("error", result.error)

    def stop(self, *, at_once: bool = False) -> None:
        """As the worker; the engine ends elsewhere."""
        del at_once


def slots(pool: FleetPool) -> list[FleetSlot]:
    """As many slots as ``pool`` can fill now."""
    return [FleetSlot(pool) for _ in range(pool.most)]
