"""Fleets on this machine for tests: a scheduler with workers, a tracker with boards; and `tunehub tune` with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tunehub_builder.tuning.search.knobs import space_of
from tunehub_builder.tuning.work_directory import WorkDirectory

TRIALS = 3
_LIMIT_S = 150


@contextmanager
def processes() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts modules as programs; all of them, and what they have started, end with the context."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TVM_NUM_THREADS": "1"}
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            kill_family(process.pid)
            process.wait(15)


def kill_family(pid: int) -> None:
    """SIGKILL for a process and all below it."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        process.kill()


def until(ready: Callable[[], Any], what: str) -> Any:
    """The first answer that is not empty."""
    deadline = time.monotonic() + _LIMIT_S
    while not (answer := ready()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen")
        time.sleep(0.05)
    return answer


def tune_until(command: list[str], work: Path, lines: int, then: Callable[[], None]) -> tuple[dict[str, Any], str]:
    """Tune, call ``then`` once ``lines`` trials are written; the summary, and what was said meanwhile."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(trials(work)) >= lines or process.poll() is not None, f"trial {lines}")
        assert process.poll() is None, process.communicate()
        then()
        output, messages = process.communicate(timeout=_LIMIT_S)
    finally:
        kill_family(process.pid)
    assert process.returncode == 0, messages
    (summary,) = json.loads(output)["targets"]
    return summary, messages


def trials(work: Path) -> list[dict[str, Any]]:
    """The whole lines of a work directory's journal."""
    path = work / "trials.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def require_planned(work: Path, summary: dict[str, Any]) -> None:
    """Each choice of knobs that was planned has one trial, which succeeded, and there are no others."""
    import tvm

    directory = WorkDirectory(work)
    target = tvm.target.Target(directory.existing_run().target)
    found = trials(work)
    by_task = {task.exact: [trial for trial in found if trial["task"] == task.exact] for task in directory.tasks()}
    for task in directory.tasks():
        space = space_of(tvm.ir.load_json(task.module), target)
        assert len(by_task[task.exact]) == min(len(space), TRIALS), task.name
    assert len({(trial["task"], json.dumps(trial["choice"], sort_keys=True)) for trial in found}) == len(found)
    assert [trial["error"] for trial in found if "error" in trial] == []
    assert (summary["trials"], summary["failed"]) == (len(found), 0)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for one process alone, as the system's out-of-memory killer does it."""
    os.kill(process.pid, signal.SIGKILL)
