"""Which packages a compile looked through, for audits: reports and libraries say it. Pure."""

from __future__ import annotations

import msgspec

FOLDER = "a folder"


class OriginPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package whose records a compile looked through. `sha256` is that of its file; `registry` the address where that
    was found, or was when it was locked, `embedded`, or `a folder`: of which one, only that machine knows."""

    name: str
    version: str
    sha256: str
    registry: str

    @property
    def label(self) -> str:
        """Name and version, as reports show it."""
        return f"{self.name} {self.version}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a compile went by: its `packages`, nearest first, the SHA-256 of the lock file that pinned them (None
    without one), and of the programs whose rules choose what has no record (None where nobody asked)."""

    packages: tuple[OriginPackage, ...] = ()
    lock_sha256: str | None = None
    rules_sha256: str | None = None


def place_of(address: str) -> str:
    """An address as origins state it: the same for everybody who reads the same registry."""
    return address if "://" in address or address == "embedded" else FOLDER
