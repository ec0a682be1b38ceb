"""``python -m benchmarks legacy`` at its smallest, and what ``python -m benchmarks relay_gpu`` does without a GPU."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import relay_gpu
from benchmarks.legacy import LegacySize, run
from benchmarks.processes import relay_gpu_network, relay_torch

from tunehub.comparison.protocol import MeasuringPlan
from tunehub.target.nvidia import Gpu

pytestmark = pytest.mark.legacy


@pytest.mark.sweep
@pytest.mark.long
def test_the_benchmark_runs_at_its_smallest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    plan = MeasuringPlan(rounds=2, sample_s=0.0)
    size = LegacySize(
        autotvm=40, auto_scheduler=20, runs=1, contexts={"20": 20}, queries=10, networks=("mlp",), plan=plan
    )
    rows = run(size)
    values = {row.name: row.value for row in rows}
    assert len(values) == len(rows)
    assert not any(map(math.isnan, values.values()))
    assert values["distil_40_same_picks"] == 1
    assert values["lookup_same_of_20"] == 1


def test_without_a_gpu_a_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.target.nvidia.find_gpus", lambda: ())
    result = CliRunner().invoke(relay_gpu.main, [str(tmp_path / "result.json")])
    assert (result.exit_code, "nvidia-smi lists no GPU" in result.output) == (1, True)


def test_ways_that_fail_leave_their_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(name="NVIDIA H200", arch="sm_90", memory_mib=143771)
    monkeypatch.setattr(relay_gpu, "this_gpu", lambda: gpu)
    monkeypatch.setattr(relay_gpu, "visible_gpus", lambda: ("0",))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    file = tmp_path / "result.json"
    CliRunner().invoke(relay_gpu.main, [str(file), "mlp"], catch_exceptions=False)
    result = json.loads(file.read_text())
    assert result["gpu"] == "NVIDIA H200"
    assert result["networks"][0]["errors"] == dict.fromkeys(("default", "tunehub", "torch"), "no message")


def test_a_network_is_written_down_for_pytorch(tmp_path: Path) -> None:
    arguments = ["mlp", "steps", str(tmp_path), "--lock", str(tmp_path / "lock"), "--target", "llvm"]
    assert CliRunner().invoke(relay_gpu_network.main, arguments, catch_exceptions=False).output == "{}\n"
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert [step[0] for step in steps][-1] == "nn.softmax"
    assert {step[0] for step in steps} <= relay_torch._OPERATORS.keys()
