"""Whether the same inputs give the same library: networks compiled several times, each time in a fresh process with
another hash seed and an empty cache, and the bytes of the libraries compared.

Schedules that are run before they serve may be refused in one process and not in another one where the machine computes
wrongly at times; nothing else may differ. ``--target`` takes any target of TVM: for a GPU no GPU is needed, with
``--no-verify``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.shared.table import Row

_CHILD = """
import sys
from pathlib import Path
from tunehub.deploy.compiling import StepClock, compile_library
from tunehub_builder import networks
name, target, path, verify = sys.argv[1:]
module = (networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)).relax_module()
options = {"offline": True, **({"verify": "never"} if verify == "never" else {})}
compile_library(module, Path(path), target=None if target == "host" else target, clock=StepClock(), **options)
"""
OPTIONS = (
    click.Option(
        ["--networks", "names"],
        default="squeezenet,mobilenet_v2,resnet50,shufflenet,bert_base",
        show_default=True,
        help="Names or ONNX files, by commas.",
    ),
    click.Option(["--compiles"], type=click.IntRange(min=2), default=4, show_default=True, help="Of each network."),
    click.Option(["--target"], default="host", show_default=True, help="A target of TVM."),
    click.Option(["--verify/--no-verify"], default=True, help="Run schedules before they serve, as compiles do."),
)


def run(names: str, compiles: int, target: str, verify: bool) -> list[Row]:
    """A row for each network: how many different libraries came out."""
    return [_row(name, compiles, target, verify) for name in names.split(",")]


def _row(name: str, compiles: int, target: str, verify: bool) -> Row:
    found: dict[str, int] = {}
    for seed in range(compiles):
        library = _library(name, seed, target, verify)
        found.setdefault(hashlib.sha256(library).hexdigest(), len(library))
    sizes = ", ".join(f"{digest[:16]} ({size} bytes)" for digest, size in found.items())
    label = f"libraries of {compiles} compiles of {Path(name).stem}"
    return Row(name=label, value=len(found), unit="count", note=sizes)


def _library(name: str, seed: int, target: str, verify: bool) -> bytes:
    """A library of the network, compiled in a process of its own at the same place each time."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "TUNEHUB_CACHE": cache,
            "TUNEHUB_COMPILED": "0",
        }
        path = Path(folder) / f"{Path(name).stem}.so"
        command = [sys.executable, "-c", _CHILD, name, target, str(path), "auto" if verify else "never"]
        subprocess.run(command, env=environment, check=True)
        return path.read_bytes()
