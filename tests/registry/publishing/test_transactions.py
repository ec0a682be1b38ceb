"""What every transaction keeps, whatever becomes of its writer: signed and unsigned, at each of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tunehub_registry.exceptions import FieldError, NotFoundError, PackageError, VersionConflictError
from tunehub_registry.index import ShardEntry, Successor
from tunehub_registry.publishing.exceptions import UnfinishedError
from tunehub_registry.publishing.ledger import RetryPolicy, persist
from tunehub_registry.publishing.packages import attach, deprecate, publish, read_package, unyank, yank
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.port import FullStoreError, UnreachableError

from .fakes import FAULTS, QUICK, Fault, FaultyStore, Killed, MemoryStore, Signed, Unsigned, count_writes, package

pytestmark = pytest.mark.fast

Registry = Signed | Unsigned
NAME = "llvm-znver5"


def put(registry: Registry, *versions: str, store: Any = None, model: str = "znver5", **options: Any) -> list[str]:
    packages = [read_package(package(model, version)) for version in versions]
    done = publish(registry.ledger(store), packages, retry=QUICK, **options)
    return [item.outcome for item in done]


def test_publish_and_read(any_registry: Registry) -> None:
    assert put(any_registry, "0.1.0") == ["published"]
    assert put(any_registry, "0.3.0", "0.2.0") == ["published", "published"]
    assert put(any_registry, "1.0", model="skylake") == ["published"]
    client = any_registry.client()
    assert client.versions(NAME) == ["0.1.0", "0.2.0", "0.3.0"]
    assert client.versions("llvm-skylake") == ["1.0"]
    assert client.versions("llvm-other") == []
    client.close()


def test_the_same_bytes_are_no_op(any_registry: Registry) -> None:
    put(any_registry, "0.1.0")
    before = dict(any_registry.store.files)
    assert put(any_registry, "0.1.0") == ["present"]
    assert any_registry.store.files == before


def test_other_bytes_are_refused_before_anything_is_uploaded(any_registry: Registry) -> None:
    put(any_registry, "0.1.0")
    before = dict(any_registry.store.files)
    other = read_package(package(version="0.1.0", content=b"{} \n"))
    with pytest.raises(VersionConflictError, match="never changes"):
        publish(any_registry.ledger(), [other], retry=QUICK)
    assert any_registry.store.files == before


def test_a_refused_version_keeps_back_the_whole_transaction(any_registry: Registry) -> None:
    put(any_registry, "0.1.0")
    other = read_package(package(version="0.1.0", content=b"{} \n"))
    with pytest.raises(VersionConflictError):
        publish(any_registry.ledger(), [read_package(package(version="0.2.0")), other], retry=QUICK)
    client = any_registry.client()
    assert client.versions(NAME) == ["0.1.0"]
    client.close()


def test_two_packages_of_one_version_are_refused(any_registry: Registry) -> None:
    pair = [read_package(package(content=content)) for content in (b"{}\n", b"{} \n")]
    with pytest.raises(PackageError, match=r"two different packages are llvm-znver5 0\.1\.0"):
        publish(any_registry.ledger(), pair, retry=QUICK)


def test_a_version_and_a_whole_name_are_deprecated(any_registry: Registry) -> None:
    for version in ("0.1.0", "0.2.0"):
        publish(any_registry.ledger(), [read_package(package(version=version))], retry=QUICK)
    newer = Successor(name=NAME, versions=">=0.2")
    (entry,) = deprecate(any_registry.ledger(), NAME, "0.1", newer, retry=QUICK)
    assert (entry.version, entry.successor, entry.yanked) == ("0.1.0", newer, None)
    other = Successor(name="llvm-znver6", reason="more records")
    assert [item.successor for item in deprecate(any_registry.ledger(), NAME, None, other, retry=QUICK)] == [other] * 2
    again = any_registry.ledger().read([NAME]).names[NAME]
    deprecate(any_registry.ledger(), NAME, None, other, retry=QUICK)
    assert any_registry.ledger().read([NAME]).names[NAME] == again
    back = deprecate(any_registry.ledger(), NAME, None, None, retry=QUICK)
    assert not any(item.successor for item in back)
    for name, version in ((NAME, "9.9"), ("llvm-none", None)):
        with pytest.raises(NotFoundError):
            deprecate(any_registry.ledger(), name, version, newer, retry=QUICK)


def test_yank_and_unyank(any_registry: Registry) -> None:
    put(any_registry, "0.1.0", "0.2.0")
    assert yank(any_registry.ledger(), NAME, "0.1", "wrong results", retry=QUICK).yanked == "wrong results"
    before = any_registry.ledger().read([NAME]).names[NAME]
    assert before is not None
    assert [entry.yanked for entry in before.shard.versions] == ["wrong results", None]
    assert unyank(any_registry.ledger(), NAME, "0.1.0", retry=QUICK).yanked is None
    with pytest.raises(NotFoundError, match=r"no version 9\.9"):
        yank(any_registry.ledger(), NAME, "9.9", "why", retry=QUICK)
    with pytest.raises(NotFoundError, match="llvm-none is not in the registry"):
        yank(any_registry.ledger(), "llvm-none", "9.9", "why", retry=QUICK)


@pytest.mark.few(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_publisher_that_fails_at_any_write(any_registry: Registry, fault: Fault) -> None:
    """Readers see the state before or after; a second run succeeds; nothing is there twice."""
    put(any_registry, "0.1.0")
    start = dict(any_registry.store.files)
    probe = MemoryStore(start)
    put(any_registry, "0.2.0", store=probe)
    writes = [request.removeprefix("put ") for request in probe.requests if request.startswith("put ")]
    commit = 1 + max(number for number, path in enumerate(writes) if not path.startswith("log/"))
    assert commit >= 3
    for position in range(1, len(writes) + 1):
        store = FaultyStore(start, position, fault)
        first = None
        with suppress(Killed):
            first = put(any_registry, "0.2.0", store=store)
        client = any_registry.client(store)
        assert client.versions(NAME) in (["0.1.0"], ["0.1.0", "0.2.0"])
        committed = client.versions(NAME) == ["0.1.0", "0.2.0"]
        assert committed == (fault in ("refused", "answer lost") or position >= commit + (fault == "killed before"))
        assert first == (None if fault.startswith("killed") else ["published"])
        put(any_registry, "0.2.0", store=store)
        put(any_registry, "0.3.0", store=store)
        assert client.versions(NAME) == ["0.1.0", "0.2.0", "0.3.0"]
        client.close()


def test_documents_beside_packages(any_registry: Registry) -> None:
    put(any_registry, "0.1.0", "0.2.0")
    entry = attach_to(any_registry, "0.2.0", b"first", kind="attestations")
    entry = attach_to(any_registry, "0.2.0", b"old")
    entry = attach_to(any_registry, "0.2.0", b"new")
    assert {item.kind: any_registry.store.files[item.file] for item in entry.documents or ()} == {
        "attestations": b"first",
        "compat": b"new",
    }
    before = dict(any_registry.store.files)
    assert attach_to(any_registry, "0.2.0", b"new") == entry
    assert any_registry.store.files == before
    yank(any_registry.ledger(), NAME, "0.2.0", "slow", retry=QUICK)
    assert put(any_registry, "0.2.0", "0.3.0") == ["present", "published"]
    state = any_registry.ledger().read([NAME]).names[NAME]
    assert state is not None
    assert [bool(item.documents) for item in state.shard.versions] == [False, True, False]


def test_a_document_about_other_bytes_is_refused_before_it_is_uploaded(any_registry: Registry) -> None:
    put(any_registry, "0.1.0")
    before = dict(any_registry.store.files)
    for version, package_sha256 in (("0.1.0", "0" * 64), ("0.2.0", None)):
        with pytest.raises(NotFoundError, match=r"make the document from the published package|has no version"):
            attach_to(any_registry, version, b"{}", package_sha256=package_sha256)
    with pytest.raises(FieldError, match="a document has 1 to"):
        attach_to(any_registry, "0.1.0", b"")
    assert any_registry.store.files == before


@pytest.mark.few(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_attaching_that_fails_at_any_write(any_registry: Registry, fault: Fault) -> None:
    put(any_registry, "0.1.0")
    first = dict(any_registry.store.files)
    probe = MemoryStore(first)
    attach_to(any_registry, "0.1.0", b"{}", store=probe)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(first, position, fault)
        with suppress(Killed):
            attach_to(any_registry, "0.1.0", b"{}", store=store)
        entry = attach_to(any_registry, "0.1.0", b"{}", store=MemoryStore(store.files))
        assert [item.kind for item in entry.documents or ()] == ["compat"]


def attach_to(
    registry: Registry,
    version: str,
    data: bytes,
    *,
    kind: str = "compat",
    package_sha256: str | None = None,
    store: Any = None,
) -> ShardEntry:
    sha256 = package_sha256 or read_package(package(version=version)).sha256
    return attach(registry.ledger(store), NAME, version, package=sha256, kind=kind, data=data, retry=QUICK)


def test_a_repeated_transaction_is_recognised_by_its_id(any_registry: Registry) -> None:
    assert put(any_registry, "0.1.0", transaction="t1") == ["published"]
    assert put(any_registry, "0.1.0", transaction="t1") == ["published"]
    assert put(any_registry, "0.1.0", transaction="t2") == ["present"]


@pytest.mark.parametrize("kind", [Signed, Unsigned])
def test_racing_publishers_on_a_folder(kind: Callable[[Any], Registry], tmp_path: Path) -> None:
    registry = kind(FolderStore(tmp_path / "registry")).init()
    errors: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            ledger = registry.ledger()
            for number in range(4):
                item = read_package(package(f"w{writer % 2}", f"{writer}.{number}"))
                publish(ledger, [item], retry=RetryPolicy(total_s=60))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    client = registry.client()
    for parity in range(2):
        expected = [f"{writer}.{number}" for writer in (parity, parity + 2) for number in range(4)]
        assert client.versions(f"llvm-w{parity}") == expected
    client.close()


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from(["0.1", "0.2", "1.0", "1.0rc1", "2.0.post1"]), st.sampled_from([b"{}\n", b"{} \n"])),
        max_size=8,
    )
)
def test_versions_never_change_and_are_sorted(published: list[tuple[str, bytes]]) -> None:
    registry = Unsigned(MemoryStore()).init()
    expected: dict[str, bytes] = {}
    for version, content in published:
        item = read_package(package(version=version, content=content))
        if expected.setdefault(version, content) != content:
            with pytest.raises(VersionConflictError):
                publish(registry.ledger(), [item], retry=QUICK)
        else:
            publish(registry.ledger(), [item], retry=QUICK)
    state = registry.ledger().read([NAME]).names[NAME]
    entries = () if state is None else state.shard.versions
    assert [entry.version for entry in entries] == sorted(expected, key=Version)
    for entry in entries:
        assert registry.store.files[entry.file] == package(version=entry.version, content=expected[entry.version])


def test_a_store_that_stays_away_ends_the_transaction() -> None:
    def attempt() -> None:
        raise UnreachableError("503", address="x", path="y", remedy="later")

    with pytest.raises(UnfinishedError, match=r"503.*run it again"):
        persist(attempt, address="x", retry=RetryPolicy(total_s=1, unreachable_s=0.05, longest_pause_s=0.01))


def test_a_blob_with_other_bytes_is_refused(any_registry: Registry) -> None:
    item = read_package(package())
    path = item.version(transaction="t", published="2026-01-01").entry.file
    any_registry.store.files[path] = b"something else"
    with pytest.raises(Exception, match="does not have the content that its name says"):
        publish(any_registry.ledger(), [item], retry=QUICK)


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    data = bytearray(package())
    data[len(data) // 3] ^= 0xFF
    path = tmp_path / "x.tunepkg"
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"x\.tunepkg"):
        read_package(path)


def test_a_full_disk_is_not_waited_for() -> None:
    attempts: list[int] = []

    def attempt() -> None:
        attempts.append(1)
        raise FullStoreError("no space left", address="x", path="y", remedy="make room")

    with pytest.raises(FullStoreError, match="make room"):
        persist(attempt, address="x")
    assert len(attempts) == 1
