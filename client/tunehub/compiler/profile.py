"""Time every call of a compiled Relax module in place, between its neighbours (TVM 0.25 and newer).

The VM tells an instrument before and after each call. Kernels so find weights and activations where they are in use,
which a kernel that is timed alone does not. What the instrument costs itself falls between, but for some microseconds a
call in which the call's arguments become objects of Python. The VM's own calls are hardly anything but that: without
the instrument a small kernel and the calls around it take 0.2 us. So their time is taken off every call.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from tunehub.exceptions import ProfileError
from tunehub.report.profile import CallTime, RunTimes

if TYPE_CHECKING:
    from tunehub.graph.types import Executable, VirtualMachine
    from tunehub.tir.types import Array, Device, DeviceTensor

_WARM_UP_S, _WARM_UP_RUNS = 0.25, 2  # a pool's threads take tens of milliseconds to spread over the cores
_IDLE = "vm.builtin.alloc_tensor"  # makes a view of memory, from as many arguments as a kernel has
_LEFT = 0.05  # the least that is left of a call's time; of `_IDLE` that is about what it takes
Inputs = Mapping[str, Any] | Sequence[Any]


def time_calls(executable: Executable, inputs: Inputs, kind: str, runs: int) -> RunTimes:
    """Run ``main`` of an executable ``2 × runs`` times and more on the first device of the target's ``kind``.

    ``inputs``: arrays of numpy or TVM, in order or by name. Raises ProfileError for inputs that ``main`` has not, and
    what TVM raises for wrong ones.
    """
    from tvm import relax

    device = _device(kind)
    machine = relax.VirtualMachine(executable, device)
    arguments = _arguments(machine, inputs, device)

    def run() -> None:
        machine["main"](*arguments)
        device.sync()

    _warm_up(run)
    whole = [_seconds(run) for _ in range(runs)]
    watch = _Watch(device.sync if kind != "llvm" else _nothing)
    machine.set_instrument(watch.instrument)
    timed = [watch.of(run) for _ in range(runs + 1)][1:]
    calls = without_watching(_medians(timed))
    return RunTimes(calls=calls, run_s=median(whole), runs=runs, order=tuple(watch.order))


class _Watch:
    """The VM's instrument: the calls of a run with the seconds of each, those that it makes itself not counted."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._open: list[tuple[float, float]] = []  # when a call began, and the seconds of the calls inside it
        self._calls: dict[str, list[float]] = {}
        self.order: list[str] = []  # of the last run, by when calls ended

    def of(self, run: Callable[[], None]) -> dict[str, list[float]]:
        self._open, self._calls, self.order = [], defaultdict(list), []
        run()
        return self._calls

    def instrument(self, _function: object, symbol: str, before: bool, _result: object, *_arguments: object) -> int:
        self._sync()
        now = time.perf_counter()
        if before:
            self._open.append((now, 0.0))
        elif self._open:
            began, inside = self._open.pop()
            self._calls[str(symbol)].append(now - began - inside)
            self.order.append(str(symbol))
            if self._open:
                outer, seconds = self._open[-1]
                self._open[-1] = (outer, seconds + now - began)
        return 0


def without_watching(calls: Mapping[str, CallTime]) -> dict[str, CallTime]:
    """``calls`` less what watching a call costs: the time of those that do next to nothing themselves."""
    idle = calls.get(_IDLE)
    each_s = idle.seconds / idle.calls if idle is not None and idle.calls else 0.0
    return {
        name: CallTime(
            calls=time.calls,
            seconds=max(time.seconds - each_s * time.calls, _LEFT * time.seconds),
            each=tuple(max(seconds - each_s, _LEFT * seconds) for seconds in time.each),
        )
        for name, time in calls.items()
    }


def _medians(runs: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, CallTime]:
    names = dict.fromkeys(name for calls in runs for name in calls)
    return {
        name: CallTime(
            calls=len(runs[-1].get(name, ())),
            seconds=median(sum(calls.get(name, ())) for calls in runs),
            each=tuple(map(median, zip(*(calls.get(name, ()) for calls in runs), strict=False))),
        )
        for name in names
    }


def _warm_up(run: Callable[[], None]) -> None:
    end = time.perf_counter() + _WARM_UP_S
    for number in itertools.count():
        if number >= _WARM_UP_RUNS and time.perf_counter() >= end:
            return
        run()


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _device(kind: str) -> Device:
    import tvm

    return tvm.cpu(0) if kind == "llvm" else tvm.device(kind, 0)


def _arguments(machine: VirtualMachine, inputs: Inputs, device: Device) -> list[DeviceTensor]:
    if not isinstance(inputs, Mapping):
        return [_tensor(value, device) for value in inputs]
    names = [str(machine._get_function_param_name("main", i)) for i in range(machine._get_function_arity("main"))]
    _check_names(names, inputs)
    return [_tensor(inputs[name], device) for name in names]


def _check_names(names: Sequence[str], inputs: Iterable[str]) -> None:
    given = set(inputs)
    wrong = [*(f"{name!r} is missing" for name in names if name not in given)]
    wrong += [f"there is no {name!r}" for name in sorted(given - set(names))]
    if wrong:
        raise ProfileError(sorted(given), wrong[0], remedy=f"`main` takes {', '.join(names) or 'nothing'}")


def _tensor(value: Array | DeviceTensor, device: Device) -> DeviceTensor:
    import tvm

    return value if hasattr(value, "copyto") else tvm.runtime.tensor(value, device=device)


def _nothing() -> None:
    """A CPU's calls have ended when they return."""
