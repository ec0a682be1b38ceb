"""A registry that is copied from, verified: signed by a root, or without signatures by its index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from tunehub_registry.document import Document
from tunehub_registry.index import INDEX_PATH, MAX_INDEX_BYTES, Index, ShardEntry, parse_index
from tunehub_registry.publishing.blobs import HashingSink, exists
from tunehub_registry.publishing.changes import NameState
from tunehub_registry.publishing.exceptions import NotInitialisedError, PublishError
from tunehub_registry.publishing.unsigned import read_shard
from tunehub_registry.stores.port import AccessDeniedError, FileMissingError, OnBytes, Store
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.layout import MAX_ROOT_BYTES, TIMESTAMP_PATH, versioned_path
from tunehub_registry.trust.state import Clock, SignedState, StateReader, utc_now


class Source(Protocol):
    """What is published in a registry."""

    @property
    def store(self) -> Store:
        """Where its files are."""

    def names(self) -> list[str]:
        """All names."""

    def state(self, name: str) -> NameState | None:
        """One name, None when it is not there. Raises what stores, trust and formats raise."""


class SignedSource:
    """A signed registry, read once: it stays the state of that moment."""

    def __init__(self, store: Store, root: bytes | None, *, now: Clock = utc_now) -> None:
        """`root` None takes the registry's own first root: then its parts fit together, and nothing more is known.

        Raises UntrustedError, ExpiredError, and what stores raise.
        """
        self.store = store
        self.reader = StateReader(store, first_root(store) if root is None else root, now=now)
        self.reader.renew_root()
        self.present: SignedState = self.reader.read()

    def names(self) -> list[str]:
        """As the port says; without names that a publisher lists although they are not delegated to it."""
        return sorted(name for role in self.roles() for name in self.names_of(role))

    def roles(self) -> Iterator[str]:
        """The publishers that have published."""
        for role in rules.publishers_of(self.present.targets):
            if f"{role}.json" in self.present.snapshot.meta:
                yield role

    def names_of(self, role: str) -> list[str]:
        """The names of a publisher."""
        metadata = self.reader.role(self.present, role)
        listed = metadata.targets if metadata is not None else ()
        return [name for name in listed if rules.publisher_for(self.present.targets, name) == role]

    def state(self, name: str) -> NameState | None:
        """As the port says."""
        role = rules.publisher_for(self.present.targets, name)
        target = None if role is None else self.reader.target(self.present, role, name)
        if role is None or target is None:
            return None
        shard = self.reader.shard(self.reader.part(self.present, role, name), name)
        return None if shard is None else NameState(target=target, shard=shard)


class UnsignedSource:
    """A registry without signatures, read once."""

    def __init__(self, store: Store) -> None:
        """Raises NotInitialisedError, FormatError, and what stores raise."""
        self.store = store
        try:
            content = store.get(INDEX_PATH, max_bytes=MAX_INDEX_BYTES)
        except (FileMissingError, AccessDeniedError) as error:
            remedy = "correct the address or the credentials"
            raise NotInitialisedError(
                f"no registry here: {error.reason}", address=store.address, remedy=remedy
            ) from error
        assert content is not None  # no tag was given
        self._index: Index = parse_index(content.data, store.url(INDEX_PATH))

    def names(self) -> list[str]:
        """As the port says."""
        return sorted(self._index.names)

    def state(self, name: str) -> NameState | None:
        """As the port says."""
        known = self._index.names.get(name)
        return None if known is None else NameState(target=known.target, shard=read_shard(self.store, known))


def open_source(store: Store, root: bytes | None, *, now: Clock = utc_now) -> SignedSource | UnsignedSource:
    """The registry in a store. With a root it has to be signed. Raises as the two classes."""
    if root is not None or exists(store, TIMESTAMP_PATH):
        return SignedSource(store, root, now=now)
    return UnsignedSource(store)


def first_root(store: Store) -> bytes:
    """The root with which a registry began. Raises as `Store.get`."""
    content = store.get(versioned_path(rules.ROOT, 1), max_bytes=MAX_ROOT_BYTES)
    assert content is not None  # no tag was given
    return content.data


def fetch_package(store: Store, entry: ShardEntry, folder: Path, *, on_bytes: OnBytes | None = None) -> Path:
    """Download a package into a folder, under its hash.

    Raises PublishError for other bytes, and as `Store.download`.
    """
    path = folder / entry.sha256
    with path.open("wb") as stream:
        sink = HashingSink(stream.write)
        store.download(entry.file, cast(BinaryIO, sink), size=entry.size, on_bytes=on_bytes)
    if sink.hexdigest() != entry.sha256:
        raise damaged(store, entry.file)
    return path


def fetch_small(store: Store, path: str, *, max_bytes: int, sha256: str | None = None) -> bytes:
    """A small file, with this hash if given. Raises PublishError for other bytes, and as `Store.get`."""
    content = store.get(path, max_bytes=max_bytes)
    assert content is not None  # no tag was given
    if sha256 is not None and hashlib.sha256(content.data).hexdigest() != sha256:
        raise damaged(store, path)
    return content.data


def fetch_document(store: Store, document: Document) -> bytes:
    """A document that an entry names. Raises as `fetch_small`."""
    return fetch_small(store, document.file, max_bytes=document.size, sha256=document.sha256)


def damaged(store: Store, path: str) -> PublishError:
    """The error for a file whose content is not what its registry says."""
    remedy = "the source is damaged or was tampered with: tell who runs it, or take another mirror"
    return PublishError(f"{path} does not have the hash that the registry states", address=store.address, remedy=remedy)
