"""Quantised models beside other runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm.relax")
pytest.importorskip("onnxruntime")

from benchmarks.quantised import facts, measured_quantised

from tunehub.comparison.protocol import MeasuringPlan

from ..tiny_networks import tiny_mobilenet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of onnxruntime's quantiser


def test_a_network_is_quantised_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    found = facts(measured_quantised(tiny_mobilenet(), MeasuringPlan(rounds=1, sample_s=0.0)))
    assert found["model"] == "tiny_int8"
    assert {"tunehub", "onnxruntime"} <= found["ms"].keys() and found["errors"] == {}
    assert found["apart"] < 0.02
    (note,) = found["notes"]
    assert "compute in integers" in note
