"""The published records of this repository in builds of the networks that they were tuned for. Nothing is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relay

import tunehub
from tunehub_builder.backends.relay import networks

from ..sweeps import swept
from .relay_cases import build

TARGET = "llvm -mcpu=znver5 -num-cores=2"
H200 = "cuda -arch=sm_90 -model=h200"
CONVOLUTIONS = {"resnet-18": 21, "mobilenet": 27}
pytestmark = pytest.mark.legacy


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    for name in ("TUNEHUB_REGISTRY", "TUNEHUB_RECORDS"):
        monkeypatch.delenv(name, raising=False)


def laid_out(mod: Any, _params: Any, target: str) -> Any:
    """The layouts are chosen, with the records, but nothing is compiled, weights neither: a sixth of the time."""
    with tvm.transform.PassContext(opt_level=3):
        return relay.optimize(mod, target)


def report(network: str, layout: str = "NCHW", make: Callable[..., Any] = build, target: str = TARGET) -> Any:
    mod, params = networks.get(network, layout=layout).module()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tunehub.HubWarning)
        with tunehub.context(tvm.target.Target(target)) as hub:
            make(mod, params, target)
    return hub.report()


@pytest.mark.parametrize("make", swept([laid_out], [laid_out, build]))
@pytest.mark.parametrize("network", swept(["resnet-18"], CONVOLUTIONS))
def test_a_graph_level_record_for_each_convolution(network: str, make: Callable[..., Any]) -> None:
    found = report(network, make=make)
    assert str(found.package).startswith("llvm-znver5 0.")
    planned = [item for item in found.workloads if item.op == "nn.conv2d"]
    assert {item.tuner for item in planned} == {"graph_tuner"}
    assert sum(item.count for item in planned) == CONVOLUTIONS[network]


@pytest.mark.sweep
def test_the_auto_scheduler_serves_nhwc() -> None:
    found = report("mobilenet", "NHWC")
    assert "auto_scheduler" in {item.tuner for item in found.workloads}
    assert not any("stays off" in note for note in found.notes)


def test_a_gpu_s_records_serve_every_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which implementation and which record is known before anything is lowered: no CUDA is needed."""
    monkeypatch.setenv("TOPHUB_LOCATION", "NONE")
    found = report("resnet-18", make=laid_out, target=H200)
    assert str(found.package).startswith("cuda-h200 0.")
    planned = [item for item in found.workloads if item.op == "nn.conv2d"]
    assert {item.rung for item in planned} == {"exact"}
    assert sum(item.count for item in planned) == CONVOLUTIONS["resnet-18"]
    assert {str(item.implementation) for item in planned} == {"conv2d_nchw.cuda", "conv2d_nchw_winograd.cuda"}
