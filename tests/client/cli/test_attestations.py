"""Attestations from the envelope to `tunehub show`, in signed and unsigned registries: which count, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.registry.attestations import signed

from tunehub.cli import cli
from tunehub_registry.attestation import PackageSubject
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import pack, sha256_of
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.keys import load_signer

pytestmark = pytest.mark.fast
Run = Callable[..., Result]
NAME, VERSION = "llvm-znver5", "0.1.0"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "trust"))
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    for name in ("KEY", "ONLINE_KEY", "KEY_PASSPHRASE", "LOCK", "REGISTRY", "REQUIRE", "OFFLINE"):
        monkeypatch.delenv(f"TUNEHUB_{name}", raising=False)

    def invoke(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(args))
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


@pytest.fixture(params=["signed", "unsigned"])
def published(request: pytest.FixtureRequest, run: Run, tmp_path: Path) -> tuple[str, ...]:
    """A registry `reg` with one package; the options of who writes to it."""
    keys = ("root", "targets", "online", "acme", "alice", "bob")
    for name in keys:
        run("key", "new", f"{name}.pem", "--no-passphrase")
    options: tuple[str, ...] = ("--unsigned",)
    if request.param == "signed":
        admin = ("--targets-key", "targets.pem", "--online-key", "online.pem")
        run("init", "reg", "--root-key", "root.pem", *admin, "--save-root", "root.json")
        run("trust", "add", "reg", "root.json")
        run("delegate", "reg", "acme", "--key", "acme.pem.pub", "--names", "llvm-*", *admin)
        options = ("--key", "acme.pem", "--online-key", "online.pem")
    else:
        run("init", "reg", "--unsigned")
    run("publish", "reg", write_package(tmp_path / "p.tunepkg"), *options)
    return options


def write_package(path: Path) -> str:
    target = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64")
    file = "records/meta_schedule.jsonl"
    manifest = Manifest(
        name=target.name, version=VERSION, target=target,
        record_sets=(RecordSet(tuner="meta_schedule", file=file, tvm=">=0.25", key_scheme="k", count=1),),
        provenance=Provenance(
            machine={"cpu": "test"}, tvm_version="0.27.0", tvm_ffi_version="0.1.14", tuner_options={}, trials=1, seed=0,
            command="test", started="2026-01-31T10:00:00Z", finished="2026-01-31T12:00:00Z", threads=2,
        ),
    )  # fmt: skip
    path.write_bytes(pack(manifest, {file: b"{}\n"}))
    return str(path)


def envelope(who: str, gain: float, sha256: str | None = None) -> str:
    """A file with what a key attests of the package."""
    subject = PackageSubject.of(NAME, VERSION, sha256 or sha256_of("p.tunepkg"))
    path = Path(f"{who}.json")
    path.write_bytes(signed(load_signer(f"{who}.pem"), gain, subject=subject))
    return str(path)


def shown(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("show", f"{NAME}=={VERSION}", "--registry", "reg", "--json").stdout)
    return found


def test_who_is_trusted_counts_and_others_are_shown_with_the_reason(run: Run, published: tuple[str, ...]) -> None:
    assert shown(run)["attestations"] is None
    run("attach", "reg", envelope("alice", 1.15), *published)
    assert "attestations (" in run("attach", "reg", envelope("bob", 1.27), *published).output
    assert shown(run)["attestations"]["text"] == "measured by no machine that you trust"
    run("trust", "attester", "add", "alice.pem.pub")
    text = run("show", NAME, "--registry", "reg").output
    assert "attested: measured by 1 machine, gain 1.15\n" in text and "unknown key, not counted" in text
    run("trust", "attester", "add", "bob.pem.pub")
    assert shown(run)["attestations"]["text"] == "measured by 2 machines, gain 1.21 (1.15 to 1.27)"
    keys = json.loads(run("trust", "attester", "ls", "--json").output)["attesters"]
    run("trust", "attester", "remove", keys[0]["keyid"])
    assert shown(run)["attestations"]["machines"] == 1
    assert "no attester" in run("trust", "attester", "remove", keys[0]["keyid"], code=1).output


def test_one_that_is_attached_again_changes_nothing(run: Run, published: tuple[str, ...]) -> None:
    first = run("attach", "reg", envelope("alice", 1.15), *published).output
    assert run("attach", "reg", "alice.json", *published).output == first


def test_one_of_other_bytes_and_a_file_that_is_none_are_refused(run: Run, published: tuple[str, ...]) -> None:
    run("attach", "reg", envelope("alice", 1.15, "ab" * 32), *published, code=1)
    Path("bad.json").write_text('{"payloadType": "text/plain", "signatures": [], "payload": ""}')
    assert "bad.json" in run("attach", "reg", "bad.json", *published, code=1).output
    assert shown(run)["attestations"] is None


def test_what_was_seen_once_is_there_offline(
    run: Run, published: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("attach", "reg", envelope("alice", 1.15), *published)
    run("trust", "attester", "add", "alice.pem.pub")
    before = shown(run)
    for file in Path("reg/packages/documents").iterdir():
        file.unlink()
    monkeypatch.setenv("TUNEHUB_OFFLINE", "1")
    assert shown(run)["attestations"] == before["attestations"]


def test_a_damaged_document_hides_nothing_of_its_package(run: Run, published: tuple[str, ...]) -> None:
    run("attach", "reg", envelope("alice", 1.15), *published)
    for file in Path("reg/packages/documents").iterdir():
        file.write_bytes(b"x")
    ended = run("show", NAME, "--registry", "reg", code=1)
    assert ended.stdout.startswith(f"{NAME} {VERSION}") and "packages/documents" in ended.stderr


@pytest.mark.parametrize("place", ["missing.pub", "ed25519:zz", "../x"])
def test_an_attester_is_a_public_key(run: Run, place: str) -> None:
    assert "Error: key" in run("trust", "attester", "add", place, code=1).output
    assert "no attesters" in run("trust", "attester", "ls").output
    run("trust", "attester", "remove", "../bindings", code=1)
