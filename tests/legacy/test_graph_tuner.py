"""The graph tuner: what it may choose from, how it times transforms, what it plans, and that TVM replays the plan."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import autotvm, relay
from tvm.relay.testing import create_workload

from tunehub.relay.fingerprint import graph_fingerprint
from tunehub_builder.backends.relay import graph_solvers, layout_transforms
from tunehub_builder.backends.relay.graph_candidates import read_candidates
from tunehub_builder.backends.relay.graph_skeleton import skeleton
from tunehub_builder.backends.relay.graph_tuner import GraphTuner
from tunehub_builder.backends.relay.layout_transforms import LayoutTimes
from tunehub_builder.backends.relay.networks import NHWC, RelayNetwork
from tunehub_builder.backends.relay.tuner import RelayOptions, RelaySession
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.progress import Progress, TrialTotals
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.graph_log import parse_graph_header

from .relay_cases import build, log_line, plain_output, run, tasks, write_log

pytestmark = pytest.mark.legacy

TARGET = str(tvm.target.Target("llvm -mcpu=core-avx2"))  # as TVM writes it into logs
SHAPE = (1, 16, 14, 14)
Planned = tuple[Path, TrialTotals, RelayWork, list[Progress]]


def block(data: Any, name: str, *, depthwise: bool = False) -> Any:
    """A convolution with batch norm and ReLU."""
    size, groups = ((16, 1, 3, 3), 16) if depthwise else ((16, 16, 3, 3), 1)
    weight = relay.var(f"{name}_weight", shape=size)
    data = relay.nn.conv2d(data, weight, padding=(1, 1), kernel_size=(3, 3), channels=16, groups=groups)
    norm = [relay.var(f"{name}_{part}") for part in ("gamma", "beta", "moving_mean", "moving_var")]
    return relay.nn.relu(relay.nn.batch_norm(data, *norm)[0])


def residual_net() -> Any:
    """Convolutions on two branches that meet again, one of them depthwise, and a bias made of weights alone."""
    stem = block(relay.var("data", shape=SHAPE), "stem")
    left = block(block(stem, "deep", depthwise=True), "left")
    body = block(relay.add(left, stem), "last")
    bias = relay.expand_dims(relay.var("end_bias", shape=(16,)), axis=1, num_newaxis=2)
    body = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(relay.add(body, bias)))
    return create_workload(relay.Function(relay.analysis.free_vars(body), body))


@pytest.fixture(scope="module")
def net() -> Any:
    return residual_net()


@pytest.fixture(scope="module")
def found(net: Any) -> list[Any]:
    return [task for task in tasks(*net, TARGET) if "conv2d" in task.name]


@pytest.fixture(scope="module")
def log(found: list[Any]) -> list[Any]:
    """Up to four records of each task, with other layouts each; the first is the fastest alone.

    A depthwise convolution has equal blocks here: with others LLVM 22 refuses the debug information that TVM makes.
    """
    lines = []
    for task in found:
        layouts: dict[Any, int] = {}
        for index in range(len(task.config_space)):
            config = task.config_space.get(index)
            layouts.setdefault((config["tile_ic"].size[-1], config["tile_oc"].size[-1]), index)
        pairs = ((16, 16), (8, 8)) if "depthwise" in task.name else ((4, 8), (8, 4), (16, 16), (8, 8))
        chosen = [layouts[pair] for pair in pairs]
        lines += [log_line(task, index, 1e-5 * (1 + 0.001 * k), TARGET) for k, index in enumerate(chosen)]
    return lines


def tune(folder: Path, net: Any, log: list[Any], algorithm: str = "auto", **network: Any) -> tuple[TrialTotals, Any]:
    folder.mkdir(exist_ok=True)
    work = RelayWork(WorkDirectory(folder))
    write_log(work.autotvm_log, *log)
    steps: list[Progress] = []
    description = {"name": "net", "source": "here", "inputs": {"data": SHAPE}, **network}
    session = RelaySession(
        target="llvm -mcpu=core-avx2",
        networks=(RelayNetwork(**description, definition=lambda: net),),
        work=work,
        options=RelayOptions(graph_algorithm=algorithm),
        threads=1,
        workers=1,
        show=steps.append,
    )
    return GraphTuner().tune(session), (work, steps)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, net: Any, log: list[Any]) -> Planned:
    """The network's plan, with all its transforms measured; tests that go on with it take a copy of its folder."""
    folder = tmp_path_factory.mktemp("planned")
    outcome, (work, steps) = tune(folder, net, log)
    return folder, outcome, work, steps


def graph_lines(work: RelayWork) -> list[bytes]:
    return work.graph_log("net").read_bytes().splitlines()


def test_a_plan_is_written_once_and_its_transforms_are_never_measured_again(
    tmp_path: Path, planned: Planned, net: Any, log: list[Any]
) -> None:
    folder, outcome, work, steps = planned
    assert outcome.measured_now > 0
    assert steps[-1].finished
    assert "dynamic programming" in outcome.notes[0]
    header, *lines = graph_lines(work)
    parsed = parse_graph_header(header)
    assert parsed is not None
    assert (parsed.network, parsed.fingerprint) == ("net", graph_fingerprint(net[0]))
    assert len(lines) == 4
    assert set(lines) <= set(work.autotvm_log.read_bytes().splitlines())  # byte for byte

    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    again, (work, _) = tune(tmp_path, net, log, "pbqp")
    assert again.measured_now == 0
    assert "PBQP" in again.notes[0]
    assert graph_lines(work)[0] == header
    assert len(graph_lines(work)) == 5


