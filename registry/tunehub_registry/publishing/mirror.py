"""Mirrors: a verbatim copy of a signed registry, or chosen versions published anew under the mirror's own keys.

A copy is made of blobs first, then metadata, the timestamp last: a run that was cut off is gone on with, and a later
run copies only what is new. It never replaces a timestamp by an older one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from tunehub_registry.document import Document
from tunehub_registry.exceptions import NotFoundError, RegistryError
from tunehub_registry.index import MAX_SHARD_BYTES, ShardEntry, shard_path
from tunehub_registry.package import sha256_of
from tunehub_registry.publishing.blobs import Uploads, exists
from tunehub_registry.publishing.changes import AddVersions, NameState, NewVersion
from tunehub_registry.publishing.exceptions import AlreadyInitialisedError, PublishError
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, Ledger, RetryPolicy, persist, transact
from tunehub_registry.publishing.packages import PackageFile, new_transaction, read_package
from tunehub_registry.publishing.source import (
    SignedSource,
    Source,
    fetch_document,
    fetch_package,
    fetch_small,
    first_root,
)
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    Content,
    FileMissingError,
    IfAbsent,
    IfMatch,
    OnBytes,
    Store,
    WritableStore,
)
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.checkpoint import MAX_NOTE_BYTES, Checkpoint, parse_checkpoint
from tunehub_registry.trust.layout import (
    MAX_ROOT_BYTES,
    MAX_SNAPSHOT_BYTES,
    MAX_TARGETS_BYTES,
    MAX_TIMESTAMP_BYTES,
    TIMESTAMP_PATH,
    versioned_path,
)
from tunehub_registry.trust.log import MAX_ENTRIES_BYTES, head_of, log_files, witness_path
from tunehub_registry.trust.state import StateReader

_MAX_BYTES = {rules.SNAPSHOT: MAX_SNAPSHOT_BYTES}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirrored:
    """What a run did: packages copied, of how many in names that changed or were asked for, and the bytes copied."""

    copied: int
    total: int
    size: int


def copy_registry(
    source: SignedSource,
    destination: WritableStore,
    *,
    witnesses: Collection[str] = (),
    retry: RetryPolicy = DEFAULT_RETRY,
    on_bytes: OnBytes | None = None,
) -> Mirrored:
    """Copy a signed registry as it is; clients verify the copy with the original's root. `witnesses` are the ids of the
    keys whose cosigned heads are copied, too: a store does not list what is in it.

    Raises AlreadyInitialisedError when another registry is in the destination, PublishError for a damaged source, and
    what stores raise.
    """
    copy = _Copy(source, destination, on_bytes, witnesses)
    return persist(copy.run, address=destination.address, retry=retry)


def republish(
    source: Source,
    ledger: Ledger,
    wanted: Mapping[str, SpecifierSet] | None,
    *,
    retry: RetryPolicy = DEFAULT_RETRY,
    on_bytes: OnBytes | None = None,
) -> Mirrored:
    """Publish versions of another registry in one commit, yanked or not and with documents as there.

    All versions when `wanted` is None.

    Raises NotFoundError when the source does not have what is wanted, PublishError or PackageError for a damaged
    source, VersionConflictError when the destination has other bytes under a version, and as `transact`.
    """
    found = list(_select(source, wanted))
    ledger.begin()
    present = ledger.read({state.shard.name for state, _ in found}).names if found else {}
    new = _Fetched()
    with tempfile.TemporaryDirectory(prefix="tunehub-mirror-") as folder:
        for state, entry in found:
            known = _twin(present[state.shard.name], entry)
            lacking = set(entry.documents or ()) - set((known and known.documents) or ())
            new.documents.extend((document, fetch_document(source.store, document)) for document in lacking)
            if known is None:
                new.add(_fetch_verified(source, state.shard.name, entry, Path(folder), on_bytes), entry)
            else:
                new.versions.append(NewVersion(target=state.target, entry=entry))
        if new.versions:
            change = AddVersions(versions=tuple(new.versions), follow=True)
            transact(ledger, change, retry=retry, upload=partial(new.upload, Uploads(ledger.store)))
    return Mirrored(copied=len(new.packages), total=len(found), size=sum(file.size for file, _ in new.packages))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fetched:
    """What a republication writes: versions, and the packages and documents that the destination lacks."""

    transaction: str = field(default_factory=new_transaction)
    versions: list[NewVersion] = field(default_factory=list)
    packages: list[tuple[PackageFile, ShardEntry]] = field(default_factory=list)
    documents: list[tuple[Document, bytes]] = field(default_factory=list)

    def add(self, file: PackageFile, entry: ShardEntry) -> None:
        """A package, published as its source's `entry` says."""
        version = file.version(
            transaction=self.transaction, published=entry.published, yanked=entry.yanked, documents=entry.documents,
            successor=entry.successor,
        )  # fmt: skip
        self.versions.append(version)
        self.packages.append((file, version.entry))

    def upload(self, uploads: Uploads) -> None:
        for file, entry in self.packages:
            uploads.ensure(entry.file, file.data, sha256=entry.sha256, size=entry.size)
        for document, data in self.documents:
            uploads.ensure(document.file, data, sha256=document.sha256, size=document.size)


