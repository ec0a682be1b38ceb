"""An unsigned registry: `index.json` names every package's shard by its hash. On any store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from io import BytesIO
from typing import BinaryIO

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registry_source import format_failure, store_failure
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import (
    INDEX_PATH,
    MAX_INDEX_BYTES,
    Index,
    Shard,
    ShardEntry,
    parse_index,
    parse_shard,
)
from tunehub_registry.stores.port import Store, StoreError
from tunehub_registry.target import TargetDescriptor


class PlainRegistry:
    """The index and the shards of a store, checked against their hashes."""

    def __init__(self, store: Store, label: str | None = None) -> None:
        """Reads nothing yet. `label` is what messages call it, the store's address by default."""
        self._store = store
        self._address = label or store.address
        self._index: Index | None = None

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    def names(self) -> Mapping[str, TargetDescriptor]:
        """As the port says."""
        return {name: entry.target for name, entry in self._read_index().names.items()}

    def shard(self, name: str) -> Shard:
        """As the port says."""
        known = self._read_index().names.get(name)
        if known is None:
            raise RegistryUnreadableError(self.address, f"it has no {name}", remedy="`tunehub list` shows its names")
        data = self._get(known.shard_path, known.shard_size)
        if hashlib.sha256(data).hexdigest() != known.shard:
            raise RegistryUnreadableError(
                self.address, f"{known.shard_path} does not have the hash that index.json states",
                remedy="the registry is damaged: publish it again or restore the file",
            )  # fmt: skip
        try:
            shard = parse_shard(data, f"{self.address}/{known.shard_path}")
        except RegistryError as error:
            raise format_failure(error, self.address) from error
        if shard.name != name:
            reason = f"{known.shard_path} is the shard of {shard.name}, index.json takes it for that of {name}"
            raise RegistryUnreadableError(self.address, reason, remedy="publish the registry again")
        return shard

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

    def _read_index(self) -> Index:
        if self._index is None:
            data = self._get(INDEX_PATH, MAX_INDEX_BYTES)
            try:
                self._index = parse_index(data, f"{self.address}/{INDEX_PATH}")
            except RegistryError as error:
                raise format_failure(error, self.address) from error
        return self._index

    def _get(self, path: str, max_bytes: int) -> bytes:
        try:
            content = self._store.get(path, max_bytes=max_bytes)
        except StoreError as error:
            raise store_failure(error, self.address) from error
        assert content is not None  # no entity tag was given
        return content.data
