from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tunehub.blob_cache import BlobCache, HashMismatchError, is_sound

DATA = b"package"
SHA = hashlib.sha256(DATA).hexdigest()


def fetch() -> bytes:
    return DATA


def no_fetch() -> bytes:
    raise AssertionError("fetched although a sound blob is there")


def test_fetched_once_and_tagged(tmp_path: Path) -> None:
    store = BlobCache(tmp_path / "cache")
    path = store.blob(SHA, fetch)
    assert path.read_bytes() == DATA
    assert store.blob(SHA, no_fetch) == path
    assert (tmp_path / "cache" / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


@pytest.mark.parametrize("damage", [b"", b"packag", b"garbage"])
def test_damaged_blob_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    store = BlobCache(tmp_path)
    store.blob(SHA, fetch).write_bytes(damage)
    assert store.blob(SHA, fetch).read_bytes() == DATA


def test_other_bytes_are_refused_and_not_kept(tmp_path: Path) -> None:
    store = BlobCache(tmp_path)
    with pytest.raises(HashMismatchError, match=SHA):
        store.blob(SHA, lambda: b"other")
    assert not store.blob_path(SHA).exists()
    assert not is_sound(store.blob_path(SHA), SHA)


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    store = BlobCache(tmp_path)

    def fill(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write(tmp_path / "blobs" / "x", fill)
    assert list((tmp_path / "blobs").iterdir()) == []


def test_listing_knows_leftovers_and_clear_deletes(tmp_path: Path) -> None:
    store = BlobCache(tmp_path)
    store.blob(SHA, fetch)
    store.index_path(SHA).write_bytes(b"index")
    (tmp_path / "blobs" / f"{SHA}.tunepkg.tmp-abc").write_bytes(b"half")
    user = store.user_index_path(tmp_path / "records.jsonl")
    user.parent.mkdir()
    user.write_bytes(b"index")
    assert sorted(file.kind for file in store.files()) == ["blob", "index", "leftover", "user"]
    assert store.clear() == len(DATA) + 5 + 4 + 5
    assert list(store.files()) == []


def test_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = BlobCache(tmp_path / "file")
    with pytest.raises(OSError, match="file"), store.lock(store.index_path(SHA)):
        pass
