"""Forks with limits: what crashes, hangs or takes all memory there costs that fork only, and how far it came is
known."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

Send: TypeAlias = "Callable[[str, Any], None]"
LOST = "lost"
_MEMORY = 12 << 30  # bytes of addresses
_CPU_SECONDS, _SECONDS = 100, 1500  # machines that do this are busy
_CHUNK = 1 << 16


def in_fork(work: Callable[[Send], None]) -> dict[str, Any]:
    """What ``work`` sent, by name, in its order; under :data:`LOST`, how it ended if not by itself."""
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
    sent = dict(_messages(data))
    if late or code:
        sent[LOST] = f"more than {_SECONDS} s" if late else _ended(code)
    return sent


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(work: Callable[[Send], None], writing: int) -> None:
    def send(name: str, value: Any) -> None:
        data = pickle.dumps((name, value))
        os.write(writing, len(data).to_bytes(4, "little") + data)

    code = 1
    with suppress(BaseException):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work(send)
        code = 0
    os._exit(code)


def _read(pipe: int) -> tuple[bytes, bool]:
    """What comes through the pipe, and whether it was not closed in time."""
    end, data = time.monotonic() + _SECONDS, b""
    while (left := end - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            chunk = os.read(pipe, _CHUNK)
            if not chunk:
                return data, False
            data += chunk
    return data, True


def _messages(data: bytes) -> list[tuple[str, Any]]:
    found = []
    while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "little")):
        found.append(pickle.loads(data[4:size]))  # what this program wrote
        data = data[size:]
    return found