def _select(source: Source, wanted: Mapping[str, SpecifierSet] | None) -> Iterator[tuple[NameState, ShardEntry]]:
    names = source.names() if wanted is None else sorted(wanted)
    for name in names:
        state = source.state(name)
        if state is None:
            if wanted is None:
                continue  # hidden from the catalogue
            raise NotFoundError(f"{name} is not in {source.store.address}: `tunehub list` shows the names")
        specifier = SpecifierSet() if wanted is None else wanted[name]
        entries = [entry for entry in state.shard.versions if specifier.contains(entry.version, prereleases=True)]
        if not entries:
            known = ", ".join(entry.version for entry in state.shard.versions)
            raise NotFoundError(f"{name}{specifier} is not in {source.store.address}; there is {known or 'no version'}")
        yield from ((state, entry) for entry in entries)


def _twin(present: NameState | None, entry: ShardEntry) -> ShardEntry | None:
    """The same bytes under the same version in the destination."""
    versions = () if present is None else present.shard.versions
    return next((item for item in versions if (item.version, item.sha256) == (entry.version, entry.sha256)), None)


def _fetch_verified(
    source: Source, name: str, entry: ShardEntry, folder: Path, on_bytes: OnBytes | None
) -> PackageFile:
    path = fetch_package(source.store, entry, folder, on_bytes=on_bytes)
    file = replace(read_package(path), data=path)  # many packages do not stay in memory
    found = (file.manifest.name, file.manifest.version)
    if found != (name, entry.version):
        remedy = "the source is damaged: tell who runs it"
        reason = f"{entry.file} is the package {' '.join(found)}, not {name} {entry.version}"
        raise PublishError(reason, address=source.store.address, remedy=remedy)
    return file


