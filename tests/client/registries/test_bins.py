"""Publishers with many names: bins, what rides in the timestamp, and what a hostile store or publisher gets by them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from securesystemslib.signer import CryptoSigner

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.ordered import Registries
from tunehub.registries.port import Access
from tunehub.registries.requirement import Requirement
from tunehub.registries.signed import SignedRegistry
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.publishing.audit import audit
from tunehub_registry.publishing.mirror import copy_registry
from tunehub_registry.publishing.packages import publish, read_package, yank
from tunehub_registry.publishing.proposals import ProposalLedger
from tunehub_registry.publishing.source import SignedSource
from tunehub_registry.trust import bins
from tunehub_registry.trust.attached import ATTACHED_FIELD, attached_files, encode_attached
from tunehub_registry.trust.exceptions import RoleError
from tunehub_registry.trust.layout import LOG, TIMESTAMP_PATH
from tunehub_registry.trust.metadata import Grant, Publisher

from ...registry.publishing.fakes import MemoryStore, Signed, package, target

pytestmark = pytest.mark.fast

MANY = 24  # names, in bins of at most 2 * 4


@pytest.fixture(autouse=True)
def small_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "NAMES_PER_ROLE", 4)
    monkeypatch.setattr("tunehub_registry.publishing.bins.NAMES_PER_ROLE", 4)


def publish_names(signed: Signed, first: int, end: int, version: str = "0.1.0") -> None:
    made = [read_package(package(f"m{number}", version)) for number in range(first, end)]
    publish(signed.ledger(), made)


@pytest.fixture
def signed() -> Signed:
    made = Signed(MemoryStore()).init()
    publish_names(made, 0, MANY)
    return made


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(cache=tmp_path / "cache", trust=TrustStore(tmp_path / "trust"), on_problem=lambda _: None)


def client(signed: Signed, access: Access, store: Any = None) -> SignedRegistry:
    return SignedRegistry(store or signed.store, signed.root, access)


def asked(signed: Signed, read: Callable[[], object]) -> list[str]:
    """What of the store is read meanwhile."""
    signed.store.requests.clear()
    read()
    return list(signed.store.requests)


def bin_path(signed: Signed, model: str) -> str:
    """Where the newest bin of a name lies."""
    state, reader = SignedSource(signed.store, signed.root).present, SignedSource(signed.store, signed.root).reader
    part = reader.part(state, "acme", f"llvm-{model}")
    head = reader.head(state, "acme")
    roles = bins.bins_of(head)
    assert part is not None and roles is not None
    return f"metadata/{part.version}.{roles.get_role_for_target(f'llvm-{model}')}.json"


def test_a_publisher_of_few_names_has_no_bins_and_nothing_rides() -> None:
    signed = Signed(MemoryStore()).init()
    publish_names(signed, 0, 4)
    assert not [path for path in signed.store.files if ".bin-" in path]
    assert ATTACHED_FIELD.encode() not in b"".join(
        data for path, data in signed.store.files.items() if "metadata" in path
    )
    publish_names(signed, 4, 5)
    assert [path for path in signed.store.files if ".bin-" in path]


def test_a_name_in_a_bin_costs_three_requests_and_two_when_nothing_is_new(signed: Signed, access: Access) -> None:
    def resolve() -> None:
        found = Registries([client(signed, access)], access.on_problem).resolve(target("m5"), Requirement(), None)
        assert found.chosen is not None and found.chosen.name == "llvm-m5"

    cold = asked(signed, resolve)
    assert cold == ["get metadata/2.root.json", f"get {TIMESTAMP_PATH}", f"get {bin_path(signed, 'm5')}"]
    assert asked(signed, resolve) == cold[:2]
    publish_names(signed, 5, 6, "0.2.0")
    assert asked(signed, resolve) == [*cold[:2], f"get {bin_path(signed, 'm5')}"]


def test_the_nearest_is_chosen_among_names_that_stand_for_the_others(signed: Signed, access: Access) -> None:
    registry = client(signed, access)
    assert len(registry.names()) == 2  # all are alike but for the model
    found = Registries([registry], access.on_problem).resolve(target("unknown"), Requirement(), None)
    assert found.chosen is not None and found.chosen.match.fit == "family"
    assert registry.find("llvm-m9") == target("m9") and registry.find("llvm-none") is None


def test_publishing_one_package_writes_one_bin(signed: Signed) -> None:
    ledger = signed.ledger()
    signed.store.requests.clear()
    publish(ledger, [read_package(package("m5", "0.2.0"))])
    written = [request.removeprefix("put ") for request in signed.store.requests if request.startswith("put ")]
    assert len([path for path in written if path.startswith("metadata/")]) == 3  # bin, snapshot, timestamp
    assert [path for path in written if ".bin-" in path] == [bin_path(signed, "m5")]


def test_bins_are_split_as_names_come_and_every_version_stays(signed: Signed, access: Access) -> None:
    publish_names(signed, MANY, 3 * MANY)
    yank(signed.ledger(), "llvm-m5", "0.1.0", "slow")
    registry = client(signed, access)
    assert [registry.find(f"llvm-m{number}") for number in range(3 * MANY)] == [
        target(f"m{number}") for number in range(3 * MANY)
    ]
    assert [entry.yanked for entry in registry.shard("llvm-m5").versions] == ["slow"]
    assert len(SignedSource(signed.store, signed.root).names()) == 3 * MANY


def test_keys_are_replaced_and_dates_renewed_in_bins_too(signed: Signed, access: Access) -> None:
    new = CryptoSigner.generate_ed25519()
    signed.owner().rotate_publisher("acme", [new], [signed.targets_key])
    signed.clock.advance(days=300)
    signed.owner().refresh(publisher_keys=[new], targets_keys=[signed.targets_key], root_keys=signed.root_keys)
    publish(replace(signed, acme_key=new).ledger(), [read_package(package("m5", "0.2.0"))])
    both = Grant(keys=(new.public_key, signed.acme_key.public_key))
    signed.owner().delegate(Publisher(name="acme", patterns=("llvm-*",), grant=both), [signed.targets_key])
    publish(signed.ledger(), [read_package(package("m6", "0.2.0"))])  # by the other of two keys: all is signed anew
    source = SignedSource(signed.store, signed.root, now=signed.clock)
    assert len(source.names()) == MANY


def test_mirrors_and_audits_know_bins(signed: Signed, access: Access) -> None:
    copy = MemoryStore()
    copy_registry(SignedSource(signed.store, signed.root), copy)
    registry = client(signed, access, copy)
    assert registry.find("llvm-m7") == target("m7")
    assert registry.fetch_package(registry.shard("llvm-m7").versions[0])
    found = audit(signed.store, signed.root)
    assert not found.findings and len(found.history) == MANY


def test_names_in_bins_are_not_proposed(signed: Signed) -> None:
    ledger = ProposalLedger(signed.store, signed.root, keys=[signed.acme_key], online=None, now=signed.clock)
    with pytest.raises(RoleError, match="bins"):
        publish(ledger, [read_package(package("m5", "0.2.0"))])


@pytest.mark.parametrize("wrong", ["missing", "another bin", "cut off", "endless", "older"])
def test_a_bad_bin_costs_its_names_alone(signed: Signed, access: Access, wrong: str) -> None:
    before = signed.store.files[bin_path(signed, "m5")]
    publish_names(signed, 5, 6, "0.2.0")
    path = bin_path(signed, "m5")
    other = next(f"m{number}" for number in range(MANY) if bin_path(signed, f"m{number}") != path)
    data = signed.store.files[path]
    contents = {
        "another bin": signed.store.files[bin_path(signed, other)], "cut off": data[:-9],
        "endless": data + b" " * 9_000_000, "older": before,
    }  # fmt: skip
    del signed.store.files[path]
    signed.store.files.update({path: contents[wrong]} if wrong in contents else {})
    registry = client(signed, access)
    with pytest.raises(RegistryUnreadableError):
        registry.find("llvm-m5")
    assert registry.find(f"llvm-{other}") == target(other)
    assert [entry.version for entry in registry.shard(f"llvm-{other}").versions] == ["0.1.0"]


def test_what_rides_is_verified_as_what_is_fetched(signed: Signed, access: Access) -> None:
    document = msgspec.json.decode(signed.store.files[TIMESTAMP_PATH])
    riding = attached_files(TIMESTAMP_PATH, signed.store.files[TIMESTAMP_PATH])
    assert {path.split("/")[0] for path in riding} == {"metadata", LOG}
    forged = {path: data.replace(b"acme", b"evil") for path, data in riding.items()}
    for field in ("not base85 \u2014", "", 7):
        signed.store.files[TIMESTAMP_PATH] = msgspec.json.encode({**document, ATTACHED_FIELD: field})
        assert client(signed, replace(access, cache=None)).find("llvm-m5") == target("m5")  # the files are fetched
    signed.store.files[TIMESTAMP_PATH] = msgspec.json.encode({**document, **encode_attached(forged)})
    with pytest.raises(RegistryUnreadableError):
        client(signed, replace(access, cache=None)).find("llvm-m5")


def test_a_publisher_attaches_shards_alone() -> None:
    shard = b'{"a": "shard"}'
    right = f"packages/shards/{hashlib.sha256(shard).hexdigest()}.json"
    files = {
        right: shard, f"packages/shards/{'0' * 64}.json": shard, "metadata/2.root.json": b"{}",
        "metadata/9.snapshot.json": b"{}", TIMESTAMP_PATH: b"{}",
    }  # fmt: skip
    data = msgspec.json.encode(encode_attached(files))
    assert attached_files("metadata/1.acme.bin-3.json", data) == {right: shard}
    assert attached_files(TIMESTAMP_PATH, data) == {"metadata/9.snapshot.json": b"{}"}
