"""Networks on this machine's GPU: TVM's default, tunehub, and PyTorch, eager and recorded as a CUDA graph.

Each network has a process of its own (:mod:`benchmarks.processes.gpu_network`). As many as the machine has cores are
compiled at once, and once all are they run one after the other on the GPU.
Results are kept under ``benchmarks/results``, with what the driver says of the GPU: ``gpu-DATE.json``, and
``gpu-latest.json``.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click

from benchmarks.processes.gpu_network import COMPILED, this_gpu
from benchmarks.processes.gpu_stock import trials_per_hour
from benchmarks.shared.table import Row
from tunehub.exceptions import last_line

if TYPE_CHECKING:
    from tunehub.target.nvidia import Gpu

NETWORKS = (
    *("resnet50", "squeezenet", "shufflenet", "vgg19", "densenet121", "mobilenet_v2", "bert_base"),
    *("inception_v1", "inception_v2", "alexnet", "vit_b16"),
    *("bert_base_fp16", "resnet50_fp16", "vit_b16_fp16", "squeezenet_fp16"),
)
_TUNING_S, _STOCK_S = 60.0, 300.0
RESULTS = Path(__file__).parent / "results"


OPTIONS = (
    click.Option(["--only"], default=",".join(NETWORKS), help="Networks, by commas; all of them by default."),
    click.Option(["--tuning/--no-tuning"], default=True, show_default=True, help="Count trials an hour as well."),
)


def run(only: str, *, tuning: bool) -> list[Row]:
    """Measure networks, tune for some minutes against TVM's own tuner, and keep the results.

    Raises ClickException without a GPU.
    """
    gpu = this_gpu()
    items = [item for names in _batches(only.split(","), os.cpu_count() or 1) for item in _measured(names)]
    result = summary(items, facts(gpu), trials_per_hour(_TUNING_S, _STOCK_S) if tuning else None)
    keep(result, RESULTS)
    return rows(result)


def _batches(names: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    return (names[at : at + most] for at in range(0, len(names), most))


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
    ``geomean_vs_torch_graphs``: tunehub's share of PyTorch's time, and ``geomean_vs_rules`` with records of its time by
    rules alone, both with them.
    """
    good = [item for item in items if "ms" in item]
    return {
        **facts,
        "geomean_vs_default": geomean(item["ms"]["default"] / item["ms"]["tunehub"] for item in good),
        "geomean_vs_torch_graphs": geomean(
            _best(item["ms"], "tunehub") / item["ms"]["torch_graphs"] for item in good if "torch_graphs" in item["ms"]
        ),
        "geomean_vs_rules": geomean(
            item["ms"]["tunehub_graphs"] / item["ms"]["rules_graphs"]
            for item in good
            if {"tunehub_graphs", "rules_graphs"} <= item["ms"].keys()
        ),
        "networks": list(items),
        **({} if rates is None else {"trials_per_hour_vs_stock": rates["trials_per_hour_vs_stock"], "tuning": rates}),
    }


def rows(result: dict[str, Any]) -> list[Row]:
    """The rows of a result; one for each way of running a network."""
    means = (
        ("geomean_vs_default", "times", "default ÷ tunehub, without CUDA graphs"),
        ("geomean_vs_torch_graphs", "ratio", "tunehub ÷ PyTorch, both with CUDA graphs"),
        ("geomean_vs_rules", "ratio", "with records ÷ by rules alone, both with CUDA graphs"),
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


def _measured(names: Sequence[str]) -> list[dict[str, Any]]:
    """Networks compiled beside one another, then run one after the other: a lock is theirs once all are compiled."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [_NetworkProcess(name, Path(folder)) for name in names]
        for process in processes:
            process.wait_until_compiled()
        fcntl.flock(lock, fcntl.LOCK_UN)
        return [process.result() for process in processes]


class _NetworkProcess:
    """The process that measures one network when it holds the lock of a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._errors = name, folder / f"{name}.errors"
        command = [sys.executable, "-m", "benchmarks.processes.gpu_network", name, "--lock", str(folder / "lock")]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def wait_until_compiled(self) -> None:
        """Or until it failed."""
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) and line.strip() != COMPILED:
            pass

    def result(self) -> dict[str, Any]:
        """What it measured, or the error of a process that failed."""
        told, _ = self._process.communicate()
        if self._process.returncode:
            return {"network": self._name, "error": last_line(self._errors.read_text()) or "no message"}
        found: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
        click.echo(json.dumps(found), err=True)
        return found


def _best(ms: dict[str, float], way: str) -> float:
    """With CUDA graphs, or without where recording one failed."""
    return ms.get(f"{way}_graphs", ms[way])


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    found = list(values)
    return geometric_mean(found) if found else None