class _Copy:
    """One verbatim copy. `run` can be called again after an error, and goes on."""

    def __init__(
        self, source: SignedSource, destination: WritableStore, on_bytes: OnBytes | None, witnesses: Collection[str]
    ) -> None:
        self._source = source
        self._destination = destination
        self._on_bytes = on_bytes
        self._witnesses = tuple(witnesses)
        self._state = source.present
        self._uploads = Uploads(destination)
        self._copied = self._total = self._size = 0

    def run(self) -> Mirrored:
        done = self._copy()
        self._copy_notes()
        return done

    def _copy(self) -> Mirrored:
        self._copied = self._total = self._size = 0
        self._check_same_registry()
        before = self._timestamp()
        if before is not None and not self._is_newer(before):
            if before.data == self._state.timestamp_data:
                self._copy_missing_roots()
            return Mirrored(copied=0, total=0, size=0)
        self._copy_blobs(_Present.read(self._destination, self._source))
        held_back = self._copy_roots(before)
        self._copy_metadata()
        self._copy_log()
        self._commit(before)
        for version in held_back:
            self._copy_root(version)
        return Mirrored(copied=self._copied, total=self._total, size=self._size)

    def _check_same_registry(self) -> None:
        try:
            found = first_root(self._destination)
        except (FileMissingError, AccessDeniedError):
            if exists(self._destination, "index.json"):
                raise self._other("it is unsigned") from None
            return
        if found != first_root(self._source.store):
            raise self._other("it has another root")

    def _other(self, reason: str) -> AlreadyInitialisedError:
        remedy = "choose an empty place, or name the packages to publish them there with its own keys"
        return AlreadyInitialisedError(
            f"another registry is here: {reason}", address=self._destination.address, remedy=remedy
        )

    def _timestamp(self) -> Content | None:
        try:
            return self._destination.get(TIMESTAMP_PATH, max_bytes=MAX_TIMESTAMP_BYTES)
        except (FileMissingError, AccessDeniedError):
            return None

    def _is_newer(self, before: Content) -> bool:
        try:
            return self._state.timestamp.version > Metadata[Timestamp].from_bytes(before.data).signed.version
        except DeserializationError as error:
            remedy = "delete the file, then mirror again"
            reason = f"{TIMESTAMP_PATH} is not TUF metadata"
            raise PublishError(reason, address=self._destination.address, remedy=remedy) from error

    def _copy_blobs(self, present: _Present) -> None:
        with tempfile.TemporaryDirectory(prefix="tunehub-mirror-") as folder:
            for role in self._source.roles():
                metadata = self._source.reader.role(self._state, role)
                for name in self._source.names_of(role):
                    assert metadata is not None
                    sha256 = metadata.targets[name].hashes.get("sha256", "")
                    if sha256 not in present.shards:
                        self._copy_name(metadata, name, sha256, present, Path(folder))

    def _copy_name(self, role: Targets, name: str, sha256: str, present: _Present, folder: Path) -> None:
        shard = self._source.reader.shard(role, name)
        assert shard is not None
        known = present.packages(name)
        for entry in shard.versions:
            self._total += 1
            if entry.sha256 not in known and not exists(self._destination, entry.file):
                path = fetch_package(self._source.store, entry, folder, on_bytes=self._on_bytes)
                self._uploads.ensure(entry.file, path, sha256=sha256_of(path), size=entry.size)
                path.unlink()
                self._copied += 1
                self._size += entry.size
            self._copy_documents(entry)
        data = fetch_small(self._source.store, shard_path(sha256), max_bytes=MAX_SHARD_BYTES, sha256=sha256)
        self._uploads.ensure(shard_path(sha256), data, sha256=sha256, size=len(data))

    def _copy_documents(self, entry: ShardEntry) -> None:
        for document in entry.documents or ():
            if not exists(self._destination, document.file):
                data = fetch_document(self._source.store, document)
                self._uploads.ensure(document.file, data, sha256=document.sha256, size=document.size)

    def _copy_roots(self, before: Content | None) -> list[int]:
        """Copy the roots; returns those that have to wait, since what is in the copy now would not be valid by them."""
        present = None if before is None else _signed_files(self._destination, before.data)
        versions = list(range(1, self._state.root.version + 1))
        for position, version in enumerate(versions):
            if present is not None and not self._accepts(version, present):
                return versions[position:]
            self._copy_root(version)
        return []

    def _copy_missing_roots(self) -> None:
        """What a run left to do that was cut off after its commit."""
        for version in range(self._state.root.version, 0, -1):
            if exists(self._destination, versioned_path(rules.ROOT, version)):
                return
            self._copy_root(version)

    def _accepts(
        self, version: int, files: Mapping[str, Metadata[Timestamp] | Metadata[Snapshot] | Metadata[Targets]]
    ) -> bool:
        data = self._root_data(version)
        root = Metadata[Root].from_bytes(data).signed
        return all(
            root.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
            for role, metadata in files.items()
        )

    def _copy_root(self, version: int) -> None:
        _put_if_absent(self._destination, versioned_path(rules.ROOT, version), self._root_data(version))

    def _root_data(self, version: int) -> bytes:
        return fetch_small(self._source.store, versioned_path(rules.ROOT, version), max_bytes=MAX_ROOT_BYTES)

    def _copy_metadata(self) -> None:
        snapshot = self._state.snapshot
        files: dict[str, MetaFile] = {name.removesuffix(".json"): meta for name, meta in snapshot.meta.items()}
        files[rules.SNAPSHOT] = self._state.timestamp.snapshot_meta
        for role, meta in files.items():
            path = versioned_path(role, meta.version)
            if exists(self._destination, path):
                continue
            sha256 = (meta.hashes or {}).get("sha256")
            data = fetch_small(
                self._source.store, path, max_bytes=_MAX_BYTES.get(role, MAX_TARGETS_BYTES), sha256=sha256
            )
            _put_if_absent(self._destination, path, data)

    def _copy_log(self) -> None:
        """What clients ask for of the log. The files of its newest entry may not be written yet."""
        head = head_of(self._state.timestamp.unrecognized_fields, self._source.store.address)
        if head is None:
            return
        for path in dict.fromkeys((*log_files(head.size - 1), *log_files(head.size))):
            if not exists(self._destination, path):
                with suppress(FileMissingError, AccessDeniedError):
                    data = fetch_small(self._source.store, path, max_bytes=MAX_ENTRIES_BYTES)
                    _put_if_absent(self._destination, path, data)

    def _copy_notes(self) -> None:
        """The heads that witnesses cosigned. Not those beyond the head of the copy, which clients would take for a
        fork, nor in place of a later one."""
        present = self._timestamp() if self._witnesses else None
        if present is None:
            return
        fields = Metadata[Timestamp].from_bytes(present.data).signed.unrecognized_fields
        head = head_of(fields, self._destination.address)
        for path in map(witness_path, self._witnesses):
            new, old = _note(self._source.store, path), _note(self._destination, path)
            if head is None or new is None or new.head is None or head.origin != new.head.origin:
                continue
            is_later = old is None or old.head is None or old.head.size <= new.head.size
            if new.head.size <= head.size and is_later and (old is None or old.content.data != new.content.data):
                condition = IfAbsent() if old is None else IfMatch(etag=old.content.etag)
                self._destination.put(path, new.content.data, condition)

    def _commit(self, before: Content | None) -> None:
        condition = IfAbsent() if before is None else IfMatch(etag=before.etag)
        self._destination.put(TIMESTAMP_PATH, self._state.timestamp_data, condition)


