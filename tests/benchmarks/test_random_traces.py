"""Random records within the allow-list: none of a first few crashes, is wrong, or ends a compile; a run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.random_traces.cases import CASES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def _counts(out: Path, count: int, targets: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "random_traces", "--count", str(count), "--seed", "3"]
    found = subprocess.run([*command, "--targets", targets, "-o", out, "--json"], cwd=ROOT, capture_output=True)
    assert found.returncode == 0, found.stderr.decode()
    return {row["name"]: row["value"] for row in json.loads(found.stdout)["rows"]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("targets", ["host", "sm_90"])
def test_no_random_record_does_harm(targets: str, tmp_path: Path) -> None:
    out = tmp_path / "cases.jsonl"
    for functions in (1, 2):  # the second run goes on
        counts = _counts(out, functions * CASES, targets)
        assert counts["records"] == functions * CASES
        assert counts["bad"] == 0
    assert counts["served_right"] < counts["records"]
