"""Publishers without the online key, and the job that signs for them: what it takes, what it refuses, and kills."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Delegations, Metadata, SuccinctRoles, Targets

from tunehub_registry.index import parse_shard, shard_path
from tunehub_registry.publishing.packages import publish, read_package, yank
from tunehub_registry.publishing.proposals import ProposalLedger
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.publishing.signing import Signing, sign_waiting
from tunehub_registry.publishing.unsigned import shard_bytes
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.exceptions import ExpiredError, RoleError, UntrustedError
from tunehub_registry.trust.layout import TIMESTAMP_PATH, versioned_path

from .fakes import FAULTS, QUICK, Fault, FaultyStore, Killed, MemoryStore, Signed, count_writes, package, target

pytestmark = pytest.mark.fast

NAME = "llvm-znver5"
DEEDS = ("propose", "job", "online", "die", "junk")


def ledger(registry: Signed, store: Any = None) -> ProposalLedger:
    return ProposalLedger(store or registry.store, registry.root, keys=[registry.acme_key], online=None,
                          now=registry.clock)  # fmt: skip


def propose(
    registry: Signed, version: str, *, store: Any = None, content: bytes = b"{}\n", model: str = "znver5"
) -> None:
    item = read_package(package(model, version, content=content))
    publish(ledger(registry, store), [item], retry=QUICK)


def job(registry: Signed, store: Any = None, days: int = 7) -> Signing:
    writer = MetadataWriter(
        store or registry.store, registry.root, online=registry.online_key, now=registry.clock,
        lifetime=timedelta(days=days),
    )  # fmt: skip
    return sign_waiting(writer, retry=QUICK)


def versions(registry: Signed, store: Any = None, name: str = NAME) -> list[str]:
    client = registry.client(store)
    try:
        return client.versions(name)
    except RepositoryError:  # its publisher has published nothing yet
        return []
    finally:
        client.close()


def put_role(registry: Signed, version: int, change: Callable[[Targets], None], *, key: Any = None) -> None:
    """What somebody with a publisher's key, or another one, writes by hand: a proposal over the first."""
    first = versioned_path("acme", 1)
    metadata = Metadata[Targets].from_bytes(registry.store.files[first])
    metadata.signed.version = version
    metadata.signed.unrecognized_fields["x-tunehub-proposed"] = True
    change(metadata.signed)
    metadata.sign(key or registry.acme_key)
    registry.store.files[versioned_path("acme", version)] = metadata.to_bytes()


def with_shard(registry: Signed, **fields: Any) -> Callable[[Targets], None]:
    """A change of the first version of the shard."""

    def change(signed: Targets) -> None:
        old = parse_shard(registry.store.files[shard_path(signed.targets[NAME].hashes["sha256"])], NAME)
        shard = structs.replace(old, versions=(structs.replace(old.versions[0], **fields), *old.versions[1:]))
        put_shard(registry, signed, shard)

    return change


def put_shard(registry: Signed, signed: Targets, shard: Any) -> None:
    data, sha256 = shard_bytes(shard)
    registry.store.files[shard_path(sha256)] = data
    signed.targets.update(rules.proposed(None, {NAME: (target(), data)}, 1, registry.clock()).targets)


def test_what_is_proposed_is_not_there_until_the_job_has_run(signed: Signed) -> None:
    propose(signed, "1.0")
    propose(signed, "2.0")
    assert versions(signed) == []
    done = job(signed)
    assert versions(signed) == ["1.0", "2.0"]
    (adopted,) = done.adopted
    assert (adopted.role, adopted.version) == ("acme", 2)
    assert adopted.changes == (f"{NAME} 1.0", f"{NAME} 2.0")
    assert done.wrote and not done.refused


def test_the_job_writes_nothing_when_there_is_nothing_to_do(signed: Signed) -> None:
    propose(signed, "1.0")
    job(signed)
    before = dict(signed.store.files)
    done = job(signed)
    assert (done.adopted, done.refused, done.wrote) == ((), (), False)
    assert signed.store.files == before


def test_the_job_renews_the_timestamp_once_a_day_and_the_snapshot_near_its_end(signed: Signed) -> None:
    for hours, renewed in ((20, False), (5, True), (20, False), (24 * 6, True)):
        signed.clock.advance(hours=hours)
        done = job(signed)
        assert done.wrote is renewed
        assert done.expires - signed.clock() > timedelta(days=5)
    signed.clock.advance(days=15)
    snapshots = sum(path.endswith(".snapshot.json") for path in signed.store.files)
    job(signed)
    assert sum(path.endswith(".snapshot.json") for path in signed.store.files) == snapshots + 1


