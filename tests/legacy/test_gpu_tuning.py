"""Tuning on a GPU with TVM 0.19: what is measured, written down and gone on with. A CPU stands for the GPU."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import auto_scheduler, autotvm

from tunehub_builder.backends.relay import auto_scheduler_tuner, autotvm_tuner, gpu_tuner
from tunehub_builder.backends.relay.auto_scheduler_history import known_programs, program_line
from tunehub_builder.backends.relay.autotvm_history import since_best
from tunehub_builder.backends.relay.autotvm_search import FeatureTable, features
from tunehub_builder.backends.relay.autotvm_tasks import network_tasks
from tunehub_builder.backends.relay.gpu_search import PROGRAMS
from tunehub_builder.backends.relay.gpu_session import AutotvmGpuSession
from tunehub_builder.backends.relay.gpu_tuner import RelayTrial, reason_of
from tunehub_builder.backends.relay.networks import NHWC, RelayNetwork, to_nhwc
from tunehub_builder.backends.relay.target import find_relay_target
from tunehub_builder.backends.relay.tuner import RelayOptions, RelaySession, get_tuner
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import UnsuitableTargetError
from tunehub_builder.tuning.progress import Progress
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.tuning_log import parse_line

from ..sweeps import swept
from .relay_cases import FEW, SHAPE, conv_net

pytestmark = pytest.mark.legacy

TARGET = "llvm -num-cores=1"

# One good configuration, and one for each way to fail. TVM takes the first one when it makes the task.
TEMPLATE = """
import os
from tvm import autotvm, te

@autotvm.template("tests/misbehaving")
def misbehaving(size):
    config = autotvm.get_config()
    config.define_knob("how", ["well", "refuses", "dies", "hangs", "never_ends", "binds"])
    how = config["how"].val
    if how == "refuses":
        raise autotvm.task.space.InstantiationError("not this one")
    if how == "dies":
        os.abort()
    while how == "hangs":
        pass
    a = te.placeholder((size,), name="a")
    k = te.reduce_axis((0, 1 << 30), name="k")
    many = lambda i: te.sum(a[(i * 7 + k) % size] * a[k % size], axis=k)
    long = how == "never_ends"
    b = te.compute((size * 64 if long else size,), many if long else lambda i: a[i] + 1.0, name="b")
    schedule = te.create_schedule(b.op)
    if how == "binds":
        schedule[b].bind(b.op.axis[0], te.thread_axis("threadIdx.x"))
    return schedule, [a, b]
"""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way of GPUs on a CPU, with limits that a test can wait for."""
    hasty = partial(AutotvmGpuSession, build_limit_s=2.0, run_limit_s=2.0)
    for module in (autotvm_tuner, auto_scheduler_tuner):
        monkeypatch.setattr(module, "on_own_gpu", lambda session: True)
    monkeypatch.setattr(autotvm_tuner, "AutotvmGpuSession", hasty)
    monkeypatch.setattr(auto_scheduler_tuner, "PROGRAMS", {**PROGRAMS, **FEW})


def session(folder: Path, *networks: RelayNetwork, show: Any = None, workers: int = 2, **options: Any) -> RelaySession:
    folder.mkdir(exist_ok=True)
    return RelaySession(
        target=TARGET, networks=networks, work=RelayWork(WorkDirectory(folder)), options=RelayOptions(**options),
        threads=1, workers=workers, show=show or (lambda progress: None),
    )  # fmt: skip


def small_network(layout: str = "NCHW") -> RelayNetwork:
    return RelayNetwork(
        name="net", source="test", inputs={"data": SHAPE}, layout=layout, definition=partial(_network, layout),
    )  # fmt: skip


def _network(layout: str) -> tuple[Any, dict[str, Any]]:
    module, params = conv_net(2)
    return (to_nhwc(module) if layout == NHWC else module), params


