"""The signing job: the one place of the online key in a registry whose publishers do not have it.

It publishes what publishers have proposed, and keeps the timestamp young. Run again, or beside another run, it does no
harm: there is one commit point, the timestamp, which is replaced on condition that it is what was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tuf.api.metadata import Timestamp

from tunehub_registry.publishing.administration import Administration, NearExpiry
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, RetryPolicy, persist
from tunehub_registry.publishing.proposals import RefusedProposal, Waiting, what_waits
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.catalogue import encode_catalogue
from tunehub_registry.trust.layout import LOG_FIELD
from tunehub_registry.trust.state import Excuse, SignedState

_RENEWED: frozenset[Excuse] = frozenset({"snapshot", "timestamp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """A publisher's metadata that was published: its version, and what became of its packages."""

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
    than a seventh of its lifetime is over. Proposals that do not hold are named, and change nothing.

    Raises UntrustedError when the present state is not what the root leads to, RoleError for another key than the
    online key, and as `transact`.
    """
    address = writer.store.address
    persist(writer.reader.renew_root, address=address, retry=retry)
    started = persist(lambda: writer.read(excused=_RENEWED), address=address, retry=retry).timestamp.version
    tried: dict[tuple[str, int], Adopted] = {}

    def attempt() -> Signing:
        state = writer.read(excused=_RENEWED)
        writer.online_signers(state.root)
        waits = [what_waits(writer.reader, state, name) for name in rules.publishers_of(state.targets)]
        tried.update({(item.role, item.version): item for item in map(_adopted, waits) if item is not None})
        _commit(writer, state, waits)
        after = writer.read()
        published = {(name.removesuffix(".json"), meta.version) for name, meta in after.snapshot.meta.items()}
        return Signing(
            adopted=tuple(item for place, item in tried.items() if place in published),
            refused=tuple(refusal for item in waits for refusal in item.refused),
            near_expiry=Administration(writer, retry=retry).near_expiry(after),
            wrote=after.timestamp.version > started,
            version=after.timestamp.version,
            expires=after.timestamp.expires,
        )

    return persist(attempt, address=address, retry=retry)


def _commit(writer: MetadataWriter, state: SignedState, waits: list[Waiting]) -> None:
    now = writer.reader.now()
    adopted = {item.role: item.adopted for item in waits if item.adopted is not None}
    new = {name: target for item in waits for name, target in item.targets.items()}
    if adopted:
        catalogue = encode_catalogue({**state.catalogue, **new}) if new else None
        writer.commit(state, adopted=adopted, catalogue=catalogue)
    elif rules.near_expiry(state.snapshot, rules.SNAPSHOT, now):
        writer.commit(state)
    elif _is_due(writer, state.timestamp, now):
        writer.commit_timestamp(state)


def _is_due(writer: MetadataWriter, timestamp: Timestamp, now: datetime) -> bool:
    """Whether a timestamp is a seventh of its lifetime old, or another than the writer makes."""
    left = timestamp.expires - now
    begins = writer.begins_log and LOG_FIELD not in timestamp.unrecognized_fields
    return begins or not writer.lifetime * 6 / 7 <= left <= writer.lifetime


def _adopted(waiting: Waiting) -> Adopted | None:
    if waiting.adopted is None:
        return None
    return Adopted(role=waiting.role, version=waiting.adopted.version, changes=waiting.changes)
