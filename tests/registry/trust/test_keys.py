"""Keys in files, in the environment and in a key service; no message or file but the PEM itself has private bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256K1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tunehub_registry.trust.exceptions import KeyUnusableError
from tunehub_registry.trust.keys import (
    create_key,
    decode_public_key,
    encode_public_key,
    load_public_key,
    load_signer,
    public_path_of,
    public_text,
)

pytestmark = pytest.mark.fast

SECRET = {"TUNEHUB_KEY_PASSPHRASE": "correct horse"}


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "k.pem"
    create_key(path, SECRET["TUNEHUB_KEY_PASSPHRASE"])
    return path


def test_a_new_key_signs_and_its_public_key_verifies(pem: Path) -> None:
    signer = load_signer(str(pem), environ=SECRET)
    public = load_public_key(str(public_path_of(pem)))
    assert signer.public_key == public
    public.verify_signature(signer.sign(b"text"), b"text")
    assert load_public_key(public_text(public)) == public
    assert stat.S_IMODE(pem.stat().st_mode) == 0o600
    assert pem.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")


@pytest.mark.parametrize("room_for", [0, 1])
def test_a_full_disk_leaves_no_part_of_a_key(room_for: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [*[os.fsync] * room_for, None]

    def fsync(descriptor: int) -> None:
        sync = left.pop(0)
        if sync is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("tunehub_registry.trust.keys.os.fsync", fsync)
        with pytest.raises(KeyUnusableError, match="No space left on device"):
            create_key(tmp_path / "k.pem", None)
    assert list(tmp_path.iterdir()) == []
    create_key(tmp_path / "k.pem", None)


@pytest.mark.parametrize("prefix", ["", "file:"])
def test_places(pem: Path, prefix: str) -> None:
    expected = load_public_key(f"{pem}.pub")
    assert load_signer(f"{prefix}{pem}", environ=SECRET).public_key == expected
    variables = {**SECRET, "MINE": pem.read_text()}
    assert load_signer("env:MINE", environ=variables).public_key == expected


def test_the_terminal_is_asked_when_the_variable_is_not_set_or_wrong(pem: Path) -> None:
    asked: list[str] = []

    def ask(place: str) -> str:
        asked.append(place)
        return "correct horse"

    for variables in ({}, {"TUNEHUB_KEY_PASSPHRASE": "wrong"}):
        load_signer(str(pem), ask_passphrase=ask, environ=variables)
    assert asked == [str(pem)] * 2


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({}, "there is no passphrase"), ({"TUNEHUB_KEY_PASSPHRASE": "wrong"}, "the passphrase is wrong")],
)
def test_without_the_passphrase(pem: Path, variables: dict[str, str], reason: str) -> None:
    with pytest.raises(KeyUnusableError, match=reason) as caught:
        load_signer(str(pem), environ=variables)
    assert str(pem) in str(caught.value)
    assert "wrong" not in str(caught.value).replace("passphrase is wrong", "")


def test_nothing_is_overwritten(pem: Path, tmp_path: Path) -> None:
    before = pem.read_bytes()
    with pytest.raises(KeyUnusableError, match="the file exists"):
        create_key(pem, None)
    (tmp_path / "b.pem.pub").write_text("mine")
    with pytest.raises(KeyUnusableError, match="the file exists"):
        create_key(tmp_path / "b.pem", None)
    assert pem.read_bytes() == before
    assert not (tmp_path / "b.pem").exists()
    with pytest.raises(KeyUnusableError, match="No such file"):
        create_key(tmp_path / "none" / "c.pem", None)


@pytest.mark.parametrize("passphrase", ["", "x" * 1024])
def test_passphrases_have_a_length(tmp_path: Path, passphrase: str) -> None:
    with pytest.raises(KeyUnusableError, match="1 to 1023 bytes"):
        create_key(tmp_path / "k.pem", passphrase)
    assert list(tmp_path.iterdir()) == []


def _curve_that_tuf_lacks() -> bytes:
    return generate_private_key(SECP256K1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("uri", "content", "reason"),
    [
        ("missing.pem", None, "No such file"),
        ("x.pem", b"hello", "not a private key in PEM form"),
        ("x.pem", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "damaged or of an unknown kind"),
        ("x.pem", b"x" * 70_000, "not a key"),
        ("x.pem", _curve_that_tuf_lacks(), "unsupported curve"),
        ("env:NOT_SET", None, "no such environment variable"),
        ("vault9:x", None, "no kind of key 'vault9'"),
        ("awskms:", None, "no kind of key 'awskms'"),
    ],
)
def test_what_is_no_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, content: bytes | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("x.pem").write_bytes(content)
    with pytest.raises(KeyUnusableError, match=reason):
        load_signer(uri, environ={})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}", "keyid"),
        (b"[]", "not a public key"),
        (b"\xff", "not a public key"),
        (b'{"keyid": "../x", "keytype": "ed25519"}', "not hexadecimal"),
        (b'{"keyid": "aa", "keytype": "md5", "scheme": "md5", "keyval": {}}', "Unsupported public key"),
        (b"-----BEGIN PRIVATE KEY-----", "this is a private key"),
        (b"[" * 100_000, "not a public key"),
    ],
)
def test_what_is_no_public_key(data: bytes, reason: str) -> None:
    with pytest.raises(KeyUnusableError, match=reason):
        decode_public_key(data, "x.pub")
    with pytest.raises(KeyUnusableError, match="not 64 hexadecimal digits"):
        load_public_key("ed25519:zz")


def test_public_keys_round_trip(pem: Path) -> None:
    public = load_public_key(f"{pem}.pub")
    data = encode_public_key(public)
    assert decode_public_key(data, "x") == public
    assert set(json.loads(data)) == {"keyid", "keytype", "keyval", "scheme"}


@pytest.mark.slow
def test_a_key_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3: Any = pytest.importorskip("boto3")
    moto: Any = pytest.importorskip("moto")
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with moto.mock_aws():
        made = boto3.client("kms").create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")
        uri = f"awskms:{made['KeyMetadata']['KeyId']}"
        signer = load_signer(uri)
        public = load_public_key(uri)
        # moto hashes the digest once more, as if it was asked to sign a message; AWS does not.
        public.verify_signature(signer.sign(b"text"), hashlib.sha256(b"text").digest())
        assert public_text(public) == "ecdsa (ecdsa-sha2-nistp256)"
        with pytest.raises(KeyUnusableError, match="its service says"):
            load_signer("awskms:00000000-0000-0000-0000-000000000000")
