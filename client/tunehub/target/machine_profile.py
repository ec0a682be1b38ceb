"""The profile of a machine: what was measured of its CPU for the rules that choose schedules; a file of the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub._files.atomic import write_file

_VERSION = 1
_FOLDER = "profiles"

Seconds = Annotated[float, Meta(ge=1e-11, le=1.0)]
BytesASecond = Annotated[float, Meta(ge=1e6, le=1e14)]


class MachineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``multiply_add_s``: of one vector on one core, where many are independent, ``dependent_s``: where each waits for
    the one before. ``memory_bytes``: that one core reads from memory in a second. ``region_s``: what a parallel region
    of all ``cores`` takes that does nothing. ``pairs_s``: of one vector of pairs of bfloat16, twice as many
    multiply-adds; None where the CPU multiplies none.

    ``cpu`` and ``mattr`` are those of the target that it is for; ``measured`` is the day.
    """

    cpu: str
    mattr: tuple[str, ...]
    cores: Annotated[int, Meta(ge=1)]
    measured: str
    multiply_add_s: Seconds
    dependent_s: Seconds
    memory_bytes: BytesASecond
    region_s: Seconds
    pairs_s: Seconds | None = None
    version: int = _VERSION


class MachineProfileError(ValueError):
    """The file of a profile cannot be used. The message says why."""


def profile_path(cache: Path, cpu: str, mattr: Sequence[str], cores: int) -> Path:
    """Where the profile for such a target lies, if there is one."""
    digest = hashlib.sha256("\n".join([cpu, *sorted(mattr), str(cores)]).encode()).hexdigest()[:16]
    return cache / _FOLDER / f"{digest}.json"


def write_profile(cache: Path, profile: MachineProfile) -> Path:
    """Keep ``profile``; returns where. Raises OSError."""
    path = profile_path(cache, profile.cpu, profile.mattr, profile.cores)
    write_file(path, msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    return path


def read_profile(cache: Path, cpu: str, mattr: Sequence[str], cores: int) -> MachineProfile | None:
    """The profile for such a target, None without one. Raises MachineProfileError for a file that holds none, or the
    one of another."""
    path = profile_path(cache, cpu, mattr, cores)
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=MachineProfile)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MachineProfileError(f"{path} is no profile: {error}") from error
    if (profile.cpu, sorted(profile.mattr), profile.cores) != (cpu, sorted(mattr), cores):
        raise MachineProfileError(f"{path} is for another machine: {profile.cpu} with {profile.cores} cores")
    if profile.version != _VERSION:
        raise MachineProfileError(f"{path} has version {profile.version}, known is {_VERSION}")
    return profile
