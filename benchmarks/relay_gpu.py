"""TVM 0.19 on this machine's GPU: its default, tunehub, plain TVM with exported files, and PyTorch with CUDA graphs.

``python -m benchmarks relay_gpu RESULT [NETWORK | FILE.onnx]...``: each network and way is a process of its own
(:mod:`benchmarks.processes.relay_gpu_network`, :mod:`benchmarks.processes.relay_torch`), compiled beside the others and
measured alone. RESULT is written after each, in the form that ``tunehub pack --measured`` reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu import geomean
from benchmarks.processes.gpu_network import this_gpu
from benchmarks.processes.relay_gpu_network import ROUNDS, STEPS, TOPHUB, TUNEHUB
from tunehub.comparison.difference import difference
from tunehub.exceptions import last_line
from tunehub_builder.tuning.runner.cuda_worker import visible_gpus

NETWORKS = ("resnet-18", "resnet-50", "mobilenet", "vgg-16", "inception_v3", "densenet-121", "squeezenet_v1.0")
_TORCH = "torch"
_WAYS = ("default", TUNEHUB, _TORCH)


@click.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.argument("networks", nargs=-1)
@click.option("--target", default="cuda -arch=sm_90 -model=h200", show_default=True)
@click.option("--seconds", default=600.0, show_default=True, help="What is not done by then is left out.")
@click.option("--jobs", default=16, show_default=True, help="Processes at the same time.")
@click.option("--untuned", multiple=True, help="A network that no record was made for: not in the means.")
@click.option("--tophub", help="A folder of `tunehub export tophub`: plain TVM with it, for the first network.")
@click.option("--torch-python", default=sys.executable, help="An interpreter that has PyTorch.")
@click.option("--records", help="What the result says of the records.")
def main(
    result: Path, networks: tuple[str, ...], target: str, seconds: float, jobs: int, untuned: tuple[str, ...],
    tophub: str | None, torch_python: str, records: str | None,
) -> None:  # fmt: skip
    """Measure NETWORKS and write RESULT."""
    gpu, names = this_gpu(), [*(networks or NETWORKS), *untuned]
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    head = {**gpu.facts(), "date": today, **({"records": records} if records else {})}
    found = {
        name: _NetworkTimes(name=Path(name).stem if name.endswith(".onnx") else name, untuned=name in untuned)
        for name in names
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = _EndToEnd(
            folder=Path(folder),
            gpus=visible_gpus(),
            target=target,
            torch_python=torch_python,
            until=time.monotonic() + seconds,
        )
        for name, way, answer in bench.answers(_jobs(names, tophub), jobs):
            found[name].add(way, answer, bench.folder_of(name))
            result.write_text(json.dumps(summary(head, list(found.values())), indent=1, sort_keys=True) + "\n")
    for item in found.values():
        click.echo(json.dumps(item.row()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _WayOfNetwork:
    name: str
    way: str
    tophub: str | None = None


def _jobs(names: Sequence[str], tophub: str | None) -> list[_WayOfNetwork]:
    """Plain TVM with exported files for the first network only."""
    found = [_WayOfNetwork(name=name, way=way) for name in names for way in _WAYS]
    return [*([_WayOfNetwork(name=names[0], way=TOPHUB, tophub=tophub)] if tophub else []), *found]


@dataclass(frozen=True, kw_only=True, slots=True)
class _EndToEnd:
    """``gpus``: TVM runs on the first, PyTorch on the last."""

    folder: Path
    gpus: Sequence[str]
    target: str
    torch_python: str
    until: float

    def folder_of(self, name: str) -> Path:
        return self.folder / Path(name).name

    def answers(self, jobs: Sequence[_WayOfNetwork], at_once: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The network, the way and the answer of each job, in the order in which they end."""
        with ThreadPoolExecutor(at_once) as pool:
            futures: dict[Future[dict[str, Any]], _WayOfNetwork] = {pool.submit(self._answer, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future].name, futures[future].way, future.result()

    def _answer(self, job: _WayOfNetwork) -> dict[str, Any]:
        first, last = self.gpus[0], self.gpus[-1]
        if job.way != _TORCH:
            return self._run(self._command(job.name, job.way, first), first, job.tophub)
        answer = self._run(self._command(job.name, STEPS, last), last)
        if "error" in answer:
            return answer
        model = [job.name] if job.name.endswith(".onnx") else []
        command = [self.torch_python, "-m", "benchmarks.processes.relay_torch", str(self.folder_of(job.name))]
        return self._run([*command, self._lock(last), str(ROUNDS), *model], last)

    def _command(self, name: str, way: str, gpu: str) -> list[str]:
        place = [str(self.folder_of(name)), "--lock", self._lock(gpu), "--target", self.target]
        return [sys.executable, "-m", "benchmarks.processes.relay_gpu_network", name, way, *place]

    def _lock(self, gpu: str) -> str:
        return str(self.folder / f"{gpu}.lock")

    def _run(self, command: Sequence[str], gpu: str, tophub: str | None = None) -> dict[str, Any]:
        left = self.until - time.monotonic()
        if left <= 0:
            return {"error": "not begun in time"}
        environment = {**os.environ, "TVM_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpu}
        if tophub:  # TVM keeps a copy of what it downloads at home
            environment |= {"TOPHUB_LOCATION": Path(tophub).resolve().as_uri(), "HOME": str(self.folder)}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return {"error": "not done in time"}
        if done.returncode:
            return {"error": last_line(done.stderr) or "no message"}
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


@dataclass(kw_only=True, slots=True)
class _NetworkTimes:
    """What is known of a network so far."""

    name: str
    untuned: bool = False
    ms: dict[str, float] = field(default_factory=dict)
    compile_s: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    rungs: dict[str, int] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, way: str, answer: dict[str, Any], folder: Path) -> None:
        if "error" in answer:
            self.errors[way] = answer["error"]
            return
        ms = answer["ms"]
        self.ms |= ms if isinstance(ms, dict) else {way: ms}
        self.versions |= {name: answer[name] for name in ("tvm", _TORCH) if name in answer}
        self.rungs = answer.get("rungs") or self.rungs
        if "compile_s" in answer:
            self.compile_s[way] = answer["compile_s"]
        self.difference = _differences(folder)

    def row(self) -> dict[str, Any]:
        return {
            "network": self.name, "untuned": self.untuned, "dtype": "float32", "rounds": ROUNDS, "ms": self.ms,
            "compile_s": self.compile_s,
            "errors": self.errors, "rungs": self.rungs, "difference": self.difference,
        }  # fmt: skip


def _differences(folder: Path) -> dict[str, float]:
    """How far tunehub's output is from that of each other way that has run, relative to the largest number there."""
    import numpy as np

    outputs = {file.stem: np.load(file) for file in folder.glob("*.npy")}
    own = outputs.pop(TUNEHUB, None)
    return {} if own is None else {way: difference([own], [output]) for way, output in outputs.items()}


def summary(head: dict[str, Any], found: Sequence[_NetworkTimes]) -> dict[str, Any]:
    """What is kept: geometric means of the tuned networks that ran, and each network."""
    tuned = [item.ms for item in found if not item.untuned]
    both = [ms for ms in tuned if {"default", TUNEHUB} <= ms.keys()]
    beside = [ms for ms in tuned if {"torch_graphs", TUNEHUB} <= ms.keys()]
    return {
        **head,
        **dict(version for item in found for version in item.versions.items()),
        "geomean_vs_default": geomean(ms["default"] / ms[TUNEHUB] for ms in both),
        "geomean_vs_torch_graphs": geomean(ms[TUNEHUB] / ms["torch_graphs"] for ms in beside),
        "networks": [item.row() for item in found],
    }
