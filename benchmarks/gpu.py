"""Networks on this machine's GPU: TVM's default, tunehub, and PyTorch, eager and recorded as a CUDA graph.

Each network runs in a process of its own (:mod:`benchmarks.processes.gpu_network`), one after the other on the GPU.
Results are kept under ``benchmarks/results``, with what the driver says of the GPU: ``gpu-DATE.json``, and
``gpu-latest.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from benchmarks.processes.gpu_network import this_gpu
from benchmarks.processes.gpu_stock import trials_per_hour
from benchmarks.shared.table import Row
from tunehub.exceptions import last_line

if TYPE_CHECKING:
    from tunehub.target.nvidia import Gpu

NETWORKS = (
    *("resnet50", "squeezenet", "shufflenet", "vgg19", "densenet121", "mobilenet_v2", "bert_base"),
    *("inception_v1", "inception_v2", "alexnet", "vit_b16", "bert_base_fp16", "resnet50_fp16"),
)
_TUNING_S, _STOCK_S = 60.0, 300.0
RESULTS = Path(__file__).parent / "results"


def run() -> list[Row]:
    """Measure every network, tune for some minutes against TVM's own tuner, and keep the results.

    Raises ClickException without a GPU.
    """
    gpu = this_gpu()
    with tempfile.NamedTemporaryFile() as lock:
        items = [_measured(name, lock.name) for name in NETWORKS]
    result = summary(items, facts(gpu), trials_per_hour(_TUNING_S, _STOCK_S))
    keep(result, RESULTS)
    return rows(result)


def facts(gpu: Gpu) -> dict[str, Any]:
    """The date, what the driver says of the GPU, and the versions that ran."""
    versions = {"tvm": "apache-tvm", "torch": "torch"}
    found = {name: _version(package) for name, package in versions.items()}
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return {**gpu.facts(), "date": today, **{name: version for name, version in found.items() if version}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def summary(
    items: Sequence[dict[str, Any]], facts: dict[str, Any], rates: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What is kept: ``facts`` of the GPU, each network, geometric means, and trials per hour as ``gpu_stock`` has them.

    ``geomean_vs_default``: how many times faster than TVM's default, both without CUDA graphs;
    ``geomean_vs_torch_graphs``: tunehub's share of PyTorch's time, both with them.
    """
    good = [item for item in items if "ms" in item]
    return {
        **facts,
        "geomean_vs_default": geomean(item["ms"]["default"] / item["ms"]["tunehub"] for item in good),
        "geomean_vs_torch_graphs": geomean(
            _best(item["ms"], "tunehub") / item["ms"]["torch_graphs"] for item in good if "torch_graphs" in item["ms"]
        ),
        "networks": list(items),
        **({} if rates is None else {"trials_per_hour_vs_stock": rates["trials_per_hour_vs_stock"], "tuning": rates}),
    }


def rows(result: dict[str, Any]) -> list[Row]:
    """The rows of a result; one for each way of running a network."""
    means = (
        ("geomean_vs_default", "times", "default ÷ tunehub, without CUDA graphs"),
        ("geomean_vs_torch_graphs", "ratio", "tunehub ÷ PyTorch, both with CUDA graphs"),
    )
    found = [
        Row(name=name, value=result[name], unit=unit, note=note)
        for name, unit, note in means
        if result[name] is not None
    ]
    if result.get("trials_per_hour_vs_stock"):
        note = "tunehub's trials, over those of TVM's tuner with its defaults"
        found.append(
            Row(name="trials_per_hour_vs_stock", value=result["trials_per_hour_vs_stock"], unit="times", note=note)
        )
    run = sum("ms" in item for item in result["networks"])
    found.append(Row(name="networks", value=run, unit="count", note=f"that ran, of {len(result['networks'])}"))
    for item in result["networks"]:
        found += [
            Row(name=f"{item['network']}_{way}_ms", value=ms, unit="ms") for way, ms in item.get("ms", {}).items()
        ]
    return found


def keep(result: dict[str, Any], folder: Path) -> None:
    """Write the result under its date and as the latest. Raises OSError."""
    folder.mkdir(exist_ok=True)
    text = json.dumps(result, indent=1, sort_keys=True) + "\n"
    for name in (f"gpu-{result['date']}.json", "gpu-latest.json"):
        (folder / name).write_text(text, encoding="utf-8")


def _measured(name: str, lock: str) -> dict[str, Any]:
    """One network; a process that fails leaves its error."""
    command = [sys.executable, "-m", "benchmarks.processes.gpu_network", name, "--lock", lock]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        return {"network": name, "error": last_line(answer.stderr) or "no message"}
    found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return found


def _best(ms: dict[str, float], way: str) -> float:
    """With CUDA graphs, or without where recording one failed."""
    return ms.get(f"{way}_graphs", ms[way])


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    found = list(values)
    return geometric_mean(found) if found else None
