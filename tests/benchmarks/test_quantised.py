"""Quantised models beside other runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm.relax")
pytest.importorskip("onnxruntime")

from benchmarks.quantised import dynamic_forms, facts, measured_quantised

from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder import networks
from tunehub_builder.networks.bert import Bert, BertConfig

from ..tiny_networks import tiny_mobilenet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of onnxruntime's quantiser

PLAN = MeasuringPlan(rounds=1, sample_s=0.0)


def test_a_network_is_quantised_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    found = facts(measured_quantised(networks.in_precision(tiny_mobilenet(), "int8"), PLAN))
    assert found["model"] == "tiny_int8"
    assert {"tunehub", "onnxruntime"} <= found["ms"].keys() and found["errors"] == {}
    assert found["apart"] < 0.02
    (note,) = found["notes"]
    assert "compute in integers" in note


def test_a_network_is_quantised_when_it_runs(tmp_path: Path) -> None:
    config = BertConfig(layers=1, sequence=16, hidden=64, heads=2, feed_forward=64)
    forms = dynamic_forms(Bert(config=config).network("tiny"), tmp_path)
    assert [form.name for form in forms] == ["tiny_dynamic_tensors", "tiny_dynamic_columns"]
    assert {form.precision for form in forms} == {"int8"}
    assert all(form.inputs == {"hidden": (1, 16, 64)} for form in forms)
