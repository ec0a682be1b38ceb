"""Forks with limits: what crashes, hangs or takes all memory there costs that fork only, and how far it came is
known."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

Send: TypeAlias = "Callable[[int, str, Any], None]"
_MEMORY = 12 << 30  # bytes of addresses
_SECONDS = 1500  # without a word: machines that do this are busy
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What a fork sent for each number, by name, in its order; ``lost``: how the fork ended if not by itself."""

    of: dict[int, dict[str, Any]]
    lost: str | None = None


def in_fork(work: Callable[[Send], None]) -> Sent:
    """What ``work`` sent."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _work(work, writing)
    os.close(writing)
    data, late = _read(reading)
    os.close(reading)
    if late:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not late and not code:
        return Sent(of=_messages(data))
    return Sent(of=_messages(data), lost=f"no word for {_SECONDS} s" if late else _ended(code))


def limit_cpu(seconds: int) -> None:
    """End this process when it takes ``seconds`` of CPU time more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def keep_pages() -> None:
    """Have this process and its forks not look for garbage: that would write to, and so copy, all that they share."""
    gc.freeze()
    gc.disable()


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(work: Callable[[Send], None], writing: int) -> None:
    def send(number: int, name: str, value: Any) -> None:
        data = pickle.dumps((number, name, value))
        os.write(writing, len(data).to_bytes(4, "little") + data)

    code = 1
    with suppress(BaseException):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work(send)
        code = 0
    os._exit(code)


def _read(pipe: int) -> tuple[bytes, bool]:
    """What comes through the pipe, and whether nothing came, and nobody closed it, for too long."""
    end, data = time.monotonic() + _SECONDS, b""
    while (left := end - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            chunk = os.read(pipe, _CHUNK)
            if not chunk:
                return data, False
            data, end = data + chunk, time.monotonic() + _SECONDS
    return data, True


def _messages(data: bytes) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "little")):
        number, name, value = pickle.loads(data[4:size])  # what this program wrote
        found.setdefault(number, {})[name] = value
        data = data[size:]
    return found
