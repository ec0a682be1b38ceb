"""How long the network is waited for: the least speed of an answer, and work that is left behind when its time is over.

A time-out of a socket counts from each byte anew, and DNS, proxies and header lines know none at all: a server that
sends a byte a second could hold a reader for days.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from tunehub_registry.stores.port import Deadline

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastSpeed:
    """What a server has to keep up with: `grace_s` seconds for an answer, and one more per `bytes_per_s` bytes."""

    grace_s: float = 20.0
    bytes_per_s: float = 4096.0


class Pace(Deadline):
    """The deadline of one answer: it moves on with the bytes that came, but never past the deadline of the caller."""

    def __init__(self, least: LeastSpeed, caller: Deadline) -> None:
        """Begins now."""
        super().__init__(None)
        self._least, self._caller = least, caller
        self._began = time.monotonic()
        self._received = 0

    def received(self, count: int) -> None:
        """So many bytes came."""
        self._received += count

    def remaining(self) -> float:
        """As of any deadline; it always has an end."""
        allowed = self._least.grace_s + self._received / self._least.bytes_per_s
        own = max(0.0, self._began + allowed - time.monotonic())
        callers = self._caller.remaining()
        return own if callers is None else min(own, callers)

    @property
    def reason(self) -> str:
        """Why it has passed."""
        if self._caller.over:
            return "it did not come within the time that there was"
        least, seconds = self._least, time.monotonic() - self._began
        return (
            f"it comes too slowly: {self._received} bytes in {seconds:.3g} s; the limit is {least.grace_s:g} s and "
            f"one more for every {least.bytes_per_s:g} bytes"
        )


@contextmanager
def cut_off_at(pace: Pace, raw: object) -> Iterator[None]:
    """End the reading of a body, urllib3's `raw`, when its time is over, also in the midst of a read."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(pace.remaining()):
            if pace.over:
                _shut_down(raw)
                return

    threading.Thread(target=watch, name="tunehub-pace", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _shut_down(raw: object) -> None:
    with suppress(ValueError, RuntimeError, OSError):  # all of it was read in this moment
        raw.shutdown()  # type: ignore[attr-defined]


def run_until(deadline: Deadline, work: Callable[[], T]) -> T:
    """What `work` returns or raises. Raises TimeoutError when the deadline passes first; `work` may then go on."""
    left = deadline.remaining()
    if left is None:
        return work()
    if left == 0.0:
        raise TimeoutError
    future: Future[T] = Future()
    threading.Thread(target=_call, args=(future, work), name="tunehub-network", daemon=True).start()
    try:
        return future.result(min(left, threading.TIMEOUT_MAX))
    except FutureTimeoutError:  # Python 3.10 has one of its own
        raise TimeoutError from None
    finally:
        del future  # with an error and its traceback it would be a cycle, which keeps sockets open


def _call(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # it is raised in the thread that waits
        future.set_exception(error)
    finally:
        del future
