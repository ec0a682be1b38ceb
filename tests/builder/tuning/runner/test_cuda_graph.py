"""Launches recorded in a CUDA graph, by a driver that only writes down what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm_ffi")

import tvm_ffi

from tunehub_builder.tuning.runner import cuda_graph
from tunehub_builder.tuning.runner.cuda_graph import GraphError, RecordedLaunches

pytestmark = pytest.mark.fast

STREAM = 7


class PlayedDriver:
    """Answers each call with the stream, and the time between events with 3.2 ms; ``refused`` fails."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self, refused: str = "") -> None:
        self.calls: list[str] = []
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            return (1,) if name == self._refused else (0, 3.2 if name == "cuEventElapsedTime" else STREAM)

        return call


def played(monkeypatch: pytest.MonkeyPatch, refused: str = "") -> PlayedDriver:
    driver = PlayedDriver(refused)
    monkeypatch.setattr(cuda_graph, "_driver", lambda: driver)
    return driver


def test_all_launches_go_to_the_recorded_stream_and_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, streams = played(monkeypatch), list[int]()
    device = tvm_ffi.device("cuda", 0)
    recorded = RecordedLaunches(lambda: streams.append(tvm_ffi.get_raw_stream(device)), 16)
    assert streams == [STREAM] * 16
    assert tvm_ffi.get_raw_stream(device) != STREAM, "the stream of before is back"
    assert recorded.seconds(10) == pytest.approx(3.2e-3 / 160)
    assert driver.calls.count("cuGraphLaunch") == 11, "the first replay is not timed"
    recorded.close()
    assert {"cuGraphDestroy", "cuGraphExecDestroy", "cuStreamDestroy", "cuEventDestroy"} <= set(driver.calls)


def test_a_launch_that_fails_ends_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = played(monkeypatch)

    def fails() -> None:
        raise ValueError("it allocates")

    with pytest.raises(ValueError, match="it allocates"):
        RecordedLaunches(fails, 16)
    assert driver.calls[-1] == "cuStreamEndCapture"


def test_what_the_driver_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, "cuGraphInstantiate")
    with pytest.raises(GraphError, match="cuGraphInstantiate: 1"):
        RecordedLaunches(lambda: None, 2)
