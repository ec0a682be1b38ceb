from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.target.machine_profile import (
    MachineProfileError,
    PublishedProfile,
    profile_path,
    read_profile,
    write_profile,
)
from tunehub_registry.machine_profile import MachineProfile

pytestmark = pytest.mark.fast
ZNVER4 = MachineProfile(
    cpu="znver4", mattr=("+amx-tile",), cores=2, measured="2026-11-23", multiply_add_s=2.8e-10, dependent_s=1.04e-9,
    memory_bytes=24e9, region_s=3e-6,
)  # fmt: skip


def test_a_profile_is_for_one_target(tmp_path: Path) -> None:
    assert read_profile(tmp_path, "znver4", ["+amx-tile"], 2) is None
    write_profile(tmp_path, ZNVER4)
    assert read_profile(tmp_path, "znver4", ["+amx-tile"], 2) == ZNVER4
    for other in (("znver5", ["+amx-tile"], 2), ("znver4", [], 2), ("znver4", ["+amx-tile"], 4)):
        assert read_profile(tmp_path, *other) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"multiply_add_s": 0.0}, {"multiply_add_s": "fast"}, {"memory_bytes": 1e99}, {"region_s": -1.0}, {"cores": 0},
        {"cores": 4}, {"cpu": "znver5"}, {"version": 2}, {"more": 1},
    ],
)  # fmt: skip
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = write_profile(tmp_path, ZNVER4)
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(ZNVER4), **changes}))
    with pytest.raises(MachineProfileError, match=path.name):
        read_profile(tmp_path, "znver4", ["+amx-tile"], 2)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_profile_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    cache = tmp_path_factory.mktemp("cache")
    path = profile_path(cache, "znver4", [], 2)
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(MachineProfileError):
        read_profile(cache, "znver4", [], 2)


def test_a_published_profile_is_for_a_cpu_with_the_same_features() -> None:
    published = PublishedProfile(profile=ZNVER4, package="llvm-znver4 0.2.0")
    assert published.fits("znver4", ["+amx-tile"])
    assert not published.fits("znver4", [])
    assert not published.fits("znver5", ["+amx-tile"])


def test_a_published_profile_is_for_its_cpu_whatever_its_name() -> None:
    pytest.importorskip("tvm")
    own = msgspec.structs.replace(ZNVER4, cpu="sapphirerapids", mattr=())
    published = PublishedProfile(profile=own, package="llvm-sapphirerapids 0.1.0")
    more = ["+amx-bf16", "+amx-int8", "+amx-tile", "+avx512bf16", "+avx512fp16", "+avxvnni"]
    assert published.fits("rocketlake", more) and published.fits("emeraldrapids", ())
    assert not published.fits("graniterapids", ()) and not published.fits("rocketlake", more[1:])
    znver3 = msgspec.structs.replace(ZNVER4, cpu="znver3", mattr=())
    level = PublishedProfile(profile=znver3, package="llvm-znver3 0.1.0")
    assert not level.fits("x86-64-v3", ()) and not level.fits("haswell", ())
