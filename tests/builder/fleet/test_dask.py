"""Tuning on dask.distributed's workers, some of which die."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.tuning.work_directory import WorkDirectory

from ...sweeps import swept
from ..fleets import TRIALS, kill, processes, require_planned, trials, tune_until, until

pytestmark = pytest.mark.slow

OPTIONS = ("--tuner", "template", "--target", "host", "--trials", TRIALS, "--threads", 1, "--no-warm-start", "--json")
Command = Callable[..., list[str]]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    with processes() as start:
        yield start


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler at ``HOST:PORT``."""

    address: str
    process: subprocess.Popen[bytes]


@pytest.fixture
def scheduler(start: Start, tmp_path: Path) -> Scheduler:
    """One without workers."""
    return start_scheduler(start, tmp_path / "scheduler.json")


def start_scheduler(start: Start, file: Path) -> Scheduler:
    given = ["--host", "127.0.0.1", "--port", 0, "--no-dashboard", "--scheduler-file", file]
    process = start("distributed.cli.dask_scheduler", *given)

    def written() -> Any:
        with suppress(FileNotFoundError, json.JSONDecodeError):  # it is there before its text is
            return json.loads(file.read_text())

    return Scheduler(until(written, "the scheduler's start")["address"].removeprefix("tcp://"), process)


def start_worker(start: Start, scheduler: str, resources: str) -> subprocess.Popen[bytes]:
    given = ["--nthreads", 1, "--no-nanny", "--no-dashboard", "--memory-limit", 0, "--resources", resources]
    return start("distributed.cli.dask_worker", f"tcp://{scheduler}", *given)


@pytest.mark.long
@pytest.mark.parametrize("killed", swept([1], [2]))
def test_what_killed_workers_had_is_done_by_the_other(
    command: Command,
    start: Start,
    scheduler: Scheduler,
    blocked_model: Path,
    target: dict[str, Any],
    tmp_path: Path,
    killed: int,
) -> None:
    name = f"llvm-{target['mcpu']}"
    workers = [start_worker(start, scheduler.address, f"{name}=1") for _ in range(1 + killed)]
    work = tmp_path / "work"
    tune = command(
        "tune", *OPTIONS, "--model", blocked_model, "--engine", f"dask://{scheduler.address}", "--work", work
    )
    summary, messages = tune_until(tune, work, 2, lambda: [kill(worker) for worker in workers[1:]] and None)
    require_planned(work, summary)
    assert "finished" in messages
    run = WorkDirectory(work).existing_run()
    assert (run.target_name, run.runs[0].options["engine"]) == (name, "dask")
    assert run.runs[0].machine["llvm_cpu"] == target["mcpu"]
    assert scheduler.address not in run.runs[0].command


@pytest.mark.long
@pytest.mark.sweep
def test_a_cluster_of_this_machine_goes_on_without_a_worker(
    command: Command, blocked_model: Path, tmp_path: Path
) -> None:
    """Its engine is that of the test before, with workers that it starts itself."""
    work = tmp_path / "work"
    given = ["--model", blocked_model, "--workers", 2, "--engine", "local", "--work", work]

    def kill_a_worker() -> None:
        tuner = next(p for p in psutil.Process().children() if str(work) in p.cmdline())
        below = tuner.children(recursive=True)
        next(p for p in below if "spawn_main" in " ".join(p.cmdline()) and p.children()).kill()

    summary, _ = tune_until(command("tune", *OPTIONS, *given), work, 2, kill_a_worker)
    require_planned(work, summary)
    assert WorkDirectory(work).existing_run().runs[0].options["engine"] == "local"
    again = CliRunner().invoke(tune_command, list(map(str, [*OPTIONS, *given[:2], "--work", work])))
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["targets"][0]["measured_now"] == 0
    assert len(trials(work)) == summary["trials"]


@pytest.mark.sweep
def test_without_its_scheduler_a_run_ends_and_can_go_on(
    command: Command, start: Start, scheduler: Scheduler, blocked_model: Path, target: dict[str, Any], tmp_path: Path
) -> None:
    start_worker(start, scheduler.address, f"llvm-{target['mcpu']}=1")
    work, place = tmp_path / "work", ["--engine", f"dask://{scheduler.address}"]
    tune = command("tune", *OPTIONS, "--model", blocked_model, *place, "--work", work)
    process = subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: trials(work) or process.poll() is not None, "the first trial")
    kill(scheduler.process)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the fleet failed when" in messages
    assert "run the same again" in messages
    assert "Traceback" not in messages
    assert [trial for trial in trials(work) if "error" in trial] == []


@pytest.mark.sweep
def test_what_a_lost_scheduler_and_its_workers_had_is_done_by_others(
    command: Command, start: Start, scheduler: Scheduler, blocked_model: Path, target: dict[str, Any], tmp_path: Path
) -> None:
    device, gpu = f"llvm-{target['mcpu']}=1", "cuda-h200=1"  # a worker with a GPU builds for the CPUs
    work, options = tmp_path / "work", [*OPTIONS, "--model", blocked_model, "--work", tmp_path / "work"]
    workers = [start_worker(start, scheduler.address, resources) for resources in (device, device, gpu, gpu)]
    tune = command("tune", *options, "--engine", f"dask://{scheduler.address}")
    process = subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: trials(work) or process.poll() is not None, "the first trial")
    for lost in (workers[0], workers[2], scheduler.process):
        kill(lost)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 1, messages
    measured = len(trials(work))
    other = start_scheduler(start, tmp_path / "other.json")
    for resources in (device, gpu):
        start_worker(start, other.address, resources)
    again = command("tune", *options, "--engine", f"dask://{other.address}")
    summary, _ = tune_until(again, work, measured, lambda: None)
    require_planned(work, summary)
    assert summary["measured_now"] == summary["trials"] - measured > 0


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(tune_command, ["--target", "host", "--network", "squeezenet", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(autouse=True)
def tvm_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # the command sets it; this restores it


def test_an_engine_is_local_or_a_scheduler(tmp_path: Path) -> None:
    code, output = call("--engine", "ray://x:1", "--work", tmp_path / "work")
    assert (code, "expected local or dask://HOST:PORT" in output) == (2, True)


def test_without_dask_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, output = call("--engine", "local", "--work", tmp_path / "work")
    assert (code, "[fleet]'" in output) == (1, True), output


def test_workers_without_the_device_are_named(start: Start, scheduler: Scheduler, tmp_path: Path) -> None:
    start_worker(start, scheduler.address, "cuda-h200=1,fast=2")
    from distributed import Client

    with Client(scheduler.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)
        code, output = call("--engine", f"dask://{scheduler.address}", "--work", tmp_path / "work")
    assert code == 1
    assert "no dask worker offers llvm-" in output
    assert "(they offer cuda-h200, fast); start one with `dask worker HOST:PORT" in output
    assert not (tmp_path / "work").exists()
