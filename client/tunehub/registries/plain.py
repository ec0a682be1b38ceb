"""An unsigned registry: `index.json` names every package's shard by its hash. On any store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.failures import format_failure, last_known
from tunehub.registries.port import Access
from tunehub.registries.registry_cache import RegistryCache
from tunehub.registries.store_packages import StorePackages
from tunehub_registry.exceptions import FormatError, RegistryError
from tunehub_registry.index import INDEX_PATH, MAX_INDEX_BYTES, Index, Shard, parse_index
from tunehub_registry.stores.port import Store
from tunehub_registry.target import TargetDescriptor


class PlainRegistry(StorePackages):
    """The index and the shards of a store, checked against their hashes, and kept in the cache if there is one."""

    signed = False

    def __init__(self, store: Store, access: Access, label: str | None = None) -> None:
        """Reads nothing yet. `label` is what messages call it, the store's address by default."""
        super().__init__(store, label or store.address, access.on_problem)
        self.stale = False
        self._access = access
        self._index: Index | None = None
        self.cache = RegistryCache(access.cache, f"unsigned+{store.address}")

    def names(self) -> Mapping[str, TargetDescriptor]:
        """As the port says."""
        return {name: entry.target for name, entry in self._read_index().names.items()}

    def shard(self, name: str) -> Shard:
        """As the port says."""
        known = self._read_index().names.get(name)
        if known is None:
            raise RegistryUnreadableError(self.address, f"it has no {name}", remedy="`tunehub list` shows its names")
        data = self.cache.shard(known.shard)
        if data is None:
            content = self._get(known.shard_path, known.shard_size)
            assert content is not None  # no entity tag was given
            data = content.data
            if hashlib.sha256(data).hexdigest() != known.shard:
                raise RegistryUnreadableError(
                    self.address, f"{known.shard_path} does not have the hash that index.json states",
                    remedy="the registry is damaged: publish it again or restore the file",
                )  # fmt: skip
            self.cache.keep_shard(known.shard, data)
        return self._parse_shard(known.shard_path, data, name)

    def _read_index(self) -> Index:
        if self._index is None:
            try:
                self._index = self._present_index()
            except RegistryUnreadableError as error:
                kept = self.cache.index()
                if kept is None:
                    raise
                self.stale = True
                if not self._access.offline:
                    self._access.on_problem(last_known(error, self.address, self.cache.age()))
                self._index = self._parse(kept.data)
        return self._index

    def _present_index(self) -> Index:
        kept = self.cache.index()
        content = self._get(INDEX_PATH, MAX_INDEX_BYTES, kept.etag if kept else None)
        if content is not None:
            index = self._parse(content.data)
            self.cache.keep_index(content)
            return index
        assert kept is not None  # a store answers so only where it was given an entity tag
        self.cache.confirm_index()
        return self._parse(kept.data)

    def _parse(self, data: bytes) -> Index:
        left_out: list[FormatError] = []
        try:
            index = parse_index(data, f"{self.address}/{INDEX_PATH}", left_out=left_out)
        except RegistryError as error:
            raise format_failure(error, self.address) from error
        self._report(left_out)
        return index
