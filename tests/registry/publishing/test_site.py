"""The catalogue's site beside a registry: order, what is uploaded again, killed and overtaken publishers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

import pytest

from tunehub_registry.exceptions import FormatError
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.publishing.site import PublishedSite, publish_site
from tunehub_registry.site_manifest import SITE_MANIFEST_PATH, parse_site_manifest, site_path_problem
from tunehub_registry.stores.port import AccessDeniedError, WritableStore

from .fakes import FAULTS, QUICK, FaultyStore, Killed, MemoryStore, Signed, Unsigned

pytestmark = pytest.mark.fast

SITE = {"index.html": "front", "static/style.css": "body{}", "package/a.html": "a", "package/b.html": "b"}
LATER = {"index.html": "front 2", "static/style.css": "body{}", "package/b.html": "b 2", "package/c.html": "c"}


def writer(files: Mapping[str, str]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    return write


def publish(store: WritableStore, files: Mapping[str, str]) -> PublishedSite:
    return publish_site(store, writer(files), retry=QUICK)


def site_in(store: MemoryStore) -> dict[str, str]:
    return {path: data.decode() for path, data in store.files.items() if path != SITE_MANIFEST_PATH}


def writes(store: MemoryStore) -> list[str]:
    return [request for request in store.requests if not request.startswith("get ")]


def test_assets_come_before_pages_and_the_front_page_comes_last() -> None:
    store = MemoryStore()
    assert publish(store, SITE) == PublishedSite(written=4, unchanged=0, removed=0, left=0)
    first, *files, last = writes(store)
    assert first == last == f"put {SITE_MANIFEST_PATH}"
    assert files[0] == "put static/style.css"
    assert files[-1] == "put index.html"
    assert site_in(store) == SITE


def test_what_is_unchanged_is_not_uploaded_again_and_what_is_stale_goes() -> None:
    store = MemoryStore()
    publish(store, SITE)
    store.requests.clear()
    assert publish(store, SITE) == PublishedSite(written=0, unchanged=4, removed=0, left=0)
    assert writes(store) == []
    assert publish(store, LATER) == PublishedSite(written=3, unchanged=1, removed=1, left=0)
    assert site_in(store) == LATER
    *pages, front, gone = [write for write in writes(store) if SITE_MANIFEST_PATH not in write]
    assert set(pages) == {"put package/b.html", "put package/c.html"}  # at the same time
    assert (front, gone) == ("put index.html", "delete package/a.html")


def test_a_registrys_own_files_stay_as_they_are(any_registry: Signed | Unsigned) -> None:
    before = dict(any_registry.store.files)
    publish(any_registry.store, SITE)
    publish(any_registry.store, LATER)
    assert {path: any_registry.store.files[path] for path in before} == before
    any_registry.ledger().read(["llvm-znver5"])


@pytest.mark.parametrize(
    "path", ["metadata/x.html", "log/a.html", "packages/a.html", "index.json", "site.json", ".hidden", "a b"]
)
def test_a_path_of_the_registry_is_refused(path: str) -> None:
    store = MemoryStore()
    with pytest.raises(PublishError, match=r"is the registry's own|not allowed"):
        publish(store, {**SITE, path: "x"})
    assert store.files == {}


def test_a_hostile_manifest_deletes_nothing() -> None:
    entry = '{"sha256": null, "etag": null}'
    for path in ("metadata/timestamp.json", "../outside", "log/tile/0/000.p/1", "packages/shards/a.json"):
        text = f'{{"schema_version": "1.0", "transaction": "t", "files": {{"{path}": {entry}}}}}'
        store = MemoryStore({SITE_MANIFEST_PATH: text.encode(), "metadata/timestamp.json": b"{}"})
        with pytest.raises(FormatError, match=r"files"):
            publish(store, SITE)
        assert writes(store) == []


@pytest.mark.parametrize("path", ["index.html", "package/a.html"])
def test_a_file_of_others_is_never_written_over(path: str) -> None:
    store = MemoryStore({path: b"our team"})
    for _ in range(2):
        with pytest.raises(PublishError, match=rf"move {path} away"):
            publish(store, SITE)
        assert store.files == {path: b"our team"}


def test_a_site_without_a_front_page_is_not_published() -> None:
    with pytest.raises(PublishError, match=r"no index.html"):
        publish(MemoryStore(), {"package/a.html": "a"})


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_at_any_write_the_next_run_ends_right(fault: str) -> None:
    start = MemoryStore()
    publish(start, SITE)
    for position in range(1, 6):
        store = FaultyStore(start.files, position, fault)
        try:
            publish(store, LATER)
        except Killed:
            assert fault.startswith("killed")
            publish(store, LATER)
        assert site_in(store) == LATER, position
        check_manifest(store)
        assert publish(store, LATER).written == 0


def check_manifest(store: MemoryStore) -> None:
    """It says what is there, so that the next publisher may believe it."""
    files = parse_site_manifest(store.files[SITE_MANIFEST_PATH], "test").files
    found = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in site_in(store).items()}
    assert {path: file.sha256 for path, file in files.items()} == found


def test_a_killed_publishers_pages_are_looked_at_whatever_the_next_one_wants() -> None:
    start = MemoryStore()
    publish(start, SITE)
    for position in range(2, 6):
        store = FaultyStore(start.files, position, "killed after")
        with pytest.raises(Killed):
            publish(store, LATER)
        publish(store, SITE)
        assert site_in(store) == SITE, position
        check_manifest(store)


def test_a_publisher_that_is_overtaken_makes_the_site_anew() -> None:
    store = MemoryStore()
    publish(store, SITE)
    states = iter([{**SITE, "package/a.html": "old"}, LATER])

    def write(folder: Path) -> None:
        state = next(states)
        writer(state)(folder)
        if state is not LATER:
            publish(store, LATER)

    publish_site(store, write, retry=QUICK)
    assert site_in(store) == LATER
    check_manifest(store)


def test_publishers_at_the_same_time_end_in_one_of_their_states() -> None:
    for _ in range(5):
        store = MemoryStore()
        threads = [Thread(target=publish, args=(store, files)) for files in (SITE, LATER, SITE, LATER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert site_in(store) in (SITE, LATER)
        check_manifest(store)


def test_a_page_that_was_changed_by_hand_is_mended_when_it_changes() -> None:
    store = MemoryStore()
    publish(store, SITE)
    store.files["package/b.html"] = b"by hand"
    publish(store, LATER)
    assert site_in(store) == LATER


class NoDeleting(MemoryStore):
    def delete(self, path: str) -> None:
        raise AccessDeniedError("nobody deletes", address=self.address, path=path, remedy="none")


def test_what_may_not_be_deleted_is_left_and_remembered() -> None:
    store = NoDeleting()
    publish(store, SITE)
    assert publish(store, LATER).left == 1
    assert "package/a.html" in parse_site_manifest(store.files[SITE_MANIFEST_PATH], "test").files
    again = MemoryStore(store.files)
    assert publish(again, LATER) == PublishedSite(written=0, unchanged=4, removed=1, left=0)
    assert site_in(again) == LATER


def test_what_a_site_may_be_called() -> None:
    assert site_path_problem("static/style.css") is None
    assert site_path_problem("package/llvm-znver5/0.1.0.html") is None
    assert site_path_problem("metadata") is not None
