"""TopHub's own newest files: imported as packages, and used in real builds for the devices they were made for."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relay

import tunehub
from tunehub_builder.logs.to_packages import import_as_packages

from ..sweeps import swept
from .relay_cases import build

PLACES = (
    os.environ.get("TUNEHUB_TOPHUB_LOGS"),
    Path.home() / ".tvm/tophub",
    Path(__file__).parents[3] / "shared/tophub",
)
LOGS = next((Path(place) for place in PLACES if place and (Path(place) / "llvm_v0.04.log").exists()), None)
pytestmark = [pytest.mark.legacy, pytest.mark.skipif(LOGS is None, reason="no TopHub logs here (TUNEHUB_TOPHUB_LOGS)")]

CASES = {
    "llvm_v0.04.log": ("llvm -mcpu=skylake-avx512", "llvm-skylake-avx512 0.4"),
    "arm_cpu_v0.08.log": (
        "llvm -device=arm_cpu -model=rk3399 -mtriple=aarch64-linux-gnu -mattr=+neon", "llvm-rk3399 0.8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", swept(["llvm_v0.04.log"], CASES))
def test_a_real_build_uses_the_records(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOGS is not None
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    target, package = CASES[name]
    import_as_packages([LOGS / name], tmp_path / "hub")
    with warnings.catch_warnings():
        warnings.simplefilter("error", tunehub.HubWarning)
        with tunehub.context(tvm.target.Target(target), registry=tmp_path / "hub") as hub:
            build(part_of_resnet(), {}, target)  # without weights: preparing them takes most of a build
    workloads = hub.report().workloads
    assert [item.count for item in workloads] == [2, 1, 1]
    assert {(item.rung, item.package) for item in workloads} == {("exact", package)}


def part_of_resnet() -> Any:
    """Convolutions of ResNet-18: two of its first block, and the first two of its second."""
    body = relay.var("data", shape=(1, 64, 56, 56))
    for number, (before, after, stride) in enumerate(((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1))):
        shape = (after, before, 3, 3)
        weight = relay.var(f"w{number}", shape=shape)
        body = relay.nn.conv2d(
            body, weight, strides=(stride, stride), padding=(1, 1), kernel_size=(3, 3), channels=after
        )
        body = relay.nn.relu(body)
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
