"""`tunehub tune` in processes of their own: killed, interrupted, resumed; and what it says to wrong input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from tunehub_builder.cli import COMMANDS
from tunehub_builder.cli.networks import networks as networks_command
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.tuning.work_directory import WorkDirectory

pytestmark = pytest.mark.slow

TRIALS = 6
Command = Callable[..., list[str]]


def complete_lines(work: Path) -> list[bytes]:
    path = work / "trials.jsonl"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def start(command: list[str], work: Path, lines: int) -> subprocess.Popen[str]:
    """Start tuning and return once ``lines`` trials are written."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while len(complete_lines(work)) < lines:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"tuning ended too early: {process.communicate()}")
        time.sleep(0.02)
    return process


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Send a signal; return exit code and messages once the process and its workers are gone."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    os.kill(process.pid, number)
    _, messages = process.communicate(timeout=120)
    gone, alive = psutil.wait_procs(family[1:], timeout=120)
    assert gone
    assert not alive, "workers outlived the tuner"
    return process.returncode, messages


@pytest.mark.long
def test_killed_interrupted_and_resumed_it_measures_nothing_twice(
    command: Command,
    tiny_model: Path,
    tmp_path: Path,
    target: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    work = tmp_path / "work"
    options = ["--target", "host", "--model", tiny_model, "--work", work, "--threads", 1, "--workers", 1]
    options.append("--no-warm-start")
    call = command("tune", *options, "--trials", TRIALS, "--search-trials", 0)

    code, _ = end(start(call, work, 1), signal.SIGKILL)
    killed = complete_lines(work)
    assert code == -signal.SIGKILL
    assert len(killed) >= 1

    code, messages = end(start(call, work, len(killed) + 1), signal.SIGINT)
    interrupted = complete_lines(work)
    assert code == 1
    assert "run the same command again to go on" in messages
    assert "Traceback" not in messages
    assert interrupted[: len(killed)] == killed

    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # the command sets it; this restores it
    more = [*options, "--trials", TRIALS, "--search-trials", 2, "--json"]
    done = CliRunner().invoke(tune_command, list(map(str, more)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = complete_lines(work)
    assert lines[: len(interrupted)] == interrupted
    trials = [json.loads(line) for line in lines]
    assert len({(t["task"], json.dumps(t["trace"])) for t in trials}) == len(trials)
    (summary,) = json.loads(done.stdout)["targets"]
    assert (summary["trials"], summary["tasks"]) == (len(trials), 2)
    assert summary["measured_now"] == len(trials) - len(interrupted)
    messages = capfd.readouterr().err
    assert "finished" in messages
    assert "Warning" not in messages

    run = WorkDirectory(work).existing_run()
    assert len(run.runs) == 3
    assert run.target["mcpu"] == target["mcpu"]
    assert run.runs[-1].command.endswith("--work work")
    assert str(tmp_path) not in run.runs[-1].command
    counts = [sum(t["task"] == task.exact for t in trials) for task in WorkDirectory(work).tasks()]
    assert all(1 <= count <= TRIALS + 2 for count in counts)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tvm: Any) -> Callable[..., Any]:
    def no_tuning(*_arguments: Any) -> None:
        pytest.fail("the mistake was not found before tuning started")

    monkeypatch.setattr("tunehub_builder.backends.relax.run._tune", no_tuning)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # the command sets it; this restores it
    return lambda *arguments: CliRunner().invoke(tune_command, list(map(str, arguments)))


@pytest.mark.parametrize("option", ["--model", "--from-misses", "--recipe"])
def test_a_file_that_is_not_there_is_said_at_once(option: str, tmp_path: Path) -> None:
    arguments = ["tune", option, "nothere", "--work", "work"]
    command = [sys.executable, "-X", "importtime", "-c", f"from tunehub.cli import main; main({arguments})"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'nothere' does not exist" in done.stderr
    assert "| tvm\n" not in done.stderr and not (tmp_path / "work").exists()


@pytest.mark.parametrize("option", [["--tuner", "autotvm"], ["--algorithm", "ga"], ["--cache-flush"]])
def test_options_of_old_tvm_are_refused(invoke: Callable[..., Any], tmp_path: Path, option: list[str]) -> None:
    result = invoke("--target", "host", "--network", "squeezenet", *option, "--work", tmp_path / "work")
    assert result.exit_code == 1
    assert f"{' '.join(option[:2] if option[0] == '--tuner' else option[:1])} needs TVM 0.19 or older" in result.output


def test_the_search_of_another_tuner_is_refused(invoke: Callable[..., Any], tmp_path: Path) -> None:
    options = ["--target", "host", "--network", "squeezenet", "--tuner", "template", "--search-trials", 8]
    result = invoke(*options, "--work", tmp_path / "work")
    assert (result.exit_code, "--search-trials is for the tuner meta_schedule" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "llvm-znver55", "--network", "squeezenet"], "unknown target 'llvm-znver55'.*llvm-znver5"),
        (["--target", "rocm-mi300", "--network", "squeezenet"], "unknown target 'rocm-mi300': expected 'host'"),
        (["--target", "host", "--network", "resnet51"], "unknown network 'resnet51'.*resnet50"),
        (["--target", "host"], "nothing to tune"),
        (["--network", "squeezenet"], "which target"),
        (["--target", "host", "--target", "host", "--network", "squeezenet"], "given twice"),
        (["--target", "host", "--network", "squeezenet", "--input-shape", "x=1,2"], "exactly one --model"),
        (["--recipe", "none.toml"], "File 'none.toml' does not exist"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    invoke: Callable[..., Any], tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = invoke(*arguments, "--work", tmp_path / "work")
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split())), result.output
    assert not (tmp_path / "work").exists()


def test_what_cannot_be_done_is_exit_code_1(invoke: Callable[..., Any], tmp_path: Path, tiny_model: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model")
    result = invoke("--target", "host", "--model", bad, "--work", tmp_path / "work")
    assert (result.exit_code, "bad.onnx: not readable as ONNX" in result.output) == (1, True)
    result = invoke("--target", "host", "--model", tiny_model, "--work", tmp_path)
    assert (result.exit_code, "holds other files" in result.output) == (1, True)
    result = invoke("--target", "cuda-gt9", "--network", "squeezenet", "--work", tmp_path / "work")
    assert (result.exit_code, "cannot tune for cuda-gt9" in result.output) == (1, True)
    result = invoke("--target", "host", "--network", "squeezenet", "--minutes", "1", "--work", tmp_path / "work")
    assert (result.exit_code, "--minutes is for GPUs" in result.output) == (1, True)


def test_the_networks_are_listed() -> None:
    text = CliRunner().invoke(networks_command, []).output
    rows = json.loads(CliRunner().invoke(networks_command, ["--json"]).output)["networks"]
    assert {"squeezenet", "bert_base"} <= {row["name"] for row in rows}
    assert all(row["name"] in text for row in rows)


def test_every_command_can_be_loaded() -> None:
    for name, place in COMMANDS.items():
        module, _, attribute = place.partition(":")
        assert getattr(import_module(module), attribute).name == name
