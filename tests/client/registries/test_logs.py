"""The log of a registry, as clients follow it: what goes on is taken in, and a fork stops everything and is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner, Signer

from tunehub.exceptions import RegistryUnreadableError, TrustError
from tunehub.registries.port import Access
from tunehub.registries.signed import SignedRegistry
from tunehub.registries.trust_store import TrustStore, Witnesses
from tunehub_registry.publishing.administration import Administration
from tunehub_registry.publishing.mirror import copy_registry
from tunehub_registry.publishing.packages import publish, read_package
from tunehub_registry.publishing.setup import init_signed
from tunehub_registry.publishing.signed import MetadataWriter, SignedLedger
from tunehub_registry.publishing.source import SignedSource
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.port import Content, UnreachableError
from tunehub_registry.trust.checkpoint import cosign, parse_checkpoint
from tunehub_registry.trust.keys import encode_public_key
from tunehub_registry.trust.layout import LOG_FIELD, TIMESTAMP_PATH
from tunehub_registry.trust.log import witness_path
from tunehub_registry.trust.metadata import Grant, Publisher

from ..conftest import ZNVER5, make_package

pytestmark = pytest.mark.fast

NAME = ZNVER5.name


class Logged:
    """A signed registry with a log in a folder, and all its keys. `fork` is what who has them all can do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys: dict[str, Signer] = {
            name: CryptoSigner.generate_ed25519() for name in ("root", "targets", "online", "acme")
        }
        self.root = init_signed(
            self.store, root_keys=[self.keys["root"]], threshold=1, targets_key=self.keys["targets"],
            online_key=self.keys["online"],
        )  # fmt: skip
        publisher = Publisher(name="acme", patterns=("llvm-*",), grant=Grant(keys=(self.keys["acme"].public_key,)))
        Administration(self.writer()).delegate(publisher, [self.keys["targets"]])

    @property
    def store(self) -> FolderStore:
        return FolderStore(self.folder)

    def writer(self) -> MetadataWriter:
        return MetadataWriter(self.store, self.root, online=self.keys["online"])

    def publish(self, *versions: str) -> None:
        for version in versions:
            ledger = SignedLedger(self.store, self.root, keys=[self.keys["acme"]], online=self.keys["online"])
            publish(ledger, [read_package(make_package(ZNVER5, version))])

    def fork(self, folder: Path) -> Logged:
        shutil.copytree(self.folder, folder)
        return replace_folder(self, folder)

    def head(self) -> str:
        found: str = json.loads((self.folder / TIMESTAMP_PATH).read_text())["signed"][LOG_FIELD]
        return found


def replace_folder(registry: Logged, folder: Path) -> Logged:
    other = Logged.__new__(Logged)
    other.__dict__ = {**registry.__dict__, "folder": folder}
    return other


