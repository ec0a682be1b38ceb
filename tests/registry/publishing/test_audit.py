"""Audits: what they find in a registry that somebody with its keys, or its bucket, has changed; what witnesses sign."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from msgspec import structs
from securesystemslib.signer import CryptoSigner

from tunehub_registry.index import Shard
from tunehub_registry.publishing.audit import Audit, audit, put_cosignature
from tunehub_registry.publishing.draft import Draft
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.publishing.packages import publish, read_package, unyank, yank
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.publishing.unsigned import shard_bytes
from tunehub_registry.stores.port import UnreachableError
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.checkpoint import cosigned_at, parse_checkpoint
from tunehub_registry.trust.layout import LOG_FIELD, versioned_path
from tunehub_registry.trust.log import witness_path

from .fakes import FAULTS, QUICK, Fault, FaultyStore, Killed, MemoryStore, Signed, count_writes, package

pytestmark = pytest.mark.fast

NAME = "llvm-znver5"
NOW = datetime(2026, 11, 28, tzinfo=timezone.utc)
new_key = CryptoSigner.generate_ed25519


def put(registry: Signed, version: str, store: Any = None, **options: Any) -> None:
    publish(registry.ledger(store, **options), [read_package(package(version=version))], retry=QUICK)


def look(registry: Signed, store: Any = None, **options: Any) -> Audit:
    return audit(store or registry.store, registry.root, now=registry.clock, **options)


def found(done: Audit) -> list[tuple[str, str]]:
    return [(finding.kind, finding.text) for finding in done.findings]


def rewrite(registry: Signed, change: Callable[[Shard], Shard]) -> None:
    """What somebody with the publisher's and the online key can do: another content of the shard."""
    writer = MetadataWriter(registry.store, registry.root, online=registry.online_key, now=registry.clock)
    state = writer.read()
    role = writer.reader.role(state, "acme")
    shard = writer.reader.shard(role, NAME)
    assert role is not None and shard is not None
    data, sha256 = shard_bytes(change(shard))
    registry.store.files[f"packages/shards/{sha256}.json"] = data
    draft = Draft(
        role="acme",
        base=role.version,
        make=lambda version: rules.with_shards(role, {NAME: data}, version, registry.clock()),
        signers=[registry.acme_key],
        delegator=state.targets,
    )
    writer.commit(state, [draft])


def test_a_sound_registry_has_a_history_and_nothing_wrong(signed: Signed) -> None:
    put(signed, "1.0")
    put(signed, "2.0")
    yank(signed.ledger(), NAME, "1.0", "wrong", retry=QUICK)
    unyank(signed.ledger(), NAME, "1.0", retry=QUICK)
    done = look(signed)
    assert found(done) == [] and done.is_whole
    assert [change.text for change in done.history] == [
        f"{NAME} 1.0 published",
        f"{NAME} 2.0 published",
        f"{NAME} 1.0 yanked: wrong",
        f"{NAME} 1.0 is not yanked any more",
    ]
    assert [change.entry for change in done.history] == [3, 4, 5, 6]
    assert done.head.size == 6
    assert found(look(signed, seen=done.seen)) == []