def test_every_failure_keeps_its_reason_and_costs_one_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, a build and a run that do not end, an error of each step; a second run counts them the same."""
    (tmp_path / "misbehaving_template.py").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    steps: list[Progress] = []
    given = session(
        tmp_path / "work", show=steps.append, algorithm="gridsearch", trials=6,
        template="misbehaving_template:misbehaving", template_args=(8,),
    )  # fmt: skip
    outcome = get_tuner("autotvm").tune(given)
    expected = {"INSTANTIATION_ERROR": 1, "CRASH": 1, "BUILD_TIMEOUT": 1, "RUN_TIMEOUT": 1, "COMPILE_HOST": 1}
    assert outcome.failures == expected
    assert (outcome.trials, outcome.measured_now, steps[-1].failures) == (6, 6, expected)
    records = [parse_line(line) for line in (tmp_path / "work" / "autotvm.log").read_bytes().splitlines()]
    assert Counter(record.error_no for record in records) == {0: 1, 1: 1, 2: 1, 6: 1, 7: 1, 8: 1}
    assert len(list(autotvm.record.load_from_file(str(tmp_path / "work" / "autotvm.log")))) == 6
    again = get_tuner("autotvm").tune(given)
    assert (again.failures, again.trials, again.measured_now) == (expected, 6, 0)


@pytest.mark.parametrize("algorithm", swept(["xgb"], ["ga"]))
def test_autotvm_overlaps_and_goes_on(tmp_path: Path, algorithm: str) -> None:
    first = get_tuner("autotvm").tune(session(tmp_path, small_network(), trials=6, algorithm=algorithm))
    limits = {task.key: min(6, task.space or 0) for task in RelayWork(WorkDirectory(tmp_path)).tasks("autotvm")}
    assert first.trials == first.measured_now == sum(limits.values())
    second = get_tuner("autotvm").tune(session(tmp_path, small_network(), workers=1, trials=8, algorithm=algorithm))
    records = [parse_line(line) for line in (tmp_path / "autotvm.log").read_bytes().splitlines()]
    assert second.trials == len(records) == len({(record.key, record.config["index"]) for record in records})
    assert second.measured_now == second.trials - first.trials > 0
    assert all(record.is_measured for record in records)


def test_early_stopping_and_minutes_end_a_run(tmp_path: Path) -> None:
    given = session(tmp_path / "a", small_network(), trials=500, algorithm="random", minutes=1e-6)
    assert get_tuner("autotvm").tune(given).measured_now == 0
    trials = [RelayTrial(task="t", source="s", run_s=(cost,)) for cost in (3.0, 1.0, 2.0, 4.0)]
    assert since_best(trials) == 2
    assert since_best([]) == 0


@pytest.mark.sweep  # what overlaps is the same with AutoTVM
@pytest.mark.long
def test_the_auto_scheduler_overlaps_and_goes_on(tmp_path: Path) -> None:
    first = get_tuner("auto_scheduler").tune(session(tmp_path, small_network(NHWC), trials=6, seed=3))
    log = tmp_path / "auto_scheduler.json"
    assert first.trials == first.measured_now == log.read_bytes().count(b"\n") >= 6
    inputs, results = auto_scheduler.RecordReader(str(log)).read_lines()
    assert len(inputs) == first.trials
    assert [int(result.error_no) for result in results].count(0) == first.trials - sum(first.failures.values())
    more = session(tmp_path, small_network(NHWC), workers=1, trials=first.trials + 2, seed=3)
    second = get_tuner("auto_scheduler").tune(more)
    lines = log.read_bytes().splitlines()
    assert second.measured_now == len(lines) - first.trials >= 2
    assert len({parse_line(line).raw_config for line in lines}) == len(lines)
    target = str(tvm.target.Target(TARGET))
    keys = {parse_line(line).key for line in lines}
    known = known_programs(log, target, keys)
    again = {program_line(trial) for trials in known.values() for trial in trials}
    assert {parse_line(line).line.split(b', "r"')[0] for line in again} == {line.split(b', "r"')[0] for line in lines}


def test_features_come_from_a_table() -> None:
    task = next(iter(network_tasks(small_network(), tvm.target.Target(TARGET)))).task
    space = task.config_space
    indices = [Random(0).randrange(len(space)) for _ in range(200)]
    expected = np.asarray([features(space.get(index)) for index in indices], dtype="float32")
    assert np.array_equal(FeatureTable(space).rows(np.asarray(indices)), expected)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, None),
        ("SHARED_MEMORY: Error: it exceeds max_shared_memory_per_block 49152", "SHARED_MEMORY"),
        ("LOCAL_MEMORY: error: a thread takes 25088 bytes of local memory, more than 4096", "LOCAL_MEMORY"),
        ("CandidateError: RUNTIME_DEVICE: an illegal memory access", "RUNTIME_DEVICE"),
        ("the attempt crashed its process (exit code -27)", "BUILD_TIMEOUT"),
        ("the attempt crashed its process (exit code -14)", "RUN_TIMEOUT"),
        ("the attempt crashed its process (exit code 70)", "RUNTIME_DEVICE"),
        ("the attempt crashed its process (exit code -11)", "CRASH"),
        ("the attempt took longer than its limit", "RUN_TIMEOUT"),
        ("the timer gave (nan,) s", "UNKNOWN_ERROR"),
    ],
)
def test_what_a_worker_told_has_a_name(error: str | None, reason: str | None) -> None:
    assert reason_of(error) == reason


def test_places_are_spread_over_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    locks, devices = zip(*gpu_tuner.gpu_places(tmp_path, 4), strict=True)
    assert devices == ("2", "3", "2", "3")
    assert len(set(locks)) == 2


@pytest.mark.skipif(tvm.runtime.enabled("vulkan"), reason="this TVM was built with Vulkan")
def test_a_tvm_that_was_built_without_a_kind_of_device_says_so() -> None:
    with pytest.raises(UnsuitableTargetError, match=r"built without vulkan.*USE_VULKAN=ON"):
        find_relay_target("vulkan", remote=False)
