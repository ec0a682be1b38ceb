"""The present state of a signed registry, read and verified by those who publish to it.

As a client does it (TUF specification 5), from a root that is trusted beforehand. Two things differ: it is not kept
between processes, and dates can be excused, since renewing what has expired starts from it. What was verified is kept
while the object lives, by its hash: after a lost race only what changed is read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Generic, Literal, cast

from tuf.api.exceptions import LengthOrHashMismatchError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, T, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from tunehub_registry.index import MAX_SHARD_BYTES, Shard, parse_shard, shard_path
from tunehub_registry.stores.port import AccessDeniedError, Content, FileMissingError, Store
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.attached import AttachedStore
from tunehub_registry.trust.bins import bins_of, merged, names_in
from tunehub_registry.trust.catalogue import decode_catalogue
from tunehub_registry.trust.exceptions import ExpiredError, UntrustedError
from tunehub_registry.trust.layout import (
    CATALOGUE_FIELD,
    MAX_ROOT_BYTES,
    MAX_SNAPSHOT_BYTES,
    MAX_TARGETS_BYTES,
    MAX_TIMESTAMP_BYTES,
    ROOT_FIELD,
    TIMESTAMP_PATH,
    versioned_path,
)

Clock = Callable[[], datetime]
Excuse = Literal["root", "targets", "snapshot", "timestamp"]
MAX_ROOTS = 1024  # in one chain; python-tuf follows 256
_REMEDY = "the registry is damaged or was tampered with: restore the file from a mirror or an older version"
_RENEW: Mapping[str, str] = {
    "root": "its owners renew it: `tunehub refresh STORE --root-key …`",
    "targets": "its owner renews it: `tunehub refresh STORE --targets-key …`",
    "snapshot": "renew it: `tunehub refresh STORE --online-key …`",
    "timestamp": "renew it: `tunehub refresh STORE --online-key …`, best by a daily job",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedState:
    """A verified state. `etag` is the timestamp's: a write over it commits what was made from this state."""

    root: Root
    timestamp: Timestamp
    timestamp_data: bytes
    etag: str
    snapshot: Snapshot
    targets: Targets
    catalogue: Mapping[str, TargetDescriptor]

    @property
    def catalogue_text(self) -> str:
        """The catalogue as it is in the snapshot."""
        return cast(str, self.snapshot.unrecognized_fields.get(CATALOGUE_FIELD))


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified(Generic[T]):
    """Metadata with the hash of its file; `by` is the version of the metadata that names its keys."""

    sha256: str
    by: int
    signed: T


def utc_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(timezone.utc)


