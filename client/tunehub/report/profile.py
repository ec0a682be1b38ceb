"""From the times of a run's calls to a report: which workload each is of, and what is of none. Pure.

How calls are timed: :mod:`tunehub.compiler.profile`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunehub.report.model import OtherCalls, Profile, WorkloadReport


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTime:
    """The calls of one function in a run: how many, and the seconds of all of them."""

    calls: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimes:
    """A run of a module: `calls` by the name of the function, medians over `runs` that were timed call by call.

    `run_s` is the median of whole runs that nothing watched.
    """

    calls: Mapping[str, CallTime]
    run_s: float
    runs: int


_PREPACKED = re.compile(r"_prepacked\d*$")  # TVM calls a kernel so when the packing of its weights is split off


def _by_workload(times: RunTimes, names: Collection[str]) -> RunTimes:
    """``times`` with the calls of workloads under their own ``names``, which lowering may have changed."""
    calls: dict[str, CallTime] = {}
    for name, time in times.calls.items():
        plain = _PREPACKED.sub("", name)
        own = plain if name not in names and plain in names else name
        known = calls.get(own, CallTime(calls=0, seconds=0.0))
        calls[own] = CallTime(calls=known.calls + time.calls, seconds=known.seconds + time.seconds)
    return replace(times, calls=calls)


def module_of(workloads: Iterable[WorkloadReport], names: Iterable[str]) -> int | None:
    """The number of the module whose workloads have most of these names, of several the latest; None without any."""
    called = set(names)
    called |= {_PREPACKED.sub("", name) for name in called}
    found: dict[int, int] = {}
    for item in workloads:
        found[item.module] = found.get(item.module, 0) + (item.name in called)
    best = max(found, key=lambda number: (found[number], number), default=None)
    return best if best is not None and found[best] else None


def measured(workloads: Sequence[WorkloadReport], times: RunTimes) -> tuple[tuple[WorkloadReport, ...], Profile]:
    """The workloads of one module with their measured times, and what else the run was."""
    names = {item.name for item in workloads}
    times = _by_workload(times, names)
    others = [
        OtherCalls(name=name, calls=time.calls, seconds=time.seconds)
        for name, time in times.calls.items()
        if name not in names
    ]
    profile = Profile(
        run_s=times.run_s, runs=times.runs, others=tuple(sorted(others, key=lambda item: (-item.seconds, item.name)))
    )
    return tuple(_measured(item, times.calls.get(item.name)) for item in workloads), profile


def _measured(item: WorkloadReport, time: CallTime | None) -> WorkloadReport:
    """`item` with the calls that the run really made; one that was not called keeps what is known of it."""
    if time is None or not time.calls:
        return item
    return replace(item, count=time.calls, measured_s=time.seconds / time.calls)
