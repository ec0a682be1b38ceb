"""The signing job: the one place of the online key in a registry whose publishers and administrators do not have it.

It publishes what they have proposed, and keeps the timestamp young. Run again, or beside another run, it does no
harm: there is one commit point, the timestamp, which is replaced on condition that it is what was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tunehub_registry.publishing.administration import Administration, NearExpiry
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, RetryPolicy, persist
from tunehub_registry.publishing.proposals import RefusedProposal, Waiting, what_waits
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.publishing.waiting_delegations import WaitingDelegations, delegations_waiting
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.catalogue import encode_catalogue
from tunehub_registry.trust.layout import LOG_FIELD, ROOT_FIELD
from tunehub_registry.trust.state import Excuse, SignedState

_RENEWED: frozenset[Excuse] = frozenset({"snapshot", "timestamp"})
_READ: frozenset[Excuse] = _RENEWED | {"targets"}  # their renewal may wait
_RENEWAL = ("signed anew",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """Metadata of a publisher, or the top-level targets, that was published: its version, and what became of packages,
    or of publishers."""

    role: str
    version: int
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Signing:
    """What a run of the job did: `wrote` is whether the timestamp is a new one; `version` and `expires` are its."""

    adopted: tuple[Adopted, ...]
    refused: tuple[RefusedProposal, ...]
    near_expiry: tuple[NearExpiry, ...]
    wrote: bool
    version: int
    expires: datetime


def sign_waiting(writer: MetadataWriter, *, retry: RetryPolicy = DEFAULT_RETRY) -> Signing:
    """Publish every proposal that holds, in one commit; renew the snapshot near its end, and the timestamp when more
    than a seventh of its lifetime is over, or another root is there. Proposals that do not hold are named, and change
    nothing.

    Raises UntrustedError when the present state is not what the root leads to, RoleError for another key than the
    online key, and as `transact`.
    """
    address = writer.store.address
    persist(writer.reader.renew_root, address=address, retry=retry)
    started = persist(lambda: writer.read(excused=_READ), address=address, retry=retry).timestamp.version
    tried: dict[tuple[str, int], Adopted] = {}

    def attempt() -> Signing:
        state = writer.read(excused=_READ)
        writer.online_signers(state.root)
        targets = delegations_waiting(writer.reader, state)
        if targets.adopted is None:
            state = writer.read(excused=_RENEWED)  # nothing renews them
        publishers = rules.publishers_of(targets.head)
        waits = [what_waits(writer.reader, state, name, targets.head) for name in publishers]
        tried.update({(item.role, item.version): item for item in _adopted(targets, waits)})
        _commit(writer, state, targets, waits)
        after = writer.read()
        published = {(name.removesuffix(".json"), meta.version) for name, meta in after.snapshot.meta.items()}
        return Signing(
            adopted=tuple(item for place, item in tried.items() if place in published),
            refused=(*targets.refused, *(refusal for item in waits for refusal in item.refused)),
            near_expiry=Administration(writer, retry=retry).near_expiry(after),
            wrote=after.timestamp.version > started,
            version=after.timestamp.version,
            expires=after.timestamp.expires,
        )

    return persist(attempt, address=address, retry=retry)


def _commit(writer: MetadataWriter, state: SignedState, targets: WaitingDelegations, waits: Sequence[Waiting]) -> None:
    now = writer.reader.now()
    adopted = {item.role: item.adopted for item in waits if item.adopted is not None}
    if targets.adopted is not None:
        adopted[rules.TARGETS] = targets.adopted
    new = {name: target for item in waits for name, target in item.targets.items()}
    if adopted:
        left = {name: target for name, target in state.catalogue.items() if name not in targets.hidden}
        catalogue = encode_catalogue({**left, **new}) if new or targets.hidden else None
        writer.commit(state, adopted=adopted, catalogue=catalogue)
    elif rules.near_expiry(state.snapshot, rules.SNAPSHOT, now):
        writer.commit(state)
    elif _is_due(writer, state, now):
        writer.commit_timestamp(state)


def _is_due(writer: MetadataWriter, state: SignedState, now: datetime) -> bool:
    """Whether the timestamp is a seventh of its lifetime old, or another than the writer makes."""
    fields, left = state.timestamp.unrecognized_fields, state.timestamp.expires - now
    begins = writer.begins_log and LOG_FIELD not in fields
    follows = fields.get(ROOT_FIELD) != state.root.version
    return begins or follows or not writer.lifetime * 6 / 7 <= left <= writer.lifetime


def _adopted(targets: WaitingDelegations, waits: Sequence[Waiting]) -> Iterator[Adopted]:
    if targets.adopted is not None:
        yield Adopted(role=rules.TARGETS, version=targets.adopted.version, changes=targets.changes or _RENEWAL)
    for item in waits:
        if item.adopted is not None:
            yield Adopted(role=item.role, version=item.adopted.version, changes=item.changes or _RENEWAL)
