"""What a TUF root.json says, for people who decide whether to trust it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone

from tunehub_registry.exceptions import FormatError
from tunehub_registry.trust.layout import MAX_ROOT_BYTES

__all__ = ["MAX_ROOT_BYTES", "RootFile", "read_root"]
_REMEDY = "get the file from the registry's operator again: metadata/N.root.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RootFile:
    """A root: its version, the keys that may sign the next one, how many of them have to, and the end of its validity.

    `expires` is ISO 8601 in UTC; an expired root still leads to newer ones.
    """

    version: int
    key_ids: tuple[str, ...]
    threshold: int
    expires: str
    expired: bool
    sha256: str


def read_root(data: bytes, source: str) -> RootFile:
    """Read a root and check that its own keys signed it. Raises FormatError."""
    from tuf.api.exceptions import RepositoryError
    from tuf.api.metadata import Metadata, Root

    if len(data) > MAX_ROOT_BYTES:
        raise FormatError(f"it is larger than {MAX_ROOT_BYTES} bytes", source=source, remedy=_REMEDY)
    try:
        metadata = Metadata.from_bytes(data)
    except RepositoryError as error:
        raise FormatError(f"it is no TUF metadata: {error}", source=source, remedy=_REMEDY) from error
    root = metadata.signed
    if not isinstance(root, Root):
        raise FormatError(f"it is the metadata of {root.type}, not of root", source=source, remedy=_REMEDY)
    try:
        root.verify_delegate(Root.type, metadata.signed_bytes, metadata.signatures)
    except RepositoryError as error:
        raise FormatError(f"its own keys did not sign it: {error}", source=source, remedy=_REMEDY) from error
    role = root.roles[Root.type]
    return RootFile(
        version=root.version, key_ids=tuple(role.keyids), threshold=role.threshold, expires=root.expires.isoformat(),
        expired=root.is_expired(datetime.now(timezone.utc)), sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip
