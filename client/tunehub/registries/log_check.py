"""A registry's log, as its clients follow it: each head goes on from the one that was seen before, or all stops.

Who shows different states to different users, or takes back what was published, needs two heads that do not go on from
each other: whoever sees both has the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache

import msgspec
from msgspec import structs

from tunehub.exceptions import TrustError
from tunehub.registries.failures import store_failure
from tunehub.registries.trust_store import KnownLog, TrustStore, Witnesses, log_size
from tunehub_registry.exceptions import FormatError
from tunehub_registry.stores.port import AccessDeniedError, FileMissingError, Store, StoreError, TooLargeError
from tunehub_registry.trust.checkpoint import MAX_NOTE_BYTES, Checkpoint, cosigned_at, parse_checkpoint
from tunehub_registry.trust.exceptions import KeyUnusableError
from tunehub_registry.trust.keys import decode_public_key
from tunehub_registry.trust.log import (
    MAX_TILE_BYTES,
    LogForkError,
    SeenLog,
    contains,
    follow,
    head_of,
    log_path,
    logged_snapshot,
    witness_path,
)
from tunehub_registry.trust.merkle import Frontier, Hashes, ReadTile, TilePlace, read_tile_bytes

WITNESS_DAYS = 7  # how old a cosignature may be
_DAY_S = 86_400
_REMEDY = (
    "nothing of it is used: send both heads to its operator and to its witnesses (`tunehub audit`); if the operator "
    "says, by another way, that the log was begun anew, run `tunehub trust add` again"
)


def check_log(store: Store, trust: TrustStore, timestamp: bytes, now: datetime) -> None:
    """Follow the log of a registry to the head in its timestamp, which is verified, and keep what was seen.

    Raises TrustError when it does not go on from what was seen before, when there is none any more, or when too few of
    the witnesses that the user wants have seen it; RegistryUnreadableError when its files cannot be had.
    """
    signed = msgspec.json.decode(timestamp)["signed"]
    known, wanted = trust.known_log(store.address), trust.witnesses(store.address)
    try:
        head = head_of(signed, store.address)
        if head is None:
            _check_never_had_one(store.address, known, wanted)
            return
        leaf = logged_snapshot(signed["meta"]["snapshot.json"]).leaf
        tiles = _tiles(store)
        seen = _follow(known, head, leaf, tiles)
        cosigned = _cosigned(store, head, tiles, wanted, {} if known is None else known.cosigned, now)
    except LogForkError as error:
        raise _fork(store.address, trust, known, timestamp, str(error)) from error
    except StoreError as error:
        raise store_failure(error, store.address) from error
    except (FormatError, ValueError, KeyUnusableError) as error:
        raise TrustError(store.address, f"its log cannot be read: {error}", remedy=_REMEDY) from error
    new = known_log(store.address, head, seen, cosigned)
    if sum(_counts(time, now) for time in cosigned.values()) < wanted.needed:
        raise _too_few(store.address, wanted, cosigned, now)
    if new != known:
        _keep(trust, new)


def seen_log(known: KnownLog) -> SeenLog:
    """What is kept of a log, as the rules have it. Raises ValueError for what is damaged."""
    nodes = tuple(map(bytes.fromhex, known.nodes))
    return SeenLog(tree=Frontier(size=log_size(known), nodes=nodes), newest=bytes.fromhex(known.newest))


def known_log(address: str, head: Checkpoint, seen: SeenLog, cosigned: dict[str, int]) -> KnownLog:
    """The other way round, with the head that was followed."""
    nodes = tuple(node.hex() for node in seen.tree.nodes)
    return KnownLog(address=address, note=head.note, nodes=nodes, newest=seen.newest.hex(), cosigned=cosigned)


def _follow(known: KnownLog | None, head: Checkpoint, leaf: bytes, read: ReadTile) -> SeenLog:
    if known is None:
        return follow(None, head, leaf, read)
    before = parse_checkpoint(known.note)
    if before.origin != head.origin:
        raise LogForkError(f"it is another log: {head.origin}")
    return follow(seen_log(known), head, leaf, read)


def _check_never_had_one(address: str, known: KnownLog | None, wanted: Witnesses) -> None:
    if known is not None:
        raise LogForkError("it has no log any more")
    if wanted.needed:
        reason = f"{wanted.needed} witnesses of its log are needed, and it has no log"
        raise TrustError(address, reason, remedy="its operator begins one by `tunehub timestamp --log`")


def _cosigned(
    store: Store, head: Checkpoint, tiles: ReadTile, wanted: Witnesses, before: dict[str, int], now: datetime
) -> dict[str, int]:
    """When which witness saw a head that this one goes on from. Asks for what is a day old, where that is needed."""
    if not wanted.needed:
        return {}
    keys = {key.keyid: key for key in (decode_public_key(text.encode(), "witness") for text in wanted.keys)}
    found = {keyid: time for keyid, time in before.items() if keyid in keys}
    for keyid, key in keys.items():
        if now.timestamp() - found.get(keyid, 0) < _DAY_S:
            continue
        note = _witness_note(store, keyid)
        time = None if note is None else cosigned_at(note, key)
        if note is not None and time is not None and _counts(time, now) and time > found.get(keyid, 0):
            if not contains(head, note, tiles):
                raise LogForkError(f"a witness has seen another one: {note}")
            found[keyid] = time
    return found


def _witness_note(store: Store, keyid: str) -> Checkpoint | None:
    try:
        content = store.get(witness_path(keyid), max_bytes=MAX_NOTE_BYTES)
        assert content is not None  # no entity tag was given
        return parse_checkpoint(content.data.decode())
    except (FileMissingError, AccessDeniedError, TooLargeError, ValueError):
        return None


def _counts(time: int, now: datetime) -> bool:
    return -_DAY_S < now.timestamp() - time < WITNESS_DAYS * _DAY_S


def _tiles(store: Store) -> Callable[[TilePlace], Hashes]:
    @cache  # several subtrees are in one tile
    def read(place: TilePlace) -> Hashes:
        content = store.get(log_path(place.path), max_bytes=MAX_TILE_BYTES)
        assert content is not None  # no entity tag was given
        return read_tile_bytes(content.data, place)

    return read


def _keep(trust: TrustStore, log: KnownLog) -> None:
    try:
        trust.keep_log(log)
    except OSError:  # a folder that cannot be written, as in an image: what it has, is what is compared with
        return


def _fork(address: str, trust: TrustStore, known: KnownLog | None, timestamp: bytes, reason: str) -> TrustError:
    evidence: dict[str, object] = {"address": address, "reason": reason, "seen": known and structs.asdict(known),
                                "shown": msgspec.Raw(timestamp)}  # fmt: skip
    try:
        place = f"; kept in {trust.keep_evidence(address, msgspec.json.encode(evidence))}"
    except OSError as error:
        place = f"; the evidence cannot be kept: {error}"
    return TrustError(address, f"its log has forked: {reason}; {_heads(known, timestamp)}{place}", remedy=_REMEDY)


def _heads(known: KnownLog | None, timestamp: bytes) -> str:
    before = "nothing" if known is None else str(parse_checkpoint(known.note))
    shown = head_of(msgspec.json.decode(timestamp)["signed"], "timestamp")
    return f"seen before: {before}; shown now: {shown or 'no log'}"


def _too_few(address: str, wanted: Witnesses, cosigned: dict[str, int], now: datetime) -> TrustError:
    count = sum(_counts(time, now) for time in cosigned.values())
    reason = f"{wanted.needed} of its witnesses have to have seen its log within {WITNESS_DAYS} days, and {count} did"
    return TrustError(address, reason, remedy="ask the witnesses to run `tunehub audit --witness`, or need fewer")
