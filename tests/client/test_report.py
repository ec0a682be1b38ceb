from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunehub.report import Report, WorkloadReport

from .conftest import key

WORKLOADS = (
    WorkloadReport(name="conv", op="conv2d", rung="exact", package="llvm-znver5 0.1.0", exact=key(1), run_s=0.001,
                   default_s=0.05, count=4),
    WorkloadReport(name="dense", op="matmul", rung="anchor", package="llvm-znver5 0.1.0", exact=key(2), anchor=key(3),
                   run_s=0.003, skipped=("llvm-znver5 0.1.0: x: does not fit",)),
    WorkloadReport(name="softmax", op="softmax", rung="default", exact=key(4), count=2),
    WorkloadReport(name="pool", op="pool", rung="default"),
)  # fmt: skip
REPORT = Report(target="llvm-znver5", package="llvm-znver5 0.1.0", workloads=WORKLOADS, notes=("a note",))


def test_summary_counts_rungs_and_names_the_bottleneck() -> None:
    assert REPORT.summary() == (
        "llvm-znver5 with llvm-znver5 0.1.0: 2 of 4 workloads served by records (exact 1, anchor 1, default 2)\n"
        "most time: conv 4 ms (57%), dense 3 ms (43%)"
    )
    assert str(REPORT) == REPORT.summary()
    assert [item.name for item in REPORT.misses()] == ["softmax", "pool"]
    assert "no workloads compiled yet" in Report(target="llvm-x", package=None).summary()


def test_saved_json_is_the_report(tmp_path: Path) -> None:
    REPORT.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved == json.loads(json.dumps(REPORT.to_json()))
    assert saved["rungs"] == {
        "user": 0, "exact": 1, "anchor": 1, "family": 0, "reference": 0, "template": 0, "dlight": 0,
        "default": 2,
    }  # fmt: skip
    assert saved["bottlenecks"] == ["conv", "dense"]
    assert saved["workloads"][1]["skipped"] == ["llvm-znver5 0.1.0: x: does not fit"]


def test_misses_are_written_once_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "misses.jsonl"
    assert REPORT.save_misses(file) == 1
    with file.open("a") as stream:
        stream.write("{torn")
    assert REPORT.save_misses(file) == 0
    row = json.loads(file.read_text().splitlines()[0])
    assert row == {
        "target": "llvm-znver5", "name": "softmax", "op": "softmax", "exact": key(4), "anchor": None, "count": 2
    }  # fmt: skip


def test_table_has_every_workload(capsys: pytest.CaptureFixture[str]) -> None:
    REPORT.print()
    shown = capsys.readouterr().out
    for word in ("conv", "dense", "softmax", "exact", "a note"):
        assert word in shown
    assert REPORT.table().row_count == 4