def test_the_plan_avoids_transforms_that_the_fastest_records_would_need(planned: Planned) -> None:
    _, outcome, work, _ = planned
    with_plan, with_history = (float(text.split(" ms")[0].rsplit(" ", 1)[1]) for text in outcome.notes[0].split(", "))
    assert with_plan <= with_history
    entities = [{k[0]: k[2] for k in json.loads(line)["config"]["entity"]} for line in graph_lines(work)[1:]]
    blocks = [(knobs["tile_ic"][-1], knobs["tile_oc"][-1]) for knobs in entities]
    changes = sum(before[1] != after[0] for before, after in pairwise(blocks))
    assert changes < 3  # 8 -> 4 between all of them with the fastest alone


def test_tvm_replays_the_plan_and_computes_the_same(planned: Planned, net: Any) -> None:
    _, _, work, _ = planned
    expected = plain_output(*net, SHAPE, TARGET)
    context = autotvm.apply_graph_best(str(work.graph_log("net")))
    with context:
        built = build(*net, TARGET)
    assert context._counter == 4
    np.testing.assert_allclose(run(built, SHAPE), expected, rtol=1e-4, atol=1e-5)


def test_another_order_than_that_of_the_network_is_noticed(net: Any, log: list[Any], found: list[Any]) -> None:
    by_task = {task.name: json.dumps(log_line(task, 0, 1e-5, TARGET)).encode() for task in found}
    normal, deep = by_task["conv2d_NCHWc.x86"], by_task["depthwise_conv2d_NCHWc.x86"]
    target = tvm.target.Target(TARGET)
    assert graph_solvers.replays((normal, deep, normal, normal), net[0], target)
    assert not graph_solvers.replays((deep, normal, normal, normal), net[0], target)
    assert not graph_solvers.replays((normal, deep, normal, normal, normal), net[0], target)


def test_too_many_states_for_dynamic_programming(
    tmp_path: Path, planned: Planned, net: Any, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_solvers, "MAX_STATES", 10)
    shutil.copytree(planned[0], tmp_path, dirs_exist_ok=True)
    outcome, _ = tune(tmp_path, net, log)
    assert "dynamic programming gave up" in outcome.notes[0]
    assert "PBQP" in outcome.notes[1]
    with pytest.raises(TuningError, match="--graph-algorithm pbqp"):
        tune(tmp_path, net, log, "dp")


def test_what_cannot_be_planned_is_said(tmp_path: Path, net: Any, log: list[Any]) -> None:
    with pytest.raises(TuningError, match=r"no measured record for 1 convolutions, such as depthwise.*--tuner autotvm"):
        tune(tmp_path, net, [line for line in log if not line["input"][1].startswith("depthwise")])
    with pytest.raises(TuningError, match="--layout NCHW"):
        tune(tmp_path, net, log, layout=NHWC)
    data, weight = relay.var("data", shape=SHAPE), relay.var("g_weight", shape=(16, 4, 3, 3))
    grouped = relay.nn.conv2d(data, weight, padding=(1, 1), kernel_size=(3, 3), channels=16, groups=4)
    with pytest.raises(TuningError, match="NCHWc templates only, not of group_conv2d"):
        tune(tmp_path, create_workload(relay.Function([data, weight], grouped)), log)


def test_bad_lines_other_targets_and_failures_are_no_candidates(tmp_path: Path, log: list[Any]) -> None:
    first = log[0]
    other = {**first, "input": ["llvm -mcpu=other", *first["input"][1:]], "result": [[1e-9], 0, 0.5, 1.0]}
    failed = {**first, "result": [[1e9], 4, 0.5, 1.0]}
    slower = {**first, "result": [[1.0], 0, 0.5, 1.0]}
    path = write_log(tmp_path / "a.log", "<html>", failed, other, slower, first, json.dumps(first)[:99])
    candidates = read_candidates(path, TARGET, 8)
    assert candidates.bad_lines == 2
    assert [[one.mean_s for one in many] for many in candidates.by_key.values()] == [first["result"][0]]
    assert read_candidates(tmp_path / "none.log", TARGET, 8).by_key == {}


def test_times_of_transforms_survive(tmp_path: Path) -> None:
    path = tmp_path / "layout_transforms.log"
    good = ("layout_transform", ("TENSOR", (1, 16, 4, 4), "float32"), "NCHW", "NCHW8c")
    bad = ("layout_transform", ("TENSOR", (1, 3, 4, 4), "float32"), "NCHW", "NCHW8c")
    times = LayoutTimes(path, TARGET)
    times.add(good, 2e-6, 0.1)
    times.add(bad, None, 0.1)
    read = LayoutTimes(path, TARGET)
    assert read[good] == 2e-6
    assert read[bad] == layout_transforms.INVALID_S
    assert good not in LayoutTimes(path, "llvm")


def test_the_skeleton_has_no_batch_norm_and_one_input_where_weights_meet_data(net: Any) -> None:
    text = str(skeleton(net[0], ["data"]))
    assert "batch_norm" not in text
    assert "expand_dims" not in text
    assert text.count("nn.conv2d") == 4
    assert "%data" in text
