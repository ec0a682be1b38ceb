"""What the profiles of CPUs and of GPUs have in common: small JSON documents of one version, with the day."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError

MAX_PROFILE_BYTES = 16 << 10
_VERSION = 1


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``measured`` is the day."""

    measured: str
    version: int = _VERSION

    def __post_init__(self) -> None:
        _fields.check_date("measured", self.measured)
        if self.version != _VERSION:
            raise FieldError("version", f"is {self.version}, known is {_VERSION}")


P = TypeVar("P", bound=DeviceProfile)


def parse(data: bytes, kind: type[P], source: str) -> P:
    """Read a profile; ``source`` names it in messages. Raises FormatError for anything that is wrong."""
    return _json.convert(_json.decode(data, source, max_bytes=MAX_PROFILE_BYTES), kind, source)


def encode(profile: DeviceProfile, device: str) -> bytes:
    """Write the profile of ``device``, indented, keys sorted. Raises FormatError if it could not be read again."""
    data = _json.encode(profile, indent=2)
    parse(data, type(profile), f"profile of {device}")
    return data
