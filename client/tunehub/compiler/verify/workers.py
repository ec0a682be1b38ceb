"""Schedules verified in worker processes: a kernel that is wrong may leave its memory or never end, and then only its
own process is lost. Several at a time, beside the compile that finds more of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import LifoQueue
from typing import Any

from tunehub.comparison.difference import difference_reason
from tunehub.compiler.artifacts.store import ArtifactStore
from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction, ScheduleVerifier
from tunehub.compiler.verify.session import MOST_RUN, BuildSession, RunResult, VerifySession, lacks_memory
from tunehub.compiler.workers.fork_server import ForkServer
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, Launcher, WorkerProcess
from tunehub.report.ladder import Refusal
from tunehub.tir.symbols import PROBES, elements_at
from tunehub.tir.workload import workload_text

_TRIES = 2  # of a schedule whose process ends: it may not be to blame
_BUILT = "it was built, and not run"
_IMPORTS = (
    "tvm",
    "tunehub.compiler.verify.session",
    "tunehub.kernels.cuda.plain",
    "tunehub.tir.cuda.nvrtc",
    "tunehub.compiler.cuda.side_by_side",
    "cuda.bindings.nvrtc",
)
"""What a session imports, none of which uses a device."""


class WorkerVerifier:
    """Runs schedules beside the plain one, in at most ``workers`` processes. What they cannot say is left to
    ``otherwise``, in this process."""

    def __init__(
        self,
        target: str,
        otherwise: ScheduleVerifier,
        *,
        workers: int,
        limits: VerifyLimits,
        builds: bool = False,
        checks: bool = False,
        store: ArtifactStore | None = None,
    ) -> None:
        """``target`` as text; ``builds``: its code does not run here, so that schedules are built alone. ``checks``:
        compiles leave the static check to the processes. ``store``: what keeps machine code of kernels. Nothing is
        started yet."""
        self._session = partial(BuildSession, target) if builds else partial(VerifySession, target, store)
        self._otherwise, self._limits = otherwise, limits
        self.checks = checks
        self._count = workers
        self._threads: ThreadPoolExecutor | None = None
        self._server: ForkServer | None = None
        self._idle: LifoQueue[_VerifyWorker] = LifoQueue()  # one that has started comes before one that has not
        self._workers: list[_VerifyWorker] = []
        self._asked: dict[str, Future[KernelVerdict]] = {}
        self._beyond: dict[str, ScheduledFunction] = {}  # to be checked by their text, too
        self._static: dict[str, KernelVerdict] = {}

    def begin(self) -> None:
        """As the port says: a process imports TVM, forks all others, and they take the device into use."""
        if self._threads is None:
            self._open()
            for worker in self._workers:
                worker.begin()

    def submit(self, asked: ScheduledFunction) -> None:
        """As the port says. Without :meth:`begin`, as many processes start as there is work for."""
        if asked.key not in self._asked:
            threads = self._threads or self._open()
            texts = (workload_text(asked.original), workload_text(asked.scheduled))
            self._asked[asked.key] = threads.submit(self._judge, *texts, asked.name, asked.unchecked)
            if _is_beyond(asked):
                self._beyond[asked.key] = asked

    def verdict(self, asked: ScheduledFunction) -> KernelVerdict:
        """As the port says."""
        self.submit(asked)
        static = self._checked(asked)  # while it is run
        if static is not None and static.refusal is not None:
            return static
        run = self._asked[asked.key]
        while self._beyond and not run.done():  # what will be asked for next
            self._checked(next(iter(self._beyond.values())))
        found = run.result()
        if found.check is None and found.not_run is not None:
            static = static or self._otherwise.verdict(asked)
            return static if found.not_run == _BUILT else replace(static, not_run=found.not_run)
        return found

    def close(self) -> None:
        """As the port says."""
        if self._server is not None:
            self._server.stop()
        for worker in self._workers:
            worker.stop()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _open(self) -> ThreadPoolExecutor:
        self._threads = ThreadPoolExecutor(self._count)
        with suppress(OSError, ValueError):  # a worker will say why none can be started
            self._server = ForkServer(_IMPORTS, without=SLOW_OPTIONAL_MODULES)
        for _ in range(self._count):
            worker = _VerifyWorker(self._session, self._limits, self._server)
            self._workers.append(worker)
            self._idle.put(worker)
        return self._threads

    def _checked(self, asked: ScheduledFunction) -> KernelVerdict | None:
        """What the text says of a schedule that names sizes which are too large to be run; None of others."""
        if self._beyond.pop(asked.key, None) is not None:
            self._static[asked.key] = self._otherwise.verdict(asked)
        return self._static.get(asked.key)

    def _judge(self, original: str, scheduled: str, name: str, unchecked: bool) -> KernelVerdict:
        worker = self._idle.get()
        try:
            return worker.judge(original, scheduled, name, unchecked=unchecked)
        finally:
            self._idle.put(worker)


def _is_beyond(asked: ScheduledFunction) -> bool:
    """Whether a schedule names sizes that are too large to be run."""
    named = (asked.scheduled.attrs or {}).get(PROBES, ())
    return any(elements_at(asked.original, tuple(map(int, values))) > MOST_RUN for values in named)


class _CannotSayError(Exception):
    """Nothing can be said about a schedule; the text is why."""


class _VerifyWorker:
    """One process. It starts when it is first needed, and again after a schedule has ended it.

    ``launcher`` starts it; where that does not lead to one that works, it is a new interpreter.
    """

    def __init__(self, make_session: Callable[[], object], limits: VerifyLimits, launcher: Launcher | None) -> None:
        self._make_session, self._limits, self._launcher = make_session, limits, launcher
        self._process: WorkerProcess | None = None
        self._warm = False
        self._broken: str | None = None

    def begin(self) -> None:
        """Start the process, and do not wait for it."""
        self._warm = False
        try:
            if self._process is None:
                self._process = WorkerProcess(
                    self._make_session, log=os.devnull, without=SLOW_OPTIONAL_MODULES, launcher=self._launcher
                )
            else:
                self._process.start()
            self._process.send(("warm_up",))
        except (OSError, ValueError, RuntimeError) as error:
            self._failed(str(error))

    def stop(self) -> None:
        """End it for good, whatever it is doing."""
        self._broken = "verifying was given up"
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.stop(at_once=True)

    def judge(self, original: str, scheduled: str, name: str, *, unchecked: bool = False) -> KernelVerdict:
        """Run a schedule of the function ``name`` beside the plain one, an ``unchecked`` one if the static check finds
        nothing."""
        try:
            fault = self._must(("fault", scheduled), self._limits.run_s) if unchecked else None
            if fault is not None:
                return KernelVerdict(check="static", refusal=Refusal(check="static", reason=str(fault)))
            return self._run(original, scheduled, name)
        except _CannotSayError as why:
            return KernelVerdict(not_run=str(why))

    def _run(self, original: str, scheduled: str, name: str) -> KernelVerdict:
        """Run it; a process that ends gets it once more. Raises _CannotSayError."""
        for _ in range(_TRIES):
            self._must(("refer", original), self._limits.reference_s)
            assert self._process is not None
            kind, value = self._process.ask(("judge", scheduled, name), self._limits.run_s)
            if kind == "ok":
                return self._verdict(value)
            if self._process.alive:
                raise _CannotSayError(str(value))
            reason = str(value).replace("the judge", "running it", 1)
            if "limit" in reason:
                break
        return _refused(Refusal(check="run", reason=reason))

    def _verdict(self, result: RunResult) -> KernelVerdict:
        if result.lost:
            self._end()
            self._process = None
        if result.error is not None and lacks_memory(result.error):
            raise _CannotSayError(result.error)
        if result.error is not None:
            return _refused(Refusal(check="run", reason=result.error))
        if result.difference is None:
            return KernelVerdict(not_run=_BUILT)
        if difference_reason(result.difference, result.tolerance) is None:
            return KernelVerdict(check="run", not_run=result.not_run)
        known = result.difference if math.isfinite(result.difference) else None
        return _refused(Refusal(check="run", difference=known, tolerance=result.tolerance))

    def _must(self, request: tuple[object, ...], limit_s: float) -> Any:
        """The answer to a request that no schedule can spoil. Raises _CannotSayError."""
        kind, value = self._ready().ask(request, limit_s)
        if kind != "ok":
            raise _CannotSayError(str(value))
        return value

    def _ready(self) -> WorkerProcess:
        """The process, warm. Raises _CannotSayError, and from then on at once."""
        if self._broken is None and (self._process is None or not self._process.alive):
            self.begin()
        while self._broken is None and not self._warm:
            assert self._process is not None
            kind, value = self._process.receive(self._limits.start_s, "start")
            self._warm = kind == "ok"
            if not self._warm:
                self._failed(str(value))
        if self._broken is not None:
            raise _CannotSayError(self._broken)
        assert self._process is not None
        return self._process

    def _failed(self, reason: str) -> None:
        """A process could not be started: begin without the launcher, or give up."""
        if self._launcher is None or self._broken is not None:
            self._broken = self._broken or f"a process that verifies cannot start: {reason}"
            return
        self._end()
        self._launcher = self._process = None
        self.begin()


def _refused(refusal: Refusal) -> KernelVerdict:
    return KernelVerdict(check="run", refusal=refusal)
