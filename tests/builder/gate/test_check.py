"""`tunehub check` on a work directory and on a file of records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tunehub_builder.cli.check import check as check_command
from tunehub_builder.cli.distill import distill as distill_command
from tunehub_builder.gate.disturbance import UNJUDGED
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.target import tvm_versions
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, TuningRun, WorkDirectory
from tunehub_registry.manifest import NetworkEntry

pytestmark = pytest.mark.slow

ONE_CORE = ["--threads", "1", "--workers", "1"]


@pytest.fixture
def work(
    tmp_path: Path, target: dict[str, Any], task: TaskEntry, entry: Callable[..., Distilled], good_traces: list[Any]
) -> Path:
    """A work directory with two good candidates for one workload."""
    directory = WorkDirectory(tmp_path / "work")
    directory.path.mkdir()
    version, ffi = tvm_versions()
    run = TuningRun(
        command="tunehub tune", started="2026-01-01T00:00:00Z", updated="2026-01-01T00:00:00Z", seed=0, threads=1,
        networks=("tiny",), options={"trials": 2}, machine={},
    )  # fmt: skip
    network = NetworkEntry(name="tiny", source="test", inputs={"data": (1, 2)}, dtype="float32")
    directory.save_run(
        RunFile(
            target_name="llvm-test", target=target, tvm_version=version, tvm_ffi_version=ffi, networks=(network,),
            runs=(run,),
        )
    )  # fmt: skip
    directory.save_tasks([task])
    for trial in entry(*good_traces[:2]).best:
        Journal(directory.path).append(trial)
    return directory.path


def check(*arguments: object) -> Any:
    return CliRunner().invoke(check_command, [str(argument) for argument in arguments])


def check_until_heard(*arguments: object, times: int = 6) -> Any:
    """As a user does where the noise of other programs hid a gain: the same call again."""
    for _ in range(times):
        result = check(*arguments)
        if "within the noise" not in result.output and UNJUDGED not in result.output:
            break
    return result


def test_a_directory_is_judged_once_and_its_records_can_be_judged_again(work: Path, tmp_path: Path) -> None:
    first = check_until_heard(work, *ONE_CORE, "--json")
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert (found["admitted"], found["rejected"], found["measured"]) == (1, [], True)
    assert found["geomean_speedup"] > 1
    again = check(work, *ONE_CORE)
    assert "1 admitted, 0 rejected" in again.stdout
    assert len((work / "verdicts.jsonl").read_bytes().splitlines()) == 1

    records = tmp_path / "records.jsonl"
    assert CliRunner().invoke(distill_command, [str(work), "-o", str(records)]).exit_code == 0
    static = check(records, *ONE_CORE)
    assert "by format and trace only" in static.stdout
    measured = check_until_heard(records, "--work", work, *ONE_CORE, "--json")
    assert json.loads(measured.stdout)["admitted"] == 1


def test_bad_records_in_a_file_are_named_with_their_line(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_bytes(b"{}\nnot json\n")
    result = check(records, *ONE_CORE)
    assert result.exit_code == 1
    assert "records.jsonl:1" in result.stdout
    assert "records.jsonl:2" in result.stdout


def test_missing_file_and_foreign_tvm_are_refused(work: Path, tmp_path: Path) -> None:
    missing = check(tmp_path / "nothing.jsonl", *ONE_CORE)
    assert missing.exit_code == 1
    assert "nothing.jsonl" in missing.output
    run = work / "run.json"
    run.write_text(run.read_text().replace(tvm_versions()[0], "0.1.0"))
    foreign = check(work, *ONE_CORE)
    assert foreign.exit_code == 1
    assert "same versions" in foreign.output