def test_keys_that_were_rotated_change_nothing(signed: Signed) -> None:
    put(signed, "1.0")
    seen = look(signed).seen
    online, targets, acme = new_key(), new_key(), new_key()
    signed.owner(online=online).rotate("online", online, signed.root_keys)
    signed.online_key = online
    signed.owner().rotate("targets", targets, signed.root_keys)
    signed.targets_key = targets
    signed.owner().rotate_publisher("acme", [acme], [targets])
    signed.acme_key = acme
    put(signed, "2.0")
    assert found(look(signed, seen=seen)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_publisher_killed_anywhere_leaves_nothing_to_find(signed: Signed, fault: Fault) -> None:
    put(signed, "1.0")
    seen, start = look(signed).seen, dict(signed.store.files)
    probe = MemoryStore(start)
    put(signed, "2.0", store=probe)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(start, position, fault)
        with suppress(Killed):
            put(signed, "2.0", store=store)
        store.position = 0
        assert found(look(signed, store, seen=seen)) == []


def test_versions_that_changed_or_vanished_are_found_whoever_signed_them(signed: Signed) -> None:
    put(signed, "1.0")
    put(signed, "2.0")
    seen = look(signed).seen
    rewrite(signed, lambda shard: structs.replace(shard, versions=shard.versions[1:]))
    other = {"sha256": "0" * 64, "file": f"packages/{'0' * 64}/{NAME}-2.0.tunepkg"}
    rewrite(signed, lambda shard: structs.replace(shard, versions=(structs.replace(shard.versions[0], **other),)))
    done = look(signed, seen=seen)
    assert done.is_whole, "the log only grew: that is how it shows"
    kinds = [(finding.kind, finding.entry, finding.text.split(",")[0]) for finding in done.findings]
    assert kinds == [
        ("vanished", 5, f"{NAME} 1.0 is no longer there"),
        ("changed", 6, f"{NAME} 2.0 has the sha256 {'0' * 64}"),
    ]


def test_names_of_a_removed_publisher_have_vanished(signed: Signed) -> None:
    put(signed, "1.0")
    signed.owner().remove("acme", [signed.targets_key])
    assert found(look(signed)) == [("vanished", f"{NAME} 1.0 is no longer there")]


@pytest.mark.parametrize("how", ["missing", "other", "empty"])
def test_every_file_of_the_log_is_looked_at(signed: Signed, how: str) -> None:
    put(signed, "1.0")
    size = look(signed).head.size
    files = dict(signed.store.files)
    newest = {f"log/tile/0/000.p/{size}", f"log/tile/entries/000.p/{size}"}
    before = {f"log/tile/0/000.p/{size - 1}", f"log/tile/entries/000.p/{size - 1}"}
    for path in newest | before:
        signed.store.files = dict(files)
        if how == "missing":
            del signed.store.files[path]
        else:
            signed.store.files[path] = b"" if how == "empty" else files[path][:-1] + bytes([files[path][-1] ^ 1])
        texts = " ".join(text for kind, text in found(look(signed)))
        if how == "missing" and path in newest:
            assert texts == "", "the next publisher writes it"
        else:
            assert path in texts or "root" in texts


def test_metadata_that_entries_name_has_to_be_there_as_it_was(signed: Signed) -> None:
    put(signed, "1.0")
    put(signed, "2.0")
    files = dict(signed.store.files)
    for path in (versioned_path("snapshot", 3), versioned_path("acme", 1), versioned_path("targets", 1)):
        signed.store.files = {**files, path: files[path].replace(b"2", b"3")}
        assert [kind for kind, text in found(look(signed)) if path in text] != []
        signed.store.files = {name: data for name, data in files.items() if name != path}
        assert {kind for kind, _ in found(look(signed))} == {"broken"}


def test_another_log_than_was_seen_is_a_fork_that_names_both_heads(signed: Signed) -> None:
    put(signed, "1.0")
    fork = replace(signed, store=MemoryStore(signed.store.files))
    put(signed, "2.0")
    put(fork, "2.0")
    put(fork, "3.0")
    done, other = look(signed), look(fork)
    text = f"seen before: {done.head}; shown now: {other.head}, which does not go on from it"
    assert found(look(fork, seen=done.seen)) == [("fork", text)]
    assert [kind for kind, _ in found(look(signed, seen=other.seen))] == ["fork"]


def test_a_witness_cosigns_and_looks_at_its_own_last_note(signed: Signed) -> None:
    witness = new_key()
    put(signed, "1.0")
    fork = replace(signed, store=MemoryStore(signed.store.files))
    put(signed, "2.0")
    note = put_cosignature(signed.store, look(signed, witnessed=witness).head, witness, "w.example", NOW)
    path = witness_path(witness.public_key.keyid)
    kept = parse_checkpoint(signed.store.files[path].decode())
    assert kept == note
    assert cosigned_at(kept, witness.public_key) == NOW.timestamp()
    put(signed, "3.0")
    done = look(signed, witnessed=witness)
    assert found(done) == []
    put_cosignature(signed.store, done.head, witness, "w.example", NOW)
    assert parse_checkpoint(signed.store.files[path].decode()).size == done.head.size
    fork.store.files[path] = signed.store.files[path]
    (finding,) = found(look(fork, witnessed=witness))
    assert finding[0] == "fork" and "cosigned before" in finding[1]
    with pytest.raises(PublishError, match="it was cosigned with"):
        put_cosignature(fork.store, look(fork).head, witness, "w.example", NOW)
    signed.store.files[path] = b"what somebody else put there"
    assert found(look(signed, witnessed=witness)) == []


def test_a_registry_without_a_log_and_one_that_is_away(signed: Signed) -> None:
    writer = MetadataWriter(signed.store, signed.root, online=signed.online_key, now=signed.clock)
    state = writer.read()
    log = state.timestamp.unrecognized_fields.pop(LOG_FIELD)
    writer.commit_timestamp(state)
    with pytest.raises(PublishError, match="it has no log"):
        look(signed)

    class Away(MemoryStore):
        def get(self, path: str, **options: Any) -> Any:
            if path.startswith("log/"):
                raise UnreachableError("gone", address=self.address, path=path, remedy="wait")
            return super().get(path, **options)

    state = writer.read()
    state.timestamp.unrecognized_fields[LOG_FIELD] = log
    writer.commit_timestamp(state)
    assert found(look(signed)) == []
    with pytest.raises(UnreachableError):
        look(signed, Away(signed.store.files))
