"""Random records within the allow-list: none of a first few crashes, is wrong, or ends a compile; a run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm
from benchmarks.random_traces.cases import CASES, Unit
from benchmarks.schedules.lines import TARGETS

from tunehub.kernels.cuda.plain import plain_schedule

from ..sweeps import swept

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def _counts(out: Path, count: int, targets: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "random_traces", "--count", str(count), "--seed", "3"]
    found = subprocess.run([*command, "--targets", targets, "-o", out, "--json"], cwd=ROOT, capture_output=True)
    assert found.returncode == 0, found.stderr.decode()
    return {row["name"]: row["value"] for row in json.loads(found.stdout)["rows"]}


@pytest.mark.parametrize(("first", "said"), [("0.0", "right"), ("1.0", "wrong")])
def test_what_a_gpus_schedule_computes_is_compared_with_the_plain_loops(first: str, said: str) -> None:
    """Sums begin with that number."""
    unit, found = Unit("sm_90", tvm.target.Target(dict(TARGETS["sm_90"])), "dense", 1, runs=False), dict[str, Any]()
    schedule = tvm.s_tir.Schedule(plain_schedule(unit.mod["main"]))
    graph = json.loads(tvm.ir.save_json(schedule.mod))
    for node in graph["nodes"]:
        if node["type"] == "ir.FloatImm" and node["data"]["value"] == 0.0:
            node["data"]["value"] = float(first)
    unit._try_as_loops(tvm.ir.load_json(json.dumps(graph))["main"], found.__setitem__)
    assert [*found] == [said]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("targets", swept(["host"], ["sm_90"]))
def test_no_random_record_does_harm(targets: str, tmp_path: Path) -> None:
    out = tmp_path / "cases.jsonl"
    for functions in (1, 2) if targets == "sm_90" else (1,):  # the second run goes on
        counts = _counts(out, functions * CASES, targets)
        assert counts["records"] == functions * CASES
        assert counts["bad"] == 0
    assert counts["served_right"] < counts["records"]
