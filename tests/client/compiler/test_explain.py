"""What would a compile do: the same report, without code."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax

import tunehub
from tunehub.compiler.pipeline import compile_module, explain_module
from tunehub.report.misses import read_misses
from tunehub.tir.cuda import headers
from tunehub.tir.keys import workload_key
from tunehub.tir.workload import workload_of

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


def half_product(nets: Any) -> Any:
    """In half precision, with sums in single."""

    def make(b: Any, x: Any, w: Any) -> Any:
        product = b.emit(relax.op.matmul(x, b.emit(relax.op.permute_dims(w)), out_dtype="float32"))
        return b.emit(relax.op.astype(product, "float16"))

    return nets.build(make, (128, 768), (768, 768), names=("x", "w"), dtype="float16")


@pytest.mark.parametrize("there", [("cuda_fp16.h",), ("cuda_fp16.h", "mma.h", "crt/mma.h"), ()])
def test_missing_headers_of_cuda_are_a_failure_that_names_their_packages(
    nets: Any, make_hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    """On sm_90, kernels for warpgroups need none. Without those of half precision nothing compiles anyhow."""
    (tmp_path / "crt").mkdir()
    for name in there:
        (tmp_path / name).touch()
    monkeypatch.setattr(headers, "header_folders", lambda: (str(tmp_path),))
    hub = make_hub(host=type("Host", (), {"kind": "cuda"}))
    explain_module(half_product(nets), tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm"), hub)
    said = [str(error) for step, error in hub.failures if step == "scheduling for tensor cores"]
    assert [line.startswith("1 functions do without tensor cores: CUDA's mma.h and crt/mma.h") for line in said] == (
        [True] if there == ("cuda_fp16.h",) else []
    )
    assert all("pip install nvidia-cuda-runtime nvidia-cuda-crt" in line for line in said)
    assert ("template" in hub.rungs()) == (there != ("cuda_fp16.h",))


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
