"""The profile of this machine's GPU, a file of the cache: one for each architecture."""

from __future__ import annotations

import re
from pathlib import Path

from tunehub._files.atomic import write_file
from tunehub.target.machine_profile import FOLDER, MachineProfileError, profile_in_file
from tunehub_registry.gpu_profile import GpuProfile, encode_gpu_profile, parse_gpu_profile

_ARCHITECTURE = re.compile(r"sm_[0-9]{2,3}")


def gpu_profile_path(cache: Path, architecture: str) -> Path:
    """Where the profile of a GPU of ``architecture`` (``sm_90``) lies, if there is one."""
    return cache / FOLDER / f"cuda-{architecture}.json"


def write_gpu_profile(cache: Path, profile: GpuProfile) -> Path:
    """Keep ``profile``; returns where. Raises OSError."""
    path = gpu_profile_path(cache, profile.architecture)
    write_file(path, encode_gpu_profile(profile))
    return path


def read_gpu_profile(cache: Path, architecture: str, model: str | None = None) -> GpuProfile | None:
    """The profile of a GPU of ``architecture``, of that ``model`` if one is named; None without one. Raises
    MachineProfileError for a file that holds none, or the one of another architecture."""
    found = _ARCHITECTURE.match(architecture)
    if found is None:
        return None
    path = gpu_profile_path(cache, found[0])
    profile = profile_in_file(path, parse_gpu_profile, "profile of a GPU")
    if profile is None:
        return None
    if profile.architecture != found[0]:
        raise MachineProfileError(f"{path} is of another architecture: {profile.architecture}")
    return profile if model in (None, profile.gpu) else None
