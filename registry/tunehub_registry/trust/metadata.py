"""New states of TUF metadata. Pure: what is read or written is the caller's, and so is the time.

Roles and formats: TUF specification 1.0, section 4. `root`, `targets`, `snapshot` and `timestamp` are its top-level
roles; every publisher is a delegated targets role (4.5), terminating, for names that match its patterns. The objects of
python-tuf can be changed; nothing here changes one that it was given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from types import MappingProxyType

import msgspec
from securesystemslib.signer import Key, Signer
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Role,
    Root,
    Signed,
    Snapshot,
    T,
    TargetFile,
    Targets,
    Timestamp,
)

from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.attached import encode_attached
from tunehub_registry.trust.exceptions import KeyUnusableError, RoleError
from tunehub_registry.trust.layout import (
    CATALOGUE_FIELD,
    LOG_FIELD,
    PROPOSED_FIELD,
    PROPOSED_TARGET,
    REVIEWED_FIELD,
    ROOT_FIELD,
)

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
TOP_LEVEL = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
ONLINE = (SNAPSHOT, TIMESTAMP)  # the roles of the online key
LIFETIMES: Mapping[str, timedelta] = MappingProxyType(
    {
        ROOT: timedelta(days=730),
        TARGETS: timedelta(days=365),
        SNAPSHOT: timedelta(days=30),
        TIMESTAMP: timedelta(days=7),
    }
)
PUBLISHER_LIFETIME = timedelta(days=365)

_PUBLISHER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PATTERN = re.compile(r"[a-z0-9._*?-]{1,97}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The keys of a role, and how many of them have to sign."""

    keys: tuple[Key, ...]
    threshold: int = 1

    def __post_init__(self) -> None:
        ids = [key.keyid for key in self.keys]
        if len(set(ids)) != len(ids):
            raise RoleError("a key is given twice", remedy="give each key once: a threshold counts different keys")
        if not 1 <= self.threshold <= len(ids):
            reason = f"a threshold of {self.threshold} of {len(ids)} keys cannot be reached"
            raise RoleError(reason, remedy="give more keys, or a threshold from 1 to their number")

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys."""
        return tuple(key.keyid for key in self.keys)

    def admits(self, before: Grant) -> bool:
        """Whether whatever enough keys of `before` have signed is signed by enough of these."""
        return set(before.key_ids) <= set(self.key_ids) and self.threshold <= before.threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class Publisher:
    """Who may publish the names that match one of `patterns` (`*` and `?` as in a shell); `reviewed`: only what a
    review has verified."""

    name: str
    patterns: tuple[str, ...]
    grant: Grant
    reviewed: bool = False

    def __post_init__(self) -> None:
        if not _PUBLISHER_NAME.fullmatch(self.name) or self.name in TOP_LEVEL:
            remedy = f"use lower-case letters, digits, - and _, and none of {', '.join(TOP_LEVEL)}"
            raise RoleError(f"{self.name!r} cannot be the name of a publisher", remedy=remedy)
        if not self.patterns:
            raise RoleError(f"{self.name} gets no names", remedy="give patterns, such as --names 'llvm-znver*'")
        wrong = next((pattern for pattern in self.patterns if not _PATTERN.fullmatch(pattern)), None)
        if wrong is not None:
            remedy = "use what package names consist of (a-z, 0-9, . _ -), with * and ?"
            raise RoleError(f"{wrong!r} is not a pattern for package names", remedy=remedy)


def lifetime_of(role: str) -> timedelta:
    """How long new metadata of a role is valid."""
    return LIFETIMES.get(role, PUBLISHER_LIFETIME)


def near_expiry(signed: Signed, role: str, now: datetime) -> bool:
    """Whether less than a third of a role's lifetime is left."""
    return signed.expires - now < lifetime_of(role) / 3


def make_root(version: int, grants: Mapping[str, Grant], now: datetime) -> Root:
    """A root with the grants of the four top-level roles (TUF specification 4.3)."""
    keys = {key.keyid: key for grant in grants.values() for key in grant.keys}
    roles = {name: Role(list(grant.key_ids), grant.threshold) for name, grant in grants.items()}
    return Root(version=version, expires=now + LIFETIMES[ROOT], keys=keys, roles=roles, consistent_snapshot=True)


def grants_of(root: Root) -> dict[str, Grant]:
    """The grants in a root."""
    return {name: _grant(role, root.keys) for name, role in root.roles.items()}


