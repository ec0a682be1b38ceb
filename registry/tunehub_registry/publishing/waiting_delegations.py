"""Who may publish what, changed without the online key: the next metadata of the top-level targets, which waits for the
signing job under its number as a publisher's does (:mod:`tunehub_registry.publishing.proposals`).

Where a publisher's keys are replaced, what it has published waits signed by the new ones, and both are published in one
step: readers would not take the one without the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tuf.api.metadata import MetaFile, Targets

from tunehub_registry.exceptions import RegistryError
from tunehub_registry.publishing.proposals import RefusedProposal, proposals, what_waits
from tunehub_registry.stores.port import UnreachableError
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.exceptions import RoleError
from tunehub_registry.trust.metadata import Publisher
from tunehub_registry.trust.state import SignedState, StateReader


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingDelegations:
    """What waits of the top-level targets. `head` is their metadata with all that holds, or the published one;
    `adopted` describes it in a snapshot, None when nothing waits. `changes` is for people; `hidden` are the names that
    disappear with their publishers, and `free` is the next number."""

    head: Targets
    free: int
    adopted: MetaFile | None = None
    changes: tuple[str, ...] = ()
    refused: tuple[RefusedProposal, ...] = ()
    hidden: frozenset[str] = field(default_factory=frozenset)


def delegations_waiting(reader: StateReader, state: SignedState) -> WaitingDelegations:
    """Read and verify what waits since the state, in order. Raises what stores raise."""
    base = state.targets.version
    found = WaitingDelegations(head=state.targets, free=base + 1)
    for version, proposal in proposals(reader, state.root, rules.TARGETS, base):
        found = replace(found, free=version + 1)
        if isinstance(proposal, RegistryError):
            found = _refuse(found, version, str(proposal))
        elif proposal is not None:
            found = _with_proposal(reader, state, found, *proposal)
    return replace(found, hidden=frozenset(hidden_names(reader, state, found.head)))


def hidden_names(reader: StateReader, state: SignedState, targets: Targets) -> Iterator[str]:
    """The published names whose publishers other targets do not have. Raises as `StateReader.role`."""
    for name in rules.publishers_of(state.targets).keys() - rules.publishers_of(targets).keys():
        role = reader.role(state, name)
        yield from role.targets if role is not None else ()


def check_publisher(reader: StateReader, state: SignedState, before: Targets, publisher: Publisher) -> None:
    """Refuse what would hide names of a publisher, or bring back one that was removed; `before`: the targets that are
    changed. Raises RoleError."""
    if f"{publisher.name}.json" not in state.snapshot.meta:
        return
    if publisher.name not in rules.publishers_of(before):
        reason = f"a publisher called {publisher.name} was removed here"
        raise RoleError(reason, remedy="choose another name: metadata under this one exists already")
    role = reader.role(state, publisher.name)
    own = rules.with_publishers(state.targets, [publisher], 1, reader.now())
    left_out = [name for name in (role.targets if role else ()) if rules.publisher_for(own, name) is None]
    if left_out:
        reason = f"{publisher.name} has published {', '.join(sorted(left_out)[:5])}, which no pattern matches"
        raise RoleError(reason, remedy="keep patterns for these names, or remove the publisher")


def _with_proposal(
    reader: StateReader, state: SignedState, before: WaitingDelegations, after: Targets, meta: MetaFile
) -> WaitingDelegations:
    """What waits, with one more proposal, or with why it does not hold."""
    try:
        _check_bounds(reader, before.head, after)
        for publisher in rules.publishers_of(after).values():
            check_publisher(reader, state, before.head, publisher)
            _check_signed(reader, state, after, publisher)
        _check_apart(after)
    except UnreachableError:
        raise
    except (RegistryError, ValueError) as error:
        return _refuse(before, after.version, str(error))
    changes = (*before.changes, *_changes(before.head, after))
    return replace(before, head=after, adopted=meta, changes=changes)


def _check_bounds(reader: StateReader, before: Targets, after: Targets) -> None:
    """Raise ValueError for metadata that has ended, or that has targets of its own, as nothing here makes it."""
    if after.is_expired(reader.now()):
        raise ValueError(f"it expired at {after.expires:%Y-%m-%d %H:%M} UTC")
    if after.targets != before.targets:
        raise ValueError("it has targets of its own, which would come before those of publishers")


def _check_apart(after: Targets) -> None:
    publishers = rules.publishers_of(after).values()
    for publisher in publishers:
        rules.check_no_overlap(publishers, publisher)


def _check_signed(reader: StateReader, state: SignedState, after: Targets, publisher: Publisher) -> None:
    """Raise ValueError where a publisher has other keys than those that signed what it has published, and nothing that
    the new ones signed waits."""
    published = rules.publishers_of(state.targets).get(publisher.name)
    if published is None or f"{publisher.name}.json" not in state.snapshot.meta:
        return
    if publisher.grant.admits(published.grant):
        return
    if what_waits(reader, state, publisher.name, after).adopted is None:
        raise ValueError(f"what {publisher.name} has published is signed with its old keys: use `tunehub rotate`")


def _changes(before: Targets, after: Targets) -> Iterator[str]:
    known, new = rules.publishers_of(before), rules.publishers_of(after)
    yield from (f"{name} is removed" for name in known.keys() - new.keys())
    for name, publisher in new.items():
        if name not in known or known[name].patterns != publisher.patterns:
            yield f"{name} may publish {', '.join(publisher.patterns)}"
        elif known[name].grant != publisher.grant:
            yield f"{name} has other keys"
        elif known[name] != publisher:
            yield f"{name} publishes {'what a review verified' if publisher.reviewed else 'without a review'}"


def _refuse(found: WaitingDelegations, version: int, reason: str) -> WaitingDelegations:
    refusal = RefusedProposal(role=rules.TARGETS, version=version, reason=reason)
    return replace(found, refused=(*found.refused, refusal))
