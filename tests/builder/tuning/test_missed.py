"""From misses to records: explain a model, tune what no record serves, and explain it again."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tunehub.cli.explain import explain
from tunehub.report.misses import Miss, read_misses
from tunehub.tir.keys import workload_key
from tunehub.tir.workload import workload_of
from tunehub_builder.cli.distill import distill as distill_command
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.missed import missed_workloads, targets_of
from tunehub_builder.tuning.work_directory import WorkDirectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::tunehub.exceptions.HubWarning"),
]  # no package is asked for
Command = Callable[..., list[str]]
NO_PACKAGE = ("--layout", "auto", "--require", "llvm-nothing")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TUNEHUB_RECORDS", raising=False)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # commands set it; this restores it


@pytest.fixture
def misses(blocked_model: Path, tmp_path: Path, tvm: Any) -> Path:
    """The misses of a model in planned layouts, for this machine."""
    file = tmp_path / "misses.jsonl"
    result = CliRunner().invoke(explain, [str(blocked_model), *NO_PACKAGE, "--misses", str(file)])
    assert result.exit_code == 0, result.output
    return file


def explained(model: Path) -> dict[str, Any]:
    result = CliRunner().invoke(explain, [str(model), *NO_PACKAGE, "--json"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_misses_become_records_that_serve(
    misses: Path, blocked_model: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = {miss.exact: miss for miss in read_misses(misses)}
    assert {miss.rung for miss in missed.values()} == {"template", "default"}
    work = tmp_path / "work"
    call = command(
        "tune", "--from-misses", misses, "--tuner", "template", "--work", work, "--trials", 2, "--threads", 1,
        "--workers", 1, "--no-warm-start", "--json",
    )  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True, timeout=280, check=True)
    (summary,) = json.loads(done.stdout)["targets"]
    assert summary["tasks"] == len(missed)
    tasks = {task.exact: task for task in WorkDirectory(work).tasks()}
    assert {exact: task.counts for exact, task in tasks.items()} == {
        exact: {"misses": miss.count} for exact, miss in missed.items()
    }
    run = WorkDirectory(work).existing_run()
    assert [(network.name, network.source) for network in run.networks] == [("misses", "misses in misses.jsonl")]
    assert "--from-misses misses.jsonl" in run.runs[0].command

    records = tmp_path / "records.jsonl"
    CliRunner().invoke(distill_command, [str(work), "-o", str(records)], catch_exceptions=False)
    monkeypatch.setenv("TUNEHUB_RECORDS", str(records))
    report = explained(blocked_model)
    assert report["rungs"]["user"] == len(missed), [item["skipped"] for item in report["workloads"]]
    assert report["misses"] == 0


def lines_of(file: Path) -> list[Miss]:
    return list(read_misses(file))


def write(file: Path, *found: Miss) -> Path:
    file.write_bytes(b"".join(msgspec.json.encode(miss) + b"\n" for miss in found))
    return file


def test_what_is_no_workload_is_left_out_with_its_reason(misses: Path) -> None:
    good, *_ = lines_of(misses)
    assert good.function is not None
    wrong = [
        msgspec.structs.replace(good, exact="0" * 32),
        msgspec.structs.replace(good, exact="1" * 32, function=None),
        msgspec.structs.replace(good, exact="2" * 32, function="{}"),
        msgspec.structs.replace(good, exact="3" * 32, target="llvm-other"),
    ]
    write(misses, good, *wrong)
    workloads = missed_workloads(misses)
    found, (note,) = workloads.tasks(good.target)
    assert [task.exact for task in found] == [good.exact]
    assert note.startswith("misses in misses.jsonl: 4 misses are left out: 1 × not the function that its key names")
    assert "missed on llvm-other" not in note  # three reasons are enough
    assert targets_of([misses]) == (good.target, "llvm-other")
    with pytest.raises(TuningError, match=r"nothing to tune for llvm-none: 4 × missed on llvm-"):
        workloads.tasks("llvm-none")


def test_misses_with_open_dimensions_are_tuned_at_several_sizes(tmp_path: Path, tvm: Any) -> None:
    onnx = pytest.importorskip("onnx")
    sides = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 64]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Softmax", ["x"], ["y"])], "g", sides[:1], sides[1:])
    model, file = tmp_path / "open.onnx", tmp_path / "misses.jsonl"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model)
    result = CliRunner().invoke(explain, [str(model), *NO_PACKAGE, "--misses", str(file), "--json"])
    assert result.exit_code == 0, result.output
    (workload,), (miss,) = json.loads(result.stdout)["workloads"], lines_of(file)
    assert workload["symbols"] == ["rows"] and miss.symbols == ("rows",) and miss.function is not None
    assert workload_key(workload_of(miss.function)) == miss.exact == workload["exact"]
    ((task,), notes) = missed_workloads(file).tasks(miss.target)
    assert (task.exact, task.points, notes) == (miss.exact, ((1,), (2,), (3,), (7,), (16,), (61,), (128,)), ())
    ((task,), _) = missed_workloads(file, {"rows": (4, 9), "others": (5,)}).tasks(miss.target)
    assert (task.exact, task.points) == (miss.exact, ((4,), (9,)))
    result = CliRunner().invoke(explain, [str(model), *NO_PACKAGE, "--specialize", "rows=1,8", "--json"])
    assert sorted(each["symbols"] for each in json.loads(result.stdout)["workloads"]) == [[], [], ["rows"]]


def test_nothing_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="the file is empty"):
        missed_workloads(write(tmp_path / "none.jsonl")).tasks("llvm-x")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"{}\n", "line 1: .*not a miss"), (b"", "which target")],
)
def test_wrong_files_are_wrong_usage(tmp_path: Path, tvm: Any, content: bytes | None, message: str) -> None:
    file = tmp_path / "misses.jsonl"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(tune_command, ["--from-misses", str(file), "--work", str(tmp_path / "work")])
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split())), result.output
    assert not (tmp_path / "work").exists()


def test_explain_prints_a_table_and_says_what_is_wrong(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(explain, [str(tiny_model), *NO_PACKAGE])
    assert result.exit_code == 0, result.output
    assert "workloads served by records" in result.output
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model")
    result = CliRunner().invoke(explain, [str(bad)])
    assert (result.exit_code, "bad.onnx: not readable as ONNX" in result.output) == (1, True)
    result = CliRunner().invoke(explain, [str(tiny_model), "--input-shape", "x0"])
    assert (result.exit_code, "--input-shape: expected" in result.output) == (2, True)
    result = CliRunner().invoke(explain, [str(tiny_model), "--specialize", "batch"])
    assert (result.exit_code, "--specialize: expected NAME=1,8" in result.output) == (2, True)
    result = CliRunner().invoke(
        explain, [str(tiny_model), *NO_PACKAGE, "--misses", str(tmp_path / "no" / "misses.jsonl")]
    )
    assert (result.exit_code, "give a file that you may write" in result.output) == (1, True)