class _Present:
    """What an earlier run has copied for certain: what the destination's own valid metadata refers to."""

    def __init__(self, reader: StateReader | None, roles: Mapping[str, Targets]) -> None:
        self._reader = reader
        self._roles = roles
        self.shards = {target.hashes.get("sha256", "") for role in roles.values() for target in role.targets.values()}

    @classmethod
    def read(cls, destination: WritableStore, source: SignedSource) -> _Present:
        """Nothing is certain when the destination cannot be read or verified; then each file is looked for."""
        with suppress(RegistryError):
            reader = StateReader(destination, first_root(destination))
            reader.renew_root()
            state = reader.read(excused=frozenset({"root", "targets", "snapshot", "timestamp"}))
            roles = {name: reader.role(state, name) for name in rules.publishers_of(state.targets)}
            return cls(reader, {name: role for name, role in roles.items() if role is not None})
        return cls(None, {})

    def packages(self, name: str) -> set[str]:
        """The hashes of the packages of a name."""
        if self._reader is None:
            return set()
        shards = [self._reader.shard(role, name) for role in self._roles.values()]
        return {entry.sha256 for shard in shards if shard is not None for entry in shard.versions}


def _signed_files(
    store: WritableStore, timestamp: bytes
) -> dict[str, Metadata[Timestamp] | Metadata[Snapshot] | Metadata[Targets]]:
    """The present metadata of the top-level roles in a copy."""
    first = Metadata[Timestamp].from_bytes(timestamp)
    path = versioned_path(rules.SNAPSHOT, first.signed.snapshot_meta.version)
    snapshot = Metadata[Snapshot].from_bytes(fetch_small(store, path, max_bytes=MAX_SNAPSHOT_BYTES))
    path = versioned_path(rules.TARGETS, snapshot.signed.meta["targets.json"].version)
    targets = Metadata[Targets].from_bytes(fetch_small(store, path, max_bytes=MAX_TARGETS_BYTES))
    return {rules.TIMESTAMP: first, rules.SNAPSHOT: snapshot, rules.TARGETS: targets}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Note:
    """A file of a witness, and the head in it; None for what is no note."""

    content: Content
    head: Checkpoint | None


def _note(store: Store, path: str) -> _Note | None:
    try:
        content = store.get(path, max_bytes=MAX_NOTE_BYTES)
    except (FileMissingError, AccessDeniedError):
        return None
    assert content is not None  # no tag was given
    with suppress(ValueError):
        return _Note(content=content, head=parse_checkpoint(content.data.decode()))
    return _Note(content=content, head=None)


def _put_if_absent(store: WritableStore, path: str, data: bytes) -> None:
    with suppress(ConflictError):  # it is immutable: a run before this one wrote it
        store.put(path, data, IfAbsent())
