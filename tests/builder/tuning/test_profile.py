"""The profile of the machine that tunes, in a work directory and in packages of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tunehub.target.host import HostCpu
from tunehub.target.machine_profile import write_profile
from tunehub_builder.exceptions import PackingError, WorkDirectoryError
from tunehub_builder.tuning import profile as profiles
from tunehub_builder.tuning.profile import keep_profile, kept_rates, profile_to_pack
from tunehub_builder.tuning.target import TuningTarget
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.machine_profile import PROFILE, MachineProfile, encode_profile
from tunehub_registry.target import TargetDescriptor

pytestmark = pytest.mark.fast
ZNVER4 = MachineProfile(
    cpu="znver4", mattr=("-avx512bf16",), cores=2, measured="2026-11-23", multiply_add_s=2.8e-10, dependent_s=1.04e-9,
    memory_bytes=24e9, region_s=3e-6,
)  # fmt: skip
TARGET = TuningTarget(
    name="llvm-znver4", config={"kind": "llvm", "mcpu": "znver4", "mattr": ["-avx512bf16"], "num-cores": 2}
)
DESCRIPTOR = TargetDescriptor(kind="llvm", model="znver4", arch="x86_64")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkDirectory:
    """Of a run on a machine like ``TARGET``, which nobody has measured, nor may anybody."""
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(profiles, "host_cpu", lambda: HostCpu(model="znver4", mattr=("-avx512bf16",)))
    monkeypatch.setattr(profiles, "physical_cores", lambda: 2)

    def busy() -> MachineProfile:
        raise OSError("the CPU is busy")

    monkeypatch.setattr(profiles, "measured", busy)
    work = WorkDirectory(tmp_path / "work")
    work.path.mkdir()
    return work


def test_the_users_own_profile_is_taken_along(directory: WorkDirectory, tmp_path: Path) -> None:
    assert keep_profile(directory, TARGET, 3) == ()
    assert directory.profile() is None
    write_profile(tmp_path / "cache", ZNVER4)
    assert keep_profile(directory, TARGET, 3) == ()
    assert directory.profile() == ZNVER4


def test_networks_are_made_by_the_rates_that_their_package_will_have(directory: WorkDirectory) -> None:
    tvm = pytest.importorskip("tvm")
    pytest.importorskip("tvm.relax")
    from tunehub.kernels.template_fit import machine_for

    directory.save_profile(ZNVER4)
    with kept_rates(directory):
        assert str(directory.path) in str(machine_for(tvm.target.Target(TARGET.config)).profile)
    assert machine_for(tvm.target.Target(TARGET.config)).profile is None


def test_a_large_run_measures_once(directory: WorkDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = keep_profile(directory, TARGET, 100)
    assert "the CPU is busy" in note
    monkeypatch.setattr(profiles, "measured", lambda: ZNVER4)
    assert keep_profile(directory, TARGET, 100) == ()
    monkeypatch.setattr(profiles, "measured", lambda: msgspec.structs.replace(ZNVER4, cores=1))
    keep_profile(directory, TARGET, 100)
    assert directory.profile() == ZNVER4


def test_another_machines_run_has_no_profile_of_this_one(directory: WorkDirectory, tmp_path: Path) -> None:
    write_profile(tmp_path / "cache", ZNVER4)
    for config in ({**TARGET.config, "mcpu": "znver5"}, {**TARGET.config, "mattr": []}, {"kind": "cuda"}):
        assert keep_profile(directory, TuningTarget(name="x", config=config), 100) == ()
    assert directory.profile() is None


def test_a_file_comes_before_the_directorys(directory: WorkDirectory, tmp_path: Path) -> None:
    directory.save_profile(ZNVER4)
    other = msgspec.structs.replace(ZNVER4, measured="2026-12-01")
    file = tmp_path / "other.json"
    file.write_bytes(encode_profile(other))
    assert profile_to_pack(directory, None, DESCRIPTOR) == ZNVER4
    assert profile_to_pack(directory, file, DESCRIPTOR) == other
    with pytest.raises(PackingError, match="is the profile of znver4; the package is for llvm-znver5"):
        profile_to_pack(directory, file, msgspec.structs.replace(DESCRIPTOR, model="znver5"))
    file.write_bytes(b"{}")
    with pytest.raises(PackingError, match=file.name):
        profile_to_pack(directory, file, DESCRIPTOR)
    (directory.path / PROFILE).write_bytes(b"{}")
    with pytest.raises(WorkDirectoryError, match=PROFILE):
        profile_to_pack(directory, None, DESCRIPTOR)
