"""Workers that one process forks, after it has imported what takes long."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tunehub.compiler.workers.fork_server import ForkServer
from tunehub.compiler.workers.process import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_interpreters")]

CALLS_OF_OS = partial(importlib.import_module, "os")


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(("tests_have_no_such_module", "colorsys"), without=("wave",))
    yield made
    made.stop()


def test_workers_are_forks_of_one_process_and_find_its_imports_done(server: ForkServer) -> None:
    workers = [WorkerProcess(CALLS_OF_OS, launcher=server) for _ in range(3)]
    parents = {worker.ask(("getppid",), 60)[1] for worker in workers}
    assert len(parents) == 1 and os.getpid() not in parents
    assert len({worker.ask(("getpid",), 60)[1] for worker in workers}) == 3
    modules = WorkerProcess(partial(eval, "__import__('sys').modules"), launcher=server)
    assert modules.ask(("__contains__", "colorsys"), 60) == ("ok", True)
    imports = WorkerProcess(partial(importlib.import_module, "importlib"), launcher=server)
    assert imports.ask(("import_module", "wave"), 60)[0] == "error"
    workers[0].stop()
    assert workers[1].ask(("getcwd",), 60) == ("ok", str(Path.cwd()))
    for worker in (*workers[1:], modules, imports):
        worker.stop(at_once=True)


def test_a_fork_has_the_environment_of_the_moment(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_TESTS", "set later")
    worker = WorkerProcess(CALLS_OF_OS, launcher=server)
    assert worker.ask(("getenv", "TUNEHUB_TESTS"), 60) == ("ok", "set later")
    worker.stop(at_once=True)


def test_a_fork_may_be_stopped_before_it_has_started() -> None:
    server = ForkServer(("tests_have_no_such_module",))
    worker = WorkerProcess(CALLS_OF_OS, launcher=server)
    worker.stop(at_once=True)
    worker.stop(at_once=True)
    server.stop()
    server.stop()


def test_workers_end_with_their_server(server: ForkServer) -> None:
    worker = WorkerProcess(CALLS_OF_OS, launcher=server)
    assert worker.ask(("getpid",), 60)[0] == "ok"
    server.stop()
    until = time.monotonic() + 30
    while worker.alive and time.monotonic() < until:
        answer = worker.ask(("getpid",), 60)
    assert answer == ("error", "the getpid crashed its process (exit code -9)")
    with pytest.raises(OSError):
        worker.start()


def test_no_server_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(OSError, match="No such file"):
        ForkServer(())
