"""Quantised models beside their own floats: the forms, and what is said of them, with the CPU in place of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.relax")
pytest.importorskip("onnxruntime")

from benchmarks.quantised_gpu import measured

from tunehub_builder import networks
from tunehub_builder.bench.gpu_runs import GpuRunner

from ..tiny_networks import tiny_mobilenet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of onnxruntime's quantiser


def _by_onnxruntime(model: Any, _precision: str, inputs: dict[str, Any]) -> tuple[GpuRunner, list[str]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    kinds.append({each.type for each in session.get_inputs()})
    return GpuRunner(lambda: session.run(None, inputs), lambda: None, lambda outputs: outputs), ["int8: all"]


kinds: list[set[str]] = []


def test_a_network_runs_in_integers_and_in_its_own_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    kinds.clear()
    model = networks.in_precision(tiny_mobilenet(), "int8").onnx_model()
    found = measured(model, 2, _by_onnxruntime, runs=1)
    assert found["errors"] == {} and found["apart"] == 0 and found["notes"] == ["int8: all"]
    assert found["ms"].keys() == {"int8", "float16", "tf32"} and found["times_as_fast_as"].keys() == {"float16", "tf32"}
    assert kinds == [{"tensor(float)"}, {"tensor(float16)"}, {"tensor(float)"}]


def test_the_float_form_has_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.shared.float_forms import float_form, with_batch

    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    network = tiny_mobilenet()
    model = with_batch(networks.in_precision(network, "int8").onnx_model(), 3)
    inputs = {name: np.concatenate([each] * 3) for name, each in network.sample_inputs().items()}
    wanted, got = (_by_onnxruntime(each, "", inputs)[0]()[0] for each in (model, float_form(model)))
    assert wanted.shape == got.shape and len(got) == 3
    assert np.abs(wanted - got).max() <= 0.1 * np.abs(wanted).max()
    assert not any("Quantize" in node.op_type for node in float_form(model).graph.node)
