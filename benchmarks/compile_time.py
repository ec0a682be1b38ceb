"""Compile times of networks with embedded packages, beside those of another checkout, and with somebody else's package.

Each round starts a process for each checkout, in turns. It compiles a network once, which loads what is loaded lazily,
and ``--compiles`` times more, each with a new hub; medians of all rounds count. On a busy machine times of the clock
say little: ratios of CPU time stand beside them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median

import click
import msgspec

from benchmarks.client import foreign_rows
from benchmarks.networks import OTHERS
from benchmarks.shared.table import Row
from tunehub_builder import networks
from tunehub_builder.bench.demo import NETWORKS

_ELEVEN = (*NETWORKS, *OTHERS)
_PARTS = ("client", "builder", "registry", ".")  # of a checkout, that are imported
_CHILD = """
import json, sys, time
import tunehub
from tunehub_builder import networks
name, target, found = sys.argv[1], tunehub.host_target(), []
module = (networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)).relax_module()
for _ in range(int(sys.argv[2]) + 1):
    clock, cpu = time.perf_counter(), time.process_time()
    tunehub.compile(module, target, offline=True)
    found.append((time.perf_counter() - clock, time.process_time() - cpu))
print(json.dumps(found[1:]))
"""
OPTIONS = (
    click.Option(["--networks", "names"], default=",".join(_ELEVEN), show_default=True, help="Names or ONNX files."),
    click.Option(
        ["--against"],
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Another checkout, such as a worktree of the commit before.",
    ),
    click.Option(["--rounds"], type=click.IntRange(min=1), default=3, show_default=True, help="Processes for each."),
    click.Option(["--compiles"], type=click.IntRange(min=1), default=3, show_default=True, help="In each process."),
    click.Option(["--foreign"], is_flag=True, help="With somebody else's package, too: first and second compile."),
)


class _Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a compile: of the clock, and of the CPU."""

    clock_s: float
    cpu_s: float


def run(names: str, against: Path | None, rounds: int, compiles: int, foreign: bool) -> list[Row]:
    """Rows of each network, and with ``against`` the geometric means of the ratios."""
    checkouts = [Path(__file__).parents[1], *([] if against is None else [against])]
    rows: list[Row] = []
    for name in (each.strip() for each in names.split(",")):
        turns = [[_compiled(name, checkout, compiles) for checkout in checkouts] for _ in range(rounds)]
        label = Path(name).stem
        middle = (_median([times for turn in turns for times in turn[at]]) for at in range(len(checkouts)))
        rows += _rows(label, *middle)
        if foreign:
            network = networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)
            found = foreign_rows(network, rounds)
            rows += [msgspec.structs.replace(row, name=f"{label}_{row.name}") for row in found]
    means = ("compile_vs_other", "compile_cpu_vs_other", "compile_foreign_first", "compile_foreign_again")
    return [*rows, *(mean for each in means for mean in _mean(rows, each))]


def _compiled(name: str, checkout: Path, compiles: int) -> list[_Times]:
    """The times of compiles in a process that imports ``checkout``, with a cache of its own."""
    with tempfile.TemporaryDirectory() as cache:
        path = os.pathsep.join(str(checkout / part) for part in _PARTS)
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, name, str(compiles)], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": path, "TUNEHUB_CACHE": cache},
        )  # fmt: skip
    if done.returncode:
        raise click.ClickException(f"{name} does not compile in {checkout}: {done.stderr.strip().splitlines()[-1:]}")
    return [_Times(clock_s=clock, cpu_s=cpu) for clock, cpu in json.loads(done.stdout.splitlines()[-1])]


def _median(times: Sequence[_Times]) -> _Times:
    return _Times(clock_s=median(each.clock_s for each in times), cpu_s=median(each.cpu_s for each in times))


def _rows(name: str, own: _Times, other: _Times | None = None) -> list[Row]:
    rows = [
        Row(name=f"{name}_compile_s", value=own.clock_s, unit="s"),
        Row(name=f"{name}_compile_cpu_s", value=own.cpu_s, unit="s"),
    ]
    if other is None:
        return rows
    clock = Row(
        name=f"{name}_compile_vs_other", value=own.clock_s / other.clock_s, unit="ratio", note=f"{other.clock_s:.3g} s"
    )
    cpu = Row(
        name=f"{name}_compile_cpu_vs_other", value=own.cpu_s / other.cpu_s, unit="ratio", note=f"{other.cpu_s:.3g} s"
    )
    return [*rows, clock, cpu]


def _mean(rows: Sequence[Row], ending: str) -> list[Row]:
    """The geometric mean of the networks' rows that end so, if there are any."""
    values = [row.value for row in rows if row.name.endswith(f"_{ending}")]
    note = f"{len(values)} networks, at most {max(values):.3f}" if values else ""
    return [Row(name=f"{ending}_geomean", value=geometric_mean(values), unit="ratio", note=note)] if values else []
