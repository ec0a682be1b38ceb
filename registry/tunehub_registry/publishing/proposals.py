"""Publishing without the online key: a publisher's next metadata, which waits for the signing job under its number.

The next number of a publisher's metadata (TUF's consistent snapshots) is the place of a proposal: written once, where
nothing was, signed by the publisher, and made from what waits before it. A proposal is what the job publishes as it is:
it only has to name it in the snapshot. What does not hold is stepped over, by the job and by the next proposal alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tuf.api.metadata import MetaFile, Root, Targets

from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.publishing.blobs import has_blob
from tunehub_registry.publishing.changes import NameState
from tunehub_registry.publishing.draft import Draft
from tunehub_registry.publishing.ledger import LedgerState
from tunehub_registry.publishing.signed import SignedLedger
from tunehub_registry.stores.port import AccessDeniedError, FileMissingError, UnreachableError
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.bins import bins_of
from tunehub_registry.trust.exceptions import RoleError
from tunehub_registry.trust.state import SignedState, StateReader

MAX_WAITING = 256  # numbers that are looked at for one publisher


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedProposal:
    """A publisher's metadata under a number that no snapshot has, and why it is not published."""

    role: str
    version: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What waits of one publisher: its metadata with all that holds, and what that adds to the published state.

    `head` is that metadata, or what is published when nothing waits; `adopted` describes it in a snapshot, None when
    nothing waits. `targets` are those of the names that change, `changes` what becomes of versions, for people. `free`
    is the next number.
    """

    role: str
    head: Targets | None
    free: int
    adopted: MetaFile | None = None
    targets: Mapping[str, TargetDescriptor]
    changes: tuple[str, ...] = ()
    refused: tuple[RefusedProposal, ...] = ()


def proposals(
    reader: StateReader, delegator: Root | Targets, role: str, base: int
) -> Iterator[tuple[int, tuple[Targets, MetaFile] | RegistryError | None]]:
    """The numbers of a role's metadata behind `base` that are taken: each with the proposal that has it, what is wrong
    with that, or None for what is none. Raises what stores raise."""
    for version in range(base + 1, base + 1 + MAX_WAITING):
        try:
            yield version, reader.proposal(delegator, role, version)
        except (FileMissingError, AccessDeniedError):  # the latter is S3's answer to those who may not list
            return
        except UnreachableError:
            raise
        except RegistryError as error:
            yield version, error


def what_waits(reader: StateReader, state: SignedState, role: str, targets: Targets | None = None) -> Waiting:
    """Read and verify what a publisher has proposed since the state, in order; `targets` are those whose keys and
    patterns count, if not the state's. Raises what stores raise."""
    delegator = state.targets if targets is None else targets
    meta = state.snapshot.meta.get(f"{role}.json")
    base = 0 if meta is None else meta.version
    found = Waiting(role=role, head=reader.head(state, role), free=base + 1, targets={})
    if bins_of(found.head) is not None:  # such a publisher has the online key
        return found
    for version, proposal in proposals(reader, delegator, role, base):
        if isinstance(proposal, RegistryError):
            found = _refuse(found, version, str(proposal))
            continue
        found = replace(found, free=version + 1)
        if proposal is not None:
            found = _with_proposal(reader, delegator, found, *proposal)
    return found


class ProposalLedger(SignedLedger):
    """A publisher's ledger without the online key: a commit proposes. One publisher's names at a time."""

    _waiting: dict[str, Waiting]

    def read(self, names: Iterable[str]) -> LedgerState:
        """As the port says: with what waits."""
        state = self._writer.read()
        self._waiting = {}
        return LedgerState(names={name: self._state(state, name) for name in names}, token=state)

    def commit(self, state: LedgerState, changed: Mapping[str, NameState]) -> None:
        """As the port says. Raises RoleError for names of several publishers: those would not change in one step."""
        token = state.token
        assert isinstance(token, SignedState)
        roles = {self._role_of(token, name) for name in changed}
        if len(roles) != 1:
            remedy = "publish each publisher's packages by a call of its own (--role), or with the online key"
            raise RoleError(
                f"without the online key, {', '.join(sorted(roles))} cannot publish in one step", remedy=remedy
            )
        shards = {name: (after.target, self._upload(after)) for name, after in changed.items()}
        role = roles.pop()
        waiting = self._waits(token, role)
        if bins_of(waiting.head) is not None:
            reason = f"{role} has its names in bins, and these are published with the online key alone"
            raise RoleError(reason, remedy="give --online-key, or delegate new names to a publisher of few")
        draft = Draft(
            role=role,
            base=waiting.free - 1,
            make=lambda version: rules.proposed(waiting.head, shards, version, self._reader.now()),
            signers=self._signers(token, role),
            delegator=token.targets,
        )
        self._writer.put_proposal(draft, waiting.free)

    def _head(self, state: SignedState, role: str, name: str) -> Targets | None:
        head = self._waits(state, role).head
        return super()._head(state, role, name) if bins_of(head) is not None else head

    def _target(self, state: SignedState, role: str, name: str) -> TargetDescriptor | None:
        return self._waits(state, role).targets.get(name) or super()._target(state, role, name)

    def _waits(self, state: SignedState, role: str) -> Waiting:
        if role not in self._waiting:
            self._waiting[role] = what_waits(self._reader, state, role)
        return self._waiting[role]


def _with_proposal(reader: StateReader, delegator: Targets, before: Waiting, after: Targets, meta: MetaFile) -> Waiting:
    """What waits, with one more proposal, or with why it does not hold."""
    try:
        _check_bounds(reader, before, after)
        targets = {name: _target_of(delegator, before.role, after, name) for name in _changed(before.head, after)}
        changes: list[str] = []
        for name in targets:
            was, now = reader.shard(before.head, name), reader.shard(after, name)
            assert now is not None  # it has changed
            changes += _changes(was or Shard(name=name), now)
            _check_files(reader, was, now)
    except UnreachableError:
        raise
    except (RegistryError, ValueError) as error:
        return _refuse(before, after.version, str(error))
    return replace(
        before, head=after, adopted=meta, targets={**before.targets, **targets}, changes=(*before.changes, *changes)
    )


def _refuse(found: Waiting, version: int, reason: str) -> Waiting:
    refusal = RefusedProposal(role=found.role, version=version, reason=reason)
    return replace(found, free=version + 1, refused=(*found.refused, refusal))


def _check_bounds(reader: StateReader, before: Waiting, after: Targets) -> None:
    """Raise ValueError for metadata that has ended, that leaves out names, or that has them signed by others."""
    if after.is_expired(reader.now()):
        raise ValueError(f"it expired at {after.expires:%Y-%m-%d %H:%M} UTC")
    if after.delegations is not None:
        raise ValueError("it delegates names: those in bins are published with the online key")
    lost = sorted(set(before.head.targets if before.head else ()) - set(after.targets))
    if lost:
        raise ValueError(f"it leaves out {', '.join(lost[:5])}: what is published stays")


def _changed(before: Targets | None, after: Targets) -> list[str]:
    known = {} if before is None else before.targets
    return [name for name, file in after.targets.items() if name not in known or known[name].hashes != file.hashes]


def _target_of(delegator: Targets, role: str, after: Targets, name: str) -> TargetDescriptor:
    """What a changed name is for. Raises ValueError for another's name, or without a target of that name."""
    if rules.publisher_for(delegator, name) != role:
        raise ValueError(f"{name} is not delegated to {role}")
    target = rules.proposed_target(after.targets[name])
    if target is None or target.name != name:
        raise ValueError(f"it does not say what {name} is for")
    return target


def _changes(before: Shard, after: Shard) -> Iterator[str]:
    """What becomes of versions. Raises ValueError where one is left out, or has another content: none ever does."""
    old, new = ({entry.version: entry for entry in shard.versions} for shard in (before, after))
    for version, entry in old.items():
        if version not in new:
            raise ValueError(f"it leaves out {before.name} {version}: a published version stays")
        if new[version].lasting() != entry.lasting():
            raise ValueError(f"it changes {before.name} {version}: a published version never changes")
        if new[version] != entry:
            yield f"{before.name} {version}: {_said(entry, new[version])}"
    yield from (f"{after.name} {version}" for version in new if version not in old)


def _said(before: ShardEntry, after: ShardEntry) -> str:
    if before.yanked != after.yanked:
        return "not yanked" if after.yanked is None else f"yanked: {after.yanked}"
    return "deprecated or not" if before.successor != after.successor else "other documents"


def _check_files(reader: StateReader, before: Shard | None, after: Shard) -> None:
    """Raise ValueError unless what is new of a name is there, whole: readers would look for it in vain."""
    known = {blob for entry in (before.versions if before else ()) for blob in _blobs(entry)}
    for path, sha256, size in [blob for entry in after.versions for blob in _blobs(entry) if blob not in known]:
        if not has_blob(reader.store, path, sha256=sha256, size=size):
            raise ValueError(f"{path} is not there, or damaged: publish it again")


def _blobs(entry: ShardEntry) -> Iterator[tuple[str, str, int]]:
    yield (entry.file, entry.sha256, entry.size)
    yield from ((document.file, document.sha256, document.size) for document in entry.documents or ())
