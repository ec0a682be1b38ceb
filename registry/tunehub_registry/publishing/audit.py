"""Auditing a registry: its log from the first entry to the head, and what each entry says of the catalogue.

Everything is computed again from the entries: hashes of leaves, every tile, the root. Each entry names a snapshot by
its hash; that is read with the metadata and shards that it fixes, and compared with the state before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from securesystemslib.signer import Signer
from tuf.api.metadata import MetaFile, Targets

from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import ShardEntry
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.stores.port import (
    AccessDeniedError,
    FileMissingError,
    IfAbsent,
    IfMatch,
    Store,
    UnreachableError,
    WritableStore,
)
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.checkpoint import (
    MAX_NOTE_BYTES,
    Checkpoint,
    cosign,
    cosigned_at,
    is_signed_by,
    parse_checkpoint,
)
from tunehub_registry.trust.log import (
    MAX_ENTRIES_BYTES,
    MAX_TILE_BYTES,
    LoggedSnapshot,
    LogTail,
    SeenLog,
    head_of,
    log_files,
    log_path,
    logged_snapshot,
    parse_entry,
    witness_path,
)
from tunehub_registry.trust.merkle import TILE_WIDTH, Frontier, entries_path, unpack_entries
from tunehub_registry.trust.state import Clock, SignedState, StateReader, utc_now

FindingKind = Literal["fork", "broken", "changed", "vanished"]
View = Mapping[tuple[str, str], ShardEntry]  # by name and version


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFinding:
    """What is wrong. `entry` is the number of the log's entry where it shows, from 1; 0 where it is about the log.

    `fork`: the log is not that which was seen before. `broken`: a file of the log, or of what it names, is missing or
    another. `changed`, `vanished`: a published version became another one, or is no longer there.
    """

    kind: FindingKind
    entry: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedChange:
    """What an entry brought: a version that is new, yanked or not any more, for people."""

    entry: int
    snapshot: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What was found: the head, what is to be remembered of the log, what is wrong, and the history of versions."""

    head: Checkpoint
    seen: SeenLog
    findings: tuple[AuditFinding, ...]
    history: tuple[LoggedChange, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the log only grew, and is what it says: what a witness attests."""
        return not any(finding.kind in ("fork", "broken") for finding in self.findings)


def audit(
    store: Store, root: bytes, *, seen: SeenLog | None = None, witnessed: Signer | None = None, now: Clock = utc_now
) -> Audit:
    """Read and check all of a registry's log. `seen` is what was seen of it before, and `witnessed` the key of a
    witness whose own last note is looked at, too.

    Raises PublishError for a registry without a log, UntrustedError and ExpiredError for one whose present state does
    not hold, and what stores raise when they cannot be reached.
    """
    reader = StateReader(store, root, now=now)
    reader.renew_root()
    state = reader.read()
    head = head_of(state.timestamp.unrecognized_fields, store.address)
    if head is None:
        remedy = "its operator begins one by `tunehub timestamp --log`"
        raise PublishError("it has no log", address=store.address, remedy=remedy)
    return _Auditor(reader, state, head).run(seen, witnessed)


def put_cosignature(store: WritableStore, head: Checkpoint, signer: Signer, name: str, now: datetime) -> Checkpoint:
    """Lay a witness's note about a head in the registry, over the last one; returns it. The caller has audited it.

    Raises PublishError where a note for a longer log lies there, KeyUnusableError, and what stores raise.
    """
    path = witness_path(signer.public_key.keyid)
    note = head.with_signatures(*head.signatures, cosign(head, signer, name, int(now.timestamp())))
    condition: IfAbsent | IfMatch = IfAbsent()
    with suppress(FileMissingError, AccessDeniedError):
        before = store.get(path, max_bytes=MAX_NOTE_BYTES)
        assert before is not None  # no tag was given
        condition = IfMatch(etag=before.etag)
        last = _own_note(before.data, signer)
        if last is not None and last.size > head.size:
            remedy = "the registry shows an older state than this witness has seen: tell others"
            raise PublishError(f"it was cosigned with {last}, and has {head}", address=store.address, remedy=remedy)
    store.put(path, note.note.encode(), condition)
    return note


@dataclass(kw_only=True, slots=True)
class _Log:
    """The log as its entries make it: trees by size, and the contents that its newest files should have."""

    tail: LogTail = field(default_factory=LogTail)
    trees: list[Frontier] = field(default_factory=lambda: [Frontier()])
    files: dict[str, bytes] = field(default_factory=dict)
    newest: dict[str, bytes] = field(default_factory=dict)

    def add(self, entry: bytes) -> None:
        self.tail, self.newest = self.tail.append(entry)
        self.files.update(self.newest)
        self.trees.append(self.tail.frontier)


class _Auditor:
    def __init__(self, reader: StateReader, state: SignedState, head: Checkpoint) -> None:
        self._reader = reader
        self._store = reader.store
        self._state = state
        self._head = head
        self._findings: list[AuditFinding] = []
        self._history: list[LoggedChange] = []

    def run(self, seen: SeenLog | None, witnessed: Signer | None) -> Audit:
        newest = logged_snapshot(self._state.timestamp.snapshot_meta.to_dict())
        log, entries = _Log(), list(self._entries(newest))
        for entry in entries:
            log.add(entry)
        self._check_head(log, entries[-1] if entries else b"", newest)
        self._check_memory(log, seen)
        if witnessed is not None:
            self._check_own_note(log, witnessed)
        self._check_files(log)
        self._walk(entries)
        tree = log.trees[-1]
        return Audit(
            head=self._head, seen=SeenLog(tree=tree, newest=newest.leaf), findings=tuple(self._findings),
            history=tuple(self._history),
        )  # fmt: skip

    def _find(self, kind: FindingKind, text: str, entry: int = 0) -> None:
        self._findings.append(AuditFinding(kind=kind, entry=entry, text=text))

    def _entries(self, newest: LoggedSnapshot) -> Iterator[bytes]:
        """All entries. The last bundle may lack the newest one: its writer was killed after the commit."""
        size = self._head.size
        for index in range(-(-size // TILE_WIDTH)):
            width = min(TILE_WIDTH, size - index * TILE_WIDTH)
            found = self._bundle(index, width)
            last = index == (size - 1) // TILE_WIDTH
            if found is None and last:
                before = self._bundle(index, width - 1) if width > 1 else ()
                found = None if before is None else (*before, newest.entry)
            if found is None:
                self._find("broken", f"{log_path(entries_path(index, width))} is missing or damaged")
                return
            yield from found

    def _bundle(self, index: int, width: int) -> tuple[bytes, ...] | None:
        data = self._get(log_path(entries_path(index, width)), MAX_ENTRIES_BYTES)
        if data is None:
            return None
        try:
            return unpack_entries(data, width)
        except ValueError:
            return None

    def _check_head(self, log: _Log, last: bytes, newest: LoggedSnapshot) -> None:
        tree = log.trees[-1]
        if (tree.size, tree.root) != (self._head.size, self._head.root):
            self._find("broken", f"its head says {self._head}, and its entries have another root")
        if last != newest.entry:
            self._find("broken", "its newest entry is not the present catalogue", tree.size)
        keys = {key.keyid: key for root in self._reader.roots for key in rules.grants_of(root)[rules.TIMESTAMP].keys}
        if not any(is_signed_by(self._head, key) for key in keys.values()):
            self._find("broken", "its head is not signed by an online key of the registry")

    def _check_memory(self, log: _Log, seen: SeenLog | None) -> None:
        if seen is None:
            return
        size = seen.tree.size
        if size >= len(log.trees) or log.trees[size] != seen.tree:
            before = Checkpoint(origin=self._head.origin, size=size, root=seen.tree.root)
            self._find("fork", f"seen before: {before}; shown now: {self._head}, which does not go on from it")

    def _check_own_note(self, log: _Log, signer: Signer) -> None:
        data = self._get(witness_path(signer.public_key.keyid), MAX_NOTE_BYTES)
        note = None if data is None else _own_note(data, signer)
        if note is not None and (note.origin != self._head.origin or note.size >= len(log.trees)
                                 or log.trees[note.size].root != note.root):  # fmt: skip
            self._find("fork", f"cosigned before: {note}; shown now: {self._head}, which does not go on from it")

    def _check_files(self, log: _Log) -> None:
        """Every tile and bundle that a reader may ask for; those of the newest entry may still be unwritten."""
        size = len(log.trees) - 1
        for path in dict.fromkeys((*log_files(size), *log_files(size - 1))):
            found = self._get(path, max(MAX_TILE_BYTES, MAX_ENTRIES_BYTES))
            if found is None and path in log.newest:
                continue
            if found != log.files[path]:
                self._find("broken", f"{path} is {'missing' if found is None else 'not what its entries make'}")

    def _walk(self, entries: list[bytes]) -> None:
        before: View = {}
        for number, entry in enumerate(entries, 1):
            try:
                logged = parse_entry(entry, f"entry {number}")
                view = dict(self._view(logged))
            except UnreachableError:
                raise
            except FileMissingError as error:
                self._find(
                    "broken", f"{error.path} is missing (a mirror has it only by `tunehub mirror --history`)", number
                )
                continue
            except RegistryError as error:
                self._find("broken", str(error), number)
                continue
            self._compare(number, logged.version, before, view)
            before = view

    def _view(self, logged: LoggedSnapshot) -> Iterator[tuple[tuple[str, str], ShardEntry]]:
        """All versions in a state of the catalogue, as its metadata and shards have them."""
        meta = MetaFile(logged.version, logged.length, {"sha256": logged.sha256})
        snapshot, targets = self._reader.past_snapshot(meta)
        for publisher in rules.publishers_of(targets):
            role = self._reader.past_role(snapshot, targets, publisher)
            if role is not None:
                for name in role.targets:
                    if rules.publisher_for(targets, name) == publisher:
                        yield from self._versions(role, name)

    def _versions(self, role: Targets, name: str) -> Iterator[tuple[tuple[str, str], ShardEntry]]:
        shard = self._reader.shard(role, name)
        assert shard is not None  # the role has the name
        yield from (((name, entry.version), entry) for entry in shard.versions)

    def _compare(self, number: int, snapshot: int, before: View, after: View) -> None:
        for (name, version), old in before.items():
            new = after.get((name, version))
            if new is None:
                self._find("vanished", f"{name} {version} is no longer there", number)
            elif new.lasting() != old.lasting():
                text = f"{name} {version} has the sha256 {new.sha256}, and had {old.sha256}"
                self._find("changed", text, number)
            elif new.yanked != old.yanked:
                said = "is not yanked any more" if new.yanked is None else f"yanked: {new.yanked}"
                self._history.append(LoggedChange(entry=number, snapshot=snapshot, text=f"{name} {version} {said}"))
        for name, version in after.keys() - before.keys():
            text = f"{name} {version} published"
            self._history.append(LoggedChange(entry=number, snapshot=snapshot, text=text))

    def _get(self, path: str, max_bytes: int) -> bytes | None:
        """A file; None where there is none, or one that is too large. Raises UnreachableError."""
        try:
            content = self._store.get(path, max_bytes=max_bytes)
        except UnreachableError:
            raise
        except RegistryError:
            return None
        assert content is not None  # no tag was given
        return content.data


def _own_note(data: bytes, signer: Signer) -> Checkpoint | None:
    """A note that this witness has cosigned."""
    try:
        note = parse_checkpoint(data.decode())
    except ValueError:
        return None
    return None if cosigned_at(note, signer.public_key) is None else note
