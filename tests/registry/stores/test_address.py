from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.stores.address import (
    BucketAddress,
    UnsupportedAddressError,
    normalise_address,
    parse_address,
    split_unsigned,
    without_secrets,
)
from tunehub_registry.stores.open import is_folder, open_store, open_writable_store

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("/a/b/", "/a/b"),
        ("/a/../b", "/b"),
        ("file:///a%20b", "/a b"),
        ("file://localhost/a", "/a"),
        ("https://Host.Example:443/x/", "https://host.example/x"),
        ("HTTPS://user:hunter2@host/x?sig=1#f", "https://host/x"),
        ("http://host:8080", "http://host:8080"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a%20b/c/", "s3://bucket/a%20b/c"),
        ("s3://bucket/p?anonymous=0&region=", "s3://bucket/p"),
        (
            "s3://bucket/p?anonymous=true&profile=x&region=eu-north-1&endpoint=http://127.0.0.1:8333/",
            "s3://bucket/p?endpoint=http://127.0.0.1:8333&region=eu-north-1&profile=x&anonymous=1",
        ),
    ],
)
def test_normal_form(address: str, normal: str) -> None:
    assert normalise_address(address) == normal
    assert normalise_address(normal) == normal


def test_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert normalise_address("registry") == normalise_address("~/registry") == str(tmp_path / "registry")
    assert normalise_address(tmp_path) == str(tmp_path)
    assert is_folder("registry")
    assert not is_folder("s3://bucket")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ftp://host/x", "the scheme ftp:// is not supported"),
        ("unsigned+https://host/x", "the scheme unsigned+https:// is not supported"),
        ("", "names no folder"),
        ("a\0b", "names no folder"),
        ("file://host/x", "name no host"),
        ("https:///x", "names no host"),
        ("https://host:port/x", "it is no URL"),
        ("https://[::1/x", "it is no URL"),
        ("s3:///x", "names no bucket"),
        ("s3://ab/x", "names no bucket"),
        ("s3://key:secret@bucket/x", "names no bucket"),
        ("s3://bucket/a/../../b", "has a part '..'"),
        ("s3://bucket?secret=hunter2", "unknown setting 'secret'"),
        ("s3://bucket?anonymous=perhaps", "anonymous=perhaps"),
        ("s3://bucket?endpoint=127.0.0.1:80", "is no plain URL"),
        ("s3://bucket?endpoint=http://me:hunter2@host", "is no plain URL"),
    ],
)
def test_unsupported(address: str, reason: str) -> None:
    with pytest.raises(UnsupportedAddressError) as error:
        parse_address(address)
    assert reason in str(error.value)
    assert "hunter2" not in str(error.value)
    assert "key:secret" not in str(error.value)


def test_unsigned_is_split() -> None:
    assert split_unsigned("unsigned+s3://bucket/x") == ("s3://bucket/x", True)
    assert split_unsigned("s3://bucket/x") == ("s3://bucket/x", False)


def test_offline() -> None:
    for address in ("https://host/x", "s3://bucket/x"):
        with pytest.raises(UnsupportedAddressError, match="offline"):
            open_store(address, offline=True)
    assert open_store("/x", offline=True).address == "/x"


def test_web_sites_are_not_written_to() -> None:
    with pytest.raises(UnsupportedAddressError, match="read only"):
        open_writable_store("https://host/x")


def test_secrets_are_in_no_representation() -> None:
    assert "hunter2" not in repr(parse_address("https://me:hunter2@host/x?hunter2"))
    assert without_secrets("https://me:hunter2@host/x?hunter2#hunter2") == "https://host/x"
    assert "hunter2" not in without_secrets("https://[hunter2")


names = st.text("abcXYZ019 ._-ü%?&#+", min_size=1).filter(lambda name: name.strip(".") == name)


@given(
    st.builds(
        BucketAddress,
        bucket=st.from_regex(r"[a-z0-9][a-z0-9-]{1,20}[a-z0-9]", fullmatch=True),
        prefix=st.lists(names, max_size=3).map("/".join),
        endpoint=st.sampled_from([None, "http://127.0.0.1:8333", "https://s3.example/base"]),
        region=st.sampled_from([None, "us-east-1"]),
        profile=st.none() | names,
        anonymous=st.booleans(),
    )
)
def test_text_of_a_bucket_is_its_address(address: BucketAddress) -> None:
    assert parse_address(address.text) == address


@given(st.text())
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        normal = normalise_address(text)
    except UnsupportedAddressError:
        return
    assert normalise_address(normal) == normal
