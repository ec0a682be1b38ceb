"""Measuring beside other programs: when a time was disturbed, and where the threads of TVM's pool run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tunehub.exceptions import SettingError

PATIENCE = "TUNEHUB_PATIENCE"
_PAUSES_S = (0.0, 0.0, 0.05, 0.1, 0.2, 0.4)  # before each attempt
_MOST_WAITING = 0.05


@dataclass(kw_only=True, slots=True)
class Patience:
    """``left``: seconds that several measurements may spend together on being repeated."""

    left: float


def undisturbed(measure: Callable[[], tuple[float, ...]], patience: Patience | None = None) -> tuple[float, ...]:
    """Times of a measurement during which no other process took a core, or the fastest of some attempts.

    Linux says how long this process's threads were ready to run but had no core: next to nothing on a quiet machine,
    more than half of the time beside one busy neighbour, who makes a candidate look twice as slow as it is.
    ``patience`` bounds what that costs where it is never quiet, and the environment bounds ``patience``; what repeating
    takes is subtracted from it. Raises SettingError when ``TUNEHUB_PATIENCE`` is no number of seconds.
    """
    best: tuple[float, ...] | None = None
    patience = patience or Patience(left=math.inf)
    patience.left = min(patience.left, _limit_s())
    for pause_s in _PAUSES_S:
        if best is not None and patience.left <= 0:
            break
        time.sleep(pause_s)
        waited, began = _waited_s(), time.perf_counter()
        times = measure()
        waited, elapsed = _waited_s() - waited, time.perf_counter() - began
        patience.left -= 0.0 if best is None else pause_s + elapsed
        best = times if best is None else min(best, times, key=sum)
        if waited <= _MOST_WAITING * elapsed:
            return times
    assert best is not None
    return best


def may_repeat() -> bool:
    """Whether the environment lets measurements be repeated at all. Raises SettingError as `undisturbed`."""
    return _limit_s() > 0


@contextmanager
def clear_of_the_pool() -> Iterator[None]:
    """Keep this thread off the cores that TVM has pinned the other threads of its pool to.

    TVM pins all but the calling thread (``src/runtime/threading_backend.cc``). When that one starts on a pinned core,
    both share it for up to seconds, since waiting threads of the pool yield instead of sleeping.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    pinned: set[int] = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # a thread that has just ended
            cores = os.sched_getaffinity(int(task.name))
            pinned |= cores if len(cores) == 1 else set()
    try:
        os.sched_setaffinity(0, before - pinned or before)
        yield
    finally:
        os.sched_setaffinity(0, before)


def _limit_s() -> float:
    text = os.environ.get(PATIENCE, "inf")
    try:
        return float(text)
    except ValueError:
        remedy = "give seconds, such as 3, or 0 where it is never quiet"
        raise SettingError(text, "is not a number of seconds", place=PATIENCE, remedy=remedy) from None


def _waited_s() -> float:
    """Seconds that the threads of this process have waited for a core so far; 0 where the system does not say.

    Source: Documentation/scheduler/sched-stats.rst of Linux, second field of /proc/<pid>/task/<tid>/schedstat.
    """
    waited = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that has just ended
            waited += int(file.read_text().split()[1])
    return waited / 1e9
