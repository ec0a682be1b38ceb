"""The auto-scheduler's records: TVM's flag is turned on only where they cover the module."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import auto_scheduler, relay
from tvm.auto_scheduler.measure import MeasureInput, MeasureResult
from tvm.auto_scheduler.measure_record import dump_record_to_string

import tunehub
from tunehub.relay.coverage import Covered, is_enough
from tunehub.target.descriptors import descriptor_of

from .relay_cases import FEW, TARGET, build, make_registry, plain_output, run, write_log

pytestmark = pytest.mark.legacy

SHAPE = (1, 14, 14, 16)
FLAG_ON = {"relay.backend.use_auto_scheduler": True}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def net() -> tuple[Any, dict[str, Any]]:
    """Two different convolutions, NHWC."""
    rng = np.random.RandomState(0)
    body = relay.var("data", shape=SHAPE)
    params = {}
    for number, (kernel, channels) in enumerate(((3, 16), (1, 32))):
        shape = (kernel, kernel, 16, channels)
        params[f"w{number}"] = tvm.nd.array(rng.uniform(-1, 1, size=shape).astype("float32"))
        body = relay.nn.conv2d(
            body, relay.var(f"w{number}", shape=shape), padding=(kernel // 2, kernel // 2),
            kernel_size=(kernel, kernel), channels=channels, data_layout="NHWC", kernel_layout="HWIO",
        )  # fmt: skip
        body = relay.nn.relu(body)
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body)), params


@pytest.fixture(scope="module")
def lines(net: Any) -> list[str]:
    """One sampled, never measured, schedule for each task; the cost is made up."""
    mod, params = net
    tasks, _ = auto_scheduler.extract_tasks(mod["main"], params, tvm.target.Target(TARGET))
    found = []
    for task in tasks:
        policy = auto_scheduler.SketchPolicy(task, params=FEW, verbose=0, seed=1)
        state = policy.sample_initial_population()[0]
        record = (MeasureInput(task, state), MeasureResult([1e-4], 0, "", 0.1, 1700000000.0))
        found.append(dump_record_to_string(*record).strip())
    return found


def registry(folder: Path, lines: list[str]) -> Path:
    content = write_log(folder / "a.json", *lines).read_bytes()
    sets = {"records/auto_scheduler.json": ("auto_scheduler", content)}
    return make_registry(folder / "registry", descriptor_of(tvm.target.Target(TARGET)), sets)


def test_full_coverage_turns_the_flag_on(net: Any, lines: list[str], tmp_path: Path) -> None:
    with tunehub.context(TARGET, registry=registry(tmp_path, lines)) as hub:
        lib = build(*net)
    assert [item.tuner for item in hub.report().workloads] == ["auto_scheduler"] * 2
    assert {item.rung for item in hub.report().workloads} == {"exact"}
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-3, atol=1e-3)
    assert not auto_scheduler.is_auto_scheduler_enabled()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_gap_keeps_the_flag_off(net: Any, lines: list[str], tmp_path: Path, kept: int) -> None:
    place = registry(tmp_path, [lines[kept]])
    with tunehub.context(TARGET, registry=place) as hub:
        lib = build(*net)
    report = hub.report()
    assert {item.tuner for item in report.workloads} <= {None, "autotvm"}
    assert any("stays off: only 1 of 2 tasks" in note for note in report.notes)
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-4, atol=1e-4)


def test_with_tvm_s_flag_on_the_report_says_what_serves_although_it_does_not_cover_all(
    net: Any, lines: list[str], tmp_path: Path
) -> None:
    with tunehub.context(TARGET, registry=registry(tmp_path, lines[:1])) as hub:
        lib = build(*net, config=FLAG_ON)
    report = hub.report()
    assert {item.rung: item.tuner for item in report.workloads} == {"exact": "auto_scheduler", "default": None}
    assert not any("stays off" in note for note in report.notes)
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("above", [True, False])
def test_the_user_s_own_context_is_in_the_report_when_the_flag_is_on(
    net: Any, lines: list[str], tmp_path: Path, above: bool
) -> None:
    own = auto_scheduler.ApplyHistoryBest(str(write_log(tmp_path / "own.json", lines[1])))
    with (
        nullcontext() if above else own,
        tunehub.context(TARGET, registry=registry(tmp_path, lines)) as hub,
        own if above else nullcontext(),
    ):
        build(*net, config=FLAG_ON)
    assert sorted(item.rung for item in hub.report().workloads) == ["exact", "user"]


def test_a_state_that_tvm_refuses_is_no_harm_under_the_user_s_flag(net: Any, lines: list[str], tmp_path: Path) -> None:
    broken = [line.replace('"SP", ', '"SP", 9') for line in lines]
    with pytest.warns(tunehub.HubWarning), tunehub.context(TARGET, registry=registry(tmp_path, broken)) as hub:
        lib = build(*net, config=FLAG_ON)
    assert {item.tuner for item in hub.report().workloads} <= {None, "autotvm"}
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-3, atol=1e-3)


def test_a_state_that_tvm_refuses_is_no_harm(net: Any, lines: list[str], tmp_path: Path) -> None:
    broken = [line.replace('"SP", ', '"SP", 9') for line in lines]  # stages that do not exist
    with pytest.warns(tunehub.HubWarning), tunehub.context(TARGET, registry=registry(tmp_path, broken)):
        lib = build(*net)
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-4, atol=1e-4)


def test_a_record_that_tvm_cannot_read_is_named(net: Any, lines: list[str], tmp_path: Path) -> None:
    broken = lines[0].replace('["AN"', '["ZZ"')
    place = registry(tmp_path, [broken, *lines[1:]])
    with pytest.warns(tunehub.HubWarning), tunehub.context(TARGET, registry=place) as hub:
        lib = build(*net, config=FLAG_ON)
    assert broken != lines[0]
    assert any("the record of " in note and "Invalid step format: ZZ" in note for note in hub.report().notes)
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-3, atol=1e-3)


def _pragma(text: str) -> Callable[[list[Any]], None]:
    return lambda steps: steps.append(["PR", 3, 0, text])


def _lengths(steps: list[Any]) -> None:
    for step in steps:
        if step[0] == "SP":
            step[4] = [7] * len(step[4])


def _sums_at_once(steps: list[Any]) -> None:
    steps[:] = [step for step in steps if step[0] != "AN"]
    steps.append(["AN", 3, 10, 3])


@pytest.mark.few(3)
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_pragma("auto_unroll_max_step$1000000000"), "the pragma"),  # hours
        (_pragma("debug_skip_region"), "the pragma"),  # nothing is computed
        (_lengths, "lengths that do not divide them"),  # outputs of another shape
        (_sums_at_once, "add to one sum at once"),
    ],
)
def test_steps_that_tvm_takes_and_that_are_wrong_are_refused(
    change: Callable[[list[Any]], None], why: str, flag: bool, net: Any, lines: list[str], tmp_path: Path
) -> None:
    changed = [json.loads(line) for line in lines]
    for line in changed:
        change(line["i"][1][1])
    with (
        pytest.warns(tunehub.HubWarning, match=why),
        tunehub.context(TARGET, registry=registry(tmp_path, [json.dumps(line) for line in changed])) as hub,
    ):
        lib = build(*net, config=FLAG_ON if flag else {})
    assert {item.tuner for item in hub.report().workloads} <= {None, "autotvm"}
    assert np.allclose(run(lib, SHAPE), plain_output(*net, SHAPE), rtol=1e-3, atol=1e-3)


def test_nchw_is_never_examined(lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from .relay_cases import conv_net

    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("extracting tasks takes seconds")

    monkeypatch.setattr(auto_scheduler, "extract_tasks", never)
    with tunehub.context(TARGET, registry=registry(tmp_path, lines)) as hub:
        build(*conv_net())
    assert not any("went wrong" in note or "failed" in note for note in hub.report().notes)


@pytest.mark.parametrize(
    ("flops", "enough"),
    [(((1e9, True),), True), (((1e9, False),), False), (((1e9, True), (1e9, False)), False),
     (((4e9, True), (1e6, False)), True), ((), False)],
)  # fmt: skip
def test_coverage_is_weighed_by_arithmetic(flops: Any, enough: bool) -> None:
    from types import SimpleNamespace

    record: Any = SimpleNamespace(record=SimpleNamespace(mean_s=0.01))
    tasks = [
        Covered(name="", key="", calls=1, flop=flop, candidate=record if served else None) for flop, served in flops
    ]
    assert is_enough(tasks) is enough
