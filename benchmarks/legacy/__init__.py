"""TVM <= 0.19: our tools against TVM's own, in processes of their own under the interpreter that runs this."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.shared.table import Row, thousands
from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.bench.comparison import PLAN

_WORKLOADS = 2000
_PLAN = replace(PLAN, rounds=9)
_TARGET = "llvm -keys=cpu -mcpu=skylake-avx512"
# The high-water mark of the process itself: what getrusage says can include the process that started it.
_LAUNCHER = """
import sys
code = sys.argv.pop(1)
try:
    exec(code)
finally:
    sys.stdout.flush()
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak, file=sys.stderr)
"""
_OURS = "from tunehub.cli import main; main()"
_MODULE = "import runpy, sys; sys.argv[0] = {0!r}; runpy.run_module({0!r}, run_name='__main__')"


@dataclass(frozen=True, kw_only=True, slots=True)
class LegacySize:
    """``autotvm`` and ``auto_scheduler``: lines of the logs to distil, ``runs`` times; records of the ``contexts``, by
    label; ``queries`` of each; the ``networks``."""

    autotvm: int = 200_000
    auto_scheduler: int = 50_000
    runs: int = 3
    contexts: Mapping[str, int] = field(default_factory=lambda: {"700": 700, "50k": 50_000})
    queries: int = 100
    networks: Sequence[str] = ("resnet-18", "resnet-50", "mobilenet")
    plan: MeasuringPlan = _PLAN


def run(size: LegacySize | None = None) -> list[Row]:
    """All rows. TVM's own tools take minutes."""
    from benchmarks.legacy.client import client_rows
    from benchmarks.legacy.networks import network_rows

    size = size or LegacySize()
    clients = client_rows(size.contexts, size.queries)
    return [*distil_rows(size), *clients, *network_rows(size.networks, size.plan)]


def distil_rows(size: LegacySize) -> list[Row]:
    """The best of logs: seconds of the whole process and its peak memory, ours and TVM's, and whether they agree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*_autotvm_rows(folder, size), *_auto_scheduler_rows(folder, size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cost:
    seconds: float
    mb: float


def _autotvm_rows(folder: Path, size: LegacySize) -> list[Row]:
    label, half_label = thousands(size.autotvm), thousands(size.autotvm // 2)
    log = _write(folder / "all.log", autotvm_lines(size.autotvm))
    half = _write(folder / "half.log", autotvm_lines(size.autotvm // 2))
    ours, theirs = folder / "ours.log", folder / "theirs.log"
    mine = _distil(log, ours, size.runs)
    mine_half = _distil(half, folder / "ours-half.log", size.runs)
    tvm = _cost(_MODULE.format("tvm.autotvm.record"), "--mode", "pick", "--i", log, "--o", theirs)
    same = _shared(_autotvm_picks(ours), _autotvm_picks(theirs))
    time_ratio, memory_ratio = mine.seconds / mine_half.seconds, mine.mb / mine_half.mb
    return [
        *_rows(label, "pick", "autotvm.record --mode pick", mine, tvm, same),
        Row(name=f"distil_{half_label}_s", value=mine_half.seconds, unit="s"),
        Row(name=f"distil_{half_label}_mb", value=mine_half.mb, unit="MB", note="peak"),
        Row(name=f"distil_{label}_time_vs_{half_label}", value=time_ratio, unit="ratio", note="2 is linear"),
        Row(name=f"distil_{label}_memory_vs_{half_label}", value=memory_ratio, unit="ratio", note="1 is flat"),
    ]


def _auto_scheduler_rows(folder: Path, size: LegacySize) -> list[Row]:
    log = _write(folder / "ansor.json", auto_scheduler_lines(size.auto_scheduler))
    ours, theirs = folder / "ours.json", folder / "theirs.json"
    mine = _distil(log, ours, size.runs)
    tvm = _cost(_MODULE.format("tvm.auto_scheduler.measure_record"), "--mode", "distill", "-i", log, "-o", theirs)
    same = _shared(_auto_scheduler_picks(ours), _auto_scheduler_picks(theirs))
    label = f"ansor_{thousands(size.auto_scheduler)}"
    return _rows(label, "tvm", "auto_scheduler.measure_record --mode distill", mine, tvm, same)


def _rows(log: str, tool: str, command: str, mine: _Cost, tvm: _Cost, same: float) -> list[Row]:
    """What distilling ``log`` costs, and TVM's ``tool`` for it."""
    return [
        Row(name=f"distil_{log}_s", value=mine.seconds, unit="s", note="whole process"),
        Row(name=f"{tool}_{log}_s", value=tvm.seconds, unit="s", note=command),
        Row(name=f"distil_{log}_vs_{tool}", value=tvm.seconds / mine.seconds, unit="times"),
        Row(name=f"distil_{log}_mb", value=mine.mb, unit="MB", note="peak"),
        Row(name=f"{tool}_{log}_mb", value=tvm.mb, unit="MB", note="peak"),
        Row(name=f"distil_{log}_memory_vs_{tool}", value=mine.mb / tvm.mb, unit="ratio"),
        Row(name=f"distil_{log}_same_picks", value=same, unit="ratio", note="of all that either picked"),
    ]


