"""What the publisher's side of signatures raises. Every message names the key or file, the reason, the remedy."""

from __future__ import annotations

from tunehub_registry.exceptions import RegistryError


class KeyUnusableError(RegistryError):
    """A key cannot be read, made or used for signing. Fields: `place` (file or URI), `reason`, `remedy`."""

    def __init__(self, place: str, reason: str, *, remedy: str) -> None:
        self.place = place
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"key {place}: {reason} ({remedy})")


class UntrustedError(RegistryError):
    """Metadata is not what the trusted root leads to. Fields: `address`, `path`, `reason`, `remedy`."""

    def __init__(self, reason: str, *, address: str, path: str, remedy: str) -> None:
        self.address = address
        self.path = path
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{address}: {path}: {reason} ({remedy})")


class ExpiredError(UntrustedError):
    """Metadata is past its date, and what was asked for does not renew it."""


class RoleError(RegistryError):
    """A role, its keys or its names do not allow what was asked for. Fields: `reason`, `remedy`."""

    def __init__(self, reason: str, *, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason} ({remedy})")
