"""What a transaction changes, as pure rules: from the present state of each name that it touches to the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec import UNSET, UnsetType
from packaging.version import InvalidVersion, Version

from tunehub_registry.document import Document
from tunehub_registry.exceptions import NotFoundError
from tunehub_registry.index import Shard, ShardEntry, Successor, insert_entry, mark_yanked, set_documents, set_successor
from tunehub_registry.publishing.exceptions import DocumentChangedError
from tunehub_registry.target import TargetDescriptor


@dataclass(frozen=True, kw_only=True, slots=True)
class NameState:
    """A published name: the target of its newest version, and all its versions."""

    target: TargetDescriptor
    shard: Shard


@dataclass(frozen=True, kw_only=True, slots=True)
class NewVersion:
    """A version to be published."""

    target: TargetDescriptor
    entry: ShardEntry


class Change(Protocol):
    """A change of some names. Applying it twice is the same as once: that is how a lost answer does no harm."""

    @property
    def names(self) -> frozenset[str]:
        """The names that it may touch."""

    def apply(self, name: str, present: NameState | None) -> NameState | None:
        """The next state of a name; `present` itself when nothing is to be done.

        Raises VersionConflictError, NotFoundError.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class AddVersions:
    """Add versions. One that is there with the same bytes stays as it is.

    With `follow`, versions that are there are yanked or not, deprecated or not, and have documents as in `versions`:
    for mirrors.
    """

    versions: tuple[NewVersion, ...]
    follow: bool = False

    @property
    def names(self) -> frozenset[str]:
        """As the port says."""
        return frozenset(version.target.name for version in self.versions)

    def apply(self, name: str, present: NameState | None) -> NameState | None:
        """As the port says."""
        state = present
        for version in self.versions:
            if version.target.name == name:
                state = self._with_version(state, version)
        return state

    def _with_version(self, state: NameState | None, new: NewVersion) -> NameState:
        before = Shard(name=new.target.name) if state is None else state.shard
        shard = insert_entry(before, new.entry)
        if self.follow:
            shard = _follow(shard, new.entry)
        if state is not None and shard is before:
            return state
        newest = state is None or shard.versions[-1] is new.entry
        return NameState(target=new.target if newest or state is None else state.target, shard=shard)


def _follow(shard: Shard, entry: ShardEntry) -> Shard:
    """The shard with what may change of an entry as in `entry`; the very same shard when nothing does."""
    present = find_version(shard, entry.version)
    if present.yanked != entry.yanked:
        shard = mark_yanked(shard, entry.version, entry.yanked)
    if present.successor != entry.successor:
        shard = set_successor(shard, entry.version, entry.successor or None)
    if present.documents != entry.documents:
        shard = set_documents(shard, entry.version, entry.documents or ())
    return shard


@dataclass(frozen=True, kw_only=True, slots=True)
class SetYanked:
    """Yank a version for a reason, or take that back with None."""

    name: str
    version: str
    reason: str | None

    @property
    def names(self) -> frozenset[str]:
        """As the port says."""
        return frozenset({self.name})

    def apply(self, name: str, present: NameState | None) -> NameState | None:
        """As the port says."""
        present = _published(name, present)
        entry = find_version(present.shard, self.version)
        if entry.yanked == self.reason:
            return present
        return NameState(target=present.target, shard=mark_yanked(present.shard, entry.version, self.reason))


@dataclass(frozen=True, kw_only=True, slots=True)
class SetSuccessor:
    """Deprecate a version, or all that are published (None) at the commit; or take that back with None as successor."""

    name: str
    version: str | None
    successor: Successor | None

    @property
    def names(self) -> frozenset[str]:
        """As the port says."""
        return frozenset({self.name})

    def entries(self, shard: Shard) -> tuple[ShardEntry, ...]:
        """The versions that are meant. Raises NotFoundError."""
        return shard.versions if self.version is None else (find_version(shard, self.version),)

    def apply(self, name: str, present: NameState | None) -> NameState | None:
        """As the port says."""
        state = _published(name, present)
        shard = state.shard
        for entry in self.entries(shard):
            if (entry.successor or None) != self.successor:
                shard = set_successor(shard, entry.version, self.successor)
        return present if shard is state.shard else NameState(target=state.target, shard=shard)


@dataclass(frozen=True, kw_only=True, slots=True)
class SetDocument:
    """Put a document beside a version, instead of what is there of its kind; where `replaces` is given, only instead of
    that (None: of nothing).

    `package` is the SHA-256 of the version that the document is about.
    """

    name: str
    version: str
    package: str
    document: Document
    replaces: Document | UnsetType | None = UNSET

    @property
    def names(self) -> frozenset[str]:
        """As the port says."""
        return frozenset({self.name})

    def apply(self, name: str, present: NameState | None) -> NameState | None:
        """As the port says. Raises DocumentChangedError."""
        present = _published(name, present)
        entry = find_version(present.shard, self.version)
        if entry.sha256 != self.package:
            raise NotFoundError(
                f"{name} {entry.version} is published with sha256 {entry.sha256}, but the document is about "
                f"{self.package}: make the document from the published package"
            )
        others = tuple(item for item in entry.documents or () if item.kind != self.document.kind)
        there = entry.document(self.document.kind)
        if there == self.document:
            return present
        if self.replaces is not UNSET and there != self.replaces:
            raise DocumentChangedError(
                f"the {self.document.kind} of {name} {entry.version} are others than were read", address=name,
                remedy="read them again",
            )  # fmt: skip
        shard = set_documents(present.shard, entry.version, (*others, self.document))
        return NameState(target=present.target, shard=shard)


def _published(name: str, present: NameState | None) -> NameState:
    if present is None:
        raise NotFoundError(f"{name} is not in the registry: `tunehub list` shows the names")
    return present


def apply_change(change: Change, present: Mapping[str, NameState | None]) -> dict[str, NameState]:
    """The next states of the names that change; none when there is nothing to do. Raises as `Change.apply`."""
    result: dict[str, NameState] = {}
    for name in sorted(change.names):
        after = change.apply(name, present[name])
        if after is not None and after is not present[name]:
            result[name] = after
    return result


def find_version(shard: Shard, version: str) -> ShardEntry:
    """A version, also when it is written in another way (`1.0` for `1.0.0`). Raises NotFoundError."""
    try:
        asked = Version(version)
    except InvalidVersion:
        raise NotFoundError(f"{version!r} is not a version; give one such as 0.1.0 (PEP 440)") from None
    found = next((entry for entry in shard.versions if Version(entry.version) == asked), None)
    if found is None:
        raise NotFoundError(f"{shard.name} has no version {version}: see `tunehub show {shard.name}` for its versions")
    return found
