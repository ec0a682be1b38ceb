"""``python -m benchmarks legacy`` at its smallest."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.legacy import LegacySize, run

from tunehub.measure.protocol import MeasuringPlan

pytestmark = pytest.mark.legacy


@pytest.mark.long
def test_the_benchmark_runs_at_its_smallest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    plan = MeasuringPlan(rounds=2, sample_s=0.0)
    size = LegacySize(
        autotvm=40, auto_scheduler=20, runs=1, contexts={"20": 20}, queries=10, networks=("mlp",), plan=plan
    )
    rows = run(size)
    values = {row.name: row.value for row in rows}
    assert len(values) == len(rows)
    assert not any(map(math.isnan, values.values()))
    assert values["distil_40_same_picks"] == 1
    assert values["lookup_same_of_20"] == 1
