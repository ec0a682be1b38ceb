"""Reading registries: the port `Source` with its folder implementation, and the index and shards behind it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from tunehub.exceptions import RegistryUnreadableError, UnsupportedRegistryError
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import (
    INDEX_PATH,
    MAX_INDEX_BYTES,
    MAX_SHARD_BYTES,
    Index,
    IndexName,
    Shard,
    ShardEntry,
    parse_index,
    parse_shard,
)

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_NETWORK = frozenset({"http", "https", "s3"})


class Source(Protocol):
    """Files of one registry. `fetch` is the only way in, so that a store is one class with one method."""

    @property
    def address(self) -> str:
        """What messages call the registry."""

    def fetch(self, path: str, max_bytes: int) -> bytes:
        """The content of a file by its path relative to the registry's root.

        Raises RegistryUnreadableError when it is missing, cannot be read, or is larger than `max_bytes`.
        """


class FolderSource:
    """A registry in a folder."""

    def __init__(self, root: str | os.PathLike[str], address: str | None = None) -> None:
        """`address` is what messages call it, the path by default."""
        self._root = Path(root)
        self.address = address or str(self._root)

    def fetch(self, path: str, max_bytes: int) -> bytes:
        """As the port says."""
        if PurePosixPath(path).is_absolute() or ".." in path.split("/"):
            raise self._unreadable(f"{path!r} leads out of the registry", "the index is damaged: publish it again")
        try:
            with (self._root / path).open("rb") as stream:
                data = stream.read(max_bytes + 1)
        except FileNotFoundError:
            reason = f"{path} is missing in {self._root}"
            remedy = "is it the folder with index.json? `tunehub doctor` shows all registries"
            raise self._unreadable(reason, remedy) from None
        except OSError as error:
            raise self._unreadable(f"{path}: {error.strerror or error}", "check the folder's permissions") from None
        if len(data) > max_bytes:
            raise self._unreadable(f"{path} is larger than {max_bytes} bytes", "publish it again")
        return data

    def _unreadable(self, reason: str, remedy: str) -> RegistryUnreadableError:
        return RegistryUnreadableError(self.address, reason, remedy=remedy)


class Registry:
    """The index and the shards of a source, checked against their hashes and read at most once."""

    def __init__(self, source: Source) -> None:
        """Reads nothing yet."""
        self.source = source
        self._index: Index | None = None

    @property
    def address(self) -> str:
        """What messages call the registry."""
        return self.source.address

    def index(self) -> Index:
        """`index.json`. Raises RegistryUnreadableError."""
        if self._index is None:
            data = self.source.fetch(INDEX_PATH, MAX_INDEX_BYTES)
            try:
                self._index = parse_index(data, f"{self.address}/{INDEX_PATH}")
            except RegistryError as error:
                raise self._damaged(error) from error
        return self._index

    def shard(self, name: str, entry: IndexName) -> Shard:
        """All versions of `name`. Raises RegistryUnreadableError, also when the bytes are not those of the index."""
        data = self.source.fetch(entry.shard_path, entry.shard_size)
        if len(data) > MAX_SHARD_BYTES or hashlib.sha256(data).hexdigest() != entry.shard:
            raise RegistryUnreadableError(
                self.address, f"{entry.shard_path} does not have the hash that index.json states",
                remedy="the registry is damaged: publish it again or restore the file",
            )  # fmt: skip
        try:
            shard = parse_shard(data, f"{self.address}/{entry.shard_path}")
        except RegistryError as error:
            raise self._damaged(error) from error
        if shard.name != name:
            reason = f"{entry.shard_path} is the shard of {shard.name}, index.json takes it for that of {name}"
            raise RegistryUnreadableError(self.address, reason, remedy="publish the registry again")
        return shard

    def fetch_package(self, entry: ShardEntry) -> bytes:
        """The bytes of a package file, at most as many as published; the hash is the caller's to check."""
        return self.source.fetch(entry.file, entry.size)

    def _damaged(self, error: RegistryError) -> RegistryUnreadableError:
        remedy = getattr(error, "remedy", "publish it again")
        reason = f"{error}".removesuffix(f" ({remedy})")
        return RegistryUnreadableError(self.address, reason, remedy=remedy)


def open_registry(address: str, *, offline: bool = False, label: str | None = None) -> Registry:
    """Open the registry at `address` (a folder or `file://`); nothing is read yet.

    Raises UnsupportedRegistryError for the schemes that this version cannot read.
    """
    found = _SCHEME.match(address)
    scheme = found[1].lower() if found else "file"
    if found is None:
        return Registry(FolderSource(Path(address).expanduser(), label))
    if scheme == "file":
        return Registry(FolderSource(_file_path(address), label))
    needs = " and needs the network, which TUNEHUB_OFFLINE forbids" if offline and scheme in _NETWORK else ""
    raise UnsupportedRegistryError(
        address, f"the scheme {scheme}:// is not supported in this version of tunehub{needs}",
        remedy="use a folder: a plain path or file:///path",
    )  # fmt: skip


def _file_path(address: str) -> Path:
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost"):
        reason = f"file:// addresses name no host, this one names {parts.netloc!r}"
        raise UnsupportedRegistryError(address, reason, remedy="write file:///path, with three slashes")
    return Path(unquote(parts.path))
