"""Publishers are changed, keys replaced and roles renewed without the online key: what waits for the signing job, what
it takes and refuses, and kills."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, TargetFile, Targets

from tunehub_registry.publishing.administration import Administration
from tunehub_registry.publishing.packages import publish, read_package
from tunehub_registry.publishing.proposals import ProposalLedger
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.publishing.signing import Signing, sign_waiting
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.exceptions import ExpiredError, RoleError
from tunehub_registry.trust.layout import versioned_path
from tunehub_registry.trust.metadata import Grant, Publisher

from ...sweeps import covering
from .fakes import FAULTS, QUICK, Fault, FaultyStore, Killed, MemoryStore, Signed, count_writes, package

pytestmark = pytest.mark.fast

NAME = "llvm-znver5"
new_key = CryptoSigner.generate_ed25519


@pytest.fixture
def filled(signed: Signed) -> Signed:
    """With one published version."""
    put(signed, "1.0")
    return signed


def put(registry: Signed, version: str, *, store: Any = None, **options: Any) -> None:
    publish(registry.ledger(store, **options), [read_package(package(version=version))], retry=QUICK)


def admin(registry: Signed, store: Any = None) -> Administration:
    writer = MetadataWriter(store or registry.store, registry.root, online=None, now=registry.clock)
    return Administration(writer, retry=QUICK)


def job(registry: Signed, store: Any = None) -> Signing:
    writer = MetadataWriter(store or registry.store, registry.root, online=registry.online_key, now=registry.clock)
    return sign_waiting(writer, retry=QUICK)


def versions(registry: Signed, name: str = NAME, store: Any = None) -> list[str]:
    client = registry.client(store)
    try:
        return client.versions(name)
    except RepositoryError:  # nobody has published it yet
        return []
    finally:
        client.close()


def publisher(name: str, *patterns: str, key: Any) -> Publisher:
    return Publisher(name=name, patterns=patterns, grant=Grant(keys=(key.public_key,)))


def put_targets(registry: Signed, change: Callable[[Targets], None]) -> int:
    """What somebody with the targets key writes by hand, over the last that is there; returns its number."""
    known = [int(path.split("/")[1].split(".")[0]) for path in registry.store.files if path.endswith(".targets.json")]
    last = max(known)
    metadata = Metadata[Targets].from_bytes(registry.store.files[versioned_path("targets", last)])
    metadata.signed.version = last + 1
    metadata.signed.unrecognized_fields["x-tunehub-proposed"] = True
    change(metadata.signed)
    metadata.sign(registry.targets_key)
    registry.store.files[versioned_path("targets", last + 1)] = metadata.to_bytes()
    return last + 1


def test_a_publisher_waits_for_the_job(filled: Signed) -> None:
    key = new_key()
    admin(filled).delegate(publisher("nv", "cuda-*", key=key), [filled.targets_key])
    item = [read_package(package("h200", kind="cuda"))]
    with pytest.raises(RoleError, match="nobody may publish cuda-h200"):
        publish(filled.ledger(keys=[key]), item, retry=QUICK)
    (adopted,) = job(filled).adopted
    assert (adopted.role, adopted.changes) == ("targets", ("nv may publish cuda-*",))
    publish(filled.ledger(keys=[key]), item, retry=QUICK)
    assert (versions(filled), versions(filled, "cuda-h200")) == (["1.0"], ["0.1.0"])


def test_changes_are_made_from_what_waits_and_published_in_one_step(filled: Signed) -> None:
    for name, pattern in (("nv", "cuda-*"), ("amd", "rocm-*")):
        admin(filled).delegate(publisher(name, pattern, key=new_key()), [filled.targets_key])
    with pytest.raises(RoleError, match=r"'cuda-h\*' of x can match 'cuda-\*' of nv"):
        admin(filled).delegate(publisher("x", "cuda-h*", key=new_key()), [filled.targets_key])
    admin(filled).remove("nv", [filled.targets_key])
    (adopted,) = job(filled).adopted
    assert adopted.changes == ("nv may publish cuda-*", "amd may publish rocm-*", "nv is removed")


def test_the_names_of_a_removed_publisher_disappear_with_the_job(filled: Signed) -> None:
    assert admin(filled).remove("acme", [filled.targets_key]) == (NAME,)
    assert versions(filled) == ["1.0"]
    job(filled)
    assert versions(filled) == []
    with pytest.raises(RoleError, match="a publisher called acme was removed here"):
        admin(filled).delegate(publisher("acme", "llvm-*", key=filled.acme_key), [filled.targets_key])
    admin(filled).delegate(publisher("acme2", "llvm-*", key=filled.acme_key), [filled.targets_key])
    job(filled)
    put(filled, "2.0")
    assert versions(filled) == ["2.0"]


def test_a_publisher_with_other_keys_loses_what_waits_and_keeps_what_is_published(filled: Signed) -> None:
    thief = ProposalLedger(filled.store, filled.root, keys=[filled.acme_key], online=None, now=filled.clock)
    publish(thief, [read_package(package(version="6.6.6"))], retry=QUICK)
    new = new_key()
    admin(filled).rotate_publisher("acme", [new], [filled.targets_key])
    done = job(filled)
    assert {(item.role, item.changes) for item in done.adopted} == {
        ("targets", ("acme has other keys",)), ("acme", ("signed anew",)),
    }  # fmt: skip
    assert versions(filled) == ["1.0"]
    with pytest.raises(RoleError, match="publisher acme needs"):
        put(filled, "2.0")
    put(filled, "2.0", keys=[new])
    assert versions(filled) == ["1.0", "2.0"]


def test_keys_are_not_replaced_without_what_they_have_to_sign(filled: Signed) -> None:
    with pytest.raises(RoleError, match="signed with its old keys"):
        admin(filled).delegate(publisher("acme", "llvm-*", key=new_key()), [filled.targets_key])
    admin(filled).rotate_publisher("acme", [new_key()], [filled.targets_key])
    resigned = max(path for path in filled.store.files if path.endswith(".acme.json"))
    del filled.store.files[resigned]
    (refused,) = job(filled).refused
    assert refused.role == "targets"
    assert "what acme has published is signed with its old keys" in refused.reason
    put(filled, "2.0")
    assert versions(filled) == ["1.0", "2.0"]


def without_names(signed: Targets) -> None:
    signed.delegations.roles["acme"].paths = ["cuda-*"]


def with_own_target(signed: Targets) -> None:
    signed.targets[NAME] = TargetFile(length=1, hashes={"sha256": "0" * 64}, path=NAME)


def with_overlap(signed: Targets) -> None:
    other = publisher("other", "llvm-z*", key=new_key())
    known = [*rules.publishers_of(signed).values(), other]
    signed.delegations = rules.with_publishers(signed, known, 1, signed.expires).delegations


def ended(signed: Targets) -> None:
    signed.expires = signed.expires.replace(year=2020)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_names, "acme has published llvm-znver5, which no pattern matches"),
        (with_own_target, "it has targets of its own"),
        (with_overlap, "can match"),
        (ended, "it expired at 2020-"),
    ],
)
def test_what_would_hide_names_or_pass_publishers_over_is_refused_and_stepped_over(
    filled: Signed, change: Callable[[Targets], None], reason: str
) -> None:
    number = put_targets(filled, change)
    (refused,) = job(filled).refused
    assert (refused.role, refused.version) == ("targets", number)
    assert reason in refused.reason
    admin(filled).delegate(publisher("nv", "cuda-*", key=new_key()), [filled.targets_key])
    assert [item.version for item in job(filled).adopted] == [number + 1]
    assert not job(filled).refused
    assert versions(filled) == ["1.0"]


def test_what_another_key_signed_is_refused(filled: Signed) -> None:
    filled.targets_key = new_key()
    put_targets(filled, lambda _: None)
    assert "signed by 0 of 1 keys" in job(filled).refused[0].reason
    with pytest.raises(RoleError, match="the targets role needs 1 of the keys"):
        admin(filled).delegate(publisher("nv", "cuda-*", key=new_key()), [filled.targets_key])


def test_who_has_the_online_key_does_not_pass_over_a_publisher_that_waits(filled: Signed) -> None:
    admin(filled).delegate(publisher("nv", "cuda-*", key=new_key()), [filled.targets_key])
    with pytest.raises(RoleError, match=r"targets has proposed .* waits .*tunehub timestamp"):
        filled.delegate("amd", "rocm-*", key=new_key())


def test_the_targets_key_is_replaced_in_two_runs_with_the_job_between(filled: Signed) -> None:
    old, new = filled.targets_key, new_key()
    for _ in range(2):
        assert not admin(filled).rotate("targets", new, filled.root_keys)
        assert versions(filled) == ["1.0"]
    assert sum(path.endswith(".targets.json") for path in filled.store.files) == 3  # the second run found what waits
    (adopted,) = job(filled).adopted
    assert (adopted.role, adopted.changes) == ("targets", ("signed anew",))
    assert admin(filled).rotate("targets", new, filled.root_keys)
    assert versions(filled) == ["1.0"]
    assert job(filled).wrote  # a timestamp that names the new root
    assert not job(filled).wrote
    with pytest.raises(RoleError, match="the targets role needs"):
        admin(filled).delegate(publisher("nv", "cuda-*", key=new_key()), [old])
    filled.targets_key = new
    admin(filled).delegate(publisher("nv", "cuda-*", key=new_key()), [new])
    assert job(filled).adopted


def test_roles_are_renewed_without_the_online_key_also_when_they_have_ended(filled: Signed) -> None:
    filled.clock.advance(days=400)
    with pytest.raises(ExpiredError, match="targets"):
        job(filled)
    near = admin(filled).refresh()
    assert {item.role for item in near} == {"targets", "acme"}
    assert admin(filled).refresh(targets_keys=[filled.targets_key], publisher_keys=[filled.acme_key]) == ()
    assert {item.role for item in job(filled).adopted} == {"targets", "acme"}
    assert job(filled).near_expiry == ()
    put(filled, "2.0")


def test_a_publisher_renews_what_waits(filled: Signed) -> None:
    ledger = ProposalLedger(filled.store, filled.root, keys=[filled.acme_key], online=None, now=filled.clock)
    publish(ledger, [read_package(package(version="2.0"))], retry=QUICK)
    admin(filled).refresh(publisher_keys=[filled.acme_key])
    job(filled)
    assert versions(filled) == ["1.0", "2.0"]


@pytest.mark.parametrize(
    ("deed", "fault"), covering(["delegate", "remove", "rotate publisher", "rotate targets"], FAULTS)
)
def test_cut_off_anywhere_and_run_again_it_is_done(filled: Signed, deed: str, fault: Fault) -> None:
    """Whoever reads sees the state before or the state after."""
    start, key = dict(filled.store.files), new_key()

    def do(store: Any) -> None:
        own = admin(filled, store)
        if deed == "delegate":
            own.delegate(publisher("nv", "cuda-*", key=key), [filled.targets_key])
        elif deed == "remove":
            with suppress(RoleError):  # done before
                own.remove("acme", [filled.targets_key])
        elif deed == "rotate publisher":
            own.rotate_publisher("acme", [key], [filled.targets_key])
        elif not own.rotate("targets", key, filled.root_keys):
            job(filled, store)
            assert own.rotate("targets", key, filled.root_keys)
        job(filled, store)

    probe = MemoryStore(start)
    do(probe)
    wanted = versions(filled, store=probe)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(start, position, fault)
        with suppress(Killed):
            do(store)
        assert versions(filled, store=store) in (["1.0"], wanted)
        do(store)
        assert versions(filled, store=store) == wanted
        done = job(filled, store)
        assert not done.wrote
