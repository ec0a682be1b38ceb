"""The jobs of a fleet: functions that any worker of it can call, in a thread each.

A job does nothing of its own in the worker's process: a child does, one for each thread, which lives as long as the
worker and may crash. So a bad candidate never ends a worker; what ends a worker ends its children, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunehub_builder.exceptions import TuningError
from tunehub_builder.fleet.worker import Facts, JobSession
from tunehub_builder.tuning.runner.archive import Archive
from tunehub_builder.tuning.runner.messages import MeasureOptions, RunnerResult
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_builder.tuning.runner.rpc_board import Board

_START_LIMIT_S = 180.0  # importing TVM on a busy machine
_TURN_LIMIT_S = 1800.0  # until other jobs have left the machine or the board
_ATTEMPTS = 2  # a candidate that is on the device when the device is lost is tried once more


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """What all jobs of one run have in common. ``make_session``: as that of :class:`Worker`, of the tuner's sessions.

    ``versions``: of apache-tvm and apache-tvm-ffi, which all workers must have. ``board``: where candidates are
    measured; None: by the worker that the job is on.
    """

    target: dict[str, Any]
    versions: tuple[str, str]
    make_session: Callable[[], Any]
    options: PoolOptions
    measure: MeasureOptions
    board: Board | None = None


def facts(target_name: str) -> Facts:
    """What this worker's machine is. Raises TuningError when it cannot measure for the target."""
    child = Worker(PoolOptions(workers=1, threads=1), JobSession)
    try:
        kind, value = child.ask(("facts", target_name), _START_LIMIT_S)
    finally:
        child.stop(at_once=True)
    if kind != "ok":
        raise TuningError(f"a worker that offers {target_name} cannot measure for it: {value}")
    found: Facts = value
    return found


def build(settings: JobSettings, task: str, module: str, candidate: Any) -> Archive | str:
    """Build a candidate for a measuring job; the error when it is the candidate's.

    Raises TuningError when it is not.
    """
    child = _child(settings)
    child.load(task, module)
    _ask(child, ("begin_build", settings.target), _TURN_LIMIT_S)
    kind, value = child.ask(("build", task, settings.target, candidate), settings.options.build_limit_s)
    _leave(child)
    if kind != "ok":
        return str(value)
    archive: Archive = value
    return archive


def measure(settings: JobSettings, built: Archive | str, best_s: float | None) -> RunnerResult:
    """Measure what a building job has made, or pass its error on. Raises TuningError when no candidate is to blame."""
    if isinstance(built, str):
        return RunnerResult(error=built)
    for _ in range(_ATTEMPTS):
        result, device_lost = _measure_once(settings, built, best_s)
        if not device_lost:
            return result
    return RunnerResult(error=f"{result.error}; the device was lost {_ATTEMPTS} times while it ran")


def _measure_once(settings: JobSettings, archive: Archive, best_s: float | None) -> tuple[RunnerResult, bool]:
    child = _child(settings)
    limit_s = settings.options.measure_limit_s
    _ask(child, ("begin_build", settings.target), _TURN_LIMIT_S)
    kind, value = child.ask(("load", settings.target, archive), settings.options.build_limit_s)
    if kind != "ok":
        _leave(child)
        return RunnerResult(error=str(value)), False
    _ask(child, ("begin_measure", settings.target, limit_s), _TURN_LIMIT_S)
    kind, value = child.ask(("measure", settings.target, best_s, settings.measure), limit_s)
    lost = kind != "ok" and child.alive and not _ask(child, ("device_answers",), limit_s)
    _leave(child)
    return RunnerResult.of(kind, value), lost


def _ask(child: Worker, request: tuple[object, ...], limit_s: float) -> Any:
    """The answer to a request that fails through no fault of a candidate. Raises TuningError."""
    kind, value = child.ask(request, limit_s)
    if kind != "ok":
        raise TuningError(str(value))
    return value


def _leave(child: Worker) -> None:
    """Let others build or measure; one that has crashed holds nothing."""
    if child.alive:
        _ask(child, ("end",), _START_LIMIT_S)


# Children by thread: those of an engine's threads in this process, or of a dask worker's.
_children: dict[int, tuple[JobSettings, Worker]] = {}


def _child(settings: JobSettings) -> Worker:
    """This thread's child for a run, started when there is none. Raises TuningError for a wrong TVM."""
    thread = threading.get_ident()
    known, child = _children.get(thread, (None, None))
    if child is not None and known == settings and child.alive:
        return child
    if child is not None:
        child.stop(at_once=True)
    child = Worker(settings.options, partial(JobSession, settings.make_session, settings.board))
    found = _ask(child, ("versions",), _START_LIMIT_S)
    if tuple(found) != settings.versions:
        child.stop(at_once=True)
        wanted, here = (f"{tvm} (apache-tvm-ffi {ffi})" for tvm, ffi in (settings.versions, found))
        raise TuningError(f"a worker has TVM {here}, this run {wanted}: install the same there and run again")
    _children[thread] = (settings, child)
    return child


def end_children() -> None:
    """End all children of this process; jobs that wait for one get an error."""
    for _, child in list(_children.values()):
        child.stop(at_once=True)
    _children.clear()
