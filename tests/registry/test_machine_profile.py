from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.machine_profile import MachineProfile, encode_profile, parse_profile
from tunehub_registry.profiles import MAX_PROFILE_BYTES

pytestmark = pytest.mark.fast
XEON = MachineProfile(
    cpu="emeraldrapids", mattr=("-avx512fp16", "+amx-tile"), cores=16, measured="2026-11-23", multiply_add_s=1.6e-10,
    dependent_s=1.3e-9, memory_bytes=1.2e10, region_s=4e-6, pairs_s=3.5e-10, tiles_s=2e-11, byte_tiles_s=2e-11,
    cached_bytes=1.5e11,
)  # fmt: skip


def test_what_is_written_is_read_again() -> None:
    assert parse_profile(encode_profile(XEON), "x") == XEON


@pytest.mark.parametrize(
    "changes",
    [
        {"multiply_add_s": 0.0}, {"multiply_add_s": "fast"}, {"memory_bytes": 1e99}, {"region_s": -1.0}, {"cores": 0},
        {"tiles_s": 2.0}, {"cpu": ""}, {"cpu": "x" * 65}, {"mattr": ["avx2"]}, {"mattr": ["+a\n"]}, {"version": 2},
        {"measured": "yesterday"}, {"more": 1}, {"cached_bytes": 0.0}, {"mattr": ["+a"] * 257},
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_refused(changes: dict[str, object]) -> None:
    data = msgspec.json.encode({**msgspec.to_builtins(XEON), **changes})
    with pytest.raises(FormatError, match=next(iter(changes))):
        parse_profile(data, "profile.json")


def test_a_file_may_not_be_large() -> None:
    with pytest.raises(FormatError, match="the limit is"):
        parse_profile(b" " * (MAX_PROFILE_BYTES + 1), "x")


def test_a_wrong_profile_cannot_be_made() -> None:
    with pytest.raises(FieldError):
        msgspec.structs.replace(XEON, version=2)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_profile_or_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_profile(data, "x")
