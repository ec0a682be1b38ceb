"""What the publisher's side of signatures raises. Every message names the key or file, the reason, the remedy."""

from __future__ import annotations

from tunehub_registry.exceptions import RegistryFileError, RemediedError


class KeyUnusableError(RemediedError):
    """A key cannot be read, made or used for signing. Fields: `place` (file or URI), `reason`, `remedy`."""

    def __init__(self, place: str, reason: str, *, remedy: str) -> None:
        self.place = place
        super().__init__(reason, remedy=remedy, place=f"key {place}")


class UntrustedError(RegistryFileError):
    """Metadata is not what the trusted root leads to."""


class ExpiredError(UntrustedError):
    """Metadata is past its date, and what was asked for does not renew it."""


class RoleError(RemediedError):
    """A role, its keys or its names do not allow what was asked for."""
