"""Compiled code in the cache: whole or not there, whoever writes, is killed, or damages it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunehub.compiler.artifacts.store import ArtifactStore
from tunehub.registries.blob_cache import BlobCache, sealed, unsealed

pytestmark = pytest.mark.fast

MIB = 1 << 20


def library_of(content: bytes) -> Any:
    return lambda path: path.write_bytes(content)


def test_what_is_kept_is_found_until_it_is_damaged(cache: Path) -> None:
    store = ArtifactStore(cache, MIB)
    assert store.is_used and store.read("kernels", "a.cubin") is None
    store.keep("kernels", "a.cubin", b"code")
    digest = store.keep_library(library_of(b"library"))
    assert digest is not None
    found = ArtifactStore(cache, MIB)
    library = found.library(digest)
    assert found.read("kernels", "a.cubin") == b"code"
    assert library is not None and library.read_bytes() == b"library"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"", lambda data: b"0" * 90]
)
def test_a_file_that_is_cut_short_or_changed_is_refused_removed_and_made_again(cache: Path, damage: Any) -> None:
    store = ArtifactStore(cache, MIB)
    store.keep("kernels", "a.cubin", b"code")
    digest = store.keep_library(library_of(b"library"))
    assert digest is not None
    for path in (cache / "kernels" / "a.cubin", cache / "libraries" / f"{digest}.so"):
        path.write_bytes(damage(path.read_bytes()))
    assert store.read("kernels", "a.cubin") is None and store.library(digest) is None
    assert not list(BlobCache(cache).files())
    store.keep("kernels", "a.cubin", b"code")
    assert store.read("kernels", "a.cubin") == b"code"


def test_any_flipped_byte_of_a_sealed_file_is_noticed() -> None:
    data = sealed("name", b"content")
    assert unsealed("name", data) == b"content"
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert unsealed("name", bytes(changed)) is None


def test_a_file_that_lies_under_the_name_of_another_is_not_that_one(cache: Path) -> None:
    store = ArtifactStore(cache, MIB)
    for name in ("a.json", "b.json"):
        store.keep("libraries", name, name.encode())
    (cache / "libraries" / "a.json").replace(cache / "libraries" / "b.json")
    assert store.read("libraries", "b.json") is None


def test_a_library_that_others_may_write_to_is_not_used(cache: Path) -> None:
    store = ArtifactStore(cache, MIB)
    digest = store.keep_library(library_of(b"library"))
    assert digest is not None
    (cache / "libraries" / f"{digest}.so").chmod(0o666)
    assert store.library(digest) is None


def test_what_was_used_longest_ago_goes_first(cache: Path) -> None:
    store = ArtifactStore(cache, 1000)
    for number in range(4):
        store.keep("kernels", f"{number}.cubin", bytes(200))
        os.utime(cache / "kernels" / f"{number}.cubin", (number, number))
    assert store.read("kernels", "0.cubin") is not None  # used now
    store.prune()
    assert {path.name for path in (cache / "kernels").glob("*.cubin")} == {"0.cubin", "2.cubin", "3.cubin"}
    assert sum(path.stat().st_size for path in (cache / "kernels").glob("*.cubin")) <= 900


def test_a_library_larger_than_all_may_be_is_not_kept_and_nothing_goes_for_it(cache: Path) -> None:
    store = ArtifactStore(cache, 1000)
    store.keep("kernels", "a.cubin", b"code")
    assert store.keep_library(library_of(bytes(2000))) is None
    assert [file.path.name for file in BlobCache(cache).files()] == ["a.cubin"]


def test_without_bytes_nothing_is_used(cache: Path) -> None:
    assert not ArtifactStore(cache, 0).is_used
    assert not cache.exists()


def test_a_cache_that_others_may_write_to_is_not_used(cache: Path) -> None:
    store = ArtifactStore(cache, MIB)
    store.keep("kernels", "a.cubin", b"code")
    (cache / "kernels").chmod(0o777)
    assert not store.is_used


def test_a_folder_that_cannot_be_made_and_a_writer_that_fails_are_no_errors(cache: Path) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("in the way")
    store = ArtifactStore(cache, MIB)
    store.keep("kernels", "a.cubin", b"code")
    assert store.keep_library(library_of(b"library")) is None and store.read("kernels", "a.cubin") is None
    cache.unlink()

    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    assert store.keep_library(full) is None
    assert not list((cache / "libraries").iterdir())


def test_what_a_killed_writer_leaves_is_no_library_and_is_swept_up(cache: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from tunehub.compiler.artifacts.store import ArtifactStore\n"
        "def write(path):\n"
        "    path.write_bytes(b'half')\n"
        "    os._exit(9)\n"
        "ArtifactStore(pathlib.Path(sys.argv[1]), 1 << 20).keep_library(write)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(cache)], check=False).returncode == 9
    (left,) = BlobCache(cache).files()
    assert left.kind == "leftover"
    os.utime(left.path, (0, 0))
    ArtifactStore(cache, MIB).prune()
    assert not list(BlobCache(cache).files())


def test_processes_that_write_the_same_at_once_leave_one_whole_file(cache: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from tunehub.compiler.artifacts.store import ArtifactStore\n"
        "store = ArtifactStore(pathlib.Path(sys.argv[1]), 1 << 20)\n"
        "for _ in range(20):\n"
        "    store.keep('kernels', 'a.cubin', b'code' * 1000)\n"
        "    assert store.read('kernels', 'a.cubin') == b'code' * 1000\n"
        "    digest = store.keep_library(lambda path: path.write_bytes(b'library' * 1000))\n"
        "    assert store.library(digest).read_bytes() == b'library' * 1000\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(cache)]) for _ in range(2)]
    assert [each.wait() for each in started] == [0, 0]
    assert sorted(file.kind for file in BlobCache(cache).files()) == ["kernel", "library"]
