"""The benchmarks of GPUs where there is none: what they say, and the parts that need none."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import gpu, gpu_network, gpu_rule, gpu_stock
from benchmarks.__main__ import main
from click.testing import CliRunner

from tunehub.kernels.cuda.gemm.cost import as_tiles, seconds
from tunehub.kernels.devices.known import default_device
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


def test_a_network_whose_process_fails_leaves_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert gpu._measured("squeezenet", str(tmp_path / "lock")) == {"network": "squeezenet", "error": "no message"}


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


def test_the_rule_is_fitted_to_times_that_its_own_costs_give(tmp_path: Path) -> None:
    lines = [json.dumps(measured(name, size)) for name, size in (("one", 64), ("two", 128), ("three", 256))]
    path = tmp_path / "measured.jsonl"
    path.write_text("\n".join(lines))
    result = CliRunner().invoke(gpu_rule.main, ["--measured", str(path)])
    assert result.exit_code == 0, result.output
    text = result.output
    assert text.startswith("3 workloads, ")
    assert "one: 1, mean 1.0" in text
    costs = default_device().costs
    assert all(f"\n{name} = " in text for name in (*costs.threads, *costs.threads_default))


def measured(name: str, size: int) -> dict[str, Any]:
    """A matrix product of this size, and tiles that take what the rule expects of them."""
    row, column, depth = ({"loop": loop, "scale": 1} for loop in range(3))
    operands = [
        {"shape": [size, size], "index": [[row], [depth]]},
        {"shape": [size, size], "index": [[depth], [column]]},
    ]
    problem = {"spatial": [size, size], "reduction": [size], "operands": operands}
    sizes = itertools.product((1, 2), (4, 8, 16), (1, 2, 4), (4, 8))
    tiles = [([v, 1], [t, t], [n, n], [step]) for v, t, n, step in sizes if size % (v * t * n) == 0]
    run_s = seconds(gpu_rule.problem_of(problem), as_tiles(tiles))
    times = [float(value) for value in np.asarray(run_s)]
    return {
        "name": name, "networks": [name], "problem": problem, "tiles": tiles, "run_s": times, "default_s": max(times),
    }  # fmt: skip