def publishers_of(targets: Targets) -> dict[str, Publisher]:
    """All publishers by name."""
    delegations = targets.delegations
    if delegations is None or delegations.roles is None:
        return {}
    return {
        name: Publisher(
            name=name,
            patterns=tuple(role.paths or ()),
            grant=_grant(role, delegations.keys),
            reviewed=role.unrecognized_fields.get(REVIEWED_FIELD) is True,
        )
        for name, role in delegations.roles.items()
    }


def publisher_for(targets: Targets, name: str) -> str | None:
    """The publisher to whom a package name is delegated, or None."""
    if targets.delegations is None:
        return None
    return next((role for role, _ in targets.delegations.get_roles_for_target(name)), None)


def check_no_overlap(publishers: Iterable[Publisher], newcomer: Publisher) -> None:
    """Raise RoleError when some name could belong to the newcomer and to another publisher."""
    for other in publishers:
        for pattern in newcomer.patterns if other.name != newcomer.name else ():
            rival = next((theirs for theirs in other.patterns if patterns_overlap(pattern, theirs)), None)
            if rival is not None:
                reason = f"names that match {pattern!r} of {newcomer.name} can match {rival!r} of {other.name}"
                raise RoleError(reason, remedy="give each publisher names of its own")


def patterns_overlap(one: str, other: str) -> bool:
    """Whether a text exists that matches both patterns."""

    @cache
    def meet(i: int, j: int) -> bool:
        if i == len(one) and j == len(other):
            return True
        if i < len(one) and one[i] == "*":
            return meet(i + 1, j) or (j < len(other) and meet(i, j + 1))
        if j < len(other) and other[j] == "*":
            return meet(i, j + 1) or (i < len(one) and meet(i + 1, j))
        if i == len(one) or j == len(other):
            return False
        return ("?" in (one[i], other[j]) or one[i] == other[j]) and meet(i + 1, j + 1)

    return meet(0, 0)


def with_publishers(targets: Targets, publishers: Iterable[Publisher], version: int, now: datetime) -> Targets:
    """The top-level targets with these publishers instead of those that it has."""
    keys: dict[str, Key] = {}
    roles: dict[str, DelegatedRole] = {}
    for publisher in publishers:
        keys |= {key.keyid: key for key in publisher.grant.keys}
        roles[publisher.name] = DelegatedRole(
            publisher.name,
            list(publisher.grant.key_ids),
            publisher.grant.threshold,
            terminating=True,
            paths=list(publisher.patterns),
            unrecognized_fields={REVIEWED_FIELD: True} if publisher.reviewed else None,
        )
    return _next_targets(targets, version, now + LIFETIMES[TARGETS], targets.targets, Delegations(keys, roles))


def renewed_targets(targets: Targets, role: str, version: int, now: datetime) -> Targets:
    """The metadata of `targets` or of a publisher with a new date."""
    return _next_targets(targets, version, now + lifetime_of(role), targets.targets, targets.delegations)


def with_shards(targets: Targets | None, shards: Mapping[str, bytes], version: int, now: datetime) -> Targets:
    """A publisher's metadata with new shards, by package name. None is the metadata of a new publisher."""
    return _with_files(targets, {name: target_of(name, data) for name, data in shards.items()}, version, now)


def proposed(
    targets: Targets | None, shards: Mapping[str, tuple[TargetDescriptor, bytes]], version: int, now: datetime
) -> Targets:
    """The same, for the signing job: it says of itself that it waits, and what each name is for."""
    new: dict[str, TargetFile] = {}
    for name, (target, data) in shards.items():
        new[name] = target_of(name, data)
        new[name].unrecognized_fields["custom"] = {PROPOSED_TARGET: msgspec.to_builtins(target)}
    return as_proposal(_with_files(targets, new, version, now))


def as_proposal(targets: Targets) -> Targets:
    """Metadata of the top-level targets or of a publisher, marked as made for the signing job."""
    fields = {**targets.unrecognized_fields, PROPOSED_FIELD: True}
    return Targets(
        version=targets.version,
        expires=targets.expires,
        targets=targets.targets,
        delegations=targets.delegations,
        unrecognized_fields=fields,
    )


def is_proposed(targets: Targets) -> bool:
    """Whether metadata was made for the signing job."""
    return targets.unrecognized_fields.get(PROPOSED_FIELD) is True


