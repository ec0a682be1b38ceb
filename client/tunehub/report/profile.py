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
    """The calls of one function in a run: how many, the seconds of all of them, and of `each` in order, where that is
    known."""

    calls: int
    seconds: float
    each: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimes:
    """A run of a module: `calls` by the name of the function, medians over `runs` that were timed call by call.

    `run_s` is the median of whole runs that nothing watched, `order` the functions as a run calls them.
    """

    calls: Mapping[str, CallTime]
    run_s: float
    runs: int
    order: tuple[str, ...] = ()


_OF_THE_VM = ("vm.", "relax.", "runtime.")  # what names of its functions begin with
_PREPACKED = re.compile(r"_prepacked\d*$")  # TVM calls a kernel so when the packing of its weights is split off


def _by_workload(times: RunTimes, names: Collection[str]) -> RunTimes:
    """``times`` with the calls of workloads under their own ``names``, which lowering may have changed."""
    calls: dict[str, CallTime] = {}
    for name, time in times.calls.items():
        own = _own_name(name, names)
        known = calls.get(own)
        calls[own] = time if known is None else _together(known, time)
    return replace(times, calls=calls, order=tuple(_own_name(name, names) for name in times.order))


def _own_name(name: str, names: Collection[str]) -> str:
    plain = _PREPACKED.sub("", name)
    return plain if name not in names and plain in names else name


def _together(one: CallTime, other: CallTime) -> CallTime:
    """The calls of two functions as those of one, whose order is not known."""
    return CallTime(calls=one.calls + other.calls, seconds=one.seconds + other.seconds)


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
    return replace(item, count=time.calls, measured_s=time.seconds / time.calls, calls_s=time.each)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedCall:
    """One call of a profiled run: the model's `nodes` that it computes, where they are known, the `function`, its
    `seconds`, and what serves it: the `rung`, and `by`, the package or template. Calls of a function of the VM are one,
    without a rung."""

    nodes: tuple[str, ...]
    function: str
    seconds: float
    rung: str | None = None
    by: str | None = None


def timed_calls(workloads: Sequence[WorkloadReport], times: RunTimes) -> tuple[TimedCall, ...]:
    """The calls of a run of one module, in order; those of the VM itself at the end, by function.

    ``workloads`` may be none: then functions are all that is known.
    """
    served = {item.name: item for item in workloads}
    times = _by_workload(times, served)
    found, place = [], dict.fromkeys(times.calls, 0)
    for name in times.order:
        time, at = times.calls[name], place[name]
        place[name] += 1
        if name in served or (not served and not name.startswith(_OF_THE_VM)):
            seconds = time.each[at] if at < len(time.each) else time.seconds / time.calls
            found.append(_timed_call(name, served.get(name), at, seconds))
    kernels = {call.function for call in found}
    others = [(name, time.seconds) for name, time in times.calls.items() if name not in kernels and time.calls]
    return (*found, *(TimedCall(nodes=(), function=name, seconds=seconds) for name, seconds in others))


def _timed_call(name: str, item: WorkloadReport | None, at: int, seconds: float) -> TimedCall:
    if item is None:
        return TimedCall(nodes=(), function=name, seconds=seconds)
    nodes = item.nodes[at] if at < len(item.nodes) == item.count else ()
    return TimedCall(nodes=nodes, function=name, seconds=seconds, rung=item.rung, by=item.package or item.template)
