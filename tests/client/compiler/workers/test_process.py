"""Processes that may die: what their parent sees of it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tunehub.compiler.workers.fork_server import ForkServer
from tunehub.compiler.workers.process import Launcher, WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_interpreters")]

CALLS_OF_OS = partial(importlib.import_module, "os")  # a session whose requests are functions of the module os


@pytest.fixture(params=["a new interpreter", "a fork"])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher | None]:
    server = ForkServer(("colorsys", "no_such_module")) if request.param == "a fork" else None
    yield server
    if server is not None:
        server.stop()


@pytest.fixture
def worker(launcher: Launcher | None) -> Iterator[WorkerProcess]:
    process = WorkerProcess(CALLS_OF_OS, threads=3, launcher=launcher)
    yield process
    process.stop()


def test_requests_are_answered_in_another_process(worker: WorkerProcess) -> None:
    kind, value = worker.ask(("getpid",), 20)
    assert kind == "ok"
    assert value not in (os.getpid(), None)
    assert worker.ask(("getenv", "TVM_NUM_THREADS"), 20) == ("ok", "3")
    kind, value = worker.ask(("listdir", "/no/such/folder"), 20)
    assert kind == "error"
    assert "/no/such/folder" in value
    assert worker.ask(("no_such_request",), 20)[0] == "error"
    assert worker.alive


def test_a_crash_is_an_error_and_a_new_process_can_be_started(worker: WorkerProcess) -> None:
    assert worker.ask(("_exit", 7), 20) == ("error", "the _exit crashed its process (exit code 7)")
    assert not worker.alive
    worker.start()
    assert worker.ask(("getcwd",), 20) == ("ok", str(Path.cwd()))
    kind, value = worker.ask(("abort",), 20)
    assert (kind, worker.alive) == ("error", False)
    assert "exit code -6" in value


def test_a_request_has_a_limit(launcher: Launcher | None) -> None:
    worker = WorkerProcess(partial(importlib.import_module, "time"), launcher=launcher)
    assert worker.ask(("sleep", 0.0), 20) == ("ok", None)
    began = time.monotonic()
    assert worker.ask(("sleep", 600.0), 0.5) == ("error", "the sleep took longer than its limit")
    assert time.monotonic() - began < 60
    assert not worker.alive
    worker.stop()


def test_a_process_that_does_not_read_does_not_stop_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.compiler.workers.process._SEND_LIMIT_S", 1)
    worker = WorkerProcess(partial(importlib.import_module, "time"))
    worker.send(("sleep", 600.0))
    assert worker.ask(("sleep", "x" * 10_000_000), 0.5) == ("error", "the sleep took longer than its limit")
    worker.stop()


def test_a_session_that_cannot_be_made_is_a_crash(launcher: Launcher | None) -> None:
    worker = WorkerProcess(partial(importlib.import_module, "no_such_module"), log=os.devnull, launcher=launcher)
    kind, value = worker.ask(("anything",), 20)
    assert (kind, worker.alive) == ("error", False)
    assert "exit code 1" in value


def test_what_it_prints_goes_to_the_log(tmp_path: Path) -> None:
    worker = WorkerProcess(CALLS_OF_OS, log=tmp_path / "log")
    assert worker.ask(("write", 1, b"printed"), 20) == ("ok", 7)
    worker.stop()
    assert (tmp_path / "log").read_bytes() == b"printed"


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(OSError, match="No such file"):
        WorkerProcess(CALLS_OF_OS)


SCRIPT = """
import importlib, os, signal, sys
from functools import partial
sys.path[:0] = {path!r}
from tunehub.compiler.workers.fork_server import ForkServer
from tunehub.compiler.workers.process import WorkerProcess
new = WorkerProcess(partial(importlib.import_module, "os"))
fork = WorkerProcess(partial(importlib.import_module, "os"), launcher=ForkServer(()))
print(*(fork.ask((name,), 20)[1] for name in ("getpid", "getppid")), new.ask(("getpid",), 20)[1], flush=True)
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
new.stop()
fork.stop()
"""


@pytest.mark.parametrize("dies", [False, True], ids=["ends", "is killed"])
def test_a_script_is_not_run_again_and_no_process_outlives_it(tmp_path: Path, dies: bool) -> None:
    script = tmp_path / "no_main_guard.py"
    script.write_text(SCRIPT.format(path=[place for place in sys.path if place]))
    done = subprocess.run(
        [sys.executable, str(script), *(["die"] if dies else [])], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode == 0) != dies
    started = [int(process) for process in done.stdout.split()]
    until = time.monotonic() + 30
    while any(map(_runs, started)) and time.monotonic() < until:
        time.sleep(0.1)
    assert len(started) == 3 and not any(map(_runs, started))


def _runs(process: int) -> bool:
    """Whether the process is there; one that nobody has waited for counts as ended."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_a_module_that_it_has_to_do_without_cannot_be_imported_there() -> None:
    """TVM imports PyTorch where it is installed, which takes longer than all else that a worker needs."""
    worker = WorkerProcess(partial(importlib.import_module, "importlib"), without=("wsgiref",))
    assert worker.ask(("import_module", "wsgiref.util"), 60) == ("error", "No module named 'wsgiref'")
    worker.stop()


def test_such_a_module_looks_absent_to_libraries_that_ask_for_it() -> None:
    """SciPy takes what the table of imported modules names for a module; others ask where it would come from."""
    worker = WorkerProcess(partial(importlib.import_module, "builtins"), without=("wsgiref",))
    assert worker.ask(("eval", "'wsgiref' in __import__('sys').modules"), 60) == ("ok", False)
    where = "__import__('importlib.util').util.find_spec('{}')"
    assert worker.ask(("eval", where.format("wsgiref")), 60) == ("ok", None)
    assert worker.ask(("eval", where.format("json") + ".name"), 60) == ("ok", "json")
    worker.stop()
