"""The index of a registry: `index.json` (every name, with the hash of its shard) and the shards (every version).

A shard is immutable and lies under its own SHA-256; the index is the only file that changes, and its `serial` only
grows. Of an entry only `yanked` and `documents` ever change. The functions that make a new state are pure: writing it
is the store's.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs
from packaging.version import Version

from tunehub_registry import _fields, _json
from tunehub_registry.document import Document, check_documents
from tunehub_registry.exceptions import FieldError, FormatError, NotFoundError, VersionConflictError
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import package_filename
from tunehub_registry.target import TargetDescriptor, TargetName

SCHEMA_VERSION = "1.0"
SHARD_MINOR = 2  # 1.1 adds documents and licences, 1.2 packages without records; a shard without these stays older
INDEX_PATH = "index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_SHARD_BYTES = 4 << 20


class IndexName(msgspec.Struct, frozen=True, kw_only=True):
    """One name: its target (that of the newest version), and its shard by SHA-256 and size in bytes."""

    target: TargetDescriptor
    shard: _fields.Sha256
    shard_size: Annotated[int, Meta(ge=1, le=MAX_SHARD_BYTES)]

    @property
    def shard_path(self) -> str:
        """The path of the shard, relative to the registry's root."""
        return shard_path(self.shard)


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """`index.json`."""

    schema_version: str = SCHEMA_VERSION
    serial: _fields.Count = 0
    names: dict[TargetName, IndexName] = {}

    def __post_init__(self) -> None:
        for name, entry in self.names.items():
            if entry.target.name != name:
                raise FieldError(f"names[{name!r}].target", f"is the target {entry.target.name!r}")


class RecordSetSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a resolver needs of a record set before the package is there: its tuner, its TVM versions, and whether it
    has no record (since 1.2)."""

    tuner: _fields.TunerName
    tvm: str
    empty: bool = False

    def __post_init__(self) -> None:
        _fields.check_specifier("tvm", self.tvm)


class Successor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to use instead of a version: a package, versions of it (PEP 440; None for any), and why."""

    name: TargetName
    versions: str | None = None
    reason: _fields.Text = ""

    def __post_init__(self) -> None:
        if self.versions is not None:
            _fields.check_specifier("versions", self.versions)
        if not self.reason.isprintable():  # it is shown on terminals
            raise FieldError("reason", "expected printable characters on one line")

    def __str__(self) -> str:
        return f"{self.name}{self.versions or ''}{f': {self.reason}' if self.reason else ''}"


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One published version: the file (relative to the registry's root), its hash and size, and the date (ISO 8601).

    `yanked` is the reason why new resolutions leave the version out; locks still get it. `transaction` is a random id
    of the publish: who lost the answer to a commit finds out by it whether the commit was theirs. `documents` (since
    1.1) lie beside the package, one of a kind. `license` (since 1.1) is that of the package's manifest, where it states
    one. `successor` (since 1.1) deprecates the version: it is used as before, and its users are told. Nobody follows
    successors: one may name another, or the other way round.
    """

    version: str
    file: str
    sha256: _fields.Sha256
    size: _fields.Positive
    record_sets: tuple[RecordSetSummary, ...]
    published: str
    yanked: _fields.Text | None = None
    transaction: _fields.Label | UnsetType = UNSET
    documents: tuple[Document, ...] | UnsetType = UNSET
    license: _fields.License | UnsetType = UNSET
    successor: Successor | UnsetType = UNSET

    def __post_init__(self) -> None:
        _fields.check_version("version", self.version)
        _fields.check_path("file", self.file)
        _fields.check_date("published", self.published)
        check_documents(self.documents or ())

    def document(self, kind: str) -> Document | None:
        """The document of a kind, if there is one."""
        return next((document for document in self.documents or () if document.kind == kind), None)

    def lasting(self) -> ShardEntry:
        """What never changes of it: without what is said of it later."""
        return structs.replace(self, yanked=None, documents=UNSET, successor=UNSET)

    @property
    def tvm(self) -> tuple[str, ...]:
        """The version specifiers of the record sets."""
        return tuple(entry.tvm for entry in self.record_sets)

    @property
    def evidence_alone(self) -> bool:
        """Whether it has evidence and no record, as rules were measured to be as good."""
        return bool(self.record_sets) and all(entry.empty for entry in self.record_sets)

    @property
    def tuners(self) -> tuple[str, ...]:
        """The tuners of the record sets."""
        return tuple(entry.tuner for entry in self.record_sets)


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of one name, oldest first."""

    schema_version: str = SCHEMA_VERSION
    name: TargetName
    versions: tuple[ShardEntry, ...] = ()

    def __post_init__(self) -> None:
        for position, entry in enumerate(self.versions):
            expected = (package_path(self.name, entry.version), package_path(self.name, entry.version, entry.sha256))
            if entry.file not in expected:
                raise FieldError(f"versions[{position}].file", f"expected {expected[0]!r} or {expected[1]!r}")
        versions = [Version(entry.version) for entry in self.versions]
        if any(later <= earlier for earlier, later in itertools.pairwise(versions)):
            raise FieldError("versions", "expected each version once, oldest first")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexUpdate:
    """A new state of the registry, ready to be written: shard first, then the index as the commit point."""

    index: Index
    shard: Shard
    shard_data: bytes

    @property
    def shard_path(self) -> str:
        """Where `shard_data` belongs, relative to the registry's root."""
        return self.index.names[self.shard.name].shard_path


def shard_path(sha256: str) -> str:
    """The path of a shard, relative to the registry's root."""
    return f"packages/shards/{sha256}.json"


def package_path(name: str, version: str, sha256: str | None = None) -> str:
    """The path of a package, relative to the registry's root.

    Where several publish, `sha256` is a part of it: what a killed publisher left is then in nobody's way.
    """
    return "/".join(filter(None, ("packages", sha256, package_filename(name, version))))


def parse_index(data: bytes, source: str, *, left_out: list[FormatError] | None = None) -> Index:
    """Read `index.json`; names that are not valid go into `left_out`, if that is given, and the others are read.

    Raises UnsupportedFormatError on an unknown major schema version and FormatError on anything else that is wrong;
    warns NewerFormatWarning on a newer minor version.
    """
    value = _json.decode(data, source, max_bytes=MAX_INDEX_BYTES)
    _json.check_version(value, "schema_version", source, major=1, minor=0)
    return _json.convert_parts(value, Index, source, "names", left_out)


def encode_index(index: Index) -> bytes:
    """Write `index.json`, indented and sorted so that its diffs can be read. Raises FormatError on a bad index."""
    data = _json.encode(index, indent=2)
    parse_index(data, INDEX_PATH)
    return data


def parse_shard(data: bytes, source: str, *, left_out: list[FormatError] | None = None) -> Shard:
    """Read a shard; versions that are not valid go into `left_out`, if that is given. Raises and warns as
    `parse_index`. That the bytes have the expected hash is for the caller."""
    value = _json.decode(data, source, max_bytes=MAX_SHARD_BYTES)
    _json.check_version(value, "schema_version", source, major=1, minor=SHARD_MINOR)
    return _json.convert_parts(value, Shard, source, "versions", left_out)


def encode_shard(shard: Shard) -> bytes:
    """Write a shard, sorted and compact. Raises FormatError on a bad shard."""
    newer = any(entry.documents or entry.license or entry.successor for entry in shard.versions)
    empty = any(each.empty for entry in shard.versions for each in entry.record_sets)
    least = f"1.{SHARD_MINOR}" if empty else "1.1" if newer else SCHEMA_VERSION
    if shard.schema_version in (SCHEMA_VERSION, "1.1"):
        shard = structs.replace(shard, schema_version=max(least, shard.schema_version))
    data = _json.encode(shard)
    parse_shard(data, f"shard of {shard.name}")
    return data


def entry_of(
    manifest: Manifest, *, file: str, sha256: str, size: int, published: str, transaction: str | UnsetType = UNSET
) -> ShardEntry:
    """What a registry says of a package, not yanked. The fields are those of `ShardEntry`."""
    return ShardEntry(
        version=manifest.version,
        file=file,
        sha256=sha256,
        size=size,
        record_sets=tuple(
            RecordSetSummary(tuner=item.tuner, tvm=item.tvm, empty=item.count == 0) for item in manifest.record_sets
        ),
        published=published,
        transaction=transaction,
        license=UNSET if manifest.license is None else manifest.license,
    )


def insert_entry(shard: Shard, entry: ShardEntry) -> Shard:
    """The shard with one more version; the very same shard when the version is there with the same hash.

    Raises VersionConflictError when it is there with another hash.
    """
    twin = next((old for old in shard.versions if Version(old.version) == Version(entry.version)), None)
    if twin is not None and (twin.sha256, twin.version) != (entry.sha256, entry.version):
        raise VersionConflictError(
            f"is published as {twin.version} with sha256 {twin.sha256}, not {entry.sha256}",
            name=shard.name, version=entry.version,
        )  # fmt: skip
    if twin is not None:
        return shard
    versions = sorted((*shard.versions, entry), key=lambda item: Version(item.version))
    return structs.replace(shard, versions=tuple(versions))


def mark_yanked(shard: Shard, version: str, reason: str | None) -> Shard:
    """The shard with a version yanked for a reason, or not yanked with None.

    Raises NotFoundError when the shard does not have the version.
    """
    return _replace_fields(shard, version, yanked=reason)


def set_successor(shard: Shard, version: str, successor: Successor | None) -> Shard:
    """The shard with a version deprecated, or not with None. Raises NotFoundError when the shard does not have it."""
    return _replace_fields(shard, version, successor=successor or UNSET)


def set_documents(shard: Shard, version: str, documents: tuple[Document, ...]) -> Shard:
    """The shard with these documents beside a version, and no others.

    Raises NotFoundError when the shard does not have the version, FieldError when two are of a kind.
    """
    ordered = tuple(sorted(documents, key=lambda document: document.kind))
    return _replace_fields(shard, version, documents=ordered or UNSET)


def _replace_fields(shard: Shard, version: str, **fields: object) -> Shard:
    if version not in (entry.version for entry in shard.versions):
        raise NotFoundError(f"{shard.name} has no version {version}: see `tunehub show {shard.name}` for its versions")
    versions = tuple(
        structs.replace(entry, **fields) if entry.version == version else entry for entry in shard.versions
    )
    return structs.replace(shard, versions=versions)


def replace_shard(index: Index, shard: Shard, *, target: TargetDescriptor) -> IndexUpdate:
    """The index with another shard for its name, and the target of that name's newest version."""
    data = encode_shard(shard)
    entry = IndexName(target=target, shard=hashlib.sha256(data).hexdigest(), shard_size=len(data))
    names = {**index.names, shard.name: entry}
    return IndexUpdate(index=structs.replace(index, serial=index.serial + 1, names=names), shard=shard, shard_data=data)


def add_version(index: Index, shard: Shard | None, entry: ShardEntry, *, target: TargetDescriptor) -> IndexUpdate:
    """Add a version of the package `target.name`; `shard` is the name's present shard, None for a new name.

    Adding the same version with the same hash again changes nothing, not even the serial.
    Raises VersionConflictError when the version exists with another hash, FormatError when the entry is not valid.
    """
    current = _current(index, shard, target.name)
    changed = insert_entry(current, entry)
    if changed is current:
        return IndexUpdate(index=index, shard=current, shard_data=encode_shard(current))
    newest = changed.versions[-1] is entry or target.name not in index.names
    return replace_shard(index, changed, target=target if newest else index.names[target.name].target)


def yank_version(index: Index, shard: Shard, version: str, reason: str | None) -> IndexUpdate:
    """Yank a version with a reason, or take that back with None.

    Raises NotFoundError when the shard does not have the version.
    """
    changed = mark_yanked(_current(index, shard, shard.name), version, reason)
    return replace_shard(index, changed, target=index.names[shard.name].target)


def _current(index: Index, shard: Shard | None, name: str) -> Shard:
    """The shard that an update starts from; it must be the one that the index names, or a write would be lost."""
    known = index.names.get(name)
    stated = None if shard is None else hashlib.sha256(encode_shard(shard)).hexdigest()
    if (None if known is None else known.shard) != stated or (shard is not None and shard.name != name):
        raise VersionConflictError(
            f"the index names the shard {known and known.shard}, but the given one is {stated}", name=name, version="*"
        )
    return Shard(name=name) if shard is None else shard
