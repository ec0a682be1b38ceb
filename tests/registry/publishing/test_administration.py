"""Keys and publishers of signed registries, read by python-tuf at each moment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner

from tunehub_registry.publishing.exceptions import AlreadyInitialisedError, NotInitialisedError, PublishError
from tunehub_registry.publishing.packages import publish, read_package
from tunehub_registry.publishing.setup import FIRST_ROOT_PATH, init_signed, init_unsigned
from tunehub_registry.trust.exceptions import ExpiredError, RoleError, UntrustedError
from tunehub_registry.trust.metadata import Grant, Publisher

from ...sweeps import covering
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
new_key = CryptoSigner.generate_ed25519


def put(registry: Signed, version: str, *, store: Any = None, model: str = "znver5", **options: Any) -> None:
    kind = options.pop("kind", "llvm")
    item = read_package(package(model, version, kind=kind))
    publish(registry.ledger(store, **options), [item], retry=QUICK)


def versions(registry: Signed, store: Any = None, name: str = NAME) -> list[str]:
    client = registry.client(store)
    try:
        return client.versions(name)
    finally:
        client.close()


class WatchedStore(MemoryStore):
    """Has a fresh client and an old one read the registry after every write."""

    def __init__(self, files: dict[str, bytes], root: bytes, expected: list[str]) -> None:
        super().__init__(files)
        self.root = root
        self.expected = expected
        self.old = Client(self, root)
        assert self.old.versions(NAME) == expected

    def put(self, path: str, *args: Any, **options: Any) -> str:
        etag = super().put(path, *args, **options)
        fresh = Client(self, self.root)
        assert fresh.versions(NAME) == self.expected, path
        assert self.old.versions(NAME) == self.expected, path
        fresh.close()
        return etag


def test_a_new_registry_has_no_index_and_no_names(signed: Signed) -> None:
    assert "index.json" not in signed.store.files
    assert versions(signed, name="cuda-h200") == []


def test_init_refuses_a_second_time(signed: Signed) -> None:
    with pytest.raises(AlreadyInitialisedError, match=r"metadata/timestamp\.json"):
        Signed(signed.store).init()
    with pytest.raises(AlreadyInitialisedError):
        init_unsigned(signed.store)
    with pytest.raises(AlreadyInitialisedError, match=r"index\.json"):
        Signed(Unsigned(MemoryStore()).init().store).init()


@pytest.mark.parametrize("fault", FAULTS)
def test_init_can_be_cut_off_anywhere(fault: Fault) -> None:
    probe = MemoryStore()
    registry = Signed(probe)

    def init(store: Any) -> bytes:
        return init_signed(
            store, root_keys=registry.root_keys, threshold=1, targets_key=registry.targets_key,
            online_key=registry.online_key, retry=QUICK, now=registry.clock,
        )  # fmt: skip

    init(probe)
    steps = count_writes(probe)
    writes = [request for request in probe.requests if request.startswith("put metadata")]
    assert [write.removeprefix("put metadata/") for write in writes] == [
        "1.root.json", "1.targets.json", "1.snapshot.json", "timestamp.json",
    ]  # fmt: skip
    for position in range(steps - len(writes) + 1, steps + 1):
        store = FaultyStore({}, position, fault)
        with suppress(Killed):
            init(store)
        with suppress(AlreadyInitialisedError):
            init(store)
        registry.root = store.files[FIRST_ROOT_PATH]
        registry.owner(store).delegate(
            Publisher(name="acme", patterns=("llvm-*",), grant=Grant(keys=(registry.acme_key.public_key,))),
            [registry.targets_key],
        )
        put(registry, "0.1.0", store=store)
        assert versions(registry, store) == ["0.1.0"]


def test_init_with_other_keys_does_not_go_on() -> None:
    registry = Signed(MemoryStore()).init()
    left = MemoryStore({FIRST_ROOT_PATH: registry.root})
    with pytest.raises(PublishError, match="other keys"):
        Signed(left).init()


def test_a_threshold_of_root_keys() -> None:
    registry = Signed(MemoryStore(), root_keys=[new_key(), new_key(), new_key()])
    with pytest.raises(RoleError, match="a threshold of 4 of 3"):
        init_signed(
            registry.store, root_keys=registry.root_keys, threshold=4, targets_key=new_key(), online_key=new_key()
        )
    registry.root = init_signed(
        registry.store, root_keys=registry.root_keys, threshold=2, targets_key=registry.targets_key,
        online_key=registry.online_key,
    )  # fmt: skip
    replacement = new_key()
    with pytest.raises(RoleError, match="the root needs 2 of the keys"):
        registry.owner().rotate_root(registry.root_keys[:1], [replacement], threshold=1)
    assert registry.owner().rotate_root(registry.root_keys[:2], [replacement], threshold=1) == 2
    registry.delegate("acme", "llvm-*", key=registry.acme_key)
    put(registry, "0.1.0")
    assert versions(registry) == ["0.1.0"]


def test_a_name_outside_the_delegation_is_refused_before_uploading(signed: Signed) -> None:
    before = dict(signed.store.files)
    with pytest.raises(RoleError, match=r"nobody may publish cuda-h200 .*tunehub delegate"):
        put(signed, "0.1.0", model="h200", kind="cuda")
    with pytest.raises(RoleError, match=r"publisher acme needs 1 of the keys .*--key"):
        put(signed, "0.1.0", keys=[new_key()])
    with pytest.raises(RoleError, match=r"--online-key"):
        put(signed, "0.1.0", online=new_key())
    with pytest.raises(RoleError, match="belongs to the publisher acme, not to other"):
        put(signed, "0.1.0", role="other")
    assert signed.store.files == before


def test_publishers_keep_to_their_names(signed: Signed) -> None:
    other = new_key()
    with pytest.raises(RoleError, match=r"'llvm-x\*' of other can match 'llvm-\*' of acme"):
        signed.delegate("other", "llvm-x*", key=other)
    signed.delegate("other", "cuda-*", key=other)
    put(signed, "1.0", model="h200", kind="cuda", keys=[other])
    put(signed, "2.0", keys=[other, signed.acme_key])
    assert versions(signed, name="cuda-h200") == ["1.0"]
    assert versions(signed) == ["2.0"]


def test_removing_a_publisher(signed: Signed) -> None:
    put(signed, "1.0")
    reader = signed.client()
    assert reader.versions(NAME) == ["1.0"]
    assert signed.owner().remove("acme", [signed.targets_key]) == (NAME,)
    assert reader.versions(NAME) == []
    reader.close()
    with pytest.raises(RoleError, match="there is no publisher acme; there are none yet"):
        signed.owner().remove("acme", [signed.targets_key])
    with pytest.raises(RoleError, match="a publisher called acme was removed here"):
        signed.delegate("acme", "llvm-*", key=signed.acme_key)
    signed.delegate("acme2", "llvm-*", key=signed.acme_key)
    put(signed, "1.1")
    assert versions(signed) == ["1.1"]


def test_changing_a_publisher(signed: Signed) -> None:
    put(signed, "1.0")
    second = new_key()
    with pytest.raises(RoleError, match="which no pattern matches"):
        signed.delegate("acme", "cuda-*", key=signed.acme_key)
    with pytest.raises(RoleError, match="signed with its old keys"):
        signed.delegate("acme", "llvm-*", key=second)
    both = Grant(keys=(signed.acme_key.public_key, second.public_key))
    signed.owner().delegate(Publisher(name="acme", patterns=("llvm-*", "cuda-*"), grant=both), [signed.targets_key])
    put(signed, "1.0", keys=[second], model="h200", kind="cuda")
    assert versions(signed) == ["1.0"]


def test_rotating_a_publisher(signed: Signed) -> None:
    put(signed, "1.0")
    signed.store = WatchedStore(signed.store.files, signed.root, ["1.0"])
    new = new_key()
    signed.owner().rotate_publisher("acme", [new], [signed.targets_key])
    signed.store.expected = ["1.0", "2.0"]
    with pytest.raises(RoleError, match="publisher acme needs"):
        put(signed, "2.0")
    signed.store = MemoryStore(signed.store.files)
    put(signed, "2.0", keys=[new])
    assert versions(signed) == ["1.0", "2.0"]


@pytest.mark.parametrize(("role", "fault"), covering(["targets", "online"], FAULTS))
@pytest.mark.few(2)
def test_rotating_a_top_level_key_cut_off_anywhere(signed: Signed, role: Any, fault: Fault) -> None:
    """Clients, old and new, read the registry at each moment; a second run finishes what the first began."""
    put(signed, "1.0")
    start = dict(signed.store.files)
    new = new_key()
    online = new if role == "online" else signed.online_key
    watched = WatchedStore(start, signed.root, ["1.0"])
    signed.owner(watched, online).rotate(role, new, signed.root_keys)
    steps = count_writes(watched)
    for position in range(1, steps + 1):
        store = FaultyStore(start, position, fault)
        with suppress(Killed):
            signed.owner(store, online).rotate(role, new, signed.root_keys)
        assert versions(signed, store) == ["1.0"]
        signed.owner(store, online).rotate(role, new, signed.root_keys)
        assert versions(signed, store) == ["1.0"]
        put(signed, "2.0", store=store, online=online)
        assert versions(signed, store) == ["1.0", "2.0"]
        if role == "online":
            with pytest.raises(RoleError, match="--online-key"):
                put(signed, "3.0", store=store)


def test_a_publisher_in_flight_does_not_go_on_with_a_replaced_online_key(signed: Signed) -> None:
    put(signed, "1.0")
    ledger = signed.ledger()
    ledger.begin()
    new = new_key()
    signed.owner(online=new).rotate("online", new, signed.root_keys)
    with pytest.raises(RoleError, match="--online-key"):
        ledger.read([NAME])
    assert versions(signed) == ["1.0"]


def test_rotating_the_root(signed: Signed) -> None:
    put(signed, "1.0")
    new = new_key()
    assert signed.owner().rotate_root(signed.root_keys, [new], threshold=1) == 2
    assert signed.owner().rotate_root(signed.root_keys, [new], threshold=1) == 2
    with pytest.raises(RoleError, match="the root needs"):
        signed.owner().rotate_root(signed.root_keys, [new_key()], threshold=1)
    put(signed, "2.0")
    assert versions(signed) == ["1.0", "2.0"]


def test_refresh_renews_what_has_expired(signed: Signed) -> None:
    put(signed, "1.0")
    signed.clock.advance(days=8)
    with pytest.raises(ExpiredError, match=r"timestamp\.json: it expired .*tunehub refresh"):
        put(signed, "2.0")
    assert signed.owner().refresh() == ()
    assert [request for request in signed.store.requests if request.startswith("put")][
        -1
    ] == "put metadata/timestamp.json"
    put(signed, "2.0")
    signed.clock.advance(days=31)
    signed.owner().refresh()
    put(signed, "3.0")
    signed.clock.advance(days=250)
    near = signed.owner().refresh()
    assert {item.role for item in near} == {"targets", "acme"}
    left = signed.owner().refresh(targets_keys=[signed.targets_key], publisher_keys=[signed.acme_key])
    assert left == ()
    signed.clock.advance(days=300)
    assert "root" in {item.role for item in signed.owner().refresh()}
    signed.owner().refresh(root_keys=signed.root_keys, targets_keys=[signed.targets_key])
    assert "root" not in {item.role for item in signed.owner().refresh()}
    put(signed, "4.0")


def test_expired_targets_say_who_renews_them(signed: Signed) -> None:
    signed.clock.advance(days=366)
    signed.owner().refresh()
    with pytest.raises(ExpiredError, match=r"targets\.json: it expired .*--targets-key"):
        put(signed, "2.0")


def test_a_registry_that_is_not_there(signed: Signed) -> None:
    with pytest.raises(NotInitialisedError, match="tunehub init"):
        put(signed, "1.0", store=MemoryStore())
    with pytest.raises(NotInitialisedError, match=r"unsigned.*--unsigned"):
        put(signed, "1.0", store=Unsigned(MemoryStore()).init().store)
    with pytest.raises(NotInitialisedError, match="this registry is signed"):
        Unsigned(signed.store).ledger().read([NAME])


def test_publishers_trust_only_their_root(signed: Signed) -> None:
    other = Signed(MemoryStore()).init()
    signed.root = other.root
    with pytest.raises(UntrustedError, match=r"timestamp\.json: signed by 0 of 1 keys"):
        put(signed, "1.0")


@pytest.mark.parametrize("part", ["timestamp.json", "snapshot.json", "targets.json", "acme.json"])
def test_tampered_metadata_is_never_built_upon(signed: Signed, part: str) -> None:
    put(signed, "1.0")
    path = max(path for path in signed.store.files if path.endswith(part))
    signed.store.files[path] = signed.store.files[path].replace(b"2", b"3")
    with pytest.raises(UntrustedError):
        put(signed, "2.0")


def test_a_rolled_back_timestamp_is_noticed_by_who_saw_the_newer_one(signed: Signed) -> None:
    old = signed.store.files["metadata/timestamp.json"]
    ledger = signed.ledger()
    publish(ledger, [read_package(package())], retry=QUICK)
    signed.store.files["metadata/timestamp.json"] = old
    with pytest.raises(UntrustedError, match="after version"):
        ledger.read([NAME])


def test_a_commit_asks_for_little(signed: Signed) -> None:
    ledger = signed.ledger()
    publish(ledger, [read_package(package(version="0.1"))], retry=QUICK)
    signed.store.requests.clear()
    publish(ledger, [read_package(package(version="0.2"))], retry=QUICK)
    kinds = [request.partition(" ")[0] for request in signed.store.requests]
    assert (kinds.count("get"), kinds.count("put")) == (2, 7)  # two of them are the log's
