"""Versions that enough trusted keys attest, from requirement to hub, lock file and `sync`; and hostile attestations."""

from __future__ import annotations

import base64
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import Signer
from tests.registry.attestations import a_record, a_signer, signed

from tunehub import api
from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubError, HubWarning
from tunehub.options import read_options
from tunehub.registries.trust_store import trust_store
from tunehub_registry.attestation import PackageSubject
from tunehub_registry.document import ATTESTATIONS
from tunehub_registry.package import sha256_of
from tunehub_registry.publishing.attestations import attach_attestation
from tunehub_registry.publishing.packages import attach
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.trust.keys import load_public_key, normalised_key

from ..cli.conftest import run as run  # the commands
from ..conftest import A76, RegistryFolder

pytestmark = pytest.mark.fast

NAME, TVM = A76.name, "0.27.0.post1"  # the embedded registry has nothing for it


class Attested:
    """A registry with 0.1.0, 0.2.0 and 0.3.0, and the keys of three machines; two of them are trusted."""

    def __init__(self, folder: Path) -> None:
        self.registry = RegistryFolder(folder / "registry")
        self.folder = folder
        self.files = {version: self.registry.publish(A76, version) for version in ("0.1.0", "0.2.0", "0.3.0")}
        self.keys: dict[str, Signer] = {name: a_signer(folder, name) for name in ("alice", "bob", "mallory")}
        self.trust = trust_store(read_options())
        for name in ("alice", "bob"):
            self.trust.add_attester(normalised_key(load_public_key(str(folder / f"{name}.pub")), name))

    @property
    def address(self) -> str:
        return str(self.registry.root)

    def envelope(self, who: str, version: str, gain: float = 1.2, **changes: Any) -> bytes:
        subject = PackageSubject.of(NAME, version, sha256_of(self.files[version]))
        return signed(self.keys[who], gain, **{"subject": subject, **changes})

    def attest(self, version: str, *whose: str, **changes: Any) -> None:
        for who in whose:
            ledger = UnsignedLedger(FolderStore(self.registry.root))
            attach_attestation(ledger, self.envelope(who, version, **changes), who)

    def put(self, version: str, data: bytes) -> None:
        """Anything at all as the document, as a publisher could."""
        ledger, package = UnsignedLedger(FolderStore(self.registry.root)), sha256_of(self.files[version])
        attach(ledger, NAME, version, package=package, kind=ATTESTATIONS, data=data)

    def chosen(self, require: str, **options: Any) -> str | None:
        found = api.resolve(A76, registry=self.address, require=require, **options).chosen
        return None if found is None else found.entry.version


@pytest.fixture
def attested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attested:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "trust"))
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    for name in ("LOCK", "REGISTRY", "REQUIRE", "OFFLINE"):
        monkeypatch.delenv(f"TUNEHUB_{name}", raising=False)
    return Attested(tmp_path)


