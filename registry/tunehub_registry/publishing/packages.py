"""Publishing and yanking packages, and putting documents beside them, in signed and unsigned registries alike."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from msgspec import UNSET, UnsetType, structs

from tunehub_registry.document import Document, describe_document
from tunehub_registry.exceptions import PackageError
from tunehub_registry.index import ShardEntry, Successor, entry_of, package_path
from tunehub_registry.machine_profile import PROFILE, parse_profile, profile_in
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import open_package, sha256_of
from tunehub_registry.publishing.blobs import Uploads
from tunehub_registry.publishing.changes import (
    AddVersions,
    NewVersion,
    SetDocument,
    SetSuccessor,
    SetYanked,
    find_version,
)
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, Ledger, RetryPolicy, transact
from tunehub_registry.stores.port import OnBytes
from tunehub_registry.trust.state import utc_now
from tunehub_registry.tuning_curves import curves_in

KEPT_IN_MEMORY = 64 << 20  # bytes; a larger package is read from its file once more when it is uploaded
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageFile:
    """A package that was read and verified. `data` is its content, or its file when it is large."""

    data: bytes | Path
    sha256: str
    size: int
    manifest: Manifest

    def version(
        self,
        *,
        transaction: str,
        published: str,
        yanked: str | None = None,
        documents: tuple[Document, ...] | UnsetType = UNSET,
        successor: Successor | UnsetType = UNSET,
    ) -> NewVersion:
        """What the registry will say of it. `published` is an ISO 8601 date."""
        manifest = self.manifest
        file = package_path(manifest.name, manifest.version, self.sha256)
        entry = entry_of(
            manifest, file=file, sha256=self.sha256, size=self.size, published=published, transaction=transaction
        )
        entry = structs.replace(entry, yanked=yanked, documents=documents, successor=successor)
        return NewVersion(target=manifest.target, entry=entry)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedVersion:
    """What became of a package: `published` by this transaction, or `present` with the same bytes before."""

    name: str
    entry: ShardEntry
    outcome: Literal["published", "present"]


def read_package(source: Path | bytes) -> PackageFile:
    """Read a package whole: its table of contents, its manifest, its machine profile, its tuning curves, and every
    member for damage.

    Raises PackageError, FormatError, and OSError when the file cannot be read.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    data = source.read_bytes() if isinstance(source, Path) and size <= KEPT_IN_MEMORY else source
    sha256 = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else sha256_of(data)
    name = str(source) if isinstance(source, Path) else "<memory>"
    with open_package(data, source=name) as package:
        for member in package.names:
            with package.open(member) as stream:
                while stream.read(_CHUNK):
                    pass
        manifest, profile = package.manifest, profile_in(package)
        if profile is not None:
            parse_profile(profile, f"{name}!{PROFILE}")
        curves_in(package)
    return PackageFile(data=data, sha256=sha256, size=size, manifest=manifest)


def publish(
    ledger: Ledger,
    packages: Sequence[PackageFile],
    *,
    retry: RetryPolicy = DEFAULT_RETRY,
    on_bytes: OnBytes | None = None,
    transaction: str | None = None,
) -> tuple[PublishedVersion, ...]:
    """Publish packages in one commit: all of them, or none. Publishing the same bytes again changes nothing.

    Whoever is not sure whether a transaction was committed runs it again with the same `transaction` id.

    Raises VersionConflictError when a version is there with other bytes (before anything is uploaded), PackageError
    when two packages are the same version, and as `transact`.
    """
    _check_distinct(packages)
    own = new_transaction() if transaction is None else transaction
    versions = [package.version(transaction=own, published=date_text(utc_now())) for package in packages]
    uploads = Uploads(ledger.store)

    def upload() -> None:
        for package, version in zip(packages, versions, strict=True):
            entry = version.entry
            uploads.ensure(entry.file, package.data, sha256=entry.sha256, size=entry.size, on_bytes=on_bytes)

    after = transact(ledger, AddVersions(versions=tuple(versions)), retry=retry, upload=upload)
    found = [find_version(after[version.target.name].shard, version.entry.version) for version in versions]
    return tuple(
        PublishedVersion(
            name=version.target.name, entry=entry, outcome="published" if entry.transaction == own else "present"
        )
        for version, entry in zip(versions, found, strict=True)
    )


def yank(ledger: Ledger, name: str, version: str, reason: str, *, retry: RetryPolicy = DEFAULT_RETRY) -> ShardEntry:
    """Hide a version from new resolutions; locks still get it. Raises NotFoundError, and as `transact`."""
    return _change_entry(ledger, SetYanked(name=name, version=version, reason=reason), retry)


def unyank(ledger: Ledger, name: str, version: str, *, retry: RetryPolicy = DEFAULT_RETRY) -> ShardEntry:
    """Take back a yank. Raises NotFoundError, and as `transact`."""
    return _change_entry(ledger, SetYanked(name=name, version=version, reason=None), retry)


def deprecate(
    ledger: Ledger,
    name: str,
    version: str | None,
    successor: Successor | None,
    *,
    retry: RetryPolicy = DEFAULT_RETRY,
) -> tuple[ShardEntry, ...]:
    """Name the successor of a version, or of all that are published (None); or take that back with None as successor.

    Resolutions take a deprecated version as before, and its users are told. Returns the entries that were meant. Raises
    NotFoundError, and as `transact`.
    """
    change = SetSuccessor(name=name, version=version, successor=successor)
    return change.entries(transact(ledger, change, retry=retry)[name].shard)


def attach(
    ledger: Ledger,
    name: str,
    version: str,
    *,
    package: str,
    kind: str,
    data: bytes,
    replaces: Document | UnsetType | None = UNSET,
    retry: RetryPolicy = DEFAULT_RETRY,
) -> ShardEntry:
    """Put a document beside a published version, instead of what is there of its kind; where `replaces` is given, only
    instead of that (None: of nothing).

    `package` is the SHA-256 of the package that the document is about. The caller has read the document and found it
    sound. Raises NotFoundError when no such version with these bytes is published, DocumentChangedError when something
    else is there than is to be replaced, FieldError for a document that is empty or too large, and as `transact`.
    """
    document = describe_document(kind, data)
    uploads = Uploads(ledger.store)

    def upload() -> None:
        uploads.ensure(document.file, data, sha256=document.sha256, size=document.size)

    change = SetDocument(name=name, version=version, package=package, document=document, replaces=replaces)
    return _change_entry(ledger, change, retry, upload)


def new_transaction() -> str:
    """A random id for a transaction."""
    return uuid.uuid4().hex


def date_text(moment: datetime) -> str:
    """A date as entries have it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _change_entry(
    ledger: Ledger, change: SetYanked | SetDocument, retry: RetryPolicy, upload: Callable[[], None] | None = None
) -> ShardEntry:
    after = transact(ledger, change, retry=retry, upload=upload)
    return find_version(after[change.name].shard, change.version)


def _check_distinct(packages: Iterable[PackageFile]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for package in packages:
        key = (package.manifest.name, package.manifest.version)
        if seen.setdefault(key, package.sha256) != package.sha256:
            remedy = "give one of them"
            raise PackageError(
                f"two different packages are {key[0]} {key[1]}", source=str(package.data)[:200], remedy=remedy
            )
