from __future__ import annotations

import msgspec
import pytest

from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.gpu_profile import GpuProfile, encode_gpu_profile, parse_gpu_profile
from tunehub_registry.profiles import MAX_PROFILE_BYTES

pytestmark = pytest.mark.fast
H200 = GpuProfile(
    gpu="h200", architecture="sm_90", multiprocessors=132, measured="2026-11-28", clock=1.98e9, bandwidth=4e12,
    l2_bandwidth=6e12, flops=6e13, tensor_flops=6e14, launch_s=2e-6,
)  # fmt: skip


def test_what_is_written_is_read_again() -> None:
    assert parse_gpu_profile(encode_gpu_profile(H200), "x") == H200


def test_tensor_cores_may_be_left_out() -> None:
    without = msgspec.structs.replace(H200, tensor_flops=None)
    assert parse_gpu_profile(encode_gpu_profile(without), "x") == without


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "../h200"}, {"gpu": ""}, {"architecture": "sm_90a"}, {"architecture": "gfx90a"}, {"multiprocessors": 0},
        {"clock": 0.0}, {"bandwidth": "fast"}, {"l2_bandwidth": 1e99}, {"flops": -1.0}, {"launch_s": 2.0},
        {"tensor_flops": 1.0}, {"version": 2}, {"measured": "yesterday"}, {"more": 1},
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_refused(changes: dict[str, object]) -> None:
    data = msgspec.json.encode({**msgspec.to_builtins(H200), **changes})
    with pytest.raises(FormatError, match=next(iter(changes))):
        parse_gpu_profile(data, "profile.json")


def test_a_file_may_not_be_large() -> None:
    with pytest.raises(FormatError, match="the limit is"):
        parse_gpu_profile(b" " * (MAX_PROFILE_BYTES + 1), "x")


def test_a_wrong_profile_cannot_be_made() -> None:
    with pytest.raises(FieldError):
        msgspec.structs.replace(H200, version=2)