def proposed_target(file: TargetFile) -> TargetDescriptor | None:
    """What a name is for, as its publisher has signed it; None where that is not said. Raises ValidationError."""
    found = (file.custom or {}).get(PROPOSED_TARGET)
    return None if found is None else msgspec.convert(found, TargetDescriptor)


def target_of(name: str, shard: bytes) -> TargetFile:
    """What a publisher's metadata says of a shard."""
    return TargetFile(length=len(shard), hashes={"sha256": hashlib.sha256(shard).hexdigest()}, path=name)


def meta_of(version: int, data: bytes) -> MetaFile:
    """What snapshot and timestamp say of a metadata file: with its hash, since a number alone is not yet a content."""
    return MetaFile(version, length=len(data), hashes={"sha256": hashlib.sha256(data).hexdigest()})


def next_snapshot(
    before: Snapshot | None, changed: Mapping[str, MetaFile], catalogue: str, version: int, now: datetime
) -> Snapshot:
    """A snapshot with changed roles (by role name).

    A role never leaves it, even when its publisher is removed: clients take that for an attack (specification 5.5.5).
    """
    meta = {} if before is None else dict(before.meta)
    meta |= {f"{role}.json": file for role, file in changed.items()}
    fields = {**(before.unrecognized_fields if before else {}), CATALOGUE_FIELD: catalogue}
    return Snapshot(version=version, expires=now + LIFETIMES[SNAPSHOT], meta=meta, unrecognized_fields=fields)


def next_timestamp(
    snapshot: MetaFile,
    root_version: int,
    version: int,
    now: datetime,
    *,
    lifetime: timedelta = LIFETIMES[TIMESTAMP],
    log: object = None,
) -> Timestamp:
    """A timestamp for a snapshot, with the head of the log if there is one."""
    return Timestamp(
        version=version,
        expires=now + lifetime,
        snapshot_meta=snapshot,
        unrecognized_fields={ROOT_FIELD: root_version, **({} if log is None else {LOG_FIELD: log})},
    )


def sign(
    role: str,
    signed: T,
    signers: Sequence[Signer],
    delegator: Root | Targets,
    attached: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """The metadata file of a role, signed, and verified as a client will with the keys that `delegator` names; with the
    files that are `attached`, by path.

    Raises KeyUnusableError when a signer fails, or when what it signed does not verify.
    """
    metadata = Metadata(signed, unrecognized_fields=encode_attached(attached))
    payload = metadata.signed_bytes
    for signer in signers:
        try:
            signature = signer.sign(payload)
        except Exception as error:  # securesystemslib documents that signers raise anything
            remedy = "check the key's service and its credentials"
            raise KeyUnusableError(signer.public_key.keyid, f"signing failed: {error}", remedy=remedy) from error
        metadata.signatures[signature.keyid] = signature
    result = delegator.get_verification_result(role, payload, metadata.signatures)
    if not result:
        reason = f"what it signed for {role} does not verify ({len(result.signed)} of {result.threshold} keys)"
        raise KeyUnusableError(", ".join(metadata.signatures), reason, remedy="use the private key of this public key")
    return metadata.to_bytes()


def signers_for(role: str, grant: Grant, signers: Iterable[Signer], option: str) -> list[Signer]:
    """Those of `signers` whose keys count for a role. Raises RoleError when they are too few."""
    mine = {signer.public_key.keyid: signer for signer in signers if signer.public_key in grant.keys}
    if len(mine) < grant.threshold:
        needed = f"{grant.threshold} of the keys {', '.join(grant.key_ids)}"
        raise RoleError(f"{role} needs {needed}; {len(mine)} of them given", remedy=f"give them with {option}")
    return list(mine.values())


def _grant(role: Role, keys: Mapping[str, Key]) -> Grant:
    return Grant(keys=tuple(keys[keyid] for keyid in role.keyids if keyid in keys), threshold=role.threshold)


def _with_files(targets: Targets | None, new: Mapping[str, TargetFile], version: int, now: datetime) -> Targets:
    before = Targets() if targets is None else targets
    return _next_targets(before, version, now + PUBLISHER_LIFETIME, {**before.targets, **new}, before.delegations)


def _next_targets(
    before: Targets, version: int, expires: datetime, targets: dict[str, TargetFile], delegations: Delegations | None
) -> Targets:
    return Targets(
        version=version,
        expires=expires,
        targets=targets,
        delegations=delegations,
        unrecognized_fields={key: value for key, value in before.unrecognized_fields.items() if key != PROPOSED_FIELD},
    )
