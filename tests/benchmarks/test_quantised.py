"""Quantised models beside other runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm.relax")
pytest.importorskip("onnxruntime")

from benchmarks.quantised import facts, measured_quantised, quantised

from tunehub.measure.protocol import MeasuringPlan

from ..tiny_networks import tiny_mobilenet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of onnxruntime's quantiser


def test_a_network_is_quantised_once_and_compared(tmp_path: Path) -> None:
    found = facts(measured_quantised(tiny_mobilenet(), tmp_path, MeasuringPlan(rounds=1, sample_s=0.0)))
    assert found["model"] == "tiny.int8"
    assert {"tunehub", "onnxruntime"} <= found["ms"].keys() and found["errors"] == {}
    assert found["apart"] < 0.02
    (note,) = found["notes"]
    assert "compute in integers" in note
    file = tmp_path / "tiny.int8.onnx"
    made = file.stat().st_mtime_ns
    again = quantised(tiny_mobilenet(), tmp_path)
    assert quantised(again, tmp_path) is again
    assert file.stat().st_mtime_ns == made
