"""What every store does: the port's contract, over real servers."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.open import open_store, open_writable_store
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    Content,
    Deadline,
    FileMissingError,
    IfAbsent,
    IfMatch,
    Store,
    TooLargeError,
    UnreachableError,
    UnsoundAnswerError,
    WritableStore,
)

from ...seaweed import Seaweed
from .conftest import Backend

pytestmark = pytest.mark.slow

DATA = bytes(range(256)) * 1024  # 256 KiB


def _get(store: Store, path: str, max_bytes: int = 1 << 20) -> Content:
    found = store.get(path, max_bytes=max_bytes, deadline=Deadline(20))
    assert found is not None
    return found


class TestReading:
    def test_whole(self, backend: Backend) -> None:
        backend.write("metadata/1.root.json", b"{}")
        assert _get(backend.store, "metadata/1.root.json").data == b"{}"

    def test_of_exactly_the_limit(self, backend: Backend) -> None:
        backend.write("f", b"1234")
        assert _get(backend.store, "f", 4).data == b"1234"

    def test_too_large(self, backend: Backend) -> None:
        backend.write("f", b"12345")
        with pytest.raises(TooLargeError, match="larger than 4 bytes"):
            _get(backend.store, "f", 4)

    def test_empty(self, backend: Backend) -> None:
        backend.write("f", b"")
        assert _get(backend.store, "f").data == b""
        backend.store.download("f", BytesIO(), size=0)

    def test_unchanged_and_changed(self, backend: Backend) -> None:
        backend.write("index.json", b"old")
        old = _get(backend.store, "index.json")
        assert backend.store.get("index.json", max_bytes=100, etag=old.etag) is None
        backend.write("index.json", b"new")
        new = backend.store.get("index.json", max_bytes=100, etag=old.etag)
        assert new is not None
        assert new.data == b"new"
        assert new.etag != old.etag

    @pytest.mark.parametrize("path", ["nothing.json", "folder/nothing.json"])
    def test_missing(self, backend: Backend, path: str) -> None:
        backend.write("f", b"")
        with pytest.raises(FileMissingError) as error:
            _get(backend.store, path)
        assert (error.value.path, error.value.address) == (path, backend.store.address)
        with pytest.raises(FileMissingError):
            backend.store.download(path, BytesIO(), size=5)

    def test_names_are_quoted(self, backend: Backend) -> None:
        name = "packages/a b+c%20ü#?&=.json"
        backend.write(name, b"yes")
        assert _get(backend.store, name).data == b"yes"

    @pytest.mark.parametrize("path", ["../f", "/f", "a/../../f", "a//f", "./f", "", "C:/f", "a\\..\\f", "f\0", "a/"])
    def test_never_leaves_the_root(self, backend: Backend, path: str) -> None:
        for attempt in (lambda: _get(backend.store, path), lambda: backend.store.url(path)):
            with pytest.raises(AccessDeniedError, match="leads out of the registry"):
                attempt()

    def test_time_is_over(self, backend: Backend) -> None:
        backend.write("f", DATA)
        with pytest.raises(UnreachableError, match=r"time|too long"):
            backend.store.download("f", BytesIO(), size=len(DATA), deadline=Deadline(0))

    def test_address_opens_it_again(self, backend: Backend) -> None:
        backend.write("f", b"yes")
        assert _get(open_store(backend.store.address), "f").data == b"yes"
        assert open_store(backend.store.address).address == backend.store.address

    def test_url_is_an_address_too(self, backend: Backend) -> None:
        url = backend.store.url("packages/a.tunepkg")
        assert "packages/a.tunepkg" in url
        assert open_store(url).address == url


class TestDownload:
    def test_whole(self, backend: Backend) -> None:
        backend.write("f", DATA)
        stream, moved = BytesIO(), list[int]()
        backend.store.download("f", stream, size=len(DATA), on_bytes=moved.append, deadline=Deadline(20))
        assert stream.getvalue() == DATA
        assert sum(moved) == len(DATA)

    @pytest.mark.parametrize("offset", [1, 1000, len(DATA) - 1, len(DATA)])
    def test_the_rest(self, backend: Backend, offset: int) -> None:
        backend.write("f", DATA)
        stream, moved = BytesIO(), list[int]()
        backend.store.download("f", stream, size=len(DATA), offset=offset, on_bytes=moved.append)
        assert stream.getvalue() == DATA[offset:]
        assert sum(moved) == len(DATA) - offset

    @pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
    @pytest.mark.parametrize("offset", [0, 100])
    def test_another_size(self, backend: Backend, size: int, offset: int) -> None:
        backend.write("f", DATA)
        stream = BytesIO()
        with pytest.raises(UnsoundAnswerError):
            backend.store.download("f", stream, size=size, offset=offset)
        assert DATA[offset:].startswith(stream.getvalue())

    def test_error_of_the_stream_is_the_callers(self, backend: Backend) -> None:
        """A full cache is no fault of the registry."""
        backend.write("f", DATA)

        class Full(BytesIO):
            def write(self, data: object) -> int:
                raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            backend.store.download("f", Full(), size=len(DATA))


class TestWriting:
    def test_if_absent(self, writable: WritableStore) -> None:
        tag = writable.put("packages/a.json", b"first", IfAbsent())
        assert _get(writable, "packages/a.json") == Content(data=b"first", etag=tag)
        with pytest.raises(ConflictError):
            writable.put("packages/a.json", b"second", IfAbsent())
        assert _get(writable, "packages/a.json").data == b"first"

    def test_if_match(self, writable: WritableStore) -> None:
        first = writable.put("index.json", b"1", IfAbsent())
        second = writable.put("index.json", b"2", IfMatch(etag=first))
        assert _get(writable, "index.json") == Content(data=b"2", etag=second)
        with pytest.raises(ConflictError) as error:
            writable.put("index.json", b"3", IfMatch(etag=first))
        assert "again" in error.value.remedy
        assert _get(writable, "index.json").data == b"2"

    def test_if_match_of_nothing(self, writable: WritableStore) -> None:
        with pytest.raises(ConflictError):
            writable.put("index.json", b"1", IfMatch(etag='"0123"'))
        with pytest.raises(FileMissingError):
            _get(writable, "index.json")

    def test_a_file(self, writable: WritableStore, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(DATA)
        moved: list[int] = []
        writable.put("packages/a.tunepkg", tmp_path / "source", IfAbsent(), on_bytes=moved.append)
        assert _get(writable, "packages/a.tunepkg").data == DATA
        assert sum(moved) == len(DATA)

    def test_a_file_that_is_missing(self, writable: WritableStore, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            writable.put("a", tmp_path / "source", IfAbsent())

    def test_empty(self, writable: WritableStore) -> None:
        writable.put("a", b"", IfAbsent())
        assert _get(writable, "a").data == b""

    def test_delete(self, writable: WritableStore) -> None:
        writable.put("probe/a", b"1", IfAbsent())
        writable.delete("probe/a")
        writable.delete("probe/a")
        with pytest.raises(FileMissingError):
            _get(writable, "probe/a")
        writable.put("probe/a", b"2", IfAbsent())

    def test_never_leaves_the_root(self, writable: WritableStore) -> None:
        with pytest.raises(AccessDeniedError):
            writable.put("../a", b"", IfAbsent())
        with pytest.raises(AccessDeniedError):
            writable.delete("../a")


WRITERS, ROUNDS = 8, 3  # SeaweedFS lets the losers of a race wait for a second or more


def _claim(store: WritableStore, path: str, data: bytes, condition: IfAbsent | IfMatch) -> str | None:
    try:
        return store.put(path, data, condition)
    except ConflictError:
        return None


class TestRaces:
    @pytest.fixture(params=["folder", "folder without hard links", "seaweed"])
    def stores(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> list[WritableStore]:
        """A store for each writer, all at one place."""
        if request.param == "seaweed":
            server: Seaweed = request.getfixturevalue("s3_credentials")
            address = server.address(uuid.uuid4().hex)
            return [open_writable_store(address) for _ in range(WRITERS)]
        if "without" in request.param:
            monkeypatch.setattr("os.link", _no_links)
        return [FolderStore(tmp_path) for _ in range(WRITERS)]

    def test_one_creates(self, stores: list[WritableStore]) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            for turn in range(ROUNDS):
                path = f"metadata/{turn}.snapshot.json"
                claims = [
                    pool.submit(_claim, store, path, b"%d" % number, IfAbsent()) for number, store in enumerate(stores)
                ]
                tags = [claim.result() for claim in claims]
                winners = [number for number, tag in enumerate(tags) if tag is not None]
                assert len(winners) == 1
                assert _get(stores[0], path) == Content(data=b"%d" % winners[0], etag=tags[winners[0]] or "")

    def test_every_acknowledged_update_stays(self, stores: list[WritableStore]) -> None:
        stores[0].put("index.json", b"[]", IfAbsent())

        def add(number: int) -> None:
            for turn in range(ROUNDS):
                tag = None
                while tag is None:
                    read = _get(stores[number], "index.json")
                    data = json.dumps([*json.loads(read.data), [number, turn]]).encode()
                    tag = _claim(stores[number], "index.json", data, IfMatch(etag=read.etag))

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(add, range(WRITERS)))
        entries = json.loads(_get(stores[0], "index.json").data)
        assert sorted(entries) == [[number, turn] for number in range(WRITERS) for turn in range(ROUNDS)]

    def test_processes_on_a_folder(self, tmp_path: Path) -> None:
        FolderStore(tmp_path).put("count", b"0", IfAbsent())
        running = [
            subprocess.Popen([sys.executable, "-c", _PROCESS, str(tmp_path), str(number)], stdout=subprocess.PIPE)
            for number in range(WRITERS)
        ]
        outputs = [process.communicate(timeout=60)[0].split() for process in running]
        assert [process.returncode for process in running] == [0] * WRITERS
        assert sorted(word for words in outputs for word in words) == [b"0", b"1", b"2"]
        assert _get(FolderStore(tmp_path), "count").data == b"%d" % (WRITERS * ROUNDS)


_PROCESS = """
import pathlib, sys
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.port import ConflictError, IfAbsent, IfMatch
store = FolderStore(pathlib.Path(sys.argv[1]))
for turn in range(3):
    try:
        store.put(f"{turn}.json", sys.argv[2].encode(), IfAbsent())
        print(turn)
    except ConflictError:
        pass
    while True:
        read = store.get("count", max_bytes=100)
        try:
            store.put("count", b"%d" % (int(read.data) + 1), IfMatch(etag=read.etag))
            break
        except ConflictError:
            pass
"""


def _no_links(source: object, target: object) -> None:
    raise PermissionError(1, "Operation not permitted")
