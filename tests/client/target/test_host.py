from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.exceptions import UnknownTargetError
from tunehub.target import descriptors, host, nvidia
from tunehub.target.descriptors import as_tvm_target, descriptor_of, missing_mcpu
from tunehub.target.features import linux_features, relevant
from tunehub.target.host import machine_arch
from tunehub_registry.target import Accepted, TargetDescriptor, match

from ..conftest import ZNVER5

pytestmark = pytest.mark.fast

CPUINFO = """processor\t: 0
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu pni sse4_1 avx2 avx512_vnni avx_vnni amx_tile aes
processor\t: 1
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu
processor\t: 2
physical id\t: 0
core id\t\t: 1
"""


@pytest.fixture
def without_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_tvm", lambda: None)
    monkeypatch.setattr(descriptors, "find_tvm", lambda: None)


@pytest.fixture
def tvm() -> Any:
    return pytest.importorskip("tvm")


def test_cpuinfo_features_in_llvms_spelling(monkeypatch: pytest.MonkeyPatch, without_tvm: None) -> None:
    monkeypatch.setattr(host, "_cpuinfo", lambda: "flags : fpu sse2 pni avx512_vnni amx_tile aes")
    monkeypatch.setattr(host.platform, "machine", lambda: "AMD64")
    found = host.host_descriptor()
    assert (found.name, found.arch) == ("llvm-generic-x86_64", "x86_64")
    assert found.features == ("amx-tile", "avx512vnni", "sse3")


def test_amx_that_linux_refuses_is_none_of_the_features(monkeypatch: pytest.MonkeyPatch, without_tvm: None) -> None:
    monkeypatch.setattr(host, "_cpuinfo", lambda: "flags : fpu sse2 pni avx512_vnni amx_tile amx_int8 aes")
    monkeypatch.setattr(host.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(host, "refuses_amx", lambda: True)
    assert host.host_descriptor().features == ("avx512vnni", "sse3")
    assert host.cpu_features() == {"sse3", "avx512vnni"}


_REFUSED = """
import ctypes, struct, sys
from tunehub.target.amx_permission import refuses_amx

call_is, argument_is = (0x15, 0, 3, 158), (0x15, 0, 1, 0x1023)
steps = [(0x20, 0, 0, 0), call_is, (0x20, 0, 0, 16), argument_is, (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(filters))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit("no filters of system calls here")
print(refuses_amx())
"""


@pytest.mark.skipif(machine_arch() != "x86_64" or sys.platform != "linux", reason="a system call of Linux on x86-64")
def test_a_filter_of_system_calls_refuses_amx() -> None:
    found = subprocess.run([sys.executable, "-c", _REFUSED], capture_output=True, text=True, check=False, timeout=60)
    if "no filters" in found.stderr:
        pytest.skip(found.stderr)
    assert found.stdout.strip() == "True", found.stderr


def test_cpuinfo_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.sys, "platform", "linux")
    (tmp_path / "cpuinfo").write_bytes(CPUINFO.encode() + b"\xff\x00")
    assert host._cpuinfo(str(tmp_path / "cpuinfo")).startswith(CPUINFO)
    assert host._cpuinfo(str(tmp_path / "missing")) == ""
    monkeypatch.setattr(host, "_cpuinfo", lambda: CPUINFO)
    assert host._linux_cores() == {("0", "0"), ("0", "1")}
    monkeypatch.undo()
    monkeypatch.setattr(host.sys, "platform", "darwin")
    assert host._cpuinfo(str(tmp_path / "cpuinfo")) == ""


def test_physical_cores_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_psutil(name: str, *rest: Any) -> Any:
        if name == "psutil":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_psutil)
    monkeypatch.setattr(host, "_linux_cores", lambda: {("0", "0")})
    assert host.physical_cores() == 1
    monkeypatch.setattr(host, "_linux_cores", set)
    assert host.physical_cores() >= 1


def test_small_pool_is_named_without_asking_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(host, "physical_cores", lambda: 4)
    monkeypatch.setattr(host, "usable_threads", lambda: 4)
    assert "TVM_NUM_THREADS=4" in str(host.small_pool({}))
    assert host.small_pool({"TVM_NUM_THREADS": "4"}) is None
    monkeypatch.setattr(host, "usable_threads", lambda: 8)
    assert host.small_pool({}) is None
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    assert host.small_pool({}) is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla T4", "t4"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA", "generic"), ("AMD Radeon(TM) Graphics", "radeon"),
    ],
)  # fmt: skip
def test_gpu_models(name: str, model: str) -> None:
    assert nvidia.gpu_model(name) == model


@given(st.text(max_size=100))
def test_any_device_name_makes_a_descriptor(name: str) -> None:
    descriptor = TargetDescriptor(kind="cuda", model=nvidia.gpu_model(name), arch="sm_90")
    assert msgspec.convert(msgspec.to_builtins(descriptor), TargetDescriptor) == descriptor


