"""Mirrors: verbatim copies that clients verify with the original's root, and chosen versions under other keys."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from securesystemslib.signer import CryptoSigner

from tunehub_registry.exceptions import NotFoundError
from tunehub_registry.index import Successor
from tunehub_registry.publishing.audit import audit, put_cosignature
from tunehub_registry.publishing.exceptions import AlreadyInitialisedError, PublishError
from tunehub_registry.publishing.history import copy_history
from tunehub_registry.publishing.mirror import copy_registry, republish
from tunehub_registry.publishing.packages import attach, deprecate, publish, read_package, yank
from tunehub_registry.publishing.source import SignedSource, UnsignedSource, open_source
from tunehub_registry.trust.exceptions import UntrustedError
from tunehub_registry.trust.log import witness_path

from .fakes import (
    FAULTS,
    QUICK,
    Client,
    Fault,
    FaultyStore,
    Killed,
    MemoryStore,
    Signed,
    Unsigned,
    count_writes,
    package,
)

pytestmark = pytest.mark.fast

NAME = "llvm-znver5"


@pytest.fixture
def filled(signed: Signed) -> Signed:
    for model, version in (("znver5", "1.0"), ("znver5", "2.0"), ("skylake", "0.5")):
        add(signed, version, model)
    return signed


def add(registry: Signed | Unsigned, version: str, model: str = "znver5", **options: Any) -> None:
    publish(registry.ledger(**options), [read_package(package(model, version))], retry=QUICK)


def source(registry: Signed) -> SignedSource:
    return SignedSource(registry.store, registry.root, now=registry.clock)


def versions(store: Any, root: bytes, name: str = NAME) -> list[str]:
    client = Client(store, root)
    try:
        return client.versions(name)
    finally:
        client.close()


def test_a_whole_mirror_is_verbatim(filled: Signed) -> None:
    mirror = MemoryStore()
    done = copy_registry(source(filled), mirror, retry=QUICK)
    assert (done.copied, done.total) == (3, 3)
    assert versions(mirror, filled.root) == ["1.0", "2.0"]
    assert versions(mirror, filled.root, "llvm-skylake") == ["0.5"]
    assert all(filled.store.files[path] == data for path, data in mirror.files.items())


def test_a_later_run_copies_only_what_is_new(filled: Signed) -> None:
    mirror = MemoryStore()
    copy_registry(source(filled), mirror, retry=QUICK)
    assert copy_registry(source(filled), mirror, retry=QUICK).total == 0
    add(filled, "3.0")
    mirror.requests.clear()
    done = copy_registry(source(filled), mirror, retry=QUICK)
    assert done.copied == 1
    assert sum(request.startswith("put packages/") for request in mirror.requests) == 2
    assert versions(mirror, filled.root) == ["1.0", "2.0", "3.0"]


def test_a_mirror_never_goes_back(filled: Signed) -> None:
    old = source(filled)
    mirror = MemoryStore()
    add(filled, "3.0")
    copy_registry(source(filled), mirror, retry=QUICK)
    before = dict(mirror.files)
    assert copy_registry(old, mirror, retry=QUICK).copied == 0
    assert mirror.files == before


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.few(2)
def test_a_mirror_cut_off_anywhere(filled: Signed, fault: Fault) -> None:
    first = MemoryStore()
    copy_registry(source(filled), first, retry=QUICK)
    new = CryptoSigner.generate_ed25519()
    filled.owner(online=new).rotate("online", new, filled.root_keys)
    add(filled, "3.0", online=new)
    probe = MemoryStore(first.files)
    copy_registry(source(filled), probe, retry=QUICK)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(first.files, position, fault)
        with suppress(Killed):
            copy_registry(source(filled), store, retry=QUICK)
        assert versions(store, filled.root) in (["1.0", "2.0"], ["1.0", "2.0", "3.0"])
        copy_registry(source(filled), store, retry=QUICK)
        assert store.files == probe.files
        assert versions(store, filled.root) == ["1.0", "2.0", "3.0"]


def cosigned(registry: Signed, key: CryptoSigner) -> bytes:
    """Have a witness cosign the present head; returns its note."""
    seen = audit(registry.store, registry.root, now=registry.clock)
    put_cosignature(registry.store, seen.head, key, "w.example", registry.clock())
    return bytes(registry.store.files[witness_path(key.public_key.keyid)])


def test_notes_of_witnesses_are_copied_as_far_as_the_copy_goes(filled: Signed) -> None:
    key, mirror = CryptoSigner.generate_ed25519(), MemoryStore()
    keyid, path = key.public_key.keyid, witness_path(key.public_key.keyid)

    def copy(registry: SignedSource) -> None:
        copy_registry(registry, mirror, witnesses=[keyid, "0" * 64], retry=QUICK)

    copy(source(filled))
    assert path not in mirror.files
    first = cosigned(filled, key)
    copy(source(filled))  # nothing else is new
    assert mirror.files[path] == first
    old = source(filled)
    add(filled, "3.0")
    second = cosigned(filled, key)
    copy(old)  # the witness has seen more than the copy has
    assert mirror.files[path] == first
    copy(source(filled))
    assert mirror.files[path] == second
    filled.store.files[path] = first
    copy(source(filled))
    assert mirror.files[path] == second
    filled.store.files[path] = b"no note"
    copy(source(filled))
    assert mirror.files[path] == second


@pytest.mark.parametrize("fault", FAULTS)
def test_copying_a_note_can_be_cut_off(filled: Signed, fault: Fault) -> None:
    key = CryptoSigner.generate_ed25519()
    note, mirror = cosigned(filled, key), MemoryStore()
    copy_registry(source(filled), mirror, retry=QUICK)
    store = FaultyStore(mirror.files, 1, fault)
    for _ in range(2):
        with suppress(Killed):
            copy_registry(source(filled), store, witnesses=[key.public_key.keyid], retry=QUICK)
    assert store.files == {**mirror.files, witness_path(key.public_key.keyid): note}


def test_a_mirror_of_another_registry_is_refused(filled: Signed) -> None:
    with pytest.raises(AlreadyInitialisedError, match="another root"):
        copy_registry(source(filled), Signed(MemoryStore()).init().store, retry=QUICK)
    with pytest.raises(AlreadyInitialisedError, match="unsigned"):
        copy_registry(source(filled), Unsigned(MemoryStore()).init().store, retry=QUICK)


def test_damaged_sources_are_not_copied(filled: Signed) -> None:
    path = next(path for path in filled.store.files if path.endswith(".tunepkg"))
    data = filled.store.files[path]
    filled.store.files[path] = bytes(len(data))
    mirror = MemoryStore()
    with pytest.raises(PublishError, match="does not have the hash"):
        copy_registry(source(filled), mirror, retry=QUICK)
    assert "metadata/timestamp.json" not in mirror.files
    with pytest.raises(UntrustedError):
        SignedSource(filled.store, Signed(MemoryStore()).init().root)


def test_chosen_versions_under_other_keys(filled: Signed) -> None:
    yank(filled.ledger(), NAME, "2.0", "slow", retry=QUICK)
    own = Signed(MemoryStore()).init()
    done = republish(source(filled), own.ledger(), {NAME: SpecifierSet(">=1.0")}, retry=QUICK)
    assert (done.copied, done.total) == (2, 2)
    assert versions(own.store, own.root) == ["1.0", "2.0"]
    state = own.ledger().read([NAME]).names[NAME]
    assert state is not None
    assert [entry.yanked for entry in state.shard.versions] == [None, "slow"]
    assert republish(source(filled), own.ledger(), {NAME: SpecifierSet()}, retry=QUICK).copied == 0


def test_a_mirror_follows_yanks(filled: Signed) -> None:
    own = Unsigned(MemoryStore()).init()
    republish(source(filled), own.ledger(), None, retry=QUICK)
    yank(filled.ledger(), NAME, "1.0", "wrong", retry=QUICK)
    republish(source(filled), own.ledger(), None, retry=QUICK)
    state = own.ledger().read([NAME]).names[NAME]
    assert state is not None
    assert [entry.yanked for entry in state.shard.versions] == ["wrong", None]


def test_a_mirror_follows_successors(filled: Signed) -> None:
    own = Unsigned(MemoryStore()).init()
    successor = Successor(name=NAME, versions=">=2", reason="slower")
    for wanted in (successor, None, successor):
        deprecate(filled.ledger(), NAME, "1.0", wanted, retry=QUICK)
        republish(source(filled), own.ledger(), None, retry=QUICK)
        state = own.ledger().read([NAME]).names[NAME]
        assert state is not None
        assert [entry.successor or None for entry in state.shard.versions] == [wanted, None]
    fresh = Signed(MemoryStore()).init()
    republish(source(filled), fresh.ledger(), None, retry=QUICK)
    state = fresh.ledger().read([NAME]).names[NAME]
    assert state is not None
    assert state.shard.versions[0].successor == successor


def test_documents_are_mirrored_as_they_are(filled: Signed) -> None:
    mirror, own = MemoryStore(), Unsigned(MemoryStore()).init()
    for data in (b"first", b"second"):
        sha256 = read_package(package("znver5", "1.0")).sha256
        entry = attach(filled.ledger(), NAME, "1.0", package=sha256, kind="compat", data=data, retry=QUICK)
        document = entry.document("compat")
        assert document is not None
        copy_registry(source(filled), mirror, retry=QUICK)
        republish(source(filled), own.ledger(), None, retry=QUICK)
        assert mirror.files[document.file] == own.store.files[document.file] == data
        state = own.ledger().read([NAME]).names[NAME]
        assert state is not None
        assert [item.document("compat") for item in state.shard.versions] == [document, None]
    filled.store.files[document.file] = b"others"
    with pytest.raises(PublishError, match="does not have the hash"):
        copy_registry(source(filled), MemoryStore(), retry=QUICK)


def test_an_unsigned_source(filled: Signed) -> None:
    plain = Unsigned(MemoryStore()).init()
    republish(source(filled), plain.ledger(), None, retry=QUICK)
    found = open_source(plain.store, None)
    assert isinstance(found, UnsignedSource)
    own = Signed(MemoryStore()).init()
    assert republish(found, own.ledger(), None, retry=QUICK).copied == 3
    with pytest.raises(NotFoundError, match="llvm-none"):
        republish(found, own.ledger(), {"llvm-none": SpecifierSet()}, retry=QUICK)
    with pytest.raises(NotFoundError, match=r"there is 1\.0, 2\.0"):
        republish(found, own.ledger(), {NAME: SpecifierSet(">9")}, retry=QUICK)


def test_a_mirror_with_the_history_can_be_audited(filled: Signed) -> None:
    copy = MemoryStore()
    copy_registry(source(filled), copy, retry=QUICK)
    alone = audit(copy, filled.root, now=filled.clock)
    assert {finding.kind for finding in alone.findings} == {"broken"}
    assert "metadata/1.snapshot.json is missing (a mirror has it only by" in alone.findings[0].text
    assert copy_history(source(filled), copy, now=filled.clock) > 0
    done = audit(copy, filled.root, now=filled.clock)
    assert not done.findings and done.history == audit(filled.store, filled.root, now=filled.clock).history
    assert copy_history(source(filled), copy, now=filled.clock) == 0


def test_a_history_that_does_not_hold_is_not_copied(filled: Signed) -> None:
    copy = MemoryStore()
    copy_registry(source(filled), copy, retry=QUICK)
    filled.store.files["metadata/2.snapshot.json"] = b"{}"
    files = dict(copy.files)
    with pytest.raises(PublishError, match=r"its history does not hold.*audit it"):
        copy_history(source(filled), copy, now=filled.clock)
    assert copy.files == files
