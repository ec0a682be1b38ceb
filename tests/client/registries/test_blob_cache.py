from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import filelock
import pytest

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.blob_cache import BlobCache, HashMismatchError, is_sound
from tunehub_registry.stores.port import Deadline

pytestmark = pytest.mark.fast

DATA = b"package"
SHA = hashlib.sha256(DATA).hexdigest()


class Download:
    """A download of `data`, which breaks off after `upto` bytes if that is given; notes from where it began."""

    def __init__(self, data: bytes = DATA, upto: int | None = None) -> None:
        self.data = data
        self.upto = upto
        self.offsets: list[int] = []

    def __call__(self, stream: BinaryIO, offset: int) -> None:
        self.offsets.append(offset)
        stream.write(self.data[offset : self.upto])
        if self.upto is not None:
            raise RegistryUnreadableError("test", "reset", remedy="again")


def no_fetch(stream: BinaryIO, offset: int) -> None:
    raise AssertionError("fetched although a sound blob is there")


def get(store: BlobCache, download: Callable[[BinaryIO, int], None]) -> Path:
    return store.blob(SHA, len(DATA), download)


def part_of(store: BlobCache) -> Path:
    return store.root / "blobs" / f"{SHA}.tunepkg.part"


def test_fetched_once_and_tagged(tmp_path: Path) -> None:
    store = BlobCache(tmp_path / "cache")
    path = get(store, Download())
    assert path.read_bytes() == DATA
    assert get(store, no_fetch) == path
    assert (tmp_path / "cache" / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


@pytest.mark.parametrize("damage", [b"", b"packag", b"garbage"])
def test_damaged_blob_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    store = BlobCache(tmp_path)
    get(store, Download()).write_bytes(damage)
    assert get(store, Download()).read_bytes() == DATA


def test_other_bytes_are_refused_and_not_kept(tmp_path: Path) -> None:
    store = BlobCache(tmp_path)
    wrong = Download(b"garbage")
    with pytest.raises(HashMismatchError, match=SHA):
        get(store, wrong)
    assert wrong.offsets == [0]
    assert not is_sound(store.blob_path(SHA), SHA)
    assert not [file for file in store.files() if file.kind != "registry"]


def test_a_download_that_broke_off_goes_on(tmp_path: Path) -> None:
    store = BlobCache(tmp_path)
    with pytest.raises(RegistryUnreadableError):
        get(store, Download(upto=3))
    assert part_of(store).read_bytes() == DATA[:3]
    assert [file.kind for file in store.files()] == ["partial"]
    rest = Download()
    assert get(store, rest).read_bytes() == DATA
    assert rest.offsets == [3]
    assert not part_of(store).exists()


@pytest.mark.parametrize(
    ("before", "offsets"), [(b"XXX", [3, 0]), (DATA + b"more", [0]), (DATA, []), (b"garbage", [0])]
)
def test_what_was_there_before_may_be_wrong(tmp_path: Path, before: bytes, offsets: list[int]) -> None:
    store = BlobCache(tmp_path)
    part_of(store).parent.mkdir()
    part_of(store).write_bytes(before)
    download = Download()
    assert get(store, download).read_bytes() == DATA
    assert download.offsets == offsets


def test_a_full_disk_keeps_no_part(tmp_path: Path) -> None:
    def fill(stream: BinaryIO, offset: int) -> None:
        stream.write(b"some")
        raise OSError(28, "No space left on device")

    store = BlobCache(tmp_path)
    with pytest.raises(OSError, match="No space"):
        get(store, fill)
    assert not part_of(store).exists()


def test_orphans_are_swept_up(tmp_path: Path) -> None:
    store = BlobCache(tmp_path)
    other = hashlib.sha256(b"other").hexdigest()
    names = [
        f"blobs/{name}"
        for name in (f"{other}.tunepkg.part", f"{other}.index.sqlite.tmp-x", "young.tmp-x", "held.tmp-x")
    ]
    names.append("registries/abc/state.json.tmp-x")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"half")
        if "young" not in name:
            os.utime(tmp_path / name, (1, 1))
    with store.lock(tmp_path / "blobs" / "held.tunepkg"):
        get(store, Download())
    assert [name for name in names if (tmp_path / name).exists()] == ["blobs/young.tmp-x", "blobs/held.tmp-x"]


def test_waiting_for_another_process_is_bounded(tmp_path: Path) -> None:
    path = BlobCache(tmp_path).blob_path(SHA)
    late = BlobCache(tmp_path, Deadline(0.05))
    with BlobCache(tmp_path).lock(path), pytest.raises(TimeoutError), late.lock(path):
        pass


def test_a_file_system_without_locks_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(self: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    store = BlobCache(tmp_path)
    with pytest.raises(OSError, match="flock"), store.lock(store.blob_path(SHA)):
        pass


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
    get(store, Download())
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
