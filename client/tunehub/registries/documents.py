"""Documents beside packages, by their SHA-256: from the cache, else from the registry, and then kept."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.blob_cache import BlobCache, HashMismatchError, fetch_verified, is_sound

if TYPE_CHECKING:
    from tunehub.registries.port import Registry
    from tunehub_registry.document import Document
    from tunehub_registry.index import ShardEntry


def read_document(entry: ShardEntry, kind: str, registry: Registry, cache: BlobCache) -> bytes | None:
    """The document of a kind beside a version, with the hash that its entry states; None when there is none.

    Raises RegistryUnreadableError when it can be had nowhere. A cache that cannot be written does no harm.
    """
    document = entry.document(kind)
    return None if document is None else _from_anywhere(document, registry, cache)


def fetch_documents(entry: ShardEntry, registry: Registry, cache: BlobCache) -> None:
    """Put all documents of a version into the cache, so that they are there offline. Raises as `read_document`."""
    for document in entry.documents or ():
        _from_anywhere(document, registry, cache)


def _from_anywhere(document: Document, registry: Registry, cache: BlobCache) -> bytes:
    path = cache.document_path(document.sha256)
    if is_sound(path, document.sha256):
        with suppress(OSError):
            return path.read_bytes()
    try:
        data = fetch_verified(document.sha256, lambda: registry.fetch_document(document))
    except HashMismatchError as error:
        remedy = "the registry is damaged: publish the document again"
        raise RegistryUnreadableError(registry.address, f"{document.file}: {error}", remedy=remedy) from error
    with suppress(OSError):
        cache.write(path, lambda temporary: temporary.write_bytes(data))
    return data
