"""The comparison behind the demo, on a network small enough for a test."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.tiny_networks import tiny_mobilenet

from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder import networks
from tunehub_builder.bench import demo
from tunehub_builder.bench.comparison import (
    NetworkComparison,
    RuntimeFacts,
    compare,
    measured,
    prepared_at_once,
    runtime_processes,
)
from tunehub_builder.bench.runtimes import OnnxRuntime, Tunehub, TvmDefault

sys.path.append(str(Path(__file__).parents[1] / "fakes"))  # processes import the fakes by name, too

from runtime_fakes import FakeRuntime

from ..fleets import until

pytestmark = pytest.mark.slow

QUICK = MeasuringPlan(rounds=2, sample_s=0.0)
FIELDS = {
    "name", "default_ms", "tunehub_ms", "onnxruntime_ms", "max_rel_diff", "compile_default_s", "compile_tunehub_s",
}  # fmt: skip


@pytest.fixture
def tiny() -> networks.Network:
    return tiny_mobilenet()


def compared(tiny: networks.Network, *runtimes: Any, limit_s: float = 120.0) -> NetworkComparison:
    with runtime_processes(runtimes, threads=1) as workers:
        return compare(tiny, workers, QUICK, limit_s)


def test_three_runtimes_agree_and_the_summary_has_the_promised_fields(
    target: dict[str, Any], tiny: networks.Network
) -> None:
    pytest.importorskip("onnxruntime")
    text = json.dumps(target)
    found = compared(tiny, TvmDefault(target=text), Tunehub(target=text), OnnxRuntime())
    assert found.max_rel_diff("tunehub") < 1e-4
    report = found.facts["tunehub"].report
    assert report is not None
    assert len(report.workloads) > 3
    summary = json.loads(json.dumps(demo.summarize([found])))
    (row,) = summary["networks"]
    assert set(row) == FIELDS
    assert all(row[key] > 0 for key in row if key not in ("name", "max_rel_diff"))
    assert summary["geomean_vs_default"] == pytest.approx(row["default_ms"] / row["tunehub_ms"])
    assert summary["geomean_vs_onnxruntime"] == pytest.approx(row["tunehub_ms"] / row["onnxruntime_ms"])
    assert "times as fast as the default" in "\n".join(demo._lines(found))


@pytest.mark.parametrize("then", ["runs", "hangs", "dies"])
def test_the_default_runs_once_and_is_given_up_after_its_time(tiny: networks.Network, then: str) -> None:
    """One that is too slow is no failure; one that ends its process is."""
    slow = FakeRuntime(name="default", at=1 << 30 if then == "runs" else 1, then=then)
    runtimes = (slow, FakeRuntime(name="tunehub"), FakeRuntime(name="onnxruntime"))
    with runtime_processes(runtimes, threads=1) as workers:
        found = measured(prepared_at_once(tiny, workers, "default", 3.0), workers, QUICK)
    (row,) = demo.summarize([found])["networks"]
    text = "\n".join(demo._lines(found))
    assert row["tunehub_ms"] > 0 and row["max_rel_diff"] == 0.0
    assert len(found.samples_s.get("default", ())) == (then == "runs")
    assert (row["default_ms"] is None, row.get("default_over_ms"), "errors" in row) == {
        "runs": (False, None, False),
        "hangs": (True, 1e3 * demo.DEFAULT_S, False),
        "dies": (True, None, True),
    }[then]
    assert ("more than 10000 ms" in text) == (then == "hangs")


class FakeProcess:
    """A process whose runs take ``run_s`` each."""

    alive = True

    def __init__(self, run_s: float) -> None:
        self._run_s, self.runs = run_s, 0

    def ask(self, request: tuple[Any, ...], _limit_s: float) -> tuple[str, Any]:
        if request[0] == "preparation":
            return "ok", RuntimeFacts(compile_s=1.0, outputs=[np.ones(1, "float32")])
        self.runs += request[1]
        return "ok", self._run_s


def test_a_slow_default_runs_as_often_as_its_share_of_time_allows(tiny: networks.Network) -> None:
    processes: Any = {"default": FakeProcess(5.0), "tunehub": FakeProcess(0.001)}
    plan = MeasuringPlan(rounds=6, sample_s=0.0, warm_up_s=0.0, budget_s=12.0)
    found = compare(tiny, processes, plan)
    assert (found.ms("default"), found.ms("tunehub")) == (pytest.approx(5000.0), pytest.approx(1.0))
    assert processes["default"].runs <= 3
    assert processes["tunehub"].runs >= 6


@pytest.mark.parametrize(
    ("then", "at", "reason"),
    [("dies", 1, "crashed its process"), ("dies", 3, "crashed its process"), ("hangs", 3, "took longer")],
)
def test_a_runtime_that_crashes_or_runs_out_of_time_costs_only_itself(
    tiny: networks.Network, then: str, at: int, reason: str
) -> None:
    broken = FakeRuntime(name="onnxruntime", at=at, then=then)
    others = FakeRuntime(name="default"), FakeRuntime(name="tunehub")
    found = compared(tiny, *others, broken, limit_s=60.0 if then == "dies" else 10.0)
    assert reason in found.errors["onnxruntime"]
    assert set(found.errors) == {"onnxruntime"}
    assert set(found.samples_s) == {"default", "tunehub"}
    (row,) = demo.summarize([found])["networks"]
    assert row["onnxruntime_ms"] is None
    assert reason in row["errors"]["onnxruntime"]
    assert row["default_ms"] > 0
    text = "\n".join(demo._lines(found))
    assert f"onnxruntime   failed: the {'preparation' if at == 1 else 'measurement'} {reason}" in text


def test_the_next_network_gets_a_new_process(tiny: networks.Network) -> None:
    with runtime_processes([FakeRuntime(name="default", at=2)], threads=1) as workers:
        for _ in range(2):
            found = compare(tiny, workers, QUICK)
            assert "crashed its process" in found.errors["default"]
            assert found.compile_s("default") == 0.5


def test_no_number_of_any_output_is_lost(tiny: networks.Network) -> None:
    """``max`` of Python would drop the NaN of a second output."""
    found = compared(tiny, FakeRuntime(name="tunehub", value=math.nan), FakeRuntime(name="onnxruntime"))
    assert found.max_rel_diff("tunehub") == math.inf
    (row,) = demo.summarize([found])["networks"]
    assert row["max_rel_diff"] is None
    assert "not finite" in row["errors"]["max_rel_diff"]


def test_unknown_networks_are_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "prepared_at_once", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(networks.UnknownNetworkError, match="resnet50"):
        demo.run_demo(["resnet51"])


def test_the_command_names_an_unknown_network() -> None:
    from tunehub.cli.group import cli

    result = CliRunner().invoke(cli, ["demo", "--network", "resnet51"])
    assert result.exit_code != 0
    assert "resnet51" in result.output + str(result.exception)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the children of a process")
def test_nothing_is_left_behind_when_the_demo_is_interrupted() -> None:
    pytest.importorskip("onnxruntime")
    code = f"import sys; sys.path[:0] = {sys.path!r}; from tunehub.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "--network", "squeezenet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("squeezenet (1 of 1): compiling")
        until(lambda: len(children_of(process.pid)) == 3, "the start of three processes")
        children = children_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 1
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "the end of these processes")


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