def autotvm_lines(count: int) -> Iterator[str]:
    """Trials of convolutions as TVM writes them, going round the workloads; a tenth failed."""
    rng = random.Random(0)
    for number in range(count):
        workload = number % _WORKLOADS
        batch, size = 1 + workload // 500, (7, 14, 28, 56, 112)[workload % 5]
        wide, out = 16 * (1 + workload // 5 % 10), 16 * (1 + workload // 50 % 10)
        failed = rng.random() < 0.1
        record = {
            "input": [
                _TARGET, "conv2d_NCHWc.x86",
                [
                    ["TENSOR", [batch, wide, size, size], "float32"], ["TENSOR", [out, wide, 3, 3], "float32"],
                    [1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32",
                ],
                {},
            ],
            "config": {
                "index": number, "code_hash": None,
                "entity": [
                    ["tile_ic", "sp", [-1, rng.choice([1, 2, 4, 8, 16])]],
                    ["tile_oc", "sp", [-1, rng.choice([1, 2, 4, 8, 16])]],
                    ["tile_ow", "sp", [-1, rng.choice([1, 7])]], ["unroll_kw", "ot", rng.random() < 0.5],
                ],
            },
            "result": [
                [1e9] if failed else [rng.lognormvariate(-8, 1) for _ in range(3)], 4 if failed else 0,
                rng.uniform(0.5, 2), 1.6e9 + number,
            ],
            "version": 0.2, "tvm_version": "0.19.0",
        }  # fmt: skip
        yield json.dumps(record)


def auto_scheduler_lines(count: int) -> Iterator[str]:
    """Trials of matrix products in the auto-scheduler's format, with the steps of its CPU sketch."""
    rng = random.Random(0)
    for number in range(count):
        rows, wide = 8 * (1 + number % 25), 16 * (1 + number // 25 % 20)
        key = json.dumps(["d7b65649a4dd54becea0a52aabbc5af5", [rows, 512], [wide, 512], [rows, wide]])
        failed = rng.random() < 0.1
        tiles = [[rng.choice([1, 2, 4, 8]) for _ in range(3)] for _ in range(2)]
        unroll = f"auto_unroll_max_step${rng.choice([0, 16, 64, 512])}"
        steps = [
            ["SP", 2, 0, rows, tiles[0], 1], ["SP", 2, 4, wide, tiles[1], 1],
            ["SP", 2, 8, 512, [rng.choice([4, 8])], 1],
            ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]], ["FSP", 3, 0, 0, 2], ["FSP", 3, 3, 1, 2], ["FU", 3, [0, 1]],
            ["RE", 3, [0, 3, 1, 4, 2, 5]], ["CA", 2, 3, 3], ["AN", 3, 0, 3], ["PR", 2, 0, unroll], ["AN", 2, 9, 2],
        ]  # fmt: skip
        record = {
            "i": [[key, _TARGET, [8, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], steps]],
            "r": [[1e10] if failed else [rng.lognormvariate(-8, 1)], 4 if failed else 0, 1.5, 1_600_000_000 + number],
            "v": "v0.6",
        }
        yield json.dumps(record)


def _write(path: Path, lines: Iterator[str]) -> Path:
    with path.open("w") as file:
        while block := list(islice(lines, 1000)):
            file.write("\n".join(block) + "\n")
    return path


def _distil(log: Path, output: Path, runs: int) -> _Cost:
    costs = [_cost(_OURS, "distill", log, "-o", output) for _ in range(runs)]
    return _Cost(seconds=median(cost.seconds for cost in costs), mb=max(cost.mb for cost in costs))


def _cost(code: str, *arguments: object) -> _Cost:
    command = [sys.executable, "-c", _LAUNCHER, code, *map(str, arguments)]
    # As where the packages are installed, their modules are compiled once and not in every run.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["TOPHUB_LOCATION"] = "NONE"
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    return _Cost(seconds=time.perf_counter() - began, mb=int(done.stderr.splitlines()[-1]) / 1024)


def _autotvm_picks(path: Path) -> set[bytes]:
    """What was chosen for what; TVM writes target and version anew."""
    records = map(json.loads, path.read_text().splitlines())
    return {json.dumps([record["input"][1:3], record["config"]]).encode() for record in records}


def _auto_scheduler_picks(path: Path) -> set[bytes]:
    """What was chosen for what; TVM writes times with fewer digits."""
    records = map(json.loads, path.read_text().splitlines())
    return {json.dumps([json.loads(record["i"][0][0]), record["i"][1]]).encode() for record in records}


def _shared(ours: set[bytes], theirs: set[bytes]) -> float:
    return len(ours & theirs) / len(ours | theirs)
