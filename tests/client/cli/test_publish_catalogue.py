"""`tunehub publish --catalogue` over every store: what is written, what is left alone, what clients notice."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunehub_registry.manifest import NetworkEntry

from ..conftest import SKYLAKE, ZNVER5, make_package
from ..site.catalogue_pages import HOSTILE, check_pages, evidence

pytestmark = pytest.mark.fast

KEYS = ("--key", "acme.pem", "--online-key", "online.pem")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A registry's address, and its files behind tunehub's back; `types` of the files where the store has them."""

    address: str
    files: Callable[[], Mapping[str, bytes]]
    write: Callable[[str, bytes], None]
    types: Callable[[], Mapping[str, str]]


@pytest.fixture(params=["folder", pytest.param("seaweed", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind of store."""
    if request.param == "folder":
        return folder_place(tmp_path / "hub")
    return bucket_place(request.getfixturevalue("s3_credentials"), uuid.uuid4().hex)


def folder_place(root: Path) -> Place:
    def files() -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def write(path: str, data: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return Place(address=str(root), files=files, write=write, types=dict)


def bucket_place(server: Any, prefix: str) -> Place:
    client = server.client()

    def objects() -> Iterator[tuple[str, bytes, str]]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="private", Prefix=f"{prefix}/")
        for key in [item["Key"] for page in pages for item in page.get("Contents", ())]:
            found = client.get_object(Bucket="private", Key=key)
            yield key.removeprefix(f"{prefix}/"), found["Body"].read(), found["ContentType"]

    return Place(
        address=server.address(prefix),
        files=lambda: {path: data for path, data, _ in objects()},
        write=lambda path, data: client.put_object(Bucket="private", Key=f"{prefix}/{path}", Body=data),
        types=lambda: {path: kind for path, _, kind in objects()},
    )


@pytest.fixture
def hub(run: Any, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`tunehub publish` to a signed registry at the place, whose root is trusted."""
    monkeypatch.chdir(tmp_path)
    for name in ("root", "targets", "online", "acme"):
        run("key", "new", f"{name}.pem", "--no-passphrase")
    keys = [part for name in ("root", "targets", "online") for part in (f"--{name}-key", f"{name}.pem")]
    assert run("init", place.address, *keys, "--save-root", "root.json").code == 0
    run("delegate", place.address, "acme", "--key", "acme.pem.pub", "--names", "llvm-*", *keys[2:])
    assert run("trust", "add", place.address, "root.json").code == 0

    def publish(*arguments: str, code: int = 0) -> Any:
        result = run("publish", place.address, *arguments)
        assert result.code == code, result.err
        return result

    return publish


def package(version: str, target: Any = ZNVER5, network: str = "resnet50") -> str:
    path = Path(f"{target.name}-{version}.tunepkg")
    entry = NetworkEntry(name=network, source="test", inputs={"x": (1, 3, 8, 8)}, dtype="float32")
    path.write_bytes(make_package(target, version, evidence=evidence(network), networks=(entry,)))
    return str(path)


def site_of(files: Mapping[str, bytes], folder: Path) -> dict[str, bytes]:
    """The files that `site.json` names, which are written to a folder; they are what it says."""
    stated = json.loads(files["site.json"])["files"]
    for path, file in stated.items():
        assert hashlib.sha256(files[path]).hexdigest() == file["sha256"], path
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(files[path])
    return {path: files[path] for path in stated}


def test_a_registry_gets_a_front_page_which_its_clients_do_not_notice(
    run: Any, hub: Any, place: Place, tmp_path: Path
) -> None:
    before = place.files()
    done = hub(package("0.1.0", network=HOSTILE), "--catalogue", "--json", *KEYS).json
    assert done["packages"][0]["outcome"] == "published"
    page = done["catalogue"]
    assert (page["packages"], page["unchanged"], page["removed"], page["problems"]) == (1, 0, 0, [])
    after = place.files()
    site = site_of(after, tmp_path / "copy")
    check_pages(tmp_path / "copy")
    assert len(site) == page["written"] and {"index.html", "package/llvm-znver5/index.html"} <= site.keys()
    others = {path.split("/")[0] for path in after.keys() - site.keys()} - {".tunehub-lock"}
    assert others == {"log", "metadata", "packages", "site.json"}
    assert {path: after[path] for path in before if path != "metadata/timestamp.json"}.items() <= before.items()
    types = place.types()
    assert all(types[path] == TYPES[Path(path).suffix] for path in site if types)
    listed = run("list", "--registry", place.address, "--json").json["packages"]
    assert [row["version"] for row in listed if row["registry"] != "embedded"] == ["0.1.0"]
    assert run("fetch", "llvm-znver5==0.1.0", "--registry", place.address).code == 0


@pytest.mark.few(1)
def test_a_second_one_replaces_what_it_wrote_and_nothing_else(hub: Any, place: Place, tmp_path: Path) -> None:
    hub(package("0.1.0", network="alexnet!"), "--catalogue", *KEYS)
    place.write("package/notes.html", b"by hand")
    first = site_of(place.files(), tmp_path / "first")
    hub(package("0.2.0"), package("0.1.0", SKYLAKE), *KEYS)
    done = hub("--catalogue", "--json").json  # needs no key
    assert done["packages"] == []
    files = place.files()
    second = site_of(files, tmp_path / "second")
    check_pages(tmp_path / "second")
    assert files["package/notes.html"] == b"by hand"
    assert b"0.2.0" in second["package/llvm-znver5/index.html"]
    stale = first.keys() - second.keys()
    assert any("alexnet" in path for path in stale) and not stale & files.keys()
    assert done["catalogue"]["removed"] == len(stale)
    unchanged = [path for path in second if first.get(path) == second[path]]
    assert done["catalogue"]["unchanged"] == len(unchanged) > 0
    again = hub("--catalogue", "--json").json["catalogue"]
    assert (again["written"], again["removed"], again["unchanged"]) == (0, 0, len(second))


@pytest.mark.parametrize("path", ["index.html", "list/packages.html"])
@pytest.mark.few(2)
def test_a_page_of_others_stays_and_the_message_names_it(hub: Any, place: Place, path: str) -> None:
    place.write(path, b"our team")
    result = hub(package("0.1.0"), "--catalogue", *KEYS, code=1)
    assert f"move {path} away" in result.err
    files = place.files()
    assert files[path] == b"our team" and "site.json" not in files
    published = any(name.endswith(".tunepkg") for name in files)
    assert published == (path != "index.html")  # that one is looked for before anything is published


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return folder_place(tmp_path / "plain")


@pytest.fixture
def plain(run: Any, folder: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`tunehub publish --unsigned` to a folder."""
    monkeypatch.chdir(tmp_path)
    assert run("init", folder.address, "--unsigned").code == 0
    return lambda *arguments: run("publish", folder.address, *arguments, "--unsigned")


def test_pages_call_the_registry_by_its_url_and_say_nothing_of_its_folder(plain: Any, folder: Place) -> None:
    url = "https://example.org/hub"
    assert plain(package("0.1.0"), "--catalogue", "--url", url).code == 0
    files = folder.files()
    site = {path: files[path].decode() for path in json.loads(files["site.json"])["files"]}
    assert f"--registry {url}" in site["package/llvm-znver5/index.html"]
    assert not [path for path, text in site.items() if folder.address in text]


def test_a_registry_that_cannot_be_read_keeps_its_front_page(plain: Any, folder: Place) -> None:
    assert plain(package("0.1.0"), "--catalogue").code == 0
    before = folder.files()
    folder.write("index.json", b"{")
    result = plain("--catalogue")
    assert result.code == 1 and "index.json" in result.err
    assert {**folder.files(), "index.json": before["index.json"]} == before


def test_a_damaged_package_has_a_page_that_says_so(plain: Any, folder: Place) -> None:
    assert plain(package("0.1.0")).code == 0
    (path,) = (path for path in folder.files() if path.endswith(".tunepkg"))
    folder.write(path, b"\0" * len(folder.files()[path]))
    result = plain("--catalogue")
    assert result.code == 1 and "sha256" in result.err
    assert b"could not be read" in folder.files()["package/llvm-znver5/index.html"]


def test_a_large_registry_has_pages_of_its_index_alone(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.site.catalogue.MOST_BYTES", 0)
    assert "No package was read" in plain(package("0.1.0"), "--catalogue").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "or give --catalogue"), (("--catalogue", "--role", "acme"), "name some"), (("--url", "x"), "--catalogue")],
)
def test_what_does_not_go_together_is_refused(plain: Any, arguments: tuple[str, ...], message: str) -> None:
    result = plain(*arguments)
    assert result.code == 2 and message in result.err
