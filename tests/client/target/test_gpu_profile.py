"""The profile of a GPU as a file of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tunehub.target.gpu_profile import gpu_profile_path, read_gpu_profile, write_gpu_profile
from tunehub.target.machine_profile import MachineProfileError
from tunehub_registry.gpu_profile import GpuProfile

pytestmark = pytest.mark.fast
A10 = GpuProfile(
    gpu="a10", architecture="sm_86", multiprocessors=72, measured="2026-11-28", clock=1.6e9, bandwidth=5e11,
    l2_bandwidth=1.5e12, flops=2e13, launch_s=3e-6,
)  # fmt: skip


def test_it_is_found_by_its_architecture_and_model(tmp_path: Path) -> None:
    assert read_gpu_profile(tmp_path, "sm_86") is None
    assert write_gpu_profile(tmp_path, A10) == gpu_profile_path(tmp_path, "sm_86")
    assert read_gpu_profile(tmp_path, "sm_86") == read_gpu_profile(tmp_path, "sm_86", "a10") == A10
    assert read_gpu_profile(tmp_path, "sm_86", "rtx-3090") is None
    assert read_gpu_profile(tmp_path, "sm_80") is None


@pytest.mark.parametrize("architecture", ["", "unknown", "../sm_86"])
def test_what_is_no_architecture_has_none(tmp_path: Path, architecture: str) -> None:
    write_gpu_profile(tmp_path, A10)
    assert read_gpu_profile(tmp_path, architecture) is None


def test_the_features_of_an_architecture_do_not_matter(tmp_path: Path) -> None:
    write_gpu_profile(tmp_path, replace(A10, gpu="h200", architecture="sm_90"))
    assert read_gpu_profile(tmp_path, "sm_90a", "h200") is not None


def test_a_damaged_file_and_that_of_another_gpu_are_refused(tmp_path: Path) -> None:
    path = write_gpu_profile(tmp_path, A10)
    path.rename(gpu_profile_path(tmp_path, "sm_80"))
    with pytest.raises(MachineProfileError, match="another architecture: sm_86"):
        read_gpu_profile(tmp_path, "sm_80")
    path.write_bytes(b"{")
    with pytest.raises(MachineProfileError, match="is no profile of a GPU"):
        read_gpu_profile(tmp_path, "sm_86")
