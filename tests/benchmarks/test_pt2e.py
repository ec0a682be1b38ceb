"""The benchmark of programs quantised by PyTorch: what needs no PyTorch of it, which CI has not."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import pt2e
from benchmarks.pt2e import apart_of, in_turns

pytestmark = pytest.mark.fast


def test_outputs_are_compared_relative_to_the_largest() -> None:
    expected = np.array([[[0.0, 4.0]], [[1.0, 2.0]]])
    found = apart_of(expected + np.array([[[0.0, 0.0]], [[2.0, 0.0]]]), expected)
    assert found == {"most": 0.5, "median": 0.0, "differing": 0.25, "same_top": 1}


def test_every_runtime_gets_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt2e, "_TURN_S", 0.01)
    calls: list[str] = []
    times = in_turns({name: lambda name=name: calls.append(name) for name in ("a", "b")}, count=2)  # type: ignore[misc]
    assert set(calls) == times.keys() == {"a", "b"}
    assert all(0 < each["least"] <= each["median"] for each in times.values())
