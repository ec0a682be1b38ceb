"""A worker process and its parent's end: what crashes or hangs there costs that process only.

It is a new interpreter that shares nothing but a pipe, or the fork of one
(:mod:`tunehub.compiler.workers.fork_server`). A fork of the parent would take over TVM's thread pool in pieces, and
multiprocessing would run the user's main module again, which may be the script that compiles. POSIX only: elsewhere
starting one raises ValueError.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tunehub.exceptions import last_line
from tunehub.target.threads import stay_on_given_cores

Answer = tuple[str, Any]  # ("ok", value) or ("error", text)
SLOW_OPTIONAL_MODULES = ("torch",)
"""What TVM imports where it is installed, for conversions that no worker needs: of the 4.5 s of its import, 3."""
_SEND_LIMIT_S = 60
PATIENCE_S = 2.0  # for the end of a process whose pipe is closed
_BOOT = """
import gc, importlib, sys
gc.disable()  # imports leave no garbage
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
own = [place for place in sys.path if place] if sys.argv[3:] else []
sys.path[:] = dict.fromkeys([*own, *connection.recv()])
from tunehub.compiler.workers.process import hide
hide(connection.recv())
importlib.import_module(sys.argv[2]).serve(connection, *connection.recv())
"""


class Launched(Protocol):
    """A process that was started."""

    def end(self, *, at_once: bool) -> int:
        """Its exit code, once it has ended: it is killed ``at_once`` or when it does not end by itself."""


class Launcher(Protocol):
    """Starts processes that do what ``_BOOT`` does with the other end of a pipe."""

    def launch(self, child: Connection) -> Launched:
        """Raises OSError when no process can be started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewInterpreter:
    """Starts a new interpreter, in which ``module.serve`` has the word. ``log`` gets what it prints (None: what this
    process prints to). ``python``: of another environment, whose packages come before those that are here; it has to be
    of the same version."""

    log: str | os.PathLike[str] | None = None
    module: str = __name__
    python: str | None = None

    def launch(self, child: Connection) -> Launched:
        """As the port says."""
        command = [self.python or sys.executable, "-c", _BOOT, str(child.fileno()), self.module]
        command += ["own packages first"] if self.python else []
        with Path(self.log or os.devnull).open("ab") as log:
            output = None if self.log is None else log
            return _Interpreter(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[child.fileno()]
                )
            )


@dataclass(frozen=True, slots=True)
class _Interpreter:
    process: subprocess.Popen[bytes]

    def end(self, *, at_once: bool) -> int:
        """As the port says."""
        if not at_once:
            try:
                return self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                pass
        self.process.kill()
        return self.process.wait()


