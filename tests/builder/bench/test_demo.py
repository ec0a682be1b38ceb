"""The comparison behind the demo, on a network small enough for a test."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tunehub_builder import networks
from tunehub_builder.bench import comparison, demo
from tunehub_builder.networks.mobilenet_v2 import MobileNetV2
from tunehub_builder.networks.mobilenet_v2.plan import BottleneckStage, MobileNetV2Config

pytestmark = [pytest.mark.slow, pytest.mark.alone]

pytest.importorskip("onnxruntime")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(comparison, "_WARM_UP_S", 0.0)
    monkeypatch.setattr(comparison, "_TIMED_S", 0.0)
    monkeypatch.setattr(comparison, "_PAUSE_S", 0.0)
    stages = (
        BottleneckStage(expansion=1, channels=8, repeats=1, stride=1),
        BottleneckStage(expansion=2, channels=16, repeats=1, stride=2),
    )
    config = MobileNetV2Config(image=16, stem=8, stages=stages, head=16, classes=10)
    return MobileNetV2(config=config).network("tiny")


def test_three_runtimes_agree_and_the_summary_has_the_promised_fields(
    tvm: Any, target: dict[str, Any], tiny: Any
) -> None:
    found = comparison.compare(tiny, tvm.target.Target(target), threads=1, rounds=2)
    assert found.max_rel_diff < 1e-4
    assert len(found.report.workloads) > 3
    summary = json.loads(json.dumps(demo.summarize([found])))
    (row,) = summary["networks"]
    assert set(row) == {
        "name", "default_ms", "tunehub_ms", "onnxruntime_ms", "max_rel_diff", "compile_default_s", "compile_tunehub_s",
    }  # fmt: skip
    assert all(row[key] > 0 for key in row if key not in ("name", "max_rel_diff"))
    assert summary["geomean_vs_default"] == pytest.approx(row["default_ms"] / row["tunehub_ms"])
    assert summary["geomean_vs_onnxruntime"] == pytest.approx(row["tunehub_ms"] / row["onnxruntime_ms"])


def test_a_slow_default_runs_as_often_as_its_share_of_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_timed", lambda run, least_s: [5.0] if run is slow else [0.001])
    monkeypatch.setattr(comparison, "_PAUSE_S", 0.0)
    calls = {"default": 0, "tunehub": 0}

    def slow() -> list[Any]:
        return []

    original = comparison._timed

    def counted(run: Any, least_s: float) -> list[float]:
        calls["default" if run is slow else "tunehub"] += 1
        return original(run, least_s)

    monkeypatch.setattr(comparison, "_timed", counted)
    times = comparison.interleaved({"default": slow, "tunehub": list}, 6)
    assert times == {"default": 5000.0, "tunehub": 1.0}
    assert calls == {"default": 2, "tunehub": 12}


def test_unknown_networks_are_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "compare", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(networks.UnknownNetworkError, match="resnet50"):
        demo.run_demo(["resnet51"])


def test_the_command_names_an_unknown_network() -> None:
    from tunehub.cli.group import cli

    result = CliRunner().invoke(cli, ["demo", "--network", "resnet51"])
    assert result.exit_code != 0
    assert "resnet51" in result.output + str(result.exception)
