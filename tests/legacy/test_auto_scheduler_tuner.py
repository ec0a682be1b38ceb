"""The auto-scheduler's tuner: trials, resuming, failures by reason, and what it leaves alone."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import tvm
from tvm import auto_scheduler, relay
from tvm.relay.testing import create_workload

from tunehub_builder.backends.relay import auto_scheduler_tuner
from tunehub_builder.backends.relay.auto_scheduler_history import TaskHistory, read_history
from tunehub_builder.backends.relay.auto_scheduler_tuner import extract, search_params
from tunehub_builder.backends.relay.networks import to_nhwc
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import TuningError, WorkDirectoryError
from tunehub_builder.tuning.progress import Progress, TrialTotals
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.tuning_log import auto_scheduler_key

from .auto_scheduler_runs import SHAPE, TARGET, lines, session, small_net, tune
from .relay_cases import plain_output, run

WRITTEN = str(tvm.target.Target(TARGET))


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
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrialTotals, list[Progress]]:
    """Three trials of a network with a dense layer."""
    folder = tmp_path_factory.mktemp("tuned")
    return folder, *tune(folder, 3, net=lambda: small_net(dense=True))


def test_trials_are_written_and_counted(tuned: tuple[Path, TrialTotals, list[Progress]]) -> None:
    folder, outcome, steps = tuned
    assert (outcome.tasks, outcome.trials, outcome.measured_now) == (1, 3, 3)
    assert len(lines(folder)) == 3
    assert steps[-1].finished
    assert steps[-1].task.name == "conv2d_relu 1x8x8x4 3x3x4x8 1x8x8x8"
    assert 0 < steps[-1].best_s < 1
    (task,) = RelayWork(WorkDirectory(folder)).tasks("auto_scheduler")
    assert task.key == auto_scheduler_key(json.loads(lines(folder)[0])["i"][0][0])
    assert task.counts == {"net": 1}
    assert task.flop > 0


def test_a_task_whose_records_would_abort_the_build_is_left_out_and_named(
    tuned: tuple[Path, TrialTotals, list[Progress]],
) -> None:
    (note,) = tuned[1].notes
    assert note.startswith("dense_add 1x512")
    assert "would abort relay.build" in note


def test_a_network_built_with_the_records_computes_the_same(
    tuned: tuple[Path, TrialTotals, list[Progress]],
) -> None:
    module, params = small_net(dense=True)
    expected = plain_output(module, params, SHAPE, TARGET)
    config = {"relay.backend.use_auto_scheduler": True}
    best = auto_scheduler.ApplyHistoryBest(str(tuned[0] / "auto_scheduler.json"))
    with best, tvm.transform.PassContext(opt_level=3, config=config):
        found = run(relay.build(module, TARGET, params=params), SHAPE)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_trials_in_the_file_count_and_are_not_measured_again(
    tmp_path: Path, tuned: tuple[Path, TrialTotals, list[Progress]]
) -> None:
    log = tmp_path / "auto_scheduler.json"
    log.write_bytes(b"<html>\n" + b"\n".join(lines(tuned[0])) + b"\n")
    outcome, _ = tune(tmp_path, 3)
    assert (outcome.trials, outcome.measured_now) == (3, 0)
    outcome, _ = tune(tmp_path, 4)
    assert (outcome.trials, outcome.measured_now) == (4, 1)
    written = [json.loads(line)["i"][1] for line in lines(tmp_path)[1:]]
    assert len(written) == 4
    assert all(written.count(state) == 1 for state in written)


def test_fewer_trials_than_tasks_and_nothing_to_tune(tmp_path: Path) -> None:
    def twice() -> Any:
        data = relay.var("data", shape=SHAPE)
        pooled = relay.nn.global_avg_pool2d(data, layout="NHWC")
        both = relay.Tuple([relay.nn.softmax(relay.nn.batch_flatten(pooled)), relay.sum(data)])
        return create_workload(relay.Function([data], both))

    with pytest.raises(TuningError, match="--trials 1 is fewer than the"):
        tune(tmp_path, 1, net=twice)

    def nothing() -> Any:
        data = relay.var("data", shape=SHAPE)
        return create_workload(relay.Function([data], relay.nn.relu(data)))

    with pytest.raises(TuningError, match="net: the auto-scheduler finds nothing to tune"):
        tune(tmp_path, 4, net=nothing)


def test_history_takes_no_bad_line_and_no_other_workload(
    tmp_path: Path, tuned: tuple[Path, TrialTotals, list[Progress]]
) -> None:
    line = json.loads(lines(tuned[0])[0])
    failed = {**line, "r": [[1e10], 6, 20.0, 1.0]}
    empty = {**line, "r": [[], 0, 1.0, 1.0]}
    other = {**line, "i": [[line["i"][0][0], "llvm", *line["i"][0][2:]], line["i"][1]]}
    log, good = tmp_path / "log.json", tmp_path / "good.json"
    log.write_text("\n".join(map(json.dumps, [line, failed, empty, other])) + '\n{"i": [[\n')
    key = auto_scheduler_key(line["i"][0][0])
    found = read_history(log, WRITTEN, {key, "0" * 32}, good)
    assert found[key].trials == 2
    assert found[key].failures == {"BUILD_TIMEOUT": 1}
    assert found[key].best_s == pytest.approx(sum(line["r"][0]) / len(line["r"][0]))
    assert found["0" * 32].trials == 0
    assert math.isinf(found["0" * 32].best_s)
    assert [json.loads(text) for text in good.read_text().splitlines()] == [line, failed]


def test_a_converted_network_has_the_tasks_of_a_native_one(tmp_path: Path) -> None:
    target = tvm.target.Target(TARGET)
    native = extract(session(tmp_path, 1), target)

    def converted() -> Any:
        module, params = small_net(nhwc=False)
        return to_nhwc(module), params

    found = {task.key for task in extract(session(tmp_path, 1, net=converted), target)}
    assert {task.key for task in native} <= found


def test_failures_are_told_by_reason(tmp_path: Path) -> None:
    steps: list[Progress] = []
    given = session(tmp_path, 4, show=steps.append)
    tasks = extract(given, tvm.target.Target(TARGET))
    watch = auto_scheduler_tuner._RoundCallback(given, tasks, {tasks[0].key: TaskHistory()}, 4)
    for error_no in (6, 2, 6):
        watch.add(1, SimpleNamespace(error_no=error_no, costs=[1e10]))
    outcome = watch.finish(["a note"])
    assert outcome.failures == steps[-1].failures == {"BUILD_TIMEOUT": 2, "COMPILE_HOST": 1}
    assert math.isinf(steps[-1].best_s)
    assert outcome.notes[0] == "a note"
    assert outcome.notes[1].endswith("all 3 trials failed (BUILD_TIMEOUT 2, COMPILE_HOST 1)")


def test_a_disk_that_takes_nothing_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "auto_scheduler.json").symlink_to("/dev/null")
    watch = auto_scheduler_tuner._RoundCallback(session(tmp_path, 4), [], {}, 4)
    watch.pre_tune(SimpleNamespace(num_measures_per_round=2), 0)
    watch.count.measured(None)
    with pytest.raises(WorkDirectoryError, match="could not append"):
        watch.post_tune(None, 0)


@pytest.mark.long
def test_a_kill_leaves_whole_lines_and_no_process(tmp_path: Path) -> None:
    script = (
        "import sys, importlib.util as u\n"
        f"from pathlib import Path\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from legacy.test_auto_scheduler_tuner import tune\n"
        f"if __name__ == '__main__':\n    tune(Path({str(tmp_path)!r}), 200)\n"
    )
    path = tmp_path.parent / "kill.py"
    path.write_text(script)
    process = subprocess.Popen([sys.executable, str(path)], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    log = tmp_path / "auto_scheduler.json"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert children
    assert not alive
    assert all(json.loads(line)["v"] for line in lines(tmp_path))


def test_the_search_grows_with_the_cores() -> None:
    assert search_params(1)["evolutionary_search_population"] == 128
    assert search_params(16)["evolutionary_search_population"] == 1024
    assert search_params(128)["evolutionary_search_population"] == 2048