class WorkerProcess:
    """The parent's end of one worker process. A request that kills the process or takes too long is an error."""

    def __init__(
        self,
        make_session: Callable[[], object],
        *,
        threads: int | None = None,
        log: str | os.PathLike[str] | None = None,
        without: Collection[str] = (),
        launcher: Launcher | None = None,
    ) -> None:
        """``make_session``, which can be pickled, makes what answers the requests: an object whose methods they name.

        ``threads`` is the size of TVM's pool in the process (None: as here). What is imported there finds none of the
        modules ``without``: see :data:`SLOW_OPTIONAL_MODULES`. ``launcher`` starts the process; None: it is a new
        interpreter, and ``log`` gets what it prints (None: what this process prints to). Raises OSError when no process
        can be started.
        """
        self._make_session = make_session
        self._threads = threads
        self._without = tuple(without)
        self._launcher = launcher or NewInterpreter(log=log)
        self._process: Launched | None = None
        self._stopped = False
        self._starting = threading.Lock()
        self.start()

    @property
    def alive(self) -> bool:
        """False after the last request killed the process, until :meth:`start`."""
        return self._process is not None

    def start(self) -> None:
        """Start a process with a new session. Raises OSError, and RuntimeError after :meth:`stop`."""
        with self._starting:
            if self._stopped:
                raise RuntimeError("the worker process was stopped")
            self._start()
        self.send([str(place) for place in sys.path])
        self.send(self._without)
        self.send((self._make_session, self._threads))

    def ask(self, request: tuple[object, ...], limit_s: float) -> Answer:
        """Send a request (the name of a method, its arguments) and wait: ("ok", value) or ("error", text).

        A process that crashes or passes the limit is no longer :attr:`alive`.
        """
        self.send(request)
        return self.receive(limit_s, str(request[0]))

    def send(self, request: object) -> None:
        """The first half of :meth:`ask`."""
        try:
            self.connection.send(request)
        except (BrokenPipeError, OSError):
            return  # the process is gone, or does not read; receiving says so

    def receive(self, limit_s: float, what: str) -> Answer:
        """The second half of :meth:`ask`; ``what`` names the request in an error."""
        crashed = False
        try:
            if self.connection.poll(limit_s):
                kind, value = self.connection.recv()
                return str(kind), value
        except (EOFError, ConnectionResetError, OSError):
            crashed = True
        process, self._process = self._process, None
        if process is None:  # another thread has stopped it
            return "error", f"the {what} was given up"
        code = process.end(at_once=not crashed)
        self.connection.close()
        reason = f"crashed its process (exit code {code})" if crashed else "took longer than its limit"
        return "error", f"the {what} {reason}"

    def stop(self, *, at_once: bool = False) -> None:
        """End the process for good, from any thread; ``at_once`` does not wait for what it is doing."""
        with self._starting:
            self._stopped = True
            process, self._process = self._process, None
        if process is None:
            return
        if not at_once:
            self.connection.close()
        process.end(at_once=at_once)
        self.connection.close()

    def _start(self) -> None:
        self.connection, child = multiprocessing.Pipe()
        try:
            _limit_sending(self.connection, _SEND_LIMIT_S)
            with child:
                self._process = self._launcher.launch(child)
        except BaseException:
            self.connection.close()
            raise
        weakref.finalize(self, self._process.end, at_once=True)


def hide(names: Collection[str]) -> None:
    """From now on no module of these ``names`` is found in this process: importing one raises ModuleNotFoundError.

    They are as absent as where they are not installed. ``None`` in ``sys.modules`` has the same effect on imports, but
    SciPy takes what is there for a module: ``sys.modules["torch"].Tensor``.
    """
    sys.meta_path[:] = [_HidingFinder(finder, frozenset(names)) for finder in sys.meta_path]


class _HidingFinder:
    """A finder of modules that finds none of some packages; all else (distributions, caches) is left to it."""

    def __init__(self, finder: Any, names: frozenset[str]) -> None:
        self._finder = finder
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, *where: Any) -> Any:
        """As importlib's finders answer: None for a module that is not there."""
        return None if name.partition(".")[0] in self._names else self._finder.find_spec(name, *where)


def serve(connection: Connection, make_session: Callable[[], object], threads: int | None) -> None:
    """Answer requests until the parent closes the pipe: what a worker process does."""
    stay_on_given_cores()
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    session = make_session()
    gc.freeze()
    gc.enable()
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("ok", getattr(session, request[0])(*request[1:])))
        except Exception as error:  # whatever TVM raises belongs to the candidate, not to the worker
            connection.send(("error", last_line(error)))


def error_of(request: Callable[..., None], *arguments: object) -> str | None:
    """What a request would answer as its error; None when it succeeds."""
    try:
        request(*arguments)
    except Exception as error:  # as in serve
        return last_line(error)
    return None


def _limit_sending(connection: Connection, seconds: int) -> None:
    """Let writing to a pipe (of multiprocessing: a pair of sockets) fail when nobody reads for so long."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
    os.set_blocking(connection.fileno(), True)  # where the program has a default time limit for sockets, it is not


def _end_with_parent() -> None:
    """End this process soon after its parent, also when the code under test never returns."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
