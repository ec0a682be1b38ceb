"""Tuning on boards behind TVM's RPC tracker, one of which dies: a real tracker and real servers on this machine."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.exceptions import NoSuchTargetError, TuningError
from tunehub_builder.tuning import target as machine
from tunehub_builder.tuning.runner.rpc_board import Board, board_at, registered, require_boards
from tunehub_builder.tuning.runner.worker import TraceSession
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory

from ...fleets import TRIALS, kill_family, require_planned, tune_until, until

pytestmark = pytest.mark.slow

EM_AARCH64 = 183  # ELF
SIZE = 128  # of the product
KEY = "test-board"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Board, list[Any]]]:
    """A tracker and two boards, of which one test kills the first."""
    from tvm.rpc.server import Server
    from tvm.rpc.tracker import Tracker

    tracker = Tracker(host="127.0.0.1", port=19500, port_end=19600, silent=True)
    address = ("127.0.0.1", tracker.port)
    both = [
        Server(host="127.0.0.1", port=19600, port_end=19700, key=KEY, tracker_addr=address, silent=True)
        for _ in range(2)
    ]
    yield Board(host="127.0.0.1", port=tracker.port, key=KEY), both
    for server in both:
        server.terminate()
    tracker.terminate()


def test_what_a_killed_board_had_is_measured_on_the_other(
    command: Callable[..., list[str]], servers: tuple[Board, list[Any]], blocked_model: Path, tmp_path: Path
) -> None:
    board, both = servers
    until(lambda: registered(board).count(KEY) == 2, "registration")
    work = tmp_path / "work"
    given = ["--tuner", "template", "--target", "host", "--model", blocked_model, "--trials", TRIALS, "--workers", 1]
    place = ["--rpc", board.place, "--rpc-key", KEY, "--threads", 1, "--no-warm-start"]
    tune = command("tune", *given, *place, "--work", work, "--json")
    summary, _ = tune_until(tune, work, 2, lambda: kill_family(both[0].proc._proc.pid))
    require_planned(work, summary)
    assert registered(board).count(KEY) == 1
    run = WorkDirectory(work).existing_run().runs[0]
    assert (run.options["rpc_key"], run.machine["physical_cores"]) == (KEY, 1)
    assert board.place not in run.command


def test_a_missing_device_is_found_at_once(servers: tuple[Board, list[Any]]) -> None:
    board, _ = servers
    other = Board(host=board.host, port=board.port, key="other")
    with pytest.raises(TuningError, match=rf"has no device 'other' \(it has: {KEY}\); on the device run"):
        require_boards(other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rpc", "127.0.0.1:1", "--rpc-key", "x"], "no RPC tracker answers at 127.0.0.1:1"),
        (["--rpc", "127.0.0.1:1"], "needs both --rpc HOST:PORT and --rpc-key KEY"),
        (["--rpc-key", "x"], "needs both --rpc HOST:PORT and --rpc-key KEY"),
    ],
)
def test_a_wrong_place_is_an_error(
    tmp_path: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # the command sets it; this restores it
    given = ["--target", "host", "--network", "squeezenet", *options, "--work", str(tmp_path / "work")]
    result = CliRunner().invoke(tune_command, given)
    assert (result.exit_code, message in " ".join(result.output.split())) == (1, True), result.output


def test_a_tracker_has_a_host_and_a_port() -> None:
    assert board_at("::1:9190", "rasp4b") == Board(host="::1", port=9190, key="rasp4b")
    assert board_at(None, None) is None


@pytest.mark.usefixtures("tvm")
def test_boards_may_have_other_cpus() -> None:
    found = machine.find_board_cpu("llvm-cortex-a72", 4)
    triple = {"mtriple": "aarch64-linux-gnu"}
    assert (found.config, found.vector) == ({"kind": "llvm", "mcpu": "cortex-a72", "num-cores": 4, **triple}, 4)
    assert "mtriple" not in machine.find_board_cpu("host", 2).config
    with pytest.raises(NoSuchTargetError, match="llvm-cortex-a72"):
        machine.find_board_cpu("llvm-cortex-a729", 4)


@pytest.mark.usefixtures("tvm")
def test_candidates_are_built_for_the_board(task: TaskEntry) -> None:
    session = TraceSession()
    session.task(task.exact, task.module)
    archive = session.archive(task.exact, machine.find_board_cpu("llvm-cortex-a72", 4).config, None)
    with tarfile.open(fileobj=io.BytesIO(archive.library)) as tar:
        objects = [tar.extractfile(member) for member in tar if member.name.endswith(".o")]
        assert {file.read(20)[18] for file in objects if file is not None} == {EM_AARCH64}
    assert archive.shapes == (((SIZE, SIZE), "float32"),) * 3
