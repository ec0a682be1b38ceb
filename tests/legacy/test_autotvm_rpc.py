"""TVM's own measuring: a real tracker and a real server on this machine, and LocalRunner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import autotvm, relay

from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.tuner import RelayOptions, RelaySession, get_tuner
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.runner.rpc_board import Board, require_boards
from tunehub_builder.tuning.work_directory import WorkDirectory

pytestmark = pytest.mark.legacy

KEY = "test-device"
TARGET = "llvm -num-cores=1"


@pytest.fixture(scope="module")
def tracker() -> Iterator[Board]:
    from tvm.rpc.server import Server
    from tvm.rpc.tracker import Tracker

    tracker = Tracker(host="127.0.0.1", port=19300, port_end=19400, silent=True)
    server = Server(
        host="127.0.0.1", port=19400, port_end=19500, key=KEY, tracker_addr=("127.0.0.1", tracker.port), silent=True
    )
    yield Board(host="127.0.0.1", port=tracker.port, key=KEY)
    server.terminate()
    tracker.terminate()


def dense() -> tuple[Any, dict[str, Any]]:
    data, weight = relay.var("data", shape=(1, 32)), relay.var("weight", shape=(16, 32))
    return tvm.IRModule.from_expr(relay.Function([data, weight], relay.nn.dense(data, weight))), {}


def session(folder: Path, **options: Any) -> RelaySession:
    network = RelayNetwork(name="net", source="test", inputs={"data": (1, 32)}, definition=dense)
    given = RelayOptions(trials=2, algorithm="random", **options)
    return RelaySession(
        target=TARGET, networks=(network,), work=RelayWork(WorkDirectory(folder)), options=given, threads=1, workers=1
    )


def test_a_device_behind_a_tracker_measures(tracker: Board, tmp_path: Path) -> None:
    require_boards(tracker)
    outcome = get_tuner("autotvm").tune(session(tmp_path, rpc=tracker))
    assert (outcome.tasks, outcome.trials, dict(outcome.failures)) == (2, 4, {})
    records = list(autotvm.record.load_from_file(str(tmp_path / "autotvm.log")))
    assert all(0 < cost < 1 for _, result in records for cost in result.costs)
    assert not autotvm.GLOBAL_SCOPE.in_tuning


@pytest.mark.sweep  # the tuner is that of the test before
def test_tvm_s_local_runner_measures(tmp_path: Path) -> None:
    outcome = get_tuner("autotvm").tune(session(tmp_path, local_runner=True, cache_flush=True))
    assert (outcome.trials, dict(outcome.failures)) == (4, {})


def test_a_missing_device_is_found_at_once(tracker: Board) -> None:
    with pytest.raises(TuningError, match=rf"has no device 'other' \(it has: {KEY}\); on the device run"):
        require_boards(Board(host=tracker.host, port=tracker.port, key="other"))
