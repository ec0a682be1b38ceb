"""The profile of a machine, what was measured of its CPU for the rules that choose schedules: a file of the cache, or
of a package for such a machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tunehub._files.atomic import open_regular, write_file
from tunehub.target.features import llvm_features, of_one_maker
from tunehub_registry.exceptions import FormatError
from tunehub_registry.machine_profile import MachineProfile, encode_profile, parse_profile
from tunehub_registry.profiles import MAX_PROFILE_BYTES

FOLDER = "profiles"
P = TypeVar("P")


class MachineProfileError(ValueError):
    """The file of a profile cannot be used. The message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedProfile:
    """The profile that a package holds; ``package`` names it and its version."""

    profile: MachineProfile
    package: str

    def fits(self, cpu: str, mattr: Sequence[str]) -> bool:
        """Whether it is for such a target, whatever LLVM calls that: virtual machines hide their models. The number of
        cores may be another."""
        own = self.profile
        if (own.cpu, sorted(own.mattr)) == (cpu, sorted(mattr)):
            return True
        if not of_one_maker(own.cpu, cpu):
            return False
        features = llvm_features({"kind": "llvm", "mcpu": cpu, "mattr": list(mattr)})
        return bool(features) and features == llvm_features({"kind": "llvm", "mcpu": own.cpu, "mattr": list(own.mattr)})


def profile_path(cache: Path, cpu: str, mattr: Sequence[str], cores: int) -> Path:
    """Where the profile for such a target lies, if there is one."""
    digest = hashlib.sha256("\n".join([cpu, *sorted(mattr), str(cores)]).encode()).hexdigest()[:16]
    return cache / FOLDER / f"{digest}.json"


def write_profile(cache: Path, profile: MachineProfile) -> Path:
    """Keep ``profile``; returns where. Raises OSError."""
    path = profile_path(cache, profile.cpu, profile.mattr, profile.cores)
    write_file(path, encode_profile(profile))
    return path


def profile_in_file(path: Path, parse: Callable[[bytes, str], P], kind: str) -> P | None:
    """What ``parse`` makes of the file at ``path``, None without one. Raises MachineProfileError for a file that is no
    ``kind``."""
    try:
        with open_regular(path) as stream:
            return parse(stream.read(MAX_PROFILE_BYTES + 1), str(path))
    except FileNotFoundError:
        return None
    except (OSError, FormatError) as error:
        raise MachineProfileError(f"{path} is no {kind}: {error}") from error


def read_profile(cache: Path, cpu: str, mattr: Sequence[str], cores: int) -> MachineProfile | None:
    """The profile for such a target, None without one. Raises MachineProfileError for a file that holds none, or the
    one of another."""
    path = profile_path(cache, cpu, mattr, cores)
    profile = profile_in_file(path, parse_profile, "profile")
    if profile is None:
        return None
    if (profile.cpu, sorted(profile.mattr), profile.cores) != (cpu, sorted(mattr), cores):
        raise MachineProfileError(f"{path} is for another machine: {profile.cpu} with {profile.cores} cores")
    return profile
