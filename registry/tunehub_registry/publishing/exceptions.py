"""What publishing raises beside the errors of stores, keys and formats."""

from __future__ import annotations

from tunehub_registry.exceptions import RemediedError


class PublishError(RemediedError):
    """A registry cannot be written to as asked. Fields: `address`, `reason`, `remedy`."""

    def __init__(self, reason: str, *, address: str, remedy: str) -> None:
        self.address = address
        super().__init__(reason, remedy=remedy, place=address)


class NotInitialisedError(PublishError):
    """There is no registry at the address, or one of the other kind (signed or unsigned)."""


class AlreadyInitialisedError(PublishError):
    """There is a registry at the address already."""


class UnfinishedError(PublishError):
    """The time for a transaction is over. It may have been committed all the same: running it again finds out."""


class DocumentChangedError(PublishError):
    """The document that was to be replaced is no longer the one that is there: another writer was first."""
