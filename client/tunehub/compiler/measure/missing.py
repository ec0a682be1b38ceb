"""Measuring in a compile: candidates for the workloads without a record of their own, on this machine, in turns.

Nothing here breaks or hangs a compile: candidates are built and run in processes of their own, each request has a time
limit, and what cannot be measured is compiled as without measuring.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from tunehub.comparison.protocol import fastest
from tunehub.compiler.measure.candidates import Task, default_record, task_of
from tunehub.compiler.measure.session import CandidateSession
from tunehub.compiler.measure.workload import NONE, CandidateComparison, CandidateTimes, Limits, NotMeasurableError
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub.exceptions import HubError, MeasureError, typed_last_line
from tunehub.records.measured import MeasuredChoice, MeasuredRecords
from tunehub.report.delayed_bar import DelayedBar
from tunehub.target.host import host_descriptor, physical_cores
from tunehub.tir.nodes import is_static, main_module
from tunehub_registry.target import Accepted, match

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule
    from tunehub_registry.any_record import AnyRecord
    from tunehub_registry.target import TargetDescriptor

_OWN_RECORD = frozenset({"measured", "user", "exact"})
_MOST_WORKERS = 4  # processes that build at the same time; each has TVM in memory
_START_LIMIT_S = 120.0  # importing TVM on a busy machine
_TICK_S = 0.5
_PATIENCE_S = 1.0  # for repeating disturbed measurements of a workload
_BUSY = 1.5  # load of other programs, beside the thread that compiles
_REMEDY = "compiling without measuring"


def measure_missing(
    functions: Iterator[tuple[str, IRModule]], target: Target, hub: Hub, records: MeasuredRecords
) -> None:
    """Measure candidates for those of ``functions`` (names and PrimFuncs of a prepared module) that no record of their
    own serves, and put the fastest into ``records``.

    What goes wrong is told to ``hub`` once, which raises in strict mode.
    """
    began, busy = time.perf_counter(), os.getloadavg()[0] > _BUSY if hasattr(os, "getloadavg") else False
    try:
        _check_machine(hub.host)
        tasks = _tasks(functions, target, hub, records.limit)
        found = _measured(tasks, str(target), hub, records) if tasks else 0
    except Exception as error:  # a bug of ours must not break a compile
        hub.failed("measuring", _problem(error))
        return
    if tasks:
        seconds, beside = time.perf_counter() - began, " beside other programs: times are noisy" if busy else ""
        hub.note(f"measured {found} of {len(tasks)} workloads in {seconds:.1f} s{beside}; kept in {records.file}")


def _check_machine(host: TargetDescriptor) -> None:
    """Raise MeasureError unless code for ``host`` runs on this machine's CPU."""
    if host.kind != "llvm":
        raise MeasureError(f"candidates are measured on CPUs only, not on {host.kind}", remedy=_REMEDY)
    found = match(host, host_descriptor())
    if not isinstance(found, Accepted) or found.fit == "generic":
        raise MeasureError(f"candidates for {host.name} cannot be measured on this machine", remedy=_REMEDY)


def _tasks(functions: Iterator[tuple[str, IRModule]], target: Target, hub: Hub, limit: int) -> list[Task]:
    found: dict[str, Task | None] = {}
    for name, function in functions:
        if not is_static(function):
            continue
        outcome, _ = schedule_function(function, target, hub.lookup)
        if outcome.exact in found or (outcome.rung in _OWN_RECORD and outcome.anchor is None):
            continue
        mod = main_module(function)
        found[outcome.exact] = task_of(name, mod, target, hub.lookup, outcome, limit)
    return [task for task in found.values() if task is not None]


def _measured(tasks: Sequence[Task], target: str, hub: Hub, records: MeasuredRecords) -> int:
    """Measure all; returns how many workloads that worked for. Raises MeasureError when there are no workers."""
    count = min(len(tasks), physical_cores() or 1, _MOST_WORKERS)
    found, remaining = 0, iter(tasks)
    with (
        ThreadPoolExecutor(count) as threads,
        _workers(count, target) as workers,
        DelayedBar("measuring", len(tasks)) as bar,
    ):
        while chunk := list(islice(remaining, count)):
            comparisons = [
                CandidateComparison(worker, task, target, Limits())
                for worker, task in zip(workers, chunk, strict=False)
            ]
            building = [threads.submit(comparison.build) for comparison in comparisons]
            _wait(building, bar)
            for comparison, task, built in zip(comparisons, chunk, building, strict=True):
                choice = _choice(task, comparison, built, hub)
                found += choice is not None
                if choice is not None:
                    _keep(choice, records, hub)
                bar(1)
    return found


def _choice(task: Task, comparison: CandidateComparison, built: Future[None], hub: Hub) -> MeasuredChoice | None:
    """The end of a comparison; None when nothing could be measured, which the report says."""
    try:
        built.result()
        result = comparison.run()
    except NotMeasurableError as error:
        hub.note(f"{task.name} was not measured: {error}")
        return None
    for number, reason in result.reasons.items():
        hub.note(f"{task.name}: candidate {number} was left out: {reason}")
    return choice_of(task, result)


def choice_of(task: Task, result: CandidateTimes) -> MeasuredChoice:
    """The fastest candidate as a record with its time and the default's."""
    chosen = 0 if task.chosen else NONE
    winner = fastest(result.samples, chosen)
    times = {number: median(values) for number, values in result.samples.items()}
    if winner == NONE:
        record: AnyRecord = default_record(task.exact, task.name, times[NONE])
    else:
        # A default that is as fast within the noise is not stated: a record that says so itself is not used.
        default_s = times[NONE] if times[NONE] > times[winner] else None
        record = msgspec.structs.replace(task.records[winner], run_s=(times[winner],), default_s=default_s)
    return MeasuredChoice(record=record, candidates=len(task.records), unmeasured_s=times.get(chosen))


def _keep(choice: MeasuredChoice, records: MeasuredRecords, hub: Hub) -> None:
    try:
        records.add(choice)
    except MeasureError as error:
        hub.failed("measuring", error)


@contextmanager
def _workers(count: int, target: str) -> Iterator[list[WorkerProcess]]:
    """Processes that have imported TVM; what they print is dropped. Raises MeasureError when they do not start."""
    workers: list[WorkerProcess] = []
    try:
        make_session = partial(CandidateSession, _PATIENCE_S)
        for _ in range(count):
            workers.append(WorkerProcess(make_session, log=os.devnull, without=SLOW_OPTIONAL_MODULES))
            workers[-1].send(("warm_up", target))
        for worker in workers:
            kind, value = worker.receive(_START_LIMIT_S, "start")
            if kind != "ok":
                raise MeasureError(f"a process that measures cannot start: {value}", remedy=_REMEDY, cause="measuring")
        yield workers
    finally:
        for worker in workers:
            worker.stop(at_once=True)


def _wait(futures: Sequence[Future[None]], tick: Callable[[int], None]) -> None:
    while wait(futures, timeout=_TICK_S).not_done:
        tick(0)


def _problem(error: Exception) -> HubError:
    if isinstance(error, HubError):
        return error
    problem = MeasureError(f"measuring failed: {typed_last_line(error)}", remedy=_REMEDY)
    problem.__cause__ = error
    return problem
