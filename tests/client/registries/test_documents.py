"""Documents beside packages: from every kind of registry, by their hashes, within their size, and offline."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tunehub.cli.group import cli
from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.documents import read_document
from tunehub.registries.locked import LockedRegistry
from tunehub.registries.opening import open_registry
from tunehub.registries.port import Access, Registry
from tunehub.registries.signed import SignedRegistry
from tunehub_registry.document import describe_document
from tunehub_registry.index import ShardEntry
from tunehub_registry.lock import Lock
from tunehub_registry.publishing.packages import attach
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore

from ..conftest import ZNVER5, RegistryFolder
from ..signing import FolderPlace, SigningRegistry
from .lock_files import pin_of, write_lock

pytestmark = pytest.mark.fast

NAME = ZNVER5.name
DATA = b'{"format": "1.0"}\n'


@dataclass
class Filled:
    """A registry with a document beside its one version: where its files are, and how a client opens it."""

    root: Path
    open: Callable[[], Registry]

    @property
    def document(self) -> Path:
        (path,) = (self.root / "packages" / "documents").iterdir()
        return path

    def entry(self) -> ShardEntry:
        return self.open().shard(NAME).versions[0]


def attach_document(folder: RegistryFolder, data: bytes = DATA) -> None:
    package = hashlib.sha256(folder.publish().read_bytes()).hexdigest()
    ledger = UnsignedLedger(FolderStore(folder.root))
    attach(ledger, NAME, "0.1.0", package=package, kind="compat", data=data)


def plain(tmp_path: Path) -> Filled:
    folder = RegistryFolder(tmp_path / "plain")
    attach_document(folder)
    return Filled(folder.root, lambda: open_registry(str(folder.root)))


def embedded(tmp_path: Path) -> Filled:
    filled = plain(tmp_path)
    return Filled(filled.root, lambda: open_registry(filled.root, label="embedded"))


def signed(tmp_path: Path) -> Filled:
    signing = SigningRegistry(FolderPlace(tmp_path / "signed"))
    document = describe_document("compat", DATA)
    entry = signing.add_package(ZNVER5, "0.1.0")
    signing.write(document.file, DATA)
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    signing.add_entry(ZNVER5, ShardEntry(**{**fields, "documents": (document,)}))
    signing.write_role("alice")
    signing.commit()
    root = tmp_path / "signed"
    return Filled(root, lambda: SignedRegistry(FolderStore(root), signing.root, Access()))


def locked(tmp_path: Path) -> Filled:
    filled = plain(tmp_path)
    documents: Any = filled.entry().documents
    pin = pin_of(RegistryFolderView(filled.root), "0.1.0", documents=documents)
    lock = Lock(created_by="test", packages=(pin,))
    return Filled(filled.root, lambda: LockedRegistry(lock, "lock", registries=(), offline=True))


class RegistryFolderView(RegistryFolder):
    """A folder that is there."""

    def __init__(self, root: Path) -> None:
        self.root = root


@pytest.fixture(params=[plain, embedded, signed, locked], ids=lambda make: make.__name__)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    made: Filled = request.param(tmp_path)
    return made


def test_read_once_then_from_the_cache(filled: Filled, cache: Path) -> None:
    entry, registry = filled.entry(), filled.open()
    assert read_document(entry, "attestations", registry, BlobCache(cache)) is None
    assert read_document(entry, "compat", registry, BlobCache(cache)) == DATA
    filled.document.unlink()
    assert read_document(entry, "compat", registry, BlobCache(cache)) == DATA
    kept = BlobCache(cache).document_path(hashlib.sha256(DATA).hexdigest())
    kept.write_bytes(b"damaged")
    with pytest.raises(RegistryUnreadableError):
        read_document(entry, "compat", registry, BlobCache(cache))


@pytest.mark.parametrize("content", [DATA.replace(b"1", b"2"), DATA[:-1], DATA * 1000, b""])
def test_other_bytes_are_refused(filled: Filled, cache: Path, content: bytes) -> None:
    filled.document.write_bytes(content)
    with pytest.raises(RegistryUnreadableError):
        read_document(filled.entry(), "compat", filled.open(), BlobCache(cache))
    assert not list((cache / "documents").glob("*")) if cache.exists() else True


def test_a_cache_that_cannot_be_written_does_no_harm(filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_document(filled.entry(), "compat", filled.open(), BlobCache(tmp_path / "file")) == DATA


def run(arguments: list[str]) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_lock_and_sync_bring_documents_along(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filled = plain(tmp_path)
    result = run(["lock", f"{NAME}==0.1.0", "--registry", str(filled.root)])
    assert result.exit_code == 0, result.output
    assert b"packages.documents" in (tmp_path / "tunehub.lock").read_bytes()
    assert run(["sync", "--frozen"]).exit_code == 0
    shutil.rmtree(filled.root)
    assert [path.read_bytes() for path in (cache / "documents").glob("*.json")] == [DATA]
    assert run(["sync", "--frozen"]).exit_code == 0
    shutil.rmtree(cache / "documents")
    result = run(["sync", "--frozen"])
    assert result.exit_code == 1
    assert "the document compat of llvm-znver5 0.1.0 is not in the cache" in result.stderr


def test_fetch_brings_documents_along(tmp_path: Path, cache: Path) -> None:
    filled = plain(tmp_path)
    assert run(["fetch", NAME, "--registry", str(filled.root)]).exit_code == 0
    assert [path.read_bytes() for path in (cache / "documents").glob("*.json")] == [DATA]
    assert run(["cache", "verify"]).exit_code == 0


def test_a_lock_file_without_documents_stays_as_it_was(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    assert b'lock-version = "1.0"' in write_lock(tmp_path, pin_of(registry, "0.1.0")).read_bytes()
