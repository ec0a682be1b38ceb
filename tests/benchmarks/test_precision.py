"""The comparison of a network in two precisions."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.relax")

from benchmarks.precision import agreement, measured_in, times

from tunehub.comparison.protocol import MeasuringPlan

from ..tiny_networks import tiny_mobilenet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.exceptions.HubWarning")]


@pytest.mark.sweep
def test_a_network_in_both_precisions() -> None:
    network = tiny_mobilenet()
    found = times(measured_in(network, "bf16", MeasuringPlan(rounds=1, sample_s=0.0)), "bf16")
    assert {"float32", "bf16"} <= found["ms"].keys() and found["errors"] == {}
    assert found["ratio"]["float32"] > 0
    outputs = agreement(network, "bf16", 3)
    assert outputs["apart"] < 2e-2
    assert outputs["inputs"] == 3
