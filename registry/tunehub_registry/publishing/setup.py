"""Making a registry. A registry exists from the moment that its commit point does; before that, `init` can go on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from securesystemslib.signer import Key, Signer
from tuf.api.metadata import Root, Targets

from tunehub_registry.index import INDEX_PATH, Index, encode_index
from tunehub_registry.publishing.blobs import exists
from tunehub_registry.publishing.exceptions import AlreadyInitialisedError, PublishError
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, RetryPolicy, persist
from tunehub_registry.publishing.log import LogWriter, origin_of
from tunehub_registry.publishing.source import first_root
from tunehub_registry.stores.port import ConflictError, IfAbsent, WritableStore
from tunehub_registry.stores.probe import probe_conditional_writes
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.catalogue import encode_catalogue
from tunehub_registry.trust.exceptions import UntrustedError
from tunehub_registry.trust.layout import MAX_ROOT_BYTES, TIMESTAMP_PATH, versioned_path
from tunehub_registry.trust.state import Clock, StateReader, utc_now

FIRST_ROOT_PATH = versioned_path(rules.ROOT, 1)


def init_signed(
    store: WritableStore,
    *,
    root_keys: Sequence[Signer],
    threshold: int,
    targets_key: Signer,
    online_key: Signer,
    retry: RetryPolicy = DEFAULT_RETRY,
    now: Clock = utc_now,
) -> bytes:
    """Make a signed registry without publishers; returns its first root.

    An `init` that was cut off goes on when it gets the same keys.

    Raises AlreadyInitialisedError, UnfitStoreError for a store without working conditional writes, RoleError for a
    threshold that the keys cannot reach, PublishError when another `init` began here with other keys.
    """
    grant = rules.Grant(keys=_keys(root_keys), threshold=threshold)
    online = rules.Grant(keys=(online_key.public_key,))
    grants = {
        rules.ROOT: grant,
        rules.TARGETS: rules.Grant(keys=(targets_key.public_key,)),
        **dict.fromkeys(rules.ONLINE, online),
    }
    _check_empty(store)
    probe_conditional_writes(store)
    root = rules.make_root(1, grants, now())

    def attempt() -> bytes:
        data = _put_root(store, root, root_keys)
        try:
            _put_first_metadata(store, root, targets_key, online_key, now)
        except AlreadyInitialisedError:
            _expect_ours(store, data, now)
        return data

    return persist(attempt, address=store.address, retry=retry)


def init_unsigned(store: WritableStore, *, retry: RetryPolicy = DEFAULT_RETRY) -> None:
    """Make an unsigned registry without packages. Raises AlreadyInitialisedError, UnfitStoreError."""
    _check_empty(store)
    probe_conditional_writes(store)

    def attempt() -> None:
        with suppress(
            ConflictError
        ):  # it was not there before: an answer was lost, or somebody else asked for the same
            store.put(INDEX_PATH, encode_index(Index()), IfAbsent())

    persist(attempt, address=store.address, retry=retry)


def _check_empty(store: WritableStore) -> None:
    for path in (TIMESTAMP_PATH, INDEX_PATH):
        if exists(store, path):
            raise _already(store, path)


def _already(store: WritableStore, path: str) -> AlreadyInitialisedError:
    remedy = "publish to it, or choose an empty place for another registry"
    return AlreadyInitialisedError(f"there is a registry here already ({path})", address=store.address, remedy=remedy)


def _put_root(store: WritableStore, root: Root, signers: Sequence[Signer]) -> bytes:
    """Write the first root, or take the one that is there when it has the same keys."""
    data = rules.sign(rules.ROOT, root, signers, root)
    try:
        store.put(FIRST_ROOT_PATH, data, IfAbsent())
    except ConflictError:
        found = store.get(FIRST_ROOT_PATH, max_bytes=MAX_ROOT_BYTES)
        assert found is not None  # no tag was given
        if rules.grants_of(StateReader(store, found.data).root) != rules.grants_of(root):
            remedy = "give those keys to go on with it, or choose an empty place"
            reason = f"{FIRST_ROOT_PATH} was written with other keys by an `init` that was not finished"
            raise PublishError(reason, address=store.address, remedy=remedy) from None
        return found.data
    return data


def _put_first_metadata(store: WritableStore, root: Root, targets_key: Signer, online_key: Signer, now: Clock) -> None:
    targets, version = b"", 0
    while not targets:  # what a killed `init` left keeps its number
        version += 1
        data = rules.sign(rules.TARGETS, rules.with_publishers(Targets(), (), version, now()), [targets_key], root)
        targets = _put_if_free(store, versioned_path(rules.TARGETS, version), data)
    changed = {rules.TARGETS: rules.meta_of(version, targets)}
    snapshot, version = b"", 0
    while not snapshot:
        version += 1
        signed = rules.next_snapshot(None, changed, encode_catalogue({}), version, now())
        data = rules.sign(rules.SNAPSHOT, signed, [online_key], root)
        snapshot = _put_if_free(store, versioned_path(rules.SNAPSHOT, version), data)
    log, meta = LogWriter(store), rules.meta_of(version, snapshot)
    step = log.first(origin_of(first_root(store)), meta, online_key)
    timestamp = rules.next_timestamp(meta, 1, 1, now(), log=step.note)
    try:
        store.put(TIMESTAMP_PATH, rules.sign(rules.TIMESTAMP, timestamp, [online_key], root), IfAbsent())
    except ConflictError:
        raise _already(store, TIMESTAMP_PATH) from None
    log.finish(step)


def _expect_ours(store: WritableStore, root: bytes, now: Clock) -> None:
    """Raise AlreadyInitialisedError unless the registry that appeared since is the one with our keys.

    The answer to writing the timestamp was lost then, or an `init` with the same keys was faster.
    """
    try:
        StateReader(store, root, now=now).read()
    except UntrustedError:
        raise _already(store, TIMESTAMP_PATH) from None


def _put_if_free(store: WritableStore, path: str, data: bytes) -> bytes:
    """The data when it was written, nothing when the place is taken."""
    try:
        store.put(path, data, IfAbsent())
    except ConflictError:
        return b""
    return data


def _keys(signers: Sequence[Signer]) -> tuple[Key, ...]:
    return tuple(signer.public_key for signer in signers)
