"""`machine_profile.json` of a package, and of a user's cache: what was measured of a CPU for the rules that choose
schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tunehub_registry import profiles
from tunehub_registry.profiles import MAX_PROFILE_BYTES

if TYPE_CHECKING:
    from tunehub_registry.package import Package

PROFILE = "machine_profile.json"

_Seconds = Annotated[float, Meta(ge=1e-13, le=1.0)]
_BytesASecond = Annotated[float, Meta(ge=1e6, le=1e14)]
_Feature = Annotated[str, Meta(pattern=r"^[+-][a-z0-9._-]{1,63}\Z")]


class MachineProfile(profiles.DeviceProfile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``multiply_add_s``: of one vector of float32 on one core, where many are independent, ``dependent_s``: where each
    waits for the one before. ``memory_bytes``: that one core reads from memory in a second. ``region_s``: what a
    parallel region of all ``cores`` takes that does nothing.

    ``cached_bytes``: that one core reads in a second of what its second-level cache holds; None in older profiles.
    None where the CPU has no such instruction: ``pairs_s``: of one vector of pairs of bfloat16, twice as many
    multiply-adds; ``tiles_s``: as that, by instructions that multiply matrices; ``byte_tiles_s``: the same of groups of
    four bytes, four times as many. ``two_tiles``: times as long as one tile of rows in registers take two, while all
    ``cores`` multiply: more than one where other programs use the same cores; None also where nobody measured it.
    ``cpu`` and ``mattr`` are those of the target that it is for.
    """

    cpu: Annotated[str, Meta(min_length=1, max_length=64)]
    mattr: Annotated[tuple[_Feature, ...], Meta(max_length=256)]
    cores: Annotated[int, Meta(ge=1, le=1 << 16)]
    multiply_add_s: _Seconds
    dependent_s: _Seconds
    memory_bytes: _BytesASecond
    region_s: _Seconds
    pairs_s: _Seconds | None = None
    tiles_s: _Seconds | None = None
    byte_tiles_s: _Seconds | None = None
    cached_bytes: _BytesASecond | None = None
    two_tiles: Annotated[float, Meta(ge=0.5, le=4.0)] | None = None


def parse_profile(data: bytes, source: str) -> MachineProfile:
    """Read a profile; ``source`` names it in messages. Raises FormatError for anything that is wrong."""
    return profiles.parse(data, MachineProfile, source)


def encode_profile(profile: MachineProfile) -> bytes:
    """Write a profile, indented, keys sorted. Raises FormatError if it could not be read again."""
    return profiles.encode(profile, profile.cpu)


def profile_in(package: Package) -> bytes | None:
    """The profile that a package holds, unread, or None; of one that is too large just enough to see that. Raises
    PackageError where it is damaged."""
    if PROFILE not in package.names:
        return None
    with package.open(PROFILE) as stream:
        return stream.read(MAX_PROFILE_BYTES + 1)
