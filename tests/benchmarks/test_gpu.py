"""The benchmarks of GPUs where there is none: what they say, and the parts that need none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.processes import gpu_network, gpu_stock
from click.testing import CliRunner

from tunehub.target.nvidia import Gpu
from tunehub_builder.bench import gpu_runs

pytestmark = pytest.mark.slow

LATEST = gpu.RESULTS / "gpu-latest.json"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(main, ["gpu"]), (gpu_network.main, ["squeezenet", "--lock", "lock"]), (gpu_stock.main, ["--seconds", "1"])],
)
def test_without_a_gpu_a_message_says_so(command: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.target.nvidia.find_gpus", lambda: ())
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    assert "nvidia-smi lists no GPU" in result.output


def test_a_network_whose_process_fails_leaves_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert gpu._measured(["squeezenet"]) == [{"network": "squeezenet", "error": "no message"}]


def test_networks_run_once_all_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process notes what it does and when: no run is before the last compilation."""
    notes, script = tmp_path / "notes", tmp_path / "python"
    script.write_text(
        f"""#!{sys.executable}
import fcntl, json, sys, time
name, lock = sys.argv[3], sys.argv[5]
time.sleep(0.2 * (name == "b"))
with open({str(notes)!r}, "a") as file: print("compiled", file=file, flush=True)
print({gpu_network.COMPILED!r}, flush=True)
with open(lock) as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    with open({str(notes)!r}, "a") as file: print("run", file=file, flush=True)
print(json.dumps({{"network": name}}))
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert gpu._measured(["a", "b", "c"]) == [{"network": "a"}, {"network": "b"}, {"network": "c"}]
    assert notes.read_text().split() == ["compiled"] * 3 + ["run"] * 3


def test_results_are_kept_and_read(tmp_path: Path) -> None:
    known = json.loads(LATEST.read_text())
    facts = gpu.facts(Gpu(name="NVIDIA H200", arch="sm_90", memory_mib=143771))
    assert facts["gpu"] == "NVIDIA H200"
    failed = {"network": "other", "error": "no message"}
    result = gpu.summary([*known["networks"], failed], facts, {"trials_per_hour_vs_stock": 26.0})
    assert result["geomean_vs_default"] == pytest.approx(known["geomean_vs_default"])
    assert result["geomean_vs_torch_graphs"] == pytest.approx(known["geomean_vs_torch_graphs"])
    gpu.keep(result, tmp_path)
    latest = json.loads((tmp_path / "gpu-latest.json").read_text())
    assert latest == json.loads((tmp_path / f"gpu-{facts['date']}.json").read_text())
    rows = {row.name: row.value for row in gpu.rows(latest)}
    assert rows["networks"] == len(known["networks"])
    assert rows["trials_per_hour_vs_stock"] == 26.0
    assert rows["resnet50_tunehub_ms"] == known["networks"][0]["ms"]["tunehub"]


def test_runs_are_launched_without_waiting_for_each() -> None:
    events: list[str] = []
    runner = gpu_runs.GpuRunner(lambda: events.append("launch"), lambda: events.append("wait"), lambda _: None)
    assert gpu_runs.launched_seconds(runner, 3) > 0
    assert events == ["wait", "launch", "launch", "launch", "wait"]
    assert gpu_network.milliseconds({"a": runner, "b": runner}, 1).keys() == {"a", "b"}
