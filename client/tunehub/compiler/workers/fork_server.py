"""A process that imports what takes long once, and forks itself for each worker.

TVM takes seconds to import where files are slow to open, and eight interpreters that import it at the same time take
longer still. What this process imports must start no threads and use no device: neither survives a fork. TVM's own
threads start with its first parallel kernel, and CUDA with the first use of a device.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import NoReturn

from tunehub.compiler.workers import process
from tunehub.compiler.workers.process import PATIENCE_S, Launched, NewInterpreter

_LOOK_S = 1.0  # how often it looks whether its parent is still there
_TICK_S = 0.01


class ForkServer:
    """The parent's end: a launcher of worker processes, which find ``imports`` (names of modules) done.

    Those that are not installed are left out, as are the modules ``without`` (see ``SLOW_OPTIONAL_MODULES``). As new
    interpreters workers have the environment and the folder of the moment. What they print is dropped. They end with
    the server.
    """

    def __init__(self, imports: Sequence[str], *, without: Collection[str] = ()) -> None:
        """Does not wait for the imports. Raises OSError when no process can be started."""
        self._connection, child = multiprocessing.Pipe()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        try:
            with child:
                self._process = NewInterpreter(log=os.devnull, module=__name__).launch(child)
        except BaseException:
            self._connection.close()
            raise
        weakref.finalize(self, self._process.end, at_once=True)
        for each in ([str(place) for place in sys.path], tuple(without), (tuple(imports),)):
            self._connection.send(each)

    def launch(self, child: Connection) -> Launched:
        """As the port says; the process starts after the imports, and nobody waits for that."""
        number = next(self._numbers)
        with self._lock:
            self._connection.send(("fork", number, dict(os.environ), str(Path.cwd())))
            send_handle(self._connection, child.fileno(), None)
            os.set_blocking(self._connection.fileno(), True)  # see process
        return _Fork(self, number)

    def stop(self) -> None:
        """End the process at once; its workers follow within seconds."""
        self._process.end(at_once=True)

    def end(self, number: int, at_once: bool) -> int:
        """The exit code of a worker, ended as :class:`Launched` says."""
        with self._lock, suppress(EOFError, OSError):
            self._connection.send(("end", number, at_once))
            if self._connection.poll(2 * PATIENCE_S):
                return int(self._connection.recv())
        self.stop()
        return -signal.SIGKILL


@dataclass(slots=True)
class _Fork:
    server: ForkServer
    number: int
    code: int | None = None

    def end(self, *, at_once: bool) -> int:
        """As the port says."""
        if self.code is None:
            self.code = self.server.end(self.number, at_once)
        return self.code


def serve(connection: Connection, imports: Sequence[str]) -> NoReturn:
    """Fork workers until the parent closes the pipe or is gone: what the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, workers = os.getppid(), dict[int, int]()
    gc.disable()
    for name in imports:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # what is imported stays: forks share its pages, and do not look through it
    gc.enable()
    with suppress(EOFError, OSError):
        while connection.poll(_LOOK_S) or os.getppid() == parent:
            if connection.poll(0):
                _answer(connection, workers)
    for worker in workers.values():
        os.kill(worker, signal.SIGKILL)
    os._exit(0)


def _answer(connection: Connection, workers: dict[int, int]) -> None:
    what, number, *rest = connection.recv()
    if what == "end":
        connection.send(_ended(workers.pop(number), *rest))
        return
    handle = recv_handle(connection)
    workers[number] = os.fork()
    if not workers[number]:
        connection.close()
        _work(Connection(handle), *rest)
    os.close(handle)


def _work(connection: Connection, environment: dict[str, str], folder: str) -> NoReturn:
    """What a fork does: as a new interpreter, with the imports done."""
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = connection.recv()
        connection.recv()
        process.serve(connection, *connection.recv())
    except BaseException:  # as the end of an interpreter
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _ended(worker: int, at_once: bool) -> int:
    until = time.monotonic() + (0.0 if at_once else PATIENCE_S)
    while True:
        done, status = os.waitpid(worker, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            os.kill(worker, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        time.sleep(_TICK_S)
