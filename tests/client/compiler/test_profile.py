"""Times of every call of an executable, in place, and the report that they make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tunehub
from tunehub.compiler import profile as relax_profile
from tunehub.compiler.hub import Hub
from tunehub.compiler.profile import time_calls
from tunehub.exceptions import ProfileError
from tunehub.policy import Policy
from tunehub.registries.resolution import Resolution
from tunehub.report.profile import CallTime
from tunehub.target.descriptors import descriptor_of

pytestmark = pytest.mark.slow

op = relax.op


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relax_profile, "_WARM_UP_S", 0.0)


@pytest.fixture
def hub() -> Any:
    """A hub of this machine's CPU without records."""
    target = tunehub.host_target()
    host = descriptor_of(target)
    return Hub(target=target, host=host, resolution=Resolution(host=host, chosen=None), policy=Policy(strict=True))


def two_inputs(nets: Any) -> Any:
    def make(b: Any, x: Any, y: Any) -> Any:
        z = b.emit(op.nn.softmax(b.emit(op.matmul(x, y))))
        for _ in range(3):
            z = b.emit(op.nn.softmax(b.emit(op.nn.relu(z))))
        return z

    return nets.build(make, (16, 24), (24, 32), names=("x", "y"))


def test_what_watching_costs_is_taken_off_every_call() -> None:
    calls = {
        "kernel": CallTime(calls=4, seconds=40e-6),
        "vm.builtin.alloc_tensor": CallTime(calls=4, seconds=12e-6),
        "vm.builtin.null_value": CallTime(calls=8, seconds=8e-6),
        "never": CallTime(calls=0, seconds=0.0),
    }
    found = {name: time.seconds for name, time in relax_profile.without_watching(calls).items()}
    expected = {"kernel": 28e-6, "vm.builtin.alloc_tensor": 0.6e-6, "vm.builtin.null_value": 0.4e-6, "never": 0.0}
    assert found == pytest.approx(expected, abs=1e-12)
    assert relax_profile.without_watching({"kernel": calls["kernel"]}) == {"kernel": calls["kernel"]}


def test_every_kernel_is_timed(nets: Any, hub: Any) -> None:
    executable = tunehub.compile(two_inputs(nets), tunehub.host_target(), hub=hub)
    arrays = [nets.array(16, 24), nets.array(24, 32)]
    report = hub.profile(executable, arrays, runs=3)
    assert report.workloads
    assert all(item.measured_s is not None and item.measured_s > 0 for item in report.workloads)
    assert all(item.total_s == item.measured_s * item.count for item in report.workloads)
    assert report.profile is not None
    assert report.profile.runs == 3
    assert any(item.name.startswith("vm.builtin") for item in report.profile.others)
    shares = sum(report.share(item) or 0.0 for item in report.workloads)
    total = sum(item.total_s for item in report.workloads)
    assert shares == pytest.approx(total / (total + report.profile.others_s))
    assert sum(item.time_share for item in report.coverage()) == pytest.approx(1.0)
    assert hub.report() == report  # times stay
    assert hub.report().to_json()["profile"]["runs"] == 3


def test_inputs_by_name_in_any_order_and_as_tensors(nets: Any, hub: Any) -> None:
    executable = tunehub.compile(two_inputs(nets), tunehub.host_target(), hub=hub)
    named = {"y": tvm.runtime.tensor(nets.array(24, 32)), "x": nets.array(16, 24)}
    assert hub.profile(executable, named, runs=1).profile
    with pytest.raises(ProfileError, match=r"hub.profile: .*'y' is missing \(`main` takes x, y\)"):
        hub.profile(executable, {"x": named["x"]})
    with pytest.raises(ProfileError, match="there is no 'z'"):
        hub.profile(executable, {**named, "z": named["x"]})
    with pytest.raises(ProfileError, match="not a number of runs"):
        hub.profile(executable, named, runs=0)


def test_of_two_modules_the_right_one_is_measured(nets: Any, hub: Any) -> None:
    target = tunehub.host_target()
    first = tunehub.compile(two_inputs(nets), target, hub=hub)
    tunehub.compile(nets.conv(), target, hub=hub)
    report = hub.profile(first, [nets.array(16, 24), nets.array(24, 32)], runs=1)
    assert {item.module for item in report.workloads} == {1}
    whole = hub.report()
    assert {item.module: item.measured_s is not None for item in whole.workloads} == {1: True, 2: False}
    assert whole.profile is None


def test_an_executable_of_elsewhere_is_refused(nets: Any, hub: Any) -> None:
    executable = tvm.compile(nets.conv(), tunehub.host_target())
    with pytest.raises(ProfileError, match="calls no workload that this hub has compiled"):
        hub.profile(executable, [nets.array(1, 8, 8, 8)], runs=1)


def test_time_of_calls_inside_a_call_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = relax_profile._Watch(lambda: None)
    now = iter((0.0, 1.0, 4.0, 6.0))
    monkeypatch.setattr(relax_profile.time, "perf_counter", lambda: next(now))

    def run() -> None:
        for name, before in (("outer", True), ("inner", True), ("inner", False), ("outer", False)):
            watch.instrument(None, name, before, None)

    assert watch.of(run) == {"outer": [3.0], "inner": [3.0]}


def test_calls_are_counted(nets: Any) -> None:
    weight = nets.const(8, 8, 3, 3)

    def make(b: Any, x: Any) -> Any:
        for _ in range(3):
            x = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, padding=1))))
        return x

    executable = tvm.compile(nets.build(make, (1, 8, 8, 8)), tvm.target.Target("llvm"))
    times = time_calls(executable, [np.zeros((1, 8, 8, 8), "float32")], "llvm", 2)
    assert max(time.calls for name, time in times.calls.items() if "conv" in name) == 3
    assert 0 < times.run_s < 10