def test_the_job_says_how_long_a_timestamp_is_valid(signed: Signed) -> None:
    assert job(signed, days=2).expires == signed.clock().replace(microsecond=0) + timedelta(days=2)
    assert job(signed, days=30).expires == signed.clock().replace(microsecond=0) + timedelta(days=30)


def test_a_yank_is_proposed_like_a_version(signed: Signed) -> None:
    propose(signed, "1.0")
    job(signed)
    yank(ledger(signed), NAME, "1.0", "slow", retry=QUICK)
    assert job(signed).adopted[0].changes == (f"{NAME} 1.0: yanked: slow",)


def test_proposing_again_changes_nothing_before_and_after_the_job(signed: Signed) -> None:
    propose(signed, "1.0")
    before = dict(signed.store.files)
    propose(signed, "1.0")
    assert signed.store.files == before
    job(signed)
    propose(signed, "1.0")
    assert not job(signed).wrote


def test_who_has_the_online_key_does_not_pass_over_what_waits(signed: Signed) -> None:
    propose(signed, "1.0")
    with pytest.raises(RoleError, match=r"acme has proposed \(version 1\) waits .*tunehub timestamp"):
        publish(signed.ledger(), [read_package(package(version="2.0"))], retry=QUICK)
    job(signed)
    publish(signed.ledger(), [read_package(package(version="2.0"))], retry=QUICK)
    propose(signed, "3.0")
    job(signed)
    assert versions(signed) == ["1.0", "2.0", "3.0"]


def test_another_key_for_a_publisher_ends_what_waits(signed: Signed) -> None:
    propose(signed, "1.0")
    job(signed)
    propose(signed, "6.6.6")
    new = CryptoSigner.generate_ed25519()
    signed.owner().rotate_publisher("acme", [new], [signed.targets_key])
    signed.acme_key = new
    assert not job(signed).adopted
    propose(signed, "2.0")
    job(signed)
    assert versions(signed) == ["1.0", "2.0"]


def test_names_of_two_publishers_are_not_proposed_in_one_step(signed: Signed) -> None:
    other = CryptoSigner.generate_ed25519()
    signed.delegate("nv", "cuda-*", key=other)
    both = ProposalLedger(signed.store, signed.root, keys=[signed.acme_key, other], online=None, now=signed.clock)
    items = [read_package(package()), read_package(package("h200", kind="cuda"))]
    with pytest.raises(RoleError, match="acme, nv cannot publish in one step"):
        publish(both, items, retry=QUICK)
    for item in items:
        publish(both, [item], retry=QUICK)
    assert {item.role for item in job(signed).adopted} == {"acme", "nv"}
    assert versions(signed, name="cuda-h200") == ["0.1.0"]


