"""A package file, and its version in an index on this machine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tunehub_builder.exceptions import PackingError
from tunehub_builder.tuning.journal import write_atomically
from tunehub_registry import index as registry_index
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import package_filename


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltPackage:
    """A package in memory. ``counts``: records, and workloads that were rejected or not checked."""

    manifest: Manifest
    data: bytes
    counts: dict[str, int]

    @property
    def sha256(self) -> str:
        """Of the package file, in hex."""
        return hashlib.sha256(self.data).hexdigest()


def publish_locally(built: BuiltPackage, output: Path, index: Path | None) -> Path:
    """Write the package, and with ``index`` also its new shard and index, the index last.

    Raises VersionConflictError when the index has this version with other content, FormatError for an index that
    cannot be read, WorkDirectoryError when the disk refuses.
    """
    if index is None:
        output.mkdir(parents=True, exist_ok=True)
        path = output / package_filename(built.manifest.name, built.manifest.version)
        write_atomically(path, [built.data])
        return path
    root = index.parent
    before = _read_index(index)
    update = registry_index.add_version(
        before, _read_shard(root, before, built.manifest.name), _shard_entry(built), target=built.manifest.target
    )
    path = root / registry_index.package_path(built.manifest.name, built.manifest.version)
    (root / update.shard_path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [built.data])
    write_atomically(root / update.shard_path, [update.shard_data])
    write_atomically(index, [registry_index.encode_index(update.index)])
    return path


def _read_index(path: Path) -> registry_index.Index:
    try:
        return registry_index.parse_index(path.read_bytes(), str(path))
    except OSError as error:
        remedy = 'create it with {"schema_version": "1.0", "serial": 0, "names": {}}, or leave --index out'
        raise PackingError(f"{path}: {error.strerror}; {remedy}") from error


def _read_shard(root: Path, index: registry_index.Index, name: str) -> registry_index.Shard | None:
    known = index.names.get(name)
    if known is None:
        return None
    path = root / known.shard_path
    try:
        return registry_index.parse_shard(path.read_bytes(), str(path))
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; the index names this shard: restore it") from error


def _shard_entry(built: BuiltPackage) -> registry_index.ShardEntry:
    manifest = built.manifest
    return registry_index.entry_of(
        manifest,
        file=registry_index.package_path(manifest.name, manifest.version),
        sha256=built.sha256,
        size=len(built.data),
        published=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
