"""The comparison of a network in two precisions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.relax")

from benchmarks.precision import compared

from ..tiny_networks import tiny_mobilenet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.exceptions.HubWarning")]


def test_a_network_in_both_precisions() -> None:
    found: dict[str, Any] = compared(tiny_mobilenet(), "bf16", 0.01, 3)
    assert found["float32_ms"] > 0
    assert found["bf16_ms"] > 0
    assert found["apart"] < 2e-2
    assert found["inputs"] == 3
