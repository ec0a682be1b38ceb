"""The ledger of a registry without signatures: `index.json`, replaced as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from tunehub_registry.index import (
    INDEX_PATH,
    MAX_INDEX_BYTES,
    MAX_SHARD_BYTES,
    Index,
    IndexName,
    Shard,
    encode_index,
    encode_shard,
    parse_index,
    parse_shard,
    replace_shard,
)
from tunehub_registry.publishing.blobs import Uploads, exists
from tunehub_registry.publishing.changes import NameState
from tunehub_registry.publishing.exceptions import NotInitialisedError, PublishError
from tunehub_registry.publishing.ledger import LedgerState
from tunehub_registry.stores.port import Content, FileMissingError, IfMatch, Store, WritableStore
from tunehub_registry.trust.layout import TIMESTAMP_PATH


@dataclass(frozen=True, kw_only=True, slots=True)
class _Token:
    index: Index
    etag: str


class UnsignedLedger:
    """Reads and commits `index.json`. Not to be shared between threads."""

    def __init__(self, store: WritableStore) -> None:
        self.store = store
        self._uploads = Uploads(store)
        self._shards: dict[str, Shard] = {}
        self._content: Content | None = None
        self._checked = False

    def begin(self) -> None:
        """As the port says."""

    def read(self, names: Iterable[str]) -> LedgerState:
        """As the port says."""
        self._check_kind()
        content = self._read_index()
        index = parse_index(content.data, self.store.url(INDEX_PATH))
        states = {name: self._state(index.names.get(name), name) for name in names}
        return LedgerState(names=states, token=_Token(index=index, etag=content.etag))

    def commit(self, state: LedgerState, changed: Mapping[str, NameState]) -> None:
        """As the port says."""
        token = state.token
        assert isinstance(token, _Token)
        index = token.index
        for after in changed.values():
            update = replace_shard(index, after.shard, target=after.target)
            sha256 = hashlib.sha256(update.shard_data).hexdigest()
            self._uploads.ensure(update.shard_path, update.shard_data, sha256=sha256, size=len(update.shard_data))
            self._shards[sha256] = after.shard
            index = update.index
        data = encode_index(structs.replace(index, serial=token.index.serial + 1))
        etag = self.store.put(INDEX_PATH, data, IfMatch(etag=token.etag))
        self._content = Content(data=data, etag=etag)

    def _check_kind(self) -> None:
        if not self._checked and exists(self.store, TIMESTAMP_PATH):
            remedy = "leave --unsigned out, and give the keys"
            raise NotInitialisedError("this registry is signed", address=self.store.address, remedy=remedy)
        self._checked = True

    def _read_index(self) -> Content:
        known = self._content
        try:
            new = self.store.get(INDEX_PATH, max_bytes=MAX_INDEX_BYTES, etag=None if known is None else known.etag)
        except FileMissingError as error:
            remedy = "make one with `tunehub init STORE --unsigned`, or correct the address"
            raise NotInitialisedError(f"there is no {INDEX_PATH}", address=self.store.address, remedy=remedy) from error
        self._content = new or known
        assert self._content is not None
        return self._content

    def _state(self, known: IndexName | None, name: str) -> NameState | None:
        if known is None:
            return None
        shard = self._shards.get(known.shard)
        if shard is None:
            shard = read_shard(self.store, known)
            self._shards[known.shard] = shard
        if shard.name != name:
            raise PublishError(
                f"the index names the shard of {shard.name} for {name}", address=self.store.address, remedy=_DAMAGED
            )
        return NameState(target=known.target, shard=shard)


_DAMAGED = "the registry is damaged: restore the file from a mirror or an older version"


def read_shard(store: Store, known: IndexName) -> Shard:
    """A shard by what the index says of it. Raises PublishError for a wrong hash, FormatError and as `Store.get`."""
    content = store.get(known.shard_path, max_bytes=min(known.shard_size, MAX_SHARD_BYTES))
    assert content is not None  # no tag was given
    if hashlib.sha256(content.data).hexdigest() != known.shard:
        reason = f"{known.shard_path} does not have the hash in its name"
        raise PublishError(reason, address=store.address, remedy=_DAMAGED)
    return parse_shard(content.data, store.url(known.shard_path))


def shard_bytes(shard: Shard) -> tuple[bytes, str]:
    """A shard as it is written, and its SHA-256."""
    data = encode_shard(shard)
    return data, hashlib.sha256(data).hexdigest()
