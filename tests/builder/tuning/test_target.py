from __future__ import annotations

import getpass
import platform
from pathlib import Path
from typing import Any

import pytest

from tunehub.target import host
from tunehub.target.host import HostCpu
from tunehub.target.nvidia import Gpu
from tunehub_builder.backends.target import find_target
from tunehub_builder.exceptions import NoSuchTargetError, UnsuitableTargetError
from tunehub_builder.tuning import target as machine
from tunehub_builder.tuning.runner import cuda_worker

pytestmark = pytest.mark.fast


def test_the_host_is_the_cpu_that_llvm_finds(target: dict[str, Any]) -> None:
    found = find_target("host")
    assert found.name == f"llvm-{target['mcpu']}"
    assert found == find_target(found.name)
    assert found.config["num-cores"] == host.physical_cores()
    assert found.vector in (4, 8, 16)


@pytest.mark.parametrize("name", ["", "llvm", "llvm-", "znver5", "llvm-nonsense", "llvm-../../x"])
@pytest.mark.usefixtures("tvm")
def test_unknown_targets_are_refused(name: str) -> None:
    with pytest.raises(NoSuchTargetError, match="expected 'host'"):
        find_target(name)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the names are those of x86 CPUs")
@pytest.mark.usefixtures("tvm")
def test_the_widest_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = machine._extensions("graniterapids") | machine._extensions("znver5")
    real = machine._extensions
    host = find_target("host").config["mcpu"]
    monkeypatch.setattr(machine, "_extensions", lambda model, **_: everything if model == host else real(model))
    widths = {name: find_target(f"llvm-{name}").vector for name in ("skylake-avx512", "haswell", "nehalem")}
    expected = {"skylake-avx512": 16, "haswell": 8, "nehalem": 4}
    assert {name: width for name, width in widths.items() if name != host} == {
        name: width for name, width in expected.items() if name != host
    }


@pytest.mark.usefixtures("tvm")
def test_a_cpu_with_more_than_this_one_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host = find_target("host").config["mcpu"]
    monkeypatch.setattr(machine, "_extensions", lambda model, **_: set() if model == host else {"avx9"})
    other = "haswell" if host != "haswell" else "skylake"
    with pytest.raises(UnsuitableTargetError, match=r"lacks avx9"):
        find_target(f"llvm-{other}")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the name is that of an x86 CPU")
@pytest.mark.usefixtures("tvm")
def test_a_cpu_that_hides_features_is_tuned_for_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own = HostCpu(model="skylake-avx512", mattr=("-avx512f",))
    monkeypatch.setattr(machine, "host_cpu", lambda: own)
    for name in ("host", "llvm-skylake-avx512"):
        found = find_target(name)
        assert (found.config["mcpu"], found.config["mattr"], found.vector) == ("skylake-avx512", ["-avx512f"], 8)
    with pytest.raises(UnsuitableTargetError, match=r"lacks avx512"):
        find_target("llvm-cascadelake")


@pytest.mark.usefixtures("tvm")
def test_the_description_names_hardware_only() -> None:
    described = machine.describe_machine()
    text = " ".join(map(str, described.values()))
    assert platform.node() not in text.split()
    assert getpass.getuser() not in text.split()
    assert described["physical_cores"] >= 1  # type: ignore[operator]


def _gpus(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = tuple(Gpu(name=name, arch="sm_90", driver="580.1") for name in names)
    monkeypatch.setattr("tunehub.target.nvidia.find_gpus", lambda: found)


@pytest.mark.parametrize("name", ["cuda", "cuda-h200"])
def test_a_gpu_is_found_by_its_kind_or_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, "NVIDIA H200")
    found = find_target(name)
    assert (found.name, found.config["arch"], found.config["max_shared_memory_per_block"]) == (
        "cuda-h200",
        "sm_90",
        49152,
    )
    assert machine.describe_machine(found)["gpu_driver"] == "580.1"
    assert "gpu" not in machine.describe_machine()


@pytest.mark.usefixtures("tvm")
def test_what_a_target_leaves_unused_of_this_cpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_cpu", lambda: HostCpu(model="skylake-avx512"))
    off = machine.describe_machine(find_target("llvm-x86-64-v3"))["switched_off"]
    assert {"avx512f", "avx512bw"} <= set(str(off).split())
    assert "switched_off" not in machine.describe_machine(find_target("host"))


@pytest.mark.parametrize(
    ("names", "reason"),
    [((), "no CUDA GPU"), (("NVIDIA H100 80GB HBM3",), r"has a NVIDIA H100 80GB HBM3 \(cuda-h100\)")],
)
def test_a_gpu_that_is_not_here_is_refused(
    names: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _gpus(monkeypatch, *names)
    with pytest.raises(UnsuitableTargetError, match=reason):
        find_target("cuda-h200")


@pytest.mark.parametrize(
    ("named", "expected"), [(None, ("0", "1")), ("", ()), ("1", ("1",)), (" GPU-ab, GPU-cd ", ("GPU-ab", "GPU-cd"))]
)
def test_work_is_spread_over_the_gpus_that_may_be_used(
    named: str | None, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _gpus(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert cuda_worker.visible_gpus() == expected
    devices = [make.args for make in cuda_worker.makers(tmp_path, 4)]  # type: ignore[attr-defined]
    assert len({lock for lock, _ in devices}) == max(1, len(expected))
    assert [device for _, device in devices][: len(expected)] == list(expected)