@pytest.mark.parametrize("name", ["cuda-h200", "llvm-znver5x"])
def test_a_name_that_belongs_to_somebody_else_is_refused(signed: Signed, name: str) -> None:
    propose(signed, "1.0")

    def change(signed_part: Targets) -> None:
        file = signed_part.targets[NAME]
        signed_part.targets[name] = type(file)(file.length, file.hashes, name, dict(file.unrecognized_fields))

    put_role(signed, 2, change)
    done = job(signed)
    (refused,) = done.refused
    assert (refused.role, refused.version) == ("acme", 2)
    assert name in refused.reason
    assert versions(signed) == ["1.0"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"sha256": "0" * 64, "file": "packages/llvm-znver5-1.0.tunepkg"},
            "it changes llvm-znver5 1.0: a published version never changes",
        ),
        ({"size": 9}, "it changes llvm-znver5 1.0"),
        ({"published": "2020-01-01T00:00:00Z"}, "it changes llvm-znver5 1.0"),
        ({"version": "1.1", "file": "packages/llvm-znver5-1.1.tunepkg"}, "it leaves out llvm-znver5 1.0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_published_version_stays_as_it_is(signed: Signed, fields: dict[str, Any], reason: str) -> None:
    propose(signed, "1.0")
    job(signed)
    put_role(signed, 2, with_shard(signed, **fields))
    assert reason in job(signed).refused[0].reason
    propose(signed, "2.0")  # the next one is not made from what was refused
    done = job(signed)
    assert [item.version for item in done.adopted] == [3]
    assert versions(signed) == ["1.0", "2.0"]
    assert not job(signed).refused


def test_what_leaves_out_a_name_or_has_ended_or_says_no_target_or_delegates_is_refused(signed: Signed) -> None:
    propose(signed, "1.0")
    put_role(signed, 2, lambda part: part.targets.clear())
    put_role(signed, 3, lambda part: setattr(part, "expires", signed.clock() - timedelta(days=1)))

    def other_target(part: Targets) -> None:
        with_shard(signed, yanked="x")(part)
        part.targets[NAME].unrecognized_fields["custom"]["tunehub-target"]["model"] = "znver6"

    put_role(signed, 4, other_target)
    bins = SuccinctRoles([signed.acme_key.public_key.keyid], 1, 32, "acme.bin")  # readers would look for 2 ** 32
    put_role(signed, 5, lambda part: setattr(part, "delegations", Delegations({}, succinct_roles=bins)))
    reasons = [refusal.reason for refusal in job(signed).refused]
    assert "delegates names" in reasons[3]
    assert "leaves out llvm-znver5" in reasons[0]
    assert "expired" in reasons[1]
    assert "does not say what llvm-znver5 is for" in reasons[2]
    assert versions(signed) == ["1.0"]


def test_what_another_key_signed_is_stepped_over(signed: Signed) -> None:
    propose(signed, "1.0")
    put_role(signed, 2, lambda part: part.targets.clear(), key=CryptoSigner.generate_ed25519())
    signed.store.files[versioned_path("acme", 3)] = b"no metadata"
    propose(signed, "2.0")
    done = job(signed)
    assert [item.version for item in done.refused] == [2, 3]
    assert [item.version for item in done.adopted] == [4]
    assert versions(signed) == ["1.0", "2.0"]


def test_a_package_that_is_missing_or_damaged_is_not_published(signed: Signed) -> None:
    propose(signed, "1.0")
    (path,) = [path for path in signed.store.files if path.endswith(".tunepkg")]
    data = signed.store.files.pop(path)
    assert f"{path} is not there" in job(signed).refused[0].reason
    signed.store.files[path] = data[:-1] + b"x"
    assert f"{path} is not there, or damaged" in job(signed).refused[0].reason
    del signed.store.files[path]
    propose(signed, "1.0")
    assert job(signed).adopted
    assert versions(signed) == ["1.0"]


def test_the_job_does_not_sign_over_what_it_cannot_verify(signed: Signed) -> None:
    propose(signed, "1.0")
    files = dict(signed.store.files)
    for path in (TIMESTAMP_PATH, versioned_path("snapshot", 2), versioned_path("targets", 2)):
        signed.store.files = {**files, path: files[path].replace(b"2", b"3")}
        with pytest.raises(UntrustedError):
            job(signed)
    signed.store.files = files
    signed.clock.advance(days=366)
    with pytest.raises(ExpiredError, match="targets"):
        job(signed)
    signed.clock.advance(days=-366)
    signed.online_key = CryptoSigner.generate_ed25519()
    with pytest.raises(RoleError, match="--online-key"):
        job(signed)
    assert signed.store.files == files


@pytest.mark.parametrize("fault", FAULTS)
def test_proposing_and_signing_cut_off_anywhere(signed: Signed, fault: Fault) -> None:
    """Whoever reads sees the state before or the state after; run again, both finish what was begun."""
    propose(signed, "1.0")
    job(signed)
    start = dict(signed.store.files)
    probe = MemoryStore(start)
    propose(signed, "2.0", store=probe)
    proposing = count_writes(probe)
    job(signed, probe)
    for position in range(1, count_writes(probe) + 1):
        store = FaultyStore(start, position, fault)
        with suppress(Killed):
            propose(signed, "2.0", store=store)
            job(signed, store)
        assert versions(signed, store) in (["1.0"], ["1.0", "2.0"])
        propose(signed, "2.0", store=store)
        job(signed, store)
        assert versions(signed, store) == ["1.0", "2.0"], (position, proposing)
        assert not job(signed, store).wrote


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["propose", "job", "online", "die", "junk"]), st.integers(0, 3)), max_size=12)
)
def test_what_was_acknowledged_is_published_in_any_order(steps: list[tuple[str, int]]) -> None:
    registry = Signed(MemoryStore()).init()
    acknowledged: set[tuple[str, str]] = set()
    for number, (what, where) in enumerate(steps):
        model, version = f"m{where}", f"{number}.0"
        store = FaultyStore(registry.store.files, 1 + where, "killed after")
        store.files = registry.store.files
        with suppress(Killed, RoleError):
            if what == "job":
                job(registry)
            elif what == "junk":
                path = versioned_path("acme", 1 + where)
                registry.store.files.setdefault(path, b"{}")
            elif what == "online":
                publish(registry.ledger(), [read_package(package(model, version))], retry=QUICK)
                acknowledged.add((model, version))
            else:
                propose(registry, version, model=model, store=store if what == "die" else None)
                acknowledged.add((model, version))
    job(registry)
    found = {(f"m{i}", version) for i in range(4) for version in versions(registry, name=f"llvm-m{i}")}
    assert acknowledged <= found
