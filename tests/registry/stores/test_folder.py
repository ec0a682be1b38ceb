"""What only folders have: links, permissions, full disks, killed writers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from tunehub_registry.stores.folder import LOCK_NAME, TEMPORARY_PREFIX, FolderStore
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    FileMissingError,
    IfAbsent,
    IfMatch,
    StoreError,
    UnfitStoreError,
    UnreachableError,
)

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "registry")


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_reading_makes_nothing(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="there is no folder"):
        store.get("index.json", max_bytes=10)
    (tmp_path / "registry").mkdir()
    with pytest.raises(FileMissingError, match=r"index\.json"):
        store.get("index.json", max_bytes=10)
    assert list((tmp_path / "registry").iterdir()) == []


@pytest.mark.parametrize("path", ["folder", "file/below", "n" * 300])
def test_is_no_file(store: FolderStore, tmp_path: Path, path: str) -> None:
    store.put("folder/a", b"", IfAbsent())
    store.put("file", b"", IfAbsent())
    with pytest.raises((FileMissingError, AccessDeniedError)):
        store.get(path, max_bytes=10)


def test_others_may_read(store: FolderStore, tmp_path: Path) -> None:
    """A web server of another user shows the folder."""
    old = os.umask(0o022)
    try:
        store.put("a", b"1", IfAbsent())
    finally:
        os.umask(old)
    assert (tmp_path / "registry" / "a").stat().st_mode & 0o777 == 0o644


class TestLinks:
    def test_are_read(self, store: FolderStore, tmp_path: Path) -> None:
        """Installers and build systems make registries of links to the files."""
        (tmp_path / "registry").mkdir()
        (tmp_path / "elsewhere").write_bytes(b"yes")
        (tmp_path / "registry" / "a").symlink_to(tmp_path / "elsewhere")
        found = store.get("a", max_bytes=10)
        assert found is not None
        assert found.data == b"yes"

    def test_out_of_the_folder_are_not_written_through(self, store: FolderStore, tmp_path: Path) -> None:
        (tmp_path / "registry").mkdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "victim").write_bytes(b"safe")
        (tmp_path / "registry" / "packages").symlink_to(tmp_path / "other")
        for attempt in (
            lambda: store.put("packages/a", b"", IfAbsent()),
            lambda: store.put("packages/deeper/a", b"", IfAbsent()),
            lambda: store.delete("packages/victim"),
        ):
            with pytest.raises(AccessDeniedError, match="symbolic link leads out"):
                attempt()
        assert _files(tmp_path / "other") == ["victim"]

    def test_are_replaced_not_followed(self, store: FolderStore, tmp_path: Path) -> None:
        (tmp_path / "registry").mkdir()
        victim = tmp_path / "victim"
        victim.write_bytes(b"safe")
        (tmp_path / "registry" / "a").symlink_to(victim)
        found = store.get("a", max_bytes=10)
        assert found is not None
        store.put("a", b"new", IfMatch(etag=found.etag))
        assert victim.read_bytes() == b"safe"
        (tmp_path / "registry" / "dangling").symlink_to(tmp_path / "nowhere")
        with pytest.raises(ConflictError):
            store.put("dangling", b"new", IfAbsent())
        assert not (tmp_path / "nowhere").exists()

    def test_of_the_root_itself_is_fine(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        FolderStore(tmp_path / "link").put("packages/a", b"1", IfAbsent())
        assert (tmp_path / "real" / "packages" / "a").read_bytes() == b"1"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
    def test_pipe_does_not_keep_its_reader_waiting(self, store: FolderStore, tmp_path: Path) -> None:
        (tmp_path / "registry").mkdir()
        os.mkfifo(tmp_path / "registry" / "a")
        with pytest.raises(AccessDeniedError, match="no regular file"):
            store.get("a", max_bytes=10)


class TestFaults:
    @pytest.mark.parametrize(
        ("number", "kind", "remedy"),
        [
            (errno.ENOSPC, UnreachableError, "make room"), (errno.EDQUOT, UnreachableError, "make room"),
            (errno.EACCES, AccessDeniedError, "permissions"), (errno.EROFS, AccessDeniedError, "read-only"),
            (errno.EIO, UnreachableError, "check the disk"), (errno.ESTALE, UnreachableError, "network file system"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("function", ["fsync", "replace", "mkdir"])
    def test_of_writing(
        self, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int,
        kind: type[StoreError], remedy: str, function: str,
    ) -> None:  # fmt: skip
        def fail(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        (tmp_path / "registry").mkdir()
        if function == "replace":  # which only file systems without hard links need here
            monkeypatch.setattr(os, "link", _no_links)
        monkeypatch.setattr(*((os, function) if function == "fsync" else (Path, function)), fail)
        with pytest.raises(kind, match=remedy) as error:
            store.put("new/a", b"1", IfAbsent())
        assert os.strerror(number) in error.value.reason
        monkeypatch.undo()
        assert [name for name in _files(tmp_path / "registry") if name != LOCK_NAME] == []

    def test_of_linking(self, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(UnreachableError, match="make room"):
            store.put("a", b"1", IfAbsent())
        assert _files(tmp_path / "registry") == []

    def test_of_reading(self, store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store.put("a", b"1", IfAbsent())

        def fail(*_: object, **__: object) -> int:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(AccessDeniedError, match="Permission denied"):
            store.get("a", max_bytes=10)

    def test_answer_of_nfs_is_lost(self, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The link is made, but the repeated call finds it there: it is our own."""
        link = os.link

        def repeat(source: Path, target: Path) -> None:
            link(source, target)
            link(source, target)

        monkeypatch.setattr(os, "link", repeat)
        store.put("a", b"1", IfAbsent())
        with pytest.raises(ConflictError):
            store.put("a", b"2", IfAbsent())
        assert _files(tmp_path / "registry") == ["a"]

    @pytest.mark.parametrize(("times", "succeeds"), [(1, True), (2, False)])
    def test_file_of_nfs_is_replaced_while_it_is_read(
        self, store: FolderStore, monkeypatch: pytest.MonkeyPatch, times: int, succeeds: bool
    ) -> None:
        store.put("a", b"1", IfAbsent())
        left, opened = [None] * times, os.open

        def fail(name: str, flags: int) -> int:
            if left:
                left.pop()
                raise OSError(errno.ESTALE, "Stale file handle")
            return opened(name, flags)

        monkeypatch.setattr(os, "open", fail)
        with nullcontext() if succeeds else pytest.raises(UnreachableError, match="Stale"):
            found = store.get("a", max_bytes=10)
            assert found is not None
            assert found.data == b"1"

    def test_no_file_locks(self, store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
        import filelock

        def fail(self: object) -> None:
            raise NotImplementedError("FileSystem does not appear to support flock")

        tag = store.put("a", b"1", IfAbsent())
        monkeypatch.setattr(filelock.FileLock, "_acquire", fail)
        with pytest.raises(UnfitStoreError, match="no file locks"):
            store.put("a", b"2", IfMatch(etag=tag))

    def test_lock_is_held_for_ever(self, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import filelock

        tag = store.put("a", b"1", IfAbsent())
        monkeypatch.setattr("tunehub_registry.stores.folder.LOCK_TIMEOUT_S", 0.05)
        with filelock.FileLock(str(tmp_path / "registry" / LOCK_NAME)), pytest.raises(UnreachableError, match="held"):
            store.put("a", b"2", IfMatch(etag=tag))


class TestTemporaryFiles:
    KILLED = """
import os, pathlib, signal, sys
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.port import IfAbsent
FolderStore(pathlib.Path(sys.argv[1])).put(
    "packages/a.json", b"half", IfAbsent(), on_bytes=lambda count: os.kill(os.getpid(), signal.SIGKILL)
)
"""

    def test_of_a_killed_writer_shadow_nothing(self, store: FolderStore, tmp_path: Path) -> None:
        root = tmp_path / "registry"
        ended = subprocess.run([sys.executable, "-c", self.KILLED, str(root)], check=False)
        assert ended.returncode == -signal.SIGKILL
        (left,) = _files(root)
        assert Path(left).name.startswith(TEMPORARY_PREFIX)
        with pytest.raises(AccessDeniedError, match="store's own"):
            store.get(left, max_bytes=10)
        with pytest.raises(FileMissingError):
            store.get("packages/a.json", max_bytes=10)
        store.put("packages/a.json", b"whole", IfAbsent())

    def test_are_removed_after_an_interrupt(self, store: FolderStore, tmp_path: Path) -> None:
        def interrupt(count: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.put("a", b"1", IfAbsent(), on_bytes=interrupt)
        assert _files(tmp_path / "registry") == []

    def test_own_names_are_refused(self, store: FolderStore) -> None:
        for name in (LOCK_NAME, f"packages/{TEMPORARY_PREFIX}1"):
            with pytest.raises(AccessDeniedError):
                store.put(name, b"", IfAbsent())


def test_folder_goes_while_it_is_written_to(store: FolderStore) -> None:
    """Deleting takes empty folders away, also those that another writer has just made for itself."""

    def work(number: int) -> None:
        for turn in range(30):
            store.put(f"probe/{number}-{turn}", b"1", IfAbsent())
            store.delete(f"probe/{number}-{turn}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def _no_links(source: object, target: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")
