"""The profile of a GPU: what `tunehub calibrate --device cuda` measured of it for the rules that choose schedules."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tunehub_registry import profiles
from tunehub_registry.target import Model

_Rate = Annotated[float, Meta(ge=1e6, le=1e18)]


class GpuProfile(profiles.DeviceProfile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What kernels reached: ``bandwidth`` in bytes a second of memory, ``l2_bandwidth`` of what is in its cache,
    ``flops`` in float32 and ``tensor_flops`` of tensor cores in float16, two operations for a multiply-add, and the
    ``clock`` of multiprocessors in Hz. ``launch_s``: a kernel behind others that does nothing. ``tensor_flops`` is None
    where TVM could not make that kernel.

    ``gpu`` is its short name, ``architecture`` as of ``sm_90``.
    """

    gpu: Model
    architecture: Annotated[str, Meta(pattern=r"^sm_[0-9]{2,3}\Z")]
    multiprocessors: Annotated[int, Meta(ge=1, le=1 << 12)]
    clock: Annotated[float, Meta(ge=1e6, le=1e11)]
    bandwidth: _Rate
    l2_bandwidth: _Rate
    flops: _Rate
    launch_s: Annotated[float, Meta(ge=1e-8, le=1.0)]
    tensor_flops: _Rate | None = None


def parse_gpu_profile(data: bytes, source: str) -> GpuProfile:
    """Read a profile; ``source`` names it in messages. Raises FormatError for anything that is wrong."""
    return profiles.parse(data, GpuProfile, source)


def encode_gpu_profile(profile: GpuProfile) -> bytes:
    """Write a profile, indented, keys sorted. Raises FormatError if it could not be read again."""
    return profiles.encode(profile, profile.gpu)
