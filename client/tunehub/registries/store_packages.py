"""What every registry over a store has in common: reading small files, and packages by their hashes."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import BinaryIO

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.failures import format_failure, parts_left_out, store_failure
from tunehub.registries.port import OnProblem
from tunehub_registry.document import Document
from tunehub_registry.exceptions import FormatError, RegistryError
from tunehub_registry.index import Shard, ShardEntry, parse_shard
from tunehub_registry.stores.port import Content, Store, StoreError
from tunehub_registry.target import TargetDescriptor


class StorePackages:
    """The part of the port `Registry` that does not depend on how the index is trusted: packages have hashes."""

    def __init__(self, store: Store, address: str, on_problem: OnProblem) -> None:
        """`address` is what messages call the registry; `on_problem` gets what is left out of its files."""
        self._store = store
        self._address = address
        self._on_problem = on_problem

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    def names(self) -> Mapping[str, TargetDescriptor]:
        """As the port says."""
        raise NotImplementedError

    def find(self, name: str) -> TargetDescriptor | None:
        """As the port says."""
        return self.names().get(name)

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

    def fetch_document(self, document: Document) -> bytes:
        """As the port says."""
        content = self._get(document.file, document.size)
        assert content is not None  # no entity tag was given
        return content.data

    def url(self, path: str) -> str:
        """As the port says."""
        return self._store.url(path)

    def _get(self, path: str, max_bytes: int, etag: str | None = None) -> Content | None:
        """A small file; None when it still has the tag. Raises RegistryUnreadableError, caused by the StoreError."""
        try:
            return self._store.get(path, max_bytes=max_bytes, etag=etag)
        except StoreError as error:
            raise store_failure(error, self.address) from error

    def _parse_shard(self, path: str, data: bytes, name: str) -> Shard:
        """The shard in these bytes, which have the right hash, but for versions that are not valid. Raises
        RegistryUnreadableError."""
        left_out: list[FormatError] = []
        try:
            shard = parse_shard(data, f"{self.address}/{path}", left_out=left_out)
        except RegistryError as error:
            raise format_failure(error, self.address) from error
        self._report(left_out)
        if shard.name != name:
            reason = f"{path} is the shard of {shard.name}, but it is published as that of {name}"
            raise RegistryUnreadableError(self.address, reason, remedy="publish the registry again")
        return shard

    def _report(self, left_out: list[FormatError]) -> None:
        if left_out:
            self._on_problem(parts_left_out(left_out, self.address))