class CountingStore(FolderStore):
    """Notes what is asked for; `address` is that of another one, so that a client takes it for that."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self._address = address
        self.asked: list[str] = []
        self.away: Callable[[str], bool] = lambda path: False

    @property
    def address(self) -> str:
        return self._address

    def get(self, path: str, **options: object) -> Content | None:  # type: ignore[override]
        self.asked.append(path)
        if self.away(path):
            raise UnreachableError("gone", address=self.address, path=path, remedy="wait")
        return super().get(path, **options)  # type: ignore[arg-type]


class User:
    """A client with a trust store and a cache."""

    def __init__(self, folder: Path, registry: Logged) -> None:
        self.trust = TrustStore(folder / "trust")
        self.problems: list[str] = []
        self.access = Access(
            cache=folder / "cache", trust=self.trust, on_problem=lambda problem: self.problems.append(str(problem))
        )
        self.address = registry.store.address
        self.root = registry.root
        self.store = CountingStore(registry.folder, self.address)

    def versions(self, registry: Logged) -> list[str]:
        self.store = CountingStore(registry.folder, self.address)
        return self.read()

    def read(self) -> list[str]:
        found = SignedRegistry(self.store, self.root, self.access)
        return [entry.version for entry in found.shard(NAME).versions] if NAME in found.names() else []

    def asked(self) -> list[str]:
        return [path for path in self.store.asked if path.startswith("log/")]

    def evidence(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in sorted(self.trust.folder.glob("logs/*.fork-*.json"))]


@pytest.fixture
def registry(tmp_path: Path) -> Logged:
    return Logged(tmp_path / "reg")


@pytest.fixture
def user(tmp_path: Path, registry: Logged) -> User:
    return User(tmp_path / "user", registry)


def test_following_a_log_costs_one_file_at_most_and_none_when_nothing_changed(registry: Logged, user: User) -> None:
    registry.publish("1.0")
    assert user.versions(registry) == ["1.0"]
    assert len(user.asked()) == 1
    assert user.versions(registry) == ["1.0"]
    assert user.asked() == []
    registry.publish("2.0")
    assert user.versions(registry) == ["1.0", "2.0"]
    assert user.asked() == [], "the newest entry is that of the snapshot"
    registry.publish("3.0", "4.0", "5.0")
    user.versions(registry)
    assert len(user.asked()) == 1
    known = user.trust.known_log(user.address)
    assert known is not None
    assert known.note == registry.head()


def test_a_fork_stops_everything_names_both_heads_and_is_kept(registry: Logged, user: User, tmp_path: Path) -> None:
    registry.publish("1.0")
    other = registry.fork(tmp_path / "other")
    registry.publish("2.0")
    user.versions(registry)
    other.publish("6.6.6", "6.6.7", "6.6.8")
    seen, shown = (parse_checkpoint(head.head()) for head in (registry, other))
    for _ in range(2):
        with pytest.raises(TrustError, match="its log has forked: it does not begin with what was seen") as error:
            user.versions(other)
        assert f"seen before: {seen}; shown now: {shown}; kept in {user.trust.folder}" in str(error.value)
    (evidence,) = user.evidence()
    assert evidence["shown"] == json.loads((other.folder / TIMESTAMP_PATH).read_text())
    assert evidence["seen"]["note"] == registry.head()  # type: ignore[index]
    assert user.versions(registry) == ["1.0", "2.0"], "the registry as it was goes on"


def test_two_users_who_are_shown_different_states_find_out(registry: Logged, user: User, tmp_path: Path) -> None:
    """Each view goes on by itself; who carries a head from one to the other has the proof."""
    registry.publish("1.0")
    other, victim = registry.fork(tmp_path / "other"), User(tmp_path / "victim", registry)
    registry.publish("2.0")
    other.publish("6.6.6")
    assert user.versions(registry) == ["1.0", "2.0"]
    assert victim.versions(other) == ["1.0", "6.6.6"]
    registry.publish("3.0")
    shutil.rmtree(victim.access.cache)  # type: ignore[arg-type]
    with pytest.raises(TrustError, match="its log has forked"):
        victim.versions(registry)


def test_a_shorter_log_of_the_same_length_or_none_at_all(registry: Logged, user: User, tmp_path: Path) -> None:
    registry.publish("1.0")
    short = registry.fork(tmp_path / "short")
    registry.publish("2.0", "3.0")
    user.versions(registry)
    for versions, reason in (((), "shorter than what was seen"), (("6.0", "6.1"), "length that was seen")):
        short.publish(*versions)
        shutil.rmtree(user.access.cache)  # type: ignore[arg-type]
        with pytest.raises(TrustError, match=reason):
            user.versions(short)
    writer = registry.writer()
    state = writer.read()
    state.timestamp.unrecognized_fields.pop(LOG_FIELD)
    writer.commit_timestamp(state)
    with pytest.raises(TrustError, match=r"it has no log any more; seen before: 5 entries.*shown now: no log"):
        user.versions(registry)
    user.trust.add_root(user.address, user.root)
    assert user.versions(registry) == ["1.0", "2.0", "3.0"], "who trusts anew begins anew"


def test_a_mirror_has_the_log_too(registry: Logged, user: User, tmp_path: Path) -> None:
    registry.publish("1.0")
    mirror = replace_folder(registry, tmp_path / "mirror")
    copy_registry(SignedSource(registry.store, registry.root), mirror.store)
    assert user.versions(mirror) == ["1.0"]
    registry.publish("2.0", "3.0", "4.0")
    copy_registry(SignedSource(registry.store, registry.root), mirror.store)
    assert user.versions(mirror) == ["1.0", "2.0", "3.0", "4.0"]
    assert len(user.asked()) == 1


def test_a_registry_without_a_log_works_and_may_begin_one(registry: Logged, user: User) -> None:
    writer = registry.writer()
    state = writer.read()
    state.timestamp.unrecognized_fields.pop(LOG_FIELD)
    writer.commit_timestamp(state)
    registry.publish("1.0")
    assert user.versions(registry) == ["1.0"]
    assert user.trust.known_log(user.address) is None
    shutil.rmtree(registry.folder / "log")
    begins = MetadataWriter(registry.store, registry.root, online=registry.keys["online"], begins_log=True)
    begins.commit_timestamp(begins.read())
    registry.publish("2.0")
    assert user.versions(registry) == ["1.0", "2.0"]
    assert user.trust.known_log(user.address) is not None


def test_tiles_that_cannot_be_had_are_a_network_that_is_away(registry: Logged, user: User) -> None:
    registry.publish("1.0")
    user.versions(registry)
    registry.publish("2.0", "3.0")
    user.store = CountingStore(registry.folder, user.address)
    user.store.away = lambda path: path.startswith("log/")
    assert user.read() == ["1.0"]
    assert "what was read" in user.problems[0]
    shutil.rmtree(registry.folder / "log")
    fresh = User(user.trust.folder.parent / "fresh", registry)
    with pytest.raises(RegistryUnreadableError, match="log/tile/0/000"):
        fresh.versions(registry)


def test_tiles_that_are_wrong_are_no_proof(registry: Logged, user: User) -> None:
    registry.publish("1.0")
    user.versions(registry)
    registry.publish("2.0", "3.0")
    for path in (registry.folder / "log" / "tile" / "0").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(TrustError, match="its log has forked"):
        user.versions(registry)


def test_a_damaged_memory_is_not_taken_for_none(registry: Logged, user: User) -> None:
    registry.publish("1.0")
    user.versions(registry)
    (path,) = user.trust.folder.glob("logs/*.json")
    text = path.read_text()
    for wrong in ("", "{}", text.replace('"nodes"', '"x"')):
        path.write_text(wrong)
        with pytest.raises(TrustError, match="delete the file"):
            user.versions(registry)
    path.write_text(text.replace(json.loads(text)["newest"], "zz"))
    registry.publish("2.0")
    with pytest.raises(TrustError, match="its log cannot be read"):
        user.versions(registry)
    path.unlink()
    assert user.versions(registry) == ["1.0", "2.0"]


# --- witnesses


def witness(registry: Logged, signer: Signer, *, days_ago: float = 0, note: str | None = None) -> None:
    head = parse_checkpoint(note or registry.head())
    time = int((datetime.now(timezone.utc) - timedelta(days=days_ago)).timestamp())
    path = registry.folder / witness_path(signer.public_key.keyid)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head.with_signatures(*head.signatures, cosign(head, signer, "w.example", time)).note)


def need(user: User, count: int, *signers: Signer) -> None:
    keys = tuple(encode_public_key(signer.public_key).decode() for signer in signers)
    user.trust.set_witnesses(Witnesses(address=user.address, keys=keys, needed=count))


def test_as_many_witnesses_as_are_needed_have_to_have_seen_the_log(registry: Logged, user: User) -> None:
    one, two = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
    registry.publish("1.0")
    need(user, 2, one, two)
    for count, signer in enumerate((None, one)):
        if signer is not None:
            witness(registry, signer)
        with pytest.raises(
            TrustError, match=f"2 of its witnesses have to have seen its log within 7 days, and {count} did"
        ):
            user.versions(registry)
    witness(registry, two)
    assert user.versions(registry) == ["1.0"]
    registry.publish("2.0")  # which no witness has seen yet, and which goes on from what they saw
    assert user.versions(registry) == ["1.0", "2.0"]
    assert user.asked() == []
    witness(registry, CryptoSigner.generate_ed25519())
    need(user, 3, one, two)
    with pytest.raises(TrustError, match="3 of its witnesses"):
        user.versions(registry)


def test_what_a_witness_saw_long_ago_or_of_another_log_does_not_count(
    registry: Logged, user: User, tmp_path: Path
) -> None:
    signer = CryptoSigner.generate_ed25519()
    registry.publish("1.0")
    other = registry.fork(tmp_path / "other")
    need(user, 1, signer)
    for days in (7.1, 400, -2):
        witness(registry, signer, days_ago=days)
        with pytest.raises(TrustError, match="and 0 did"):
            user.versions(registry)
    (registry.folder / witness_path(signer.public_key.keyid)).write_text("no note")
    with pytest.raises(TrustError, match="and 0 did"):
        user.versions(registry)
    other.publish("6.6.6")
    registry.publish("2.0", "3.0")
    witness(registry, signer, note=other.head())
    with pytest.raises(TrustError, match="its log has forked: a witness has seen another one"):
        user.versions(registry)
    assert len(user.evidence()) == 1


def test_a_victim_of_a_split_view_is_saved_by_a_witness(registry: Logged, user: User, tmp_path: Path) -> None:
    """The attacker has all keys of the registry, and shows a fresh client another one; the witness saw the true one."""
    signer = CryptoSigner.generate_ed25519()
    registry.publish("1.0")
    other = registry.fork(tmp_path / "other")
    registry.publish("2.0")
    witness(registry, signer)
    need(user, 1, signer)
    other.publish("6.6.6", "6.6.7")
    shutil.copytree(registry.folder / "log" / "witness", other.folder / "log" / "witness")
    with pytest.raises(TrustError, match="a witness has seen another one"):
        user.versions(other)
    shutil.rmtree(other.folder / "log" / "witness")
    with pytest.raises(TrustError, match="1 of its witnesses have to have seen its log"):
        user.versions(other)
    assert user.versions(registry) == ["1.0", "2.0"]


def test_witnesses_of_a_registry_without_a_log(registry: Logged, user: User) -> None:
    writer = registry.writer()
    state = writer.read()
    state.timestamp.unrecognized_fields.pop(LOG_FIELD)
    writer.commit_timestamp(state)
    need(user, 1, CryptoSigner.generate_ed25519())
    with pytest.raises(TrustError, match=r"it has no log .*tunehub timestamp --log"):
        user.versions(registry)
