"""The auto-scheduler and the graph tuner's transforms on a device behind an RPC tracker, here on this machine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
from tvm import te
from tvm.rpc.server import Server
from tvm.rpc.tracker import Tracker

from tunehub_builder.backends.relay.layout_transforms import LayoutTimes, measure_all, measuring_place
from tunehub_builder.tuning.runner.rpc_board import Board

from .auto_scheduler_runs import TARGET, lines, tune

pytestmark = [
    pytest.mark.legacy,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]  # of the sockets of TVM's tracker and server


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Have TVM's sockets collected while their warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def device() -> Iterator[Board]:
    tracker = Tracker(host="127.0.0.1", port=9290, port_end=9390, silent=True)
    address = ("127.0.0.1", tracker.port)
    server = Server(host="127.0.0.1", port=9391, port_end=9490, key="board", tracker_addr=address, silent=True)
    yield Board(host="127.0.0.1", port=tracker.port, key="board")
    server.terminate()
    tracker.terminate()


@pytest.mark.sweep  # the device is that of AutoTVM's test and of the next one
def test_trials_are_measured_there(tmp_path: Path, device: Board) -> None:
    outcome, _ = tune(tmp_path, 2, rpc=device)
    assert outcome.failures == {}
    assert len(lines(tmp_path)) == 2


def test_layout_transforms_are_measured_there(tmp_path: Path, device: Board) -> None:
    target = tvm.target.Target(TARGET)
    workload = ("layout_transform", ("TENSOR", (1, 16, 8, 8), "float32"), "NCHW", "NCHW8c")
    wanted = {workload: [te.placeholder((1, 16, 8, 8)), "NCHW", "NCHW8c"]}
    times = LayoutTimes(tmp_path / "layout_transforms.log", str(target))
    with measuring_place(target, device) as place:
        measure_all(wanted, times, target, place, lambda seconds: None)
    assert 0 < times[workload] < 1
