"""Compiles that verify: a wrong schedule does not serve, the report says so, and the second compile runs nothing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm

import tunehub
from tunehub.compiler.hub import Hub, open_hub
from tunehub.compiler.pipeline import compile_module, explain_module
from tunehub.compiler.schedule import attempts
from tunehub.compiler.verify import network, verification, workers
from tunehub.exceptions import HubWarning, NetworkDiffersError, ScheduleRefusedError
from tunehub.tir.nodes import main_module
from tunehub_registry.record import encode_record

from .conftest import of_matmul, spoilt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def net(module_nets: Any) -> Any:
    return module_nets.matmul(m=16, n=64, k=64)


@pytest.fixture(scope="module")
def data(module_nets: Any) -> Any:
    return module_nets.array(16, 64)


@pytest.fixture(scope="module")
def expected(net: Any, data: Any, target: Any, run: Any) -> Any:
    return run(tvm.compile(net, target), data)


@pytest.fixture
def hub_with(
    net: Any, target: Any, record_for: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Hub]]:
    """A hub whose user has a record of the network's matmul, and no package."""
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verification, "MOST_WORKERS", 1)
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(b"".join(map(encode_record, record_for(net)[:1])))
    hubs: list[Hub] = []

    def opened(verify: Any, *, strict: bool = False) -> Hub:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hubs.append(open_hub(target, user_records=mine, verify=verify, layout="keep"))
        hubs[-1].policy.strict = strict  # without a package opening would fail
        return hubs[-1]

    yield opened
    for hub in hubs:
        hub.close()


@pytest.fixture
def _wrong_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records give schedules that add 1 to every sum."""
    applied = attempts.apply_candidate

    def apply(*arguments: Any) -> Any:
        schedule = applied(*arguments)
        return SimpleNamespace(mod=main_module(spoilt(schedule.mod["main"])), trace=schedule.trace)

    monkeypatch.setattr(attempts, "apply_candidate", apply)


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((workers, "ForkServer"), (workers, "WorkerProcess"), (network, "WorkerProcess")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a process was started"))


@pytest.mark.usefixtures("_wrong_records")
def test_a_wrong_schedule_is_refused_and_the_next_rung_serves(
    net: Any, data: Any, target: Any, run: Any, expected: Any, hub_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusting = hub_with("never")
    assert np.abs(run(compile_module(net, target, trusting), data) - expected).max() > 0.5
    assert of_matmul(trusting).rung == "user"

    hub = hub_with("always")
    with tunehub.compiler.pipeline.activate(hub):
        executable = tvm.compile(net, target)
    np.testing.assert_allclose(run(executable, data), expected, rtol=1e-4, atol=1e-4)
    served = of_matmul(hub)
    assert (served.rung, served.verified) == ("template", "run")
    refused, again_by_anchor = served.refused
    assert (refused.step, refused.refusal.check, again_by_anchor.step) == ("exact", "run", "anchor")
    assert refused.refusal.difference > refused.refusal.tolerance
    said = f"differs from the plain schedule's by {refused.refusal.difference:.2g}, relative; the most is 0.0001"
    assert said in served.skipped[0] and said in served.passed_over[0]
    assert "2 schedules refused" in str(hub.report().table().title)
    stated = json.loads(json.dumps(hub.report().to_json()))["workloads"]
    assert [[each["refusal"]["check"] for each in item["refused"]] for item in stated] == [["run", "run"]]

    for module, name in ((workers, "ForkServer"), (workers, "WorkerProcess"), (network, "WorkerProcess")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a process was started"))
    again = hub_with("always")
    compile_module(net, target, again)
    assert of_matmul(again) == of_matmul(hub)
    explained = hub_with("always")
    explain_module(net, target, explained)
    assert of_matmul(explained).rung == "template"
    with pytest.raises(ScheduleRefusedError, match=r"matmul.*refused when it was run"):
        compile_module(net, target, hub_with("always", strict=True))


@pytest.mark.usefixtures("_wrong_records")
def test_the_whole_network_is_compared_too(
    net: Any, data: Any, target: Any, run: Any, expected: Any, hub_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hub_with("always")
    monkeypatch.setattr(hub.verification, "wants", lambda _served: False)
    with pytest.warns(HubWarning, match=r"outputs differ by .*TVM's own pipeline is used instead"):
        executable = compile_module(net, target, hub)
    np.testing.assert_allclose(run(executable, data), expected, rtol=1e-5, atol=1e-5)
    strict = hub_with("always", strict=True)
    monkeypatch.setattr(strict.verification, "wants", lambda _served: False)
    with pytest.raises(NetworkDiffersError) as raised:
        compile_module(net, target, strict)
    assert raised.value.difference > raised.value.tolerance


@pytest.mark.usefixtures("_no_processes")
@pytest.mark.parametrize("verify", ["auto", "never"])
def test_cpus_are_not_asked_unless_always(verify: str, net: Any, target: Any, hub_with: Any) -> None:
    hub = hub_with(verify)
    compile_module(net, target, hub)
    assert (of_matmul(hub).rung, of_matmul(hub).verified) == ("user", None)


def test_a_right_network_is_as_without_verifying(
    net: Any, data: Any, target: Any, run: Any, expected: Any, hub_with: Any
) -> None:
    hub = hub_with("always")
    np.testing.assert_allclose(run(compile_module(net, target, hub), data), expected, rtol=1e-4, atol=1e-4)
    assert (of_matmul(hub).rung, of_matmul(hub).verified) == ("user", "run")
    assert not [note for note in hub.report().notes if "verified" in note]


@pytest.mark.usefixtures("_no_processes")
def test_explaining_runs_nothing_and_says_so(net: Any, target: Any, hub_with: Any) -> None:
    hub = hub_with("always")
    explain_module(net, target, hub)
    assert of_matmul(hub).not_run == "explaining runs nothing"
    said = "1 by the static check alone, not run on the device: explaining runs nothing"
    assert said in str(hub.report().table().title)
