"""A signing repository: signed registries made with python-tuf's formats alone, well or badly, on any place for files.

Everything stays in memory, so that a test can take any file back, change it and sign it again, with any key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Role,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from tunehub_registry.index import RecordSetSummary, Shard, ShardEntry, encode_shard, package_path, shard_path
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.catalogue import encode_catalogue
from tunehub_registry.trust.layout import CATALOGUE_FIELD, TIMESTAMP_PATH, versioned_path

from .conftest import ZNVER5, make_package


class Place(Protocol):
    """Where files go."""

    def write(self, path: str, data: bytes) -> None: ...
    def delete(self, path: str) -> None: ...


class FolderPlace:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)

    def write(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def delete(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)


class BucketPlace:
    """A prefix of the session's S3 server."""

    def __init__(self, seaweed: Any, prefix: str) -> None:
        self.address = seaweed.address(prefix)
        self._client = seaweed.client()
        self._prefix = prefix

    def write(self, path: str, data: bytes) -> None:
        self._client.put_object(Bucket="private", Key=f"{self._prefix}/{path}", Body=data)

    def delete(self, path: str) -> None:
        self._client.delete_object(Bucket="private", Key=f"{self._prefix}/{path}")


class SigningRegistry:
    """A signed registry with two publishers: `alice` has llvm-*, `bob` has cuda-*."""

    def __init__(self, place: Place, *, lifetime: timedelta = timedelta(days=7)) -> None:
        self.place = place
        self.keys = {role: CryptoSigner.generate_ed25519() for role in ("root", "targets", "online", "alice", "bob")}
        self.expires = datetime.now(timezone.utc).replace(microsecond=0) + lifetime
        self.files: dict[str, bytes] = {}
        self.shards: dict[str, Shard] = {}
        self.names: dict[str, TargetDescriptor] = {}
        self.owners: dict[str, str] = {}
        self.root = self._make_root(1)
        self.versions = {"targets": 0, "alice": 0, "bob": 0, "snapshot": 0, "timestamp": 0}
        self.meta: dict[str, MetaFile] = {}
        self.write_targets()
        self.write_role("alice")
        self.write_role("bob")
        self.commit()

    # --- what a publisher does

    def publish(
        self,
        target: TargetDescriptor = ZNVER5,
        version: str = "0.1.0",
        data: bytes | None = None,
        *,
        role: str = "alice",
        **options: Any,
    ) -> ShardEntry:
        """Publish a package by a role, up to the new timestamp. `options` are those of `make_package`."""
        entry = self.add_package(target, version, data, **options)
        self.add_entry(target, entry, role)
        self.write_role(role)
        self.commit()
        return entry

    def add_package(
        self, target: TargetDescriptor, version: str, data: bytes | None = None, **options: Any
    ) -> ShardEntry:
        package = make_package(target, version, data, **options)
        sha256 = hashlib.sha256(package).hexdigest()
        entry = ShardEntry(
            version=version, file=package_path(target.name, version, sha256), sha256=sha256, size=len(package),
            record_sets=(RecordSetSummary(tuner="meta_schedule", tvm=">=0.25,<0.28"),),
            published="2026-01-31T12:00:00Z",
        )  # fmt: skip
        self.write(entry.file, package)
        return entry

    def add_entry(self, target: TargetDescriptor, entry: ShardEntry, role: str = "alice") -> None:
        before = self.shards.get(target.name, Shard(name=target.name))
        shard = self.shards[target.name] = Shard(name=target.name, versions=(*before.versions, entry))
        self.names[target.name] = target
        self.owners[target.name] = role
        data = encode_shard(shard)
        self.write(shard_path(hashlib.sha256(data).hexdigest()), data)

    def write_targets(self, patterns: dict[str, list[str]] | None = None) -> None:
        patterns = patterns or {"alice": ["llvm-*"], "bob": ["cuda-*"]}
        publishers = [self.keys[name].public_key for name in patterns]
        roles = {
            name: DelegatedRole(name, [self.keys[name].public_key.keyid], 1, True, paths=paths)
            for name, paths in patterns.items()
        }
        delegations = Delegations({key.keyid: key for key in publishers}, roles)
        self.versions["targets"] += 1
        signed = Targets(self.versions["targets"], expires=self.expires, delegations=delegations)
        self._write_signed("targets", signed, "targets")

    def write_role(self, role: str, *, key: str | None = None, targets: dict[str, TargetFile] | None = None) -> None:
        if targets is None:
            targets = {name: self.target(name) for name, owner in self.owners.items() if owner == role}
        self.versions[role] += 1
        self._write_signed(role, Targets(self.versions[role], expires=self.expires, targets=targets), key or role)

    def target(self, name: str) -> TargetFile:
        data = encode_shard(self.shards[name])
        return TargetFile(len(data), {"sha256": hashlib.sha256(data).hexdigest()}, name)

    def commit(self) -> None:
        self.write_snapshot()
        self.write_timestamp()

    def write_snapshot(self, *, key: str = "online", **changes: MetaFile) -> None:
        meta = {**self.meta, **{f"{role}.json": file for role, file in changes.items()}}
        meta = {name: file for name, file in meta.items() if name != "snapshot.json"}
        self.versions["snapshot"] += 1
        fields = {CATALOGUE_FIELD: encode_catalogue(self.names)}
        signed = Snapshot(self.versions["snapshot"], expires=self.expires, meta=meta, unrecognized_fields=fields)
        self._write_signed("snapshot", signed, key)

    def write_timestamp(
        self, *, key: str = "online", expires: datetime | None = None, snapshot: MetaFile | None = None
    ) -> None:
        self.versions["timestamp"] += 1
        meta = snapshot or self.meta["snapshot.json"]
        signed = Timestamp(self.versions["timestamp"], expires=expires or self.expires, snapshot_meta=meta)
        self.write(TIMESTAMP_PATH, self.sign(signed, [key]))

    def rotate_root(self, version: int = 2) -> None:
        self.keys["online"] = CryptoSigner.generate_ed25519()
        self._make_root(version)
        self.commit()

    # --- what an attacker, or a test, does

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data
        self.place.write(path, data)

    def sign(self, signed: Any, keys: Iterable[str]) -> bytes:
        metadata = Metadata(signed)
        for key in keys:
            metadata.sign(self.keys[key], append=True)
        return metadata.to_bytes()

    def tamper(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Change a file behind its publisher's back."""
        self.write(path, change(self.files[path]))

    def path_of(self, role: str) -> str:
        return TIMESTAMP_PATH if role == "timestamp" else versioned_path(role, self.versions[role])

    def expire_timestamp(self) -> None:
        self.write_timestamp(expires=datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1))

    def _make_root(self, version: int) -> bytes:
        owners = {"root": "root", "targets": "targets", "snapshot": "online", "timestamp": "online"}
        keys = {self.keys[key].public_key.keyid: self.keys[key].public_key for key in owners.values()}
        roles = {role: Role([self.keys[key].public_key.keyid], 1) for role, key in owners.items()}
        root = Root(version, expires=self.expires, keys=keys, roles=roles, consistent_snapshot=True)
        data = self.sign(root, ["root"])
        self.write(versioned_path("root", version), data)
        return data

    def _write_signed(self, role: str, signed: Any, key: str) -> None:
        data = self.sign(signed, [key])
        self.write(versioned_path(role, self.versions[role]), data)
        self.meta[f"{role}.json"] = MetaFile(
            self.versions[role], len(data), {"sha256": hashlib.sha256(data).hexdigest()}
        )


def edit_signed(data: bytes, **fields: Any) -> bytes:
    """Metadata with other values and the old signatures."""
    value = json.loads(data)
    value["signed"].update(fields)
    return json.dumps(value).encode()
