from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FieldError
from tunehub_registry.legacy_target import LegacyTarget, descriptor_of_legacy, parse_target
from tunehub_registry.target import Accepted, TargetDescriptor, match

pytestmark = pytest.mark.fast

# Text, the keys that TVM 0.19 gives it, its model, and the package that it belongs to with the architecture.
TARGETS = [
    ("llvm", ("cpu",), "unknown", "llvm-generic", "unknown"),
    ("llvm -mcpu=skylake-avx512", ("cpu",), "unknown", "llvm-skylake-avx512", "x86_64"),
    ("llvm -mcpu=skylake-avx512 -libs=mkl", ("cpu",), "unknown", "llvm-skylake-avx512", "x86_64"),
    ("llvm -keys=cpu -link-params=0 -mcpu=core-avx2", ("cpu",), "unknown", "llvm-haswell", "x86_64"),
    ("llvm -mtriple=x86_64-linux-gnu", ("cpu",), "unknown", "llvm-generic", "x86_64"),
    (
        "llvm -device=arm_cpu -model=rk3399 -mtriple=aarch64-linux-gnu -mattr=+neon",
        ("arm_cpu", "cpu"), "rk3399", "llvm-rk3399", "aarch64",
    ),
    (
        "llvm -device=arm_cpu -model=kirin970 -target=arm64-linux-android",
        ("arm_cpu", "cpu"), "kirin970", "llvm-kirin970", "aarch64",
    ),
    ("llvm -device=arm_cpu -model=pynq -mtriple=armv7a-linux-eabi", ("arm_cpu", "cpu"), "pynq", "llvm-pynq", "armv7l"),
    ("llvm -keys=cpu -device=arm_cpu", ("cpu", "arm_cpu"), "unknown", "llvm-arm_cpu", "unknown"),
    ("llvm -mtriple=aarch64-linux-gnu", ("arm_cpu", "cpu"), "unknown", "llvm-generic-aarch64", "aarch64"),
    ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72", ("arm_cpu", "cpu"), "unknown", "llvm-cortex-a72", "aarch64"),
    ("cuda -model=titanx", ("cuda", "gpu"), "titanx", "cuda-titanx", "sm_52"),
    ("cuda -model=1080ti", ("cuda", "gpu"), "1080ti", "cuda-1080ti", "sm_61"),
    ("cuda -model=v100", ("cuda", "gpu"), "v100", "cuda-v100", "sm_70"),
    ("cuda -model tx2", ("cuda", "gpu"), "tx2", "cuda-tx2", "sm_62"),
    ("cuda --model=t4 -libs=cudnn", ("cuda", "gpu"), "t4", "cuda-t4", "sm_75"),
    ("cuda -keys=cuda,gpu -arch=sm_50 -model=2080ti", ("cuda", "gpu"), "2080ti", "cuda-2080ti", "sm_75"),
    ("cuda -keys=cuda,gpu -arch=sm_50 -model=h200", ("cuda", "gpu"), "h200", "cuda-h200", "sm_90"),
    ("cuda -arch=sm_86", ("cuda", "gpu"), "unknown", "cuda-sm_86", "sm_86"),
    ("cuda", ("cuda", "gpu"), "unknown", "cuda-generic", "unknown"),
    ("cuda -model='GTX 1080 Ti'", ("cuda", "gpu"), "GTX 1080 Ti", "cuda-gtx-1080-ti", "sm_61"),
    ("opencl -device=mali -model=rk3399", ("mali", "opencl", "gpu"), "rk3399", "opencl-rk3399", "unknown"),
    ("opencl -device=mali", ("mali", "opencl", "gpu"), "unknown", "opencl-mali", "unknown"),
    ("rocm -model=gfx900", ("rocm", "gpu"), "gfx900", "rocm-gfx900", "gfx900"),
    ("rocm -mcpu=gfx906", ("rocm", "gpu"), "unknown", "rocm-gfx906", "gfx906"),
    ('{"kind": "cuda", "model": "v100", "arch": "sm_70"}', ("cuda", "gpu"), "v100", "cuda-v100", "sm_70"),
    ('{"kind": "llvm", "keys": ["x", "cpu"], "mattr": ["+a"]}', ("x", "cpu"), "unknown", "llvm-generic", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("text, keys, model, name, arch", TARGETS)
def test_targets_of_logs(text: str, keys: tuple[str, ...], model: str, name: str, arch: str) -> None:
    target = parse_target(text)
    assert (target.keys, target.model) == (keys, model)
    found = descriptor_of_legacy(target)
    assert (found.name, found.arch) == (name, arch)


def test_all_that_a_target_says_is_kept() -> None:
    text = "llvm -keys=cpu -mcpu=znver4 -mattr=+avx2,-avx512f -num-cores=16 -system-lib -opt-level=2"
    target = parse_target(text)
    assert target == LegacyTarget(
        kind="llvm", keys=("cpu",), mcpu="znver4", mattr=("+avx2", "-avx512f"),
        attrs={"num-cores": "16", "system-lib": "1", "opt-level": "2"},
    )  # fmt: skip
    found = descriptor_of_legacy(target)
    assert found.num_cores == 16
    assert "avx2" in found.features
    assert "avx512f" not in found.features


def test_limits_of_a_gpu_are_kept() -> None:
    found = descriptor_of_legacy(
        parse_target("cuda -model=v100 -max_threads_per_block=1024 -max_shared_memory_per_block=49152")
    )
    assert (found.max_threads_per_block, found.max_shared_memory_per_block) == (1024, 49152)


def test_a_package_serves_the_machine_that_llvm_calls_by_the_usual_name() -> None:
    package = descriptor_of_legacy(parse_target("llvm -mcpu=core-avx2"))
    assert package.aliases == ("core-avx2",)
    host = TargetDescriptor(kind="llvm", model="haswell", arch="x86_64", features=package.features)
    assert match(package, host) == Accepted(fit="exact", distance=0)


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "-mcpu=x", "foo -bar=1", "llvm mcpu", "llvm -mcpu=", "llvm -=x", "llvm -model='x", "nvidia/nvidia-t4",
        "{", "{}", "[]", '{"kind": 5}', '{"kind": "llvm", "kind": "cuda"}', "llvm " + "-x=1 " * 2000,
        "\ud800", '{"kind": "\\ud800"}',
    ],
)  # fmt: skip
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(FieldError):
        parse_target(text)


def test_a_model_that_cannot_name_a_package_is_refused() -> None:
    with pytest.raises(FieldError, match="cannot name a package"):
        descriptor_of_legacy(parse_target("cuda -model='???'"))


WORDS = st.sampled_from(
    ["llvm", "cuda", "opencl", "-model=", "-mcpu", "=", "'", '"', "{", "}", "kind", ":", ",", "\\", " ", "-"]
)


@given(
    st.text(max_size=40) | st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=20).map("cuda -model={}".format)
)
def test_any_text_is_a_target_or_a_field_error(text: str) -> None:
    try:
        target = parse_target(text)
        found = descriptor_of_legacy(target)
    except FieldError as error:
        assert error.reason
        return
    assert found.name.startswith(f"{target.kind}-")