def open_with_warnings(require: str, address: str) -> tuple[Hub, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(A76, registry=address, require=require, tvm_version=TVM)
    hub.close()
    assert {item.category for item in caught} <= {HubWarning}
    return hub, [str(item.message) for item in caught]


def test_the_newest_version_that_enough_attest_is_taken_and_the_others_say_why_not(attested: Attested) -> None:
    attested.attest("0.1.0", "alice", "bob")
    attested.attest("0.2.0", "alice", "bob")
    attested.attest("0.3.0", "alice", "mallory")
    found = api.resolve(A76, registry=attested.address, require="attested>=2")
    assert found.chosen is not None and found.chosen.entry.version == "0.2.0"
    reasons = {item.version: item.reason for item in found.trace if item.name == NAME}
    assert reasons == {
        "0.3.0": "attested by 1 of the 2 asked", "0.2.0": None, "0.1.0": "0.2.0 is preferred"
    }  # fmt: skip
    assert "attested by 1 of the 2 asked" in found.explain()
    assert attested.chosen("attested>=1") == "0.3.0"
    assert attested.chosen(f"{NAME}<0.2, attested>=2") == "0.1.0"


def test_a_compile_goes_on_without_records_where_too_few_attest_and_strict_raises(attested: Attested) -> None:
    attested.attest("0.3.0", "alice")
    hub, told = open_with_warnings("attested>=2", attested.address)
    assert hub.resolution.chosen is None
    assert len(told) == 1 and f"{NAME} 0.3.0: attested by 1 of the 2 asked" in told[0]
    assert f"{NAME} 0.2.0: attested by none of the 2 asked" in told[0] and "tunehub trust attester add" in told[0]
    with pytest.raises(HubError, match="attested by 1 of the 2 asked"):
        open_hub(A76, registry=attested.address, require="attested>=2", tvm_version=TVM, strict=True)


def test_the_report_says_in_a_line_what_others_measured(attested: Attested, run: Any) -> None:
    attested.attest("0.3.0", "alice", gain=1.15)
    attested.attest("0.3.0", "bob", gain=1.27)
    expected = f"{NAME} 0.3.0: measured by 2 machines, gain 1.21 (1.15 to 1.27)"
    hub, told = open_with_warnings("", attested.address)
    assert not told and hub.report().summary().splitlines()[1] == expected
    assert hub.report().to_json()["attestations"]["machines"] == 2
    assert run("lock", NAME, "--registry", attested.address).code == 0
    locked = open_hub(A76, lock="tunehub.lock", tvm_version=TVM)
    locked.close()
    assert expected in locked.report().summary()


def test_the_report_has_no_such_line_without_trusted_keys_and_says_what_cannot_be_read(attested: Attested) -> None:
    attested.attest("0.3.0", "alice")
    (document,) = (attested.registry.root / "packages" / "documents").iterdir()
    document.unlink()
    hub, told = open_with_warnings("", attested.address)
    assert not told and any(
        f"what others measured of {NAME} 0.3.0 cannot be read" in note for note in hub.report().notes
    )
    for who in ("alice", "bob"):
        attested.trust.remove_attester(attested.keys[who].public_key.keyid)
    hub, _ = open_with_warnings("", attested.address)
    assert hub.report().attestations is None and not any("measured" in note for note in hub.report().notes)


def test_who_is_trusted_no_more_counts_no_more(attested: Attested) -> None:
    attested.attest("0.2.0", "alice", "bob")
    assert attested.chosen("attested>=2") == "0.2.0"
    attested.trust.remove_attester(attested.keys["bob"].public_key.keyid)
    assert attested.chosen("attested>=2") is None


def test_what_was_read_once_counts_without_the_registry_s_documents(attested: Attested) -> None:
    attested.attest("0.2.0", "alice", "bob")
    assert attested.chosen("attested>=2") == "0.2.0"
    shutil.rmtree(attested.registry.root / "packages" / "documents")
    assert attested.chosen("attested>=2", offline=True) == "0.2.0"
    shutil.rmtree(attested.folder / "cache")
    found = api.resolve(A76, registry=attested.address, require="attested>=2")
    assert found.chosen is None and "attested by none of the 2 asked: registry" in found.explain()


@pytest.mark.parametrize("damage", ["no key", "binary", ""])
def test_a_damaged_key_of_an_attester_counts_nobody_and_breaks_nothing(attested: Attested, damage: str) -> None:
    attested.attest("0.2.0", "alice", "bob")
    (attested.trust.folder / "attesters" / "00.pub").write_bytes(damage.encode() or bytes(range(256)))
    assert "00.pub" in api.resolve(A76, registry=attested.address, require="attested>=2").explain()
    assert attested.chosen(NAME) == "0.3.0"


def hostile(attested: Attested) -> dict[str, bytes]:
    """Documents that say more than they prove, by what is wrong with them; alice's own word is in each."""
    alice, bob = attested.envelope("alice", "0.3.0"), attested.envelope("bob", "0.3.0")
    forged = json.loads(attested.envelope("mallory", "0.3.0"))
    forged["signatures"][0]["keyid"] = attested.keys["bob"].public_key.keyid
    twice = json.loads(alice)
    twice["signatures"] *= 2
    changed = json.loads(bob)
    changed["payload"] = base64.b64encode(base64.b64decode(changed["payload"]).replace(b"e-", b"e+", 1)).decode()
    rest = {
        "forged": json.dumps(forged).encode(),
        "two signatures of one key": json.dumps(twice).encode(),
        "changed": json.dumps(changed).encode(),
        "truncated": bob[: len(bob) // 2],
        "of another version": attested.envelope("bob", "0.2.0"),
        "twice": attested.envelope("alice", "0.3.0", 9.0, finished="2026-11-22T11:00:00Z"),
        "a thousand": attested.envelope("mallory", "0.3.0") + b"".join(b"{}\n" for _ in range(1000)) + bob,
        "huge": b'{"payload": "' + b"A" * (3 << 20) + b'"}',
        "deep": b"[" * 100_000,
        "not UTF-8": b"\xff\xfe" * 100,
        "with a fault": attested.envelope("bob", "0.3.0", records=(a_record(0, fault="it crashed"),)),
        "from the future": attested.envelope("mallory", "0.3.0", finished="9999-12-31T23:59:59Z"),
    }
    return {what: alice + data.rstrip() + b"\n" for what, data in rest.items()}


def test_hostile_documents_add_nothing_to_the_one_that_counts(attested: Attested) -> None:
    for what, data in hostile(attested).items():
        attested.put("0.3.0", data)
        assert attested.chosen("attested>=1") == "0.3.0", what
        assert attested.chosen("attested>=2") is None, what
    attested.attest("0.3.0", "bob")
    assert attested.chosen("attested>=2") == "0.3.0"


def test_lock_keeps_what_was_asked_and_sync_counts_again(attested: Attested, run: Any) -> None:
    attested.attest("0.2.0", "alice", "bob")
    assert run("lock", f"{NAME}, attested>=2", "--registry", attested.address).code == 0
    text = Path("tunehub.lock").read_text()
    assert 'version = "0.2.0"' in text and "attested = 2" in text and 'lock-version = "1.1"' in text
    attested.attest("0.3.0", "alice")
    assert run("lock", "--upgrade-all", "--registry", attested.address).code == 0
    assert Path("tunehub.lock").read_text() == text
    done = run("sync", "--registry", attested.address)
    assert done.code == 0 and "0.3.0 is newer (attested by 1 of the 2 asked)" in done.err
    attested.trust.remove_attester(attested.keys["bob"].public_key.keyid)
    done = run("sync", "--frozen", "--registry", attested.address)
    assert done.code == 1 and f"{NAME} 0.2.0: attested by 1 of the 2 asked" in done.err


def test_a_pin_that_is_attested_by_now_stays_and_one_that_is_not_moves(attested: Attested, run: Any) -> None:
    lock = ("lock", "--registry", attested.address)
    assert run(*lock, f"{NAME}==0.1.0").code == 0
    attested.attest("0.1.0", "alice")
    attested.attest("0.2.0", "alice", "bob")
    Path("tunehub.lock").write_text(Path("tunehub.lock").read_text().replace('requires = "==0.1.0"\n', ""))
    assert run(*lock, "attested>=1").out.startswith(f"changed {NAME} 0.1.0 ")
    assert run("sync", "--frozen").code == 0
    assert run(*lock, "attested>=2").out.startswith(f"upgraded {NAME} 0.1.0 -> 0.2.0 ")
    before = Path("tunehub.lock").read_bytes()
    done = run(*lock, "attested>=3")
    assert done.code == 1 and "attested by 2 of the 3 asked" in done.err and Path("tunehub.lock").read_bytes() == before


def test_a_requirement_beside_a_lock_file_counts_the_locked_attestations(attested: Attested, run: Any) -> None:
    attested.attest("0.3.0", "alice")
    assert run("lock", NAME, "--registry", attested.address).code == 0
    assert run("sync", "--frozen").code == 0
    attested.attest("0.3.0", "bob")  # after the lock file
    shutil.rmtree(attested.registry.root)
    assert attested.chosen("attested>=1", lock="tunehub.lock") == "0.3.0"
    with pytest.warns(HubWarning) as caught:
        open_hub(A76, lock="tunehub.lock", require="attested>=2", tvm_version=TVM)
    message = str(caught[0].message)
    assert "conflicts with the lock file" in message and "attested by 1 of the 2 asked" in message
    assert "`tunehub lock 'NAME, attested>=2'`" in message and "tunehub trust attester add" in message


def test_a_mirror_has_them_too(attested: Attested, run: Any) -> None:
    attested.attest("0.2.0", "alice", "bob")
    done = run("mirror", attested.address, str(attested.folder / "mirror"), NAME, "--unsigned")
    assert done.code == 0, done.err
    shutil.rmtree(attested.registry.root)
    found = api.resolve(A76, registry=str(attested.folder / "mirror"), require="attested>=2").chosen
    assert found is not None and found.entry.version == "0.2.0"
    assert run("mirror", "a", "b", f"{NAME}, attested>=2").code != 0
