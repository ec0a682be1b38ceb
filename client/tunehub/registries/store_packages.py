"""Package files of a registry, from its store."""

from __future__ import annotations

from io import BytesIO
from typing import BinaryIO

from tunehub.registries.source import store_failure
from tunehub_registry.index import ShardEntry
from tunehub_registry.stores.port import Store, StoreError


class StorePackages:
    """The part of the port `Registry` that does not depend on how the index is trusted: packages have hashes."""

    def __init__(self, store: Store, address: str) -> None:
        """`address` is what messages call the registry."""
        self._store = store
        self._address = address

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    def fetch_package(self, entry: ShardEntry) -> bytes:
        """As the port says."""
        stream = BytesIO()
        self.download_package(entry, stream, 0)
        return stream.getvalue()

    def download_package(self, entry: ShardEntry, stream: BinaryIO, offset: int) -> None:
        """As the port says."""
        try:
            self._store.download(entry.file, stream, size=entry.size, offset=offset)
        except StoreError as error:
            raise store_failure(error, self.address) from error

    def url(self, path: str) -> str:
        """As the port says."""
        return self._store.url(path)