def test_targets_without_tvm(without_tvm: None) -> None:
    assert descriptor_of(ZNVER5) is ZNVER5
    assert descriptor_of({"kind": "llvm", "mcpu": "znver5", "mtriple": "arm64-apple"}).arch == "aarch64"
    assert descriptor_of("llvm").model == "generic"
    assert descriptor_of("llvm-znver5").name == "llvm-znver5"
    assert descriptor_of("cuda-h200").arch == "sm_90"
    assert descriptor_of({"kind": "cuda", "arch": "sm_80", "model": "A100"}).name == "cuda-a100"
    assert descriptor_of(None).kind == "llvm"
    assert host.gpu_descriptor() is None


@pytest.mark.parametrize(
    "value", ["foo", "{", "{}", "", "cuda", "cuda-nothing", "llvm -mcpu=x", 5, {"kind": "x"}, [], b"x"]
)
@pytest.mark.parametrize("with_tvm", [False, True])
def test_unknown_targets_name_the_value_and_the_remedy(
    value: Any, with_tvm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_tvm:
        pytest.importorskip("tvm")
    else:
        monkeypatch.setattr(host, "find_tvm", lambda: None)
        monkeypatch.setattr(descriptors, "find_tvm", lambda: None)
    monkeypatch.setattr(descriptors, "gpu_descriptor", lambda: None)
    with pytest.raises(UnknownTargetError) as caught:
        descriptor_of(value)
    assert isinstance(caught.value, ValueError)
    assert "llvm-znver5" in str(caught.value) or "cuda" in str(caught.value)


def test_host_by_llvm(tvm: Any) -> None:
    found = host.host_descriptor()
    assert found.name == f"llvm-{tvm.target.codegen.llvm_get_system_cpu()}"
    target = host.host_target()
    assert descriptor_of(target) == found
    assert missing_mcpu(target) is None
    assert descriptor_of(found.name) == found
    assert int(target.attrs["num-cores"]) == host.physical_cores()
    assert set(found.features) == set(relevant(linux_features(host._cpuinfo(), found.arch) or found.features))


FLAGS_OF_ROCKET_LAKE = (
    "fpu sse2 pni ssse3 sse4_1 sse4_2 popcnt abm bmi1 bmi2 movbe gfni avx avx2 fma f16c avx512f avx512bw avx512vl "
    "avx512dq avx512cd avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512_vnni"
)


def _is_called(monkeypatch: pytest.MonkeyPatch, model: str, flags: str) -> Any:
    """The host's target where LLVM takes the CPU for ``model`` and Linux says ``flags`` of it."""
    monkeypatch.setattr(host, "_system_cpu", lambda: model)
    monkeypatch.setattr(host, "system_triple", lambda: "x86_64-linux-gnu")
    monkeypatch.setattr(descriptors, "system_triple", lambda: "x86_64-linux-gnu")
    monkeypatch.setattr(host, "_cpuinfo", lambda: f"processor : 0\nflags\t\t: {flags}\n")
    return host.host_target()


def test_a_machine_that_hides_its_model_has_the_features_of_its_cpu(tvm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_int8 amx_bf16"
    target = _is_called(monkeypatch, "rocketlake", f"{FLAGS_OF_ROCKET_LAKE} {more}")
    if tvm.target.codegen.llvm_version_major() < 16:
        pytest.skip("this LLVM does not know the features")
    assert str(target.attrs["mcpu"]) == "rocketlake"
    assert sorted(map(str, target.attrs["mattr"])) == [
        "+amx-bf16", "+amx-int8", "+amx-tile", "+avx512bf16", "+avx512fp16", "+avxvnni",
    ]  # fmt: skip
    found = host.host_descriptor()
    assert {"amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni"} <= set(found.features)
    assert descriptor_of(target) == descriptor_of("llvm-rocketlake") == found
    assert list(as_tvm_target("llvm-rocketlake").attrs["mattr"]) == list(target.attrs["mattr"])
    sapphire = descriptor_of({"kind": "llvm", "mcpu": "sapphirerapids", "mtriple": "x86_64-linux-gnu"})
    true_rocket = descriptor_of({"kind": "llvm", "mcpu": "rocketlake", "mtriple": "x86_64-linux-gnu"})
    assert match(sapphire, found) == Accepted(fit="exact", distance=0)  # by its features
    assert match(true_rocket, found) == Accepted(fit="family", distance=6)


def test_a_machine_that_hides_its_model_has_the_names_of_its_features(tvm: Any) -> None:
    more = ["+amx-bf16", "+amx-int8", "+amx-tile", "+avx512bf16", "+avx512fp16", "+avxvnni"]
    hidden = descriptor_of({"kind": "llvm", "mcpu": "rocketlake", "mattr": more})
    assert hidden.aliases == ("emeraldrapids", "sapphirerapids")
    assert match(descriptor_of("llvm-sapphirerapids"), hidden) == Accepted(fit="exact", distance=0)
    assert isinstance(match(descriptor_of("llvm-graniterapids"), hidden), Accepted)
    assert descriptor_of({"kind": "llvm", "mcpu": "znver3", "mattr": ["+avx512f"]}).aliases == ()
    assert descriptor_of({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["-amx-tile"]}).aliases == ()


def test_a_machine_that_hides_features_of_its_model_lacks_them(tvm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = " ".join(flag for flag in FLAGS_OF_ROCKET_LAKE.split() if not flag.startswith(("avx512", "gfni")))
    target = _is_called(monkeypatch, "rocketlake", flags)
    assert all(str(name).startswith("-avx512") or str(name) == "-gfni" for name in target.attrs["mattr"])
    has = tvm.target.codegen.llvm_get_cpu_features(target)
    assert {"avx2", "fma"} <= has
    assert not [name for name in has if name.startswith("avx512")]
    package = descriptor_of({"kind": "llvm", "mcpu": "rocketlake", "mtriple": "x86_64-linux-gnu"})
    assert match(package, host.host_descriptor()).fit == "generic"  # type: ignore[union-attr]


def test_a_machine_that_is_what_llvm_takes_it_for_needs_no_features_named(
    tvm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _is_called(monkeypatch, "rocketlake", FLAGS_OF_ROCKET_LAKE)
    assert "mattr" not in target.attrs
    package = descriptor_of({"kind": "llvm", "mcpu": "rocketlake", "mtriple": "x86_64-linux-gnu"})
    assert match(package, host.host_descriptor()) == Accepted(fit="exact", distance=0)


def test_the_host_s_gpu_by_its_driver(tvm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (gpu,) = nvidia.parse_gpus("NVIDIA H200, 9.0, 143771, 580.1, 1980, 3201, 700.00")
    monkeypatch.setattr(host, "find_gpus", lambda: (gpu, gpu))
    target = host.host_target("cuda")
    assert (target.kind.name, str(target.attrs["arch"])) == ("cuda", "sm_90")
    assert descriptor_of(target).name == "cuda-h200"
    monkeypatch.setattr(host, "find_gpus", tuple)
    with pytest.raises(UnknownTargetError, match="nvidia-smi lists no GPU here"):
        host.host_target("cuda")
    with pytest.raises(UnknownTargetError, match="give 'llvm' or 'cuda'"):
        host.host_target("metal")


def test_targets_of_tvm(tvm: Any) -> None:
    skylake = descriptor_of({"kind": "llvm", "mcpu": "skylake-avx512", "mtriple": "x86_64-linux-gnu"})
    assert {"avx512f", "avx2", "fma"} <= set(skylake.features)
    assert "avx512vnni" not in skylake.features
    assert descriptor_of('{"kind": "llvm", "mcpu": "skylake-avx512", "mtriple": "x86_64-linux-gnu"}') == skylake
    bare = tvm.target.Target("llvm")
    assert descriptor_of(bare).model == "generic"
    assert "mcpu" in str(missing_mcpu(bare))
    assert missing_mcpu("llvm") is None
    h100 = descriptor_of("nvidia/nvidia-h100")
    assert (h100.name, h100.arch[:5]) == ("cuda-h100", "sm_90")
    assert descriptor_of("cuda-h100").max_threads_per_block == 1024
    for kind in ("c", "metal", "vulkan", "opencl", "webgpu", "hexagon"):
        assert descriptor_of(tvm.target.Target(kind)).kind == kind


def test_names_become_targets_of_tvm(tvm: Any) -> None:
    assert str(as_tvm_target("llvm-znver4").attrs["mcpu"]) == "znver4"
    h200 = as_tvm_target("cuda-h200")
    assert (str(h200.attrs["arch"]), int(h200.attrs["max_threads_per_block"])) == ("sm_90", 1024)
    assert int(h200.attrs["max_shared_memory_per_block"]) == 48 << 10  # transfers are checked against it
    assert as_tvm_target(None).kind.name == "llvm"
    bare = tvm.target.Target("llvm")
    assert as_tvm_target(bare) is bare
    with pytest.raises(UnknownTargetError, match="LLVM knows no such CPU"):
        as_tvm_target("llvm-pentium17")
    with pytest.raises(UnknownTargetError):
        as_tvm_target("foo")


def test_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch, tvm: Any) -> None:
    class Device:
        exist = True
        compute_version = "9.0"
        device_name = "NVIDIA H200"
        max_threads_per_block = 1024
        max_shared_memory_per_block = 49152

    monkeypatch.setattr(tvm, "device", lambda kind, index: Device)
    found = host.gpu_descriptor()
    assert found is not None
    assert (found.name, found.arch, found.max_threads_per_block) == ("cuda-h200", "sm_90", 1024)
    assert descriptor_of("cuda") == found
    assert descriptor_of(tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})).model == "h200"
    assert descriptor_of(tvm.target.Target({"kind": "cuda", "arch": "sm_80"})).model == "sm_80"
