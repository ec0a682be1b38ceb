"""What would a compile do: the same report, without code."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import tvm

import tunehub
from tunehub.relax.keys import workload_key
from tunehub.relax.pipeline import compile_module, explain_module
from tunehub.relax.workload import workload_of
from tunehub.report.misses import read_misses

pytestmark = pytest.mark.slow


@pytest.fixture
def _no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("code was generated")

    monkeypatch.setattr(tvm, "compile", refuse)


@pytest.mark.usefixtures("_no_code")
def test_explaining_generates_no_code(nets: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub()
    explain_module(nets.residual(), target, hub)
    assert len(hub.rungs()) == 2
    assert set(hub.rungs()) <= {"template", "default"}
    assert not hub.failures


def test_it_says_what_compiling_does(nets: Any, target: Any, make_hub: Any, record_for: Any) -> None:
    net = nets.residual()
    explained, compiled = make_hub(record_for(net)[:1]), make_hub(record_for(net)[:1])
    explain_module(net, target, explained)
    compile_module(net, target, compiled)
    assert explained.workloads == compiled.workloads
    assert sorted(explained.rungs()) == ["anchor", "exact"]


def test_what_the_hub_cannot_serve_is_said(nets: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub(host=type("Host", (), {"kind": "cuda"}))
    explain_module(nets.residual(), target, hub)
    assert hub.notes == ["they are for cuda, the module is compiled for llvm"]


def test_a_failure_is_the_policys(nets: Any, target: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = make_hub()
    monkeypatch.setattr(hub, "by_exact", lambda _key: 1 / 0, raising=False)
    explain_module(nets.residual(), target, hub)
    assert [step for step, _ in hub.failures] == ["explaining the module"]


@pytest.mark.usefixtures("_no_code")
def test_the_public_function_reports_and_writes_misses(nets: Any, tmp_path: Any) -> None:
    weight = nets.array(16, 8, 3, 3)

    def make(b: Any, x: Any, w: Any) -> Any:
        return b.emit(tvm.relax.op.nn.conv2d(x, w, padding=1))

    mod = nets.build(make, (1, 8, 8, 8), (16, 8, 3, 3), names=("x", "w"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tunehub.HubWarning)  # there may be no package for this machine
        report = tunehub.explain(mod, tunehub.host_target(), params={"w": weight}, layout="auto")
    assert report.workloads and all(item.measured_s is None for item in report.workloads)
    file = tmp_path / "misses.jsonl"
    assert report.save_misses(file) == len({item.exact for item in report.misses()})
    for miss in read_misses(file):
        assert miss.function is not None
        assert workload_key(workload_of(miss.function)) == miss.exact
    again = replace(report, functions={})
    assert again.save_misses(file) == 0
