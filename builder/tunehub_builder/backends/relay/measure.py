"""How AutoTVM's candidates are measured: in tunehub's own workers, or as TVM does it, here or behind an RPC tracker."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tunehub.exceptions import last_line
from tunehub_builder.backends.relay.autotvm_session import REASONS, AutotvmSession, TaskSource
from tunehub_builder.backends.relay.autotvm_tasks import AutotvmTask
from tunehub_builder.backends.relay.tuner import RelaySession
from tunehub_builder.backends.relay.work import failure_name, failure_number
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.journal import mean
from tunehub_builder.tuning.runner.messages import MeasureOptions, RunnerResult
from tunehub_builder.tuning.runner.pool import PoolOptions, WorkerPool

if TYPE_CHECKING:
    from tunehub.relay.types import Result

_BUILD_LIMIT_S, _RUN_LIMIT_S = 20.0, 20.0
_REASON = re.compile(rf"(?:\w+: )?({'|'.join(REASONS)})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class AutotvmTrial:
    """One trial: times of one run in seconds (none after a failure), TVM's number of the error, when it was made, and
    the seconds that it took."""

    run_s: tuple[float, ...] = ()
    error_no: int = 0
    took_s: float = 0.0
    timestamp: float = 0.0

    @property
    def mean_s(self) -> float:
        """Mean of the measured times in seconds; infinite for a failure."""
        return mean(self.run_s)

    @property
    def reason(self) -> str | None:
        """TVM's name of the error; None when it did not fail."""
        return failure_name(self.error_no)


class Measurer(AbstractContextManager["Measurer"], Protocol):
    """Measures candidates of one task after the other. Leaving the context ends its processes."""

    def measure(self, task: AutotvmTask, indices: Sequence[int], best_s: float | None) -> list[AutotvmTrial]:
        """Build and time configurations; the results come in the same order. ``best_s``: the best time so far.

        Raises TuningError when it is not the candidates that fail.
        """
        ...


def make_measurer(session: RelaySession) -> Measurer:
    """The way to measure that the options ask for."""
    options = session.options
    if options.rpc is not None or options.local_runner:
        return TvmMeasurer(session)
    return PoolMeasurer(session)


class PoolMeasurer:
    """Builds on all workers, then times one candidate at a time on the quiet machine, in the process that built it.

    A crash or a hang costs one candidate. Nothing is linked, sent or paused for, which is most of what a trial of
    TVM's LocalRunner takes.
    """

    def __init__(self, session: RelaySession) -> None:
        log = str(session.work.directory.log)
        limits = PoolOptions(
            workers=session.workers,
            threads=session.threads,
            build_limit_s=_BUILD_LIMIT_S,
            measure_limit_s=_RUN_LIMIT_S,
            log=log,
        )
        self._session = session
        self._pool = WorkerPool(limits, session.target, MeasureOptions(), AutotvmSession)

    def __enter__(self) -> PoolMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def measure(self, task: AutotvmTask, indices: Sequence[int], best_s: float | None) -> list[AutotvmTrial]:
        """See :class:`Measurer`."""
        source = TaskSource(
            task=task.task.name,
            args=task.task.args,
            target=self._session.target,
            modules=task.modules,
            cache_flush=self._session.options.cache_flush,
        )
        self._pool.add_task(task.key, msgspec.json.encode(source).decode())
        start = time.monotonic()
        outcomes = self._pool.run(task.key, indices, best_s)
        each = (time.monotonic() - start) / max(1, len(outcomes))
        return [_measured(outcome, each) for outcome in outcomes]


class TvmMeasurer:
    """TVM's LocalBuilder with its LocalRunner, or with its RPCRunner for a device behind a tracker."""

    def __init__(self, session: RelaySession) -> None:
        self._session = session
        self._current: str | None = None
        self._batch: Any = None
        self._ways: dict[str, Any] = {}  # builder and runner: their processes serve one task after the other

    def __enter__(self) -> TvmMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batch = None  # LocalRunner's server ends with it
        self._ways.clear()

    def measure(self, task: AutotvmTask, indices: Sequence[int], best_s: float | None) -> list[AutotvmTrial]:
        """See :class:`Measurer`."""
        from tvm import autotvm

        del best_s
        autotvm.GLOBAL_SCOPE.in_tuning = True  # templates then take their arguments in the layout that they work in
        try:
            if self._current != task.key:
                self._batch = self._make_batch(task)
                self._current = task.key
            space = task.task.config_space
            inputs = [autotvm.MeasureInput(task.task.target, task.task, space.get(index)) for index in indices]
            return [_of_tvm(result) for result in self._batch(inputs)]
        finally:
            autotvm.GLOBAL_SCOPE.in_tuning = False

    def _make_batch(self, task: AutotvmTask) -> Any:
        from tvm.autotvm.measure import create_measure_batch

        self._batch = None  # ends the server of the task before
        try:
            self._ways = self._ways or {"builder": self._builder(), "runner": self._runner()}
            return create_measure_batch(task.task, self._ways)
        except Exception as error:  # a refused connection, no device with this key
            rpc = self._session.options.rpc
            place = "TVM's LocalRunner" if rpc is None else f"the RPC tracker {rpc.host}:{rpc.port} (key {rpc.key!r})"
            remedy = "see that nothing else occupies the device, and run the same command again"
            raise TuningError(f"cannot measure through {place}: {last_line(error)}; {remedy}") from error

    def _builder(self) -> Any:
        from tvm import autotvm

        builder = autotvm.LocalBuilder(timeout=_BUILD_LIMIT_S)
        builder.n_parallel = self._session.workers  # as an argument it needs do_fork since TVM 0.9
        return builder

    def _runner(self) -> Any:
        from tvm import autotvm

        options = self._session.options
        # Costs are then as long as those of the workers; a cache is flushed between repeats only.
        runs = {"number": 1, "repeat": 12} if options.cache_flush else {"number": 3, "repeat": 3, "min_repeat_ms": 10}
        shared = {
            **runs,
            "timeout": _RUN_LIMIT_S,
            "cooldown_interval": 0.0,
            "enable_cpu_cache_flush": options.cache_flush,
        }
        if options.rpc is None:
            runner = autotvm.LocalRunner(**shared)
        else:
            rpc = options.rpc
            runner = autotvm.RPCRunner(rpc.key, rpc.host, rpc.port, **shared)
        runner.n_parallel = 1  # one at a time, or they disturb each other
        return runner


def _measured(outcome: RunnerResult, took_s: float) -> AutotvmTrial:
    return AutotvmTrial(run_s=outcome.run_s, error_no=_error_no(outcome.error), took_s=took_s, timestamp=time.time())


def _error_no(error: str | None) -> int:
    """TVM's number for what became of a candidate in a worker; see ``pool.Worker.receive`` and ``CandidateError``."""
    if error is None:
        return 0
    reason = _REASON.match(error)
    if reason is not None:
        return failure_number(reason[1])
    during_build = error.startswith("the build ")
    if "took longer than its limit" in error:
        return failure_number("BUILD_TIMEOUT" if during_build else "RUN_TIMEOUT")
    return failure_number("COMPILE_HOST" if during_build else "RUNTIME_DEVICE")


def _of_tvm(result: Result) -> AutotvmTrial:
    error_no = int(result.error_no)
    costs = tuple(float(cost) for cost in result.costs) if error_no == 0 else ()
    return AutotvmTrial(
        run_s=costs, error_no=error_no, took_s=float(result.all_cost), timestamp=float(result.timestamp)
    )
