"""The log that every commit adds to: whoever is killed where, it says what the catalogue says, and is never undone."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

import pytest
from tuf.api.metadata import MetaFile

from tunehub_registry.exceptions import FormatError
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.publishing.log import LogWriter, origin_of
from tunehub_registry.publishing.packages import publish, read_package
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.publishing.signing import sign_waiting
from tunehub_registry.trust.checkpoint import Checkpoint, is_signed_by
from tunehub_registry.trust.exceptions import UntrustedError
from tunehub_registry.trust.layout import LOG_FIELD, TIMESTAMP_PATH, versioned_path
from tunehub_registry.trust.log import (
    LogForkError,
    LoggedSnapshot,
    LogTail,
    SeenLog,
    follow,
    head_of,
    log_files,
    log_path,
    logged_snapshot,
    parse_entry,
)
from tunehub_registry.trust.merkle import (
    Frontier,
    Hashes,
    TilePlace,
    entries_path,
    extend,
    leaf_hash,
    read_tile_bytes,
    unpack_entries,
)

from .fakes import FAULTS, QUICK, Fault, FaultyStore, Killed, MemoryStore, Signed, count_writes, package

pytestmark = pytest.mark.fast


def put(registry: Signed, version: str, store: Any = None) -> None:
    publish(registry.ledger(store), [read_package(package(version=version))], retry=QUICK)


def head(store: Any) -> tuple[Checkpoint, LoggedSnapshot]:
    """The head of a registry, and the entry for the snapshot of its timestamp."""
    signed = json.loads(store.files[TIMESTAMP_PATH])["signed"]
    found = head_of(signed, "timestamp")
    assert found is not None
    return found, logged_snapshot(signed["meta"]["snapshot.json"])


def read(store: Any) -> Any:
    def tile(place: TilePlace) -> Hashes:
        return read_tile_bytes(store.files[log_path(place.path)], place)

    return tile


def check_log(store: Any, seen: SeenLog | None) -> SeenLog:
    """The log begins with what was seen, ends with the present snapshot, and its files are there but for the newest."""
    found, newest = head(store)
    return follow(seen, found, newest.leaf, read(store))


def logged(store: Any) -> list[LoggedSnapshot]:
    """The entries that are written."""
    found: list[LoggedSnapshot] = []
    size = head(store)[0].size
    for start in range(0, size, 256):
        width = min(256, size - start)
        data = store.files[log_path(entries_path(start // 256, width))]
        found += [parse_entry(entry, "log") for entry in unpack_entries(data, width)]
    return found


def test_every_commit_adds_the_snapshot_that_it_makes(signed: Signed) -> None:
    seen = check_log(signed.store, None)
    for number in range(5):
        put(signed, f"{number}.0")
        seen = check_log(signed.store, seen)
    entries = logged(signed.store)
    assert len(entries) == seen.tree.size == head(signed.store)[0].size
    for entry in entries:
        data = signed.store.files[versioned_path("snapshot", entry.version)]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.length, entry.sha256)
    found = head(signed.store)[0]
    assert is_signed_by(found, signed.online_key.public_key)
    assert found.origin == origin_of(signed.root)


def test_a_new_timestamp_for_the_same_catalogue_adds_nothing(signed: Signed) -> None:
    put(signed, "1.0")
    before = head(signed.store)
    signed.clock.advance(days=2)
    signed.owner().refresh()
    assert head(signed.store) == before


@pytest.mark.parametrize("fault", FAULTS)
def test_a_publisher_killed_anywhere_leaves_a_log_that_says_what_the_catalogue_says(
    signed: Signed, fault: Fault
) -> None:
    put(signed, "1.0")
    seen = check_log(signed.store, None)
    start = dict(signed.store.files)
    probe = MemoryStore(start)
    put(signed, "2.0", store=probe)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(start, position, fault)
        with suppress(Killed):
            put(signed, "2.0", store=store)
        middle = check_log(store, seen)
        put(signed, "2.0", store=store)
        tree = check_log(store, middle)
        put(signed, "3.0", store=store)
        check_log(store, tree)
        check_log(store, seen)
        assert len(logged(store)) == head(store)[0].size


def test_six_hundred_commits_of_which_many_do_not_write_their_files(signed: Signed) -> None:
    """Full tiles and those above them, written by whoever comes next."""
    store, signer = MemoryStore(), signed.online_key
    last = LogWriter(store)
    present, tree = meta(1), Frontier()
    fields: dict[str, object] = {}
    for number in range(1, 601):
        new = meta(number)
        writer = LogWriter(store) if number % 3 else last
        step = writer.next(fields, present, new, signer) if fields else writer.first("a", new, signer)
        assert step is not None
        if number % 5 and number not in (256, 257, 512):
            writer.finish(step)
        last, present, fields = writer, new, {LOG_FIELD: step.note}
        entry = logged_snapshot(new.to_dict())
        tree = tree.append(entry.leaf)
        assert step.tail.frontier == tree
        if number > 1:
            assert extend(Frontier(), number - 1, read(store)).append(entry.leaf) == tree
    last.finish(step)
    assert set(log_files(600)) <= set(store.files)


def meta(number: int) -> MetaFile:
    return MetaFile(number, 100 + number, {"sha256": hashlib.sha256(str(number).encode()).hexdigest()})


def test_a_tail_is_the_tree() -> None:
    tail, tree = LogTail(), Frontier()
    for number in range(700):
        tail, files = tail.append(str(number).encode())
        tree = tree.append(leaf_hash(str(number).encode()))
        assert (tail.frontier, tail.size) == (tree, number + 1)
        assert len(files) == 2 + (number % 256 == 255)


def test_nobody_builds_on_a_log_that_was_tampered_with(signed: Signed) -> None:
    put(signed, "1.0")
    files = dict(signed.store.files)
    size = head(signed.store)[0].size
    tile = log_path(TilePlace(level=0, index=0, width=size).path)
    for wrong in (bytes(size * 32), files[tile][:-1], b""):
        signed.store.files = {**files, tile: wrong}
        with pytest.raises(UntrustedError, match=r"the log .*tunehub audit"):
            put(signed, "2.0")
    signed.store.files = {**files, log_path(entries_path(0, size)): b"\x00\x01"}
    with pytest.raises(UntrustedError, match="entries"):
        put(signed, "2.0")
    del signed.store.files[tile]  # its writer was killed, and somebody put other bytes where the entries belong
    with pytest.raises(PublishError, match="does not have the content"):
        put(signed, "2.0")
    assert json.loads(signed.store.files[TIMESTAMP_PATH]) == json.loads(files[TIMESTAMP_PATH])


def test_a_log_is_begun_once(signed: Signed) -> None:
    writer = MetadataWriter(signed.store, signed.root, online=signed.online_key, now=signed.clock)
    state = writer.read()
    state.timestamp.unrecognized_fields.pop(LOG_FIELD)
    writer.commit_timestamp(state)
    put(signed, "1.0")
    assert LOG_FIELD not in json.loads(signed.store.files[TIMESTAMP_PATH])["signed"]
    files = dict(signed.store.files)
    job = MetadataWriter(signed.store, signed.root, online=signed.online_key, now=signed.clock, begins_log=True)
    with pytest.raises(PublishError, match=r"there was a log here before .*move `log/` away"):
        sign_waiting(job, retry=QUICK)
    signed.store.files = {path: data for path, data in files.items() if not path.startswith("log/")}
    for _ in range(2):
        job = MetadataWriter(
            signed.store, signed.root, online=signed.online_key, now=signed.clock, begins_log=True
        )  # fmt: skip
        sign_waiting(job, retry=QUICK)
        assert head(signed.store)[0].size == 1
        check_log(signed.store, None)
    put(signed, "2.0")
    assert check_log(signed.store, None).tree.size == 2


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"0" * 300])
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_entry(data, "log")


def test_what_does_not_go_on_from_what_was_seen_is_a_fork(signed: Signed) -> None:
    start = dict(signed.store.files)
    put(signed, "1.0")
    seen = check_log(signed.store, None)
    other = MemoryStore(start)
    put(signed, "1.0", store=other)  # the same package: another publish
    with pytest.raises(LogForkError, match="other entries"):
        check_log(other, seen)
    put(signed, "2.0", store=other)
    with pytest.raises(LogForkError, match="does not begin with what was seen"):
        check_log(other, seen)
    with pytest.raises(LogForkError, match="shorter than what was seen"):
        check_log(MemoryStore(start), seen)
    found, newest = head(signed.store)
    with pytest.raises(LogForkError, match="does not end with the present catalogue"):
        follow(None, found, LoggedSnapshot(version=9, length=9, sha256="0" * 64).leaf, read(signed.store))
    with pytest.raises(LogForkError, match="other entries"):
        follow(seen, found, bytes(32), read(signed.store))
    assert follow(seen, found, newest.leaf, read(signed.store)) == seen
