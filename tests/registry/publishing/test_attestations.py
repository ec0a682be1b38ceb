"""Attestations that several attach at the same moment: none is lost, whoever is first, late or killed."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.registry.attestations import NOW, a_signer, signed

from tunehub_registry.attestation import PackageSubject
from tunehub_registry.document import ATTESTATIONS
from tunehub_registry.publishing.attestations import attach_attestation
from tunehub_registry.publishing.exceptions import DocumentChangedError, PublishError
from tunehub_registry.publishing.packages import attach, publish, read_package
from tunehub_registry.publishing.setup import init_unsigned
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.open import open_store
from tunehub_registry.stores.port import WritableStore
from tunehub_registry.stores.s3 import S3Store
from tunehub_registry.trust.attestations import MAX_ATTESTATIONS, verify_attestations

from ...seaweed import Seaweed
from .fakes import FAULTS, QUICK, Fault, FaultyStore, Killed, MemoryStore, Signed, Unsigned, count_writes, package

NAME, VERSION = "llvm-znver5", "0.1.0"
PACKAGE = read_package(package("znver5", VERSION))
SUBJECT = PackageSubject.of(NAME, VERSION, PACKAGE.sha256)
WRITERS, ROUNDS = 3, 2
Registry = Signed | Unsigned


class Machines:
    """Keys, each of which attests the package."""

    def __init__(self, folder: Path, count: int) -> None:
        self.signers = [a_signer(folder, f"key{number}") for number in range(count)]
        self.envelopes = [signed(signer, 1.0 + number, subject=SUBJECT) for number, signer in enumerate(self.signers)]

    def counted(self, document: bytes) -> int:
        """How many of them count by what a document says."""
        keys = [signer.public_key for signer in self.signers]
        return verify_attestations(document, SUBJECT, keys, "attestations", now=NOW).machines


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    return Machines(tmp_path_factory.mktemp("keys"), WRITERS * ROUNDS)


@pytest.fixture
def registry(any_registry: Registry) -> Registry:
    publish(any_registry.ledger(), [PACKAGE], retry=QUICK)
    return any_registry


def document_in(ledger: Any) -> bytes:
    """What lies beside the package."""
    state = ledger.read([NAME]).names[NAME]
    assert state is not None
    document = state.shard.versions[0].document(ATTESTATIONS)
    return b"" if document is None else bytes(ledger.store.get(document.file, max_bytes=1 << 22).data)


class Rivalled(MemoryStore):
    """Another writer is first, each time a document is about to be written."""

    def __init__(self, files: dict[str, bytes], rival: Callable[[MemoryStore], None], times: int) -> None:
        super().__init__(files)
        self.rival, self.times = rival, times

    def put(self, path: str, *arguments: Any, **options: Any) -> str:
        if "documents/" in path and self.times:
            self.times -= 1
            other = MemoryStore(self.files)
            self.rival(other)
            self.files = other.files
        return super().put(path, *arguments, **options)


@pytest.mark.fast
@pytest.mark.parametrize("times", [1, 3])
def test_one_that_is_overtaken_reads_again_and_adds_its_line(
    registry: Registry, machines: Machines, times: int
) -> None:
    others = iter(machines.envelopes[1:])

    def rival(store: MemoryStore) -> None:
        attach_attestation(registry.ledger(store), next(others), "rival", retry=QUICK)

    store = Rivalled(registry.store.files, rival, times)
    _, entry = attach_attestation(registry.ledger(store), machines.envelopes[0], "own", retry=QUICK)
    assert not store.times
    found = document_in(registry.ledger(store))
    assert machines.counted(found) == times + 1
    assert found.splitlines()[-1] == machines.envelopes[0].strip()
    attached = entry.document(ATTESTATIONS)
    assert attached is not None and store.files[attached.file] == found


@pytest.mark.fast
@pytest.mark.few(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_attesting_that_fails_at_any_write_loses_nothing_and_adds_once(
    registry: Registry, machines: Machines, fault: Fault
) -> None:
    attach_attestation(registry.ledger(), machines.envelopes[0], "first", retry=QUICK)
    before = dict(registry.store.files)
    probe = MemoryStore(before)
    attach_attestation(registry.ledger(probe), machines.envelopes[1], "second", retry=QUICK)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(before, position, fault)
        with suppress(Killed):
            attach_attestation(registry.ledger(store), machines.envelopes[1], "second", retry=QUICK)
        left = MemoryStore(store.files)
        assert machines.counted(document_in(registry.ledger(left))) in (1, 2)
        attach_attestation(registry.ledger(left), machines.envelopes[1], "again", retry=QUICK)
        assert len(document_in(registry.ledger(left)).splitlines()) == 2


@pytest.mark.fast
def test_a_document_is_replaced_only_where_it_is_the_one_that_was_meant(registry: Registry) -> None:
    def put(data: bytes, **options: Any) -> Any:
        ledger = registry.ledger()
        return attach(
            ledger, NAME, VERSION, package=PACKAGE.sha256, kind="compat", data=data, retry=QUICK, **options
        ).document("compat")

    first = put(b"first", replaces=None)
    assert put(b"first", replaces=None) == first  # done already
    with pytest.raises(DocumentChangedError, match="are others than were read"):
        put(b"second", replaces=None)
    second = put(b"second", replaces=first)
    with pytest.raises(DocumentChangedError):
        put(b"third", replaces=first)
    assert put(b"third", replaces=second) != second


@pytest.mark.fast
def test_no_more_are_attached_than_are_read(registry: Registry, machines: Machines) -> None:
    full = b"".join(json.dumps({"line": number}).encode() + b"\n" for number in range(MAX_ATTESTATIONS - 1))
    attach(registry.ledger(), NAME, VERSION, package=PACKAGE.sha256, kind=ATTESTATIONS, data=full, retry=QUICK)
    attach_attestation(registry.ledger(), machines.envelopes[0], "last", retry=QUICK)
    for turn in range(2):
        assert machines.counted(document_in(registry.ledger())) == 1
        attach_attestation(registry.ledger(), machines.envelopes[0], "the same", retry=QUICK)
        with pytest.raises(PublishError, match=rf"has {MAX_ATTESTATIONS} attestations"):
            attach_attestation(registry.ledger(), machines.envelopes[1], f"one too many {turn}", retry=QUICK)


def open_bucket(address: str) -> WritableStore:
    store = open_store(address)
    assert isinstance(store, S3Store)
    return store


def publish_to(store: WritableStore) -> None:
    init_unsigned(store)
    publish(UnsignedLedger(store), [PACKAGE])


@pytest.mark.slow
def test_processes_that_attach_to_a_folder_lose_none(tmp_path: Path, machines: Machines) -> None:
    publish_to(FolderStore(tmp_path / "hub"))
    for number, envelope in enumerate(machines.envelopes):
        (tmp_path / f"{number}.json").write_bytes(envelope)
    commands = [
        [sys.executable, "-c", _PROCESS, str(tmp_path / "hub"), *(str(tmp_path / f"{number}.json") for number in own)]
        for own in (range(first, WRITERS * ROUNDS, WRITERS) for first in range(WRITERS))
    ]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]
    ended = [process.communicate(timeout=120)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * WRITERS, ended
    assert machines.counted(document_in(UnsignedLedger(FolderStore(tmp_path / "hub")))) == WRITERS * ROUNDS


_PROCESS = """
import pathlib, sys
from tunehub_registry.publishing.attestations import attach_attestation
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore
for path in sys.argv[2:]:
    ledger = UnsignedLedger(FolderStore(pathlib.Path(sys.argv[1])))
    attach_attestation(ledger, pathlib.Path(path).read_bytes(), path)
"""


@pytest.mark.slow
def test_writers_that_attach_to_a_bucket_lose_none(s3_credentials: Seaweed, machines: Machines) -> None:
    address = s3_credentials.address(uuid.uuid4().hex)
    publish_to(open_bucket(address))

    def add(first: int) -> None:
        for envelope in machines.envelopes[first::WRITERS]:
            attach_attestation(UnsignedLedger(open_bucket(address)), envelope, "envelope")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(add, range(WRITERS)))
    assert machines.counted(document_in(UnsignedLedger(open_bucket(address)))) == WRITERS * ROUNDS