class StateReader:
    """Reads the states of one registry. Not to be shared between threads."""

    def __init__(self, store: Store, root: bytes, *, now: Clock = utc_now) -> None:
        """`root` is a trusted root of the registry, of any version.

        Raises UntrustedError when `root` is not a root signed by its own keys.
        """
        self.store = store
        self.files = AttachedStore(store)
        self.now = now
        self._roots = [self._first_root(root)]
        self._trusted: dict[str, Verified[Snapshot] | Verified[Targets]] = {}
        self._shards: dict[str, Shard] = {}
        self._timestamp: Content | None = None
        self._fresh = False
        self._seen = 0
        self._catalogue: tuple[str, Mapping[str, TargetDescriptor]] = ("", {})

    @property
    def root(self) -> Root:
        """The newest root that was read."""
        return self._roots[-1]

    def renew_root(self) -> Root:
        """Follow the chain of roots to its end (TUF specification 5.3).

        Raises UntrustedError for a root that is not signed by the one before it and by itself.
        """
        for _ in range(MAX_ROOTS):
            path = versioned_path(rules.ROOT, self.root.version + 1)
            try:
                data = self._get(path, MAX_ROOT_BYTES).data
            except (FileMissingError, AccessDeniedError):
                return self.root
            self._roots.append(self._next_root(data, path))
            self._fresh = False
        raise self._untrusted(f"more than {MAX_ROOTS} roots follow", rules.ROOT)

    def poll(self) -> bool:
        """Whether the timestamp is another one than the last that `read` used; the next `read` uses what this got."""
        known = self._timestamp
        if known is not None:
            new = self.files.get(TIMESTAMP_PATH, max_bytes=MAX_TIMESTAMP_BYTES, etag=known.etag)
            if new is None or new.etag == known.etag:
                return False
            self._timestamp = new
            self._fresh = True
        return True

    def read(self, *, excused: frozenset[Excuse] = frozenset(), former: bool = False) -> SignedState:
        """Read and verify the present state; `excused` roles may be past their dates.

        With `former`, the online and targets keys of the root before the newest count too: a rotation may have been
        cut off between the root and what its new keys have to sign.

        Raises UntrustedError, ExpiredError and what stores raise; FileMissingError means that there is no registry.
        """
        content = self._timestamp_content()
        try:
            state = self._verify(content, self._delegators(former))
        except UntrustedError:
            before = self.root.version
            if self.renew_root().version == before:
                raise
            state = self._verify(content, self._delegators(former))
        if self._names_newer_root(state.timestamp):
            self.renew_root()
            state = self._verify(content, self._delegators(former))
        if state.timestamp.version < self._seen:
            raise self._untrusted(f"version {state.timestamp.version} after version {self._seen}", TIMESTAMP_PATH)
        self._seen = state.timestamp.version
        self._check_dates(state, excused)
        return state

    def head(self, state: SignedState, publisher: str) -> Targets | None:
        """A publisher's own metadata, which may have its names in bins; None before the first publish.

        Raises UntrustedError and what stores raise.
        """
        return self._described(state.snapshot, publisher, state.targets)

    def role(self, state: SignedState, publisher: str) -> Targets | None:
        """A publisher's metadata with all its names, also those of bins. Raises as above."""
        return self._whole(state.snapshot, self.head(state, publisher))

    def bin(self, state: SignedState, head: Targets, role: str) -> Targets | None:
        """One bin of a publisher's; None where it was never written. Raises as above."""
        return self._described(state.snapshot, role, head)

    def part(self, state: SignedState, publisher: str, name: str) -> Targets | None:
        """What of a publisher's metadata has a name, or would have it. Raises as above."""
        head = self.head(state, publisher)
        bins = bins_of(head)
        if head is None or bins is None or name in head.targets:
            return head
        return self.bin(state, head, bins.get_role_for_target(name))

    def target(self, state: SignedState, publisher: str, name: str) -> TargetDescriptor | None:
        """What the newest version of a name is for: by the catalogue, or by its bin, signed. Raises as above."""
        head, part = self.head(state, publisher), self.part(state, publisher, name)
        if part is head:
            return state.catalogue.get(name)
        return names_in(part).machines.get(name)

    def _described(self, snapshot: Snapshot, role: str, delegator: Targets) -> Targets | None:
        meta = snapshot.meta.get(f"{role}.json")
        return None if meta is None else self._load(role, meta, Targets, [delegator], MAX_TARGETS_BYTES)

    def _whole(self, snapshot: Snapshot, head: Targets | None) -> Targets | None:
        bins = bins_of(head)
        if head is None or bins is None:
            return head
        present = (name.removesuffix(".json") for name in sorted(snapshot.meta))  # of 2 ** 32 that a head may claim
        found = [self._described(snapshot, role, head) for role in present if bins.is_delegated_role(role)]
        return merged(head, [each for each in found if each is not None])

    def shard(self, role: Targets | None, name: str) -> Shard | None:
        """The shard of a package name by its publisher's metadata; None for a name without one.

        Raises UntrustedError, FormatError and what stores raise.
        """
        target = None if role is None else role.targets.get(name)
        if target is None:
            return None
        sha256 = target.hashes.get("sha256", "")
        known = self._shards.get(sha256)
        if known is None:
            path = shard_path(sha256)
            data = self._get(path, min(target.length, MAX_SHARD_BYTES)).data
            if hashlib.sha256(data).hexdigest() != sha256:
                raise self._untrusted("its content does not have the hash in its name", path)
            known = parse_shard(data, self.store.url(path))
            if known.name != name:
                raise self._untrusted(f"it is the shard of {known.name}, not of {name}", path)
            self._shards[sha256] = known
        return known

    @property
    def roots(self) -> tuple[Root, ...]:
        """The roots that were read, the newest first."""
        return tuple(reversed(self._roots))

    def past_snapshot(self, meta: MetaFile) -> tuple[Snapshot, Targets]:
        """A snapshot that was the present one at some time, with its targets: signed by the keys of any of the roots.

        Raises UntrustedError for another content, and what stores raise.
        """
        roots = list(self.roots)
        snapshot = self._load(rules.SNAPSHOT, meta, Snapshot, roots, MAX_SNAPSHOT_BYTES)
        path = versioned_path(rules.SNAPSHOT, snapshot.version)
        targets = snapshot.meta.get("targets.json")
        if targets is None:
            raise self._untrusted("it does not list the targets role", path)
        return snapshot, self._load(rules.TARGETS, targets, Targets, roots, MAX_TARGETS_BYTES)

    def past_role(self, snapshot: Snapshot, targets: Targets, publisher: str) -> Targets | None:
        """A publisher's metadata as a snapshot describes it, with all its names, signed by the keys that these targets
        name; None before its first publish. Raises as above."""
        return self._whole(snapshot, self._described(snapshot, publisher, targets))

    def is_signed(self, role: str, version: int, delegator: Root) -> bool:
        """Whether a version of the metadata of a top-level role is signed by the keys that a root names. Raises as
        above."""
        path = versioned_path(role, version)
        metadata = self._parse(self._get(path, MAX_TARGETS_BYTES).data, Targets, path)
        return bool(delegator.get_verification_result(role, metadata.signed_bytes, metadata.signatures))

    def proposal(self, delegator: Root | Targets, role: str, version: int) -> tuple[Targets, MetaFile] | None:
        """A version of the metadata of a publisher, or of the top-level targets, that no snapshot need have, if it was
        made for the signing job.

        Raises UntrustedError when it is not signed by enough keys of the role, and what stores raise.
        """
        path = versioned_path(role, version)
        data = self._get(path, MAX_TARGETS_BYTES).data
        metadata = self._parse(data, Targets, path)
        self._check_signed(role, metadata, [delegator], path)
        if metadata.signed.version != version:
            raise self._untrusted(f"it says of itself that it is version {metadata.signed.version}", path)
        return (metadata.signed, rules.meta_of(version, data)) if rules.is_proposed(metadata.signed) else None

    def remember(self, role: str, data: bytes, signed: Snapshot | Targets, by: int) -> None:
        """Keep what this process itself signed and wrote, so that the next `read` need not get it."""
        self._trusted[role] = cast(
            "Verified[Snapshot] | Verified[Targets]",
            Verified(sha256=hashlib.sha256(data).hexdigest(), by=by, signed=signed),
        )

    def remember_shard(self, shard: Shard, data: bytes) -> None:
        """Keep a shard that this process itself wrote."""
        self._shards[hashlib.sha256(data).hexdigest()] = shard

    def remember_timestamp(self, data: bytes, etag: str, version: int) -> None:
        """Keep the timestamp that this process itself wrote."""
        self._seen = max(self._seen, version)
        self.files.learn(TIMESTAMP_PATH, data)
        self._timestamp = Content(data=data, etag=etag)
        self._fresh = False

    def _timestamp_content(self) -> Content:
        known = self._timestamp
        if known is not None and self._fresh:
            self._fresh = False
            return known
        new = self.files.get(TIMESTAMP_PATH, max_bytes=MAX_TIMESTAMP_BYTES, etag=None if known is None else known.etag)
        if new is None:
            assert known is not None
            return known
        self._timestamp = new
        return new

    def _delegators(self, former: bool) -> list[Root]:
        """The newest root first."""
        return self._roots[::-1][: 2 if former else 1]

    def _names_newer_root(self, timestamp: Timestamp) -> bool:
        version = timestamp.unrecognized_fields.get(ROOT_FIELD)
        return isinstance(version, int) and version > self.root.version

    def _verify(self, content: Content, roots: list[Root]) -> SignedState:
        timestamp = self._parse(content.data, Timestamp, TIMESTAMP_PATH)
        self._check_signed(rules.TIMESTAMP, timestamp, roots, TIMESTAMP_PATH)
        snapshot_meta = timestamp.signed.snapshot_meta
        snapshot = self._load(rules.SNAPSHOT, snapshot_meta, Snapshot, roots, MAX_SNAPSHOT_BYTES)
        path = versioned_path(rules.SNAPSHOT, snapshot.version)
        targets_meta = snapshot.meta.get("targets.json")
        if targets_meta is None:
            raise self._untrusted("it does not list the targets role", path)
        targets = self._load(rules.TARGETS, targets_meta, Targets, roots, MAX_TARGETS_BYTES)
        text = snapshot.unrecognized_fields.get(CATALOGUE_FIELD)
        if text != self._catalogue[0]:
            self._catalogue = (str(text), decode_catalogue(text, self.store.url(path)))
        return SignedState(
            root=self.root,
            timestamp=timestamp.signed,
            timestamp_data=content.data,
            etag=content.etag,
            snapshot=snapshot,
            targets=targets,
            catalogue=self._catalogue[1],
        )

    def _load(
        self, role: str, meta: MetaFile, kind: type[T], delegators: list[Root] | list[Targets], max_bytes: int
    ) -> T:
        """Metadata that `meta` describes: kept, or read and verified (TUF specification 5.5 and 5.6)."""
        known = self._trusted.get(role)
        versions = [delegator.version for delegator in delegators]
        if known is not None and (meta.hashes or {}).get("sha256") == known.sha256 and known.by in versions:
            return cast(T, known.signed)
        path = versioned_path(role, meta.version)
        data = self._get(path, min(meta.length or max_bytes, max_bytes)).data
        try:
            meta.verify_length_and_hashes(data)
        except LengthOrHashMismatchError as error:
            raise self._untrusted(str(error), path) from error
        metadata = self._parse(data, kind, path)
        by = self._check_signed(role, metadata, delegators, path)
        if metadata.signed.version != meta.version:
            raise self._untrusted(f"it says of itself that it is version {metadata.signed.version}", path)
        self.remember(role, data, cast("Snapshot | Targets", metadata.signed), by)
        return metadata.signed

    def _check_signed(self, role: str, metadata: Metadata[T], delegators: Sequence[Root | Targets], path: str) -> int:
        """The version of the delegator whose keys signed."""
        payload = metadata.signed_bytes
        for delegator in delegators:
            if delegator.get_verification_result(role, payload, metadata.signatures):
                return delegator.version
        result = delegators[0].get_verification_result(role, payload, metadata.signatures)
        raise self._untrusted(f"signed by {len(result.signed)} of {result.threshold} keys of its role {role}", path)

    def _check_dates(self, state: SignedState, excused: frozenset[Excuse]) -> None:
        now = self.now()
        dated = {"root": state.root, "targets": state.targets, "snapshot": state.snapshot, "timestamp": state.timestamp}
        for role, signed in dated.items():
            if role not in excused and signed.is_expired(now):
                path = TIMESTAMP_PATH if role == rules.TIMESTAMP else versioned_path(role, signed.version)
                reason = f"it expired at {signed.expires:%Y-%m-%d %H:%M} UTC"
                raise ExpiredError(reason, address=self.store.address, path=path, remedy=_RENEW[role])

    def _first_root(self, data: bytes) -> Root:
        path = "the trusted root"
        metadata = self._parse(data, Root, path)
        if not metadata.signed.get_root_verification_result(None, metadata.signed_bytes, metadata.signatures):
            raise self._untrusted("it is not signed by its own keys", path)
        return metadata.signed

    def _next_root(self, data: bytes, path: str) -> Root:
        metadata = self._parse(data, Root, path)
        if metadata.signed.version != self.root.version + 1:
            raise self._untrusted(f"it says of itself that it is version {metadata.signed.version}", path)
        result = metadata.signed.get_root_verification_result(self.root, metadata.signed_bytes, metadata.signatures)
        if not result:
            raise self._untrusted("it is not signed by enough keys of the root before it and of itself", path)
        return metadata.signed

    def _parse(self, data: bytes, kind: type[T], path: str) -> Metadata[T]:
        try:
            metadata = Metadata[T].from_bytes(data)
        except DeserializationError as error:
            raise self._untrusted(f"it is not TUF metadata: {error.__cause__ or error}", path) from None
        if not isinstance(metadata.signed, kind):
            raise self._untrusted(f"it is metadata of type {metadata.signed.type}, not {kind.type}", path)
        return metadata

    def _get(self, path: str, max_bytes: int) -> Content:
        content = self.files.get(path, max_bytes=max_bytes)
        assert content is not None  # no tag was given
        return content

    def _untrusted(self, reason: str, path: str) -> UntrustedError:
        return UntrustedError(reason, address=self.store.address, path=path, remedy=_REMEDY)
