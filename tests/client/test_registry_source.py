from __future__ import annotations

from pathlib import Path

import pytest

from tunehub.embedded import embedded_registry
from tunehub.exceptions import RegistryUnreadableError, UnsupportedRegistryError
from tunehub.registry_source import FolderSource, open_registry
from tunehub_registry.index import ShardEntry

from .conftest import RegistryFolder


def first_entry(folder: RegistryFolder) -> ShardEntry:
    registry = open_registry(str(folder.root))
    name, entry = next(iter(registry.index().names.items()))
    return registry.shard(name, entry).versions[0]


def test_folder_and_file_address(registry: RegistryFolder) -> None:
    package = registry.publish()
    for address in (str(registry.root), registry.root.as_uri(), f"file://localhost{registry.root.as_posix()}"):
        opened = open_registry(address)
        assert list(opened.index().names) == ["llvm-znver5"]
        assert opened.fetch_package(first_entry(registry)) == package.read_bytes()


@pytest.mark.parametrize("address", ["s3://bucket/prefix", "https://host/registry", "http://host", "ftp://host/x"])
def test_other_schemes_say_what_to_do(address: str) -> None:
    with pytest.raises(UnsupportedRegistryError, match="not supported in this version") as caught:
        open_registry(address)
    assert address in str(caught.value)
    assert "use a folder" in str(caught.value)


def test_offline_says_that_the_network_is_needed() -> None:
    with pytest.raises(UnsupportedRegistryError, match="TUNEHUB_OFFLINE"):
        open_registry("s3://bucket", offline=True)
    with pytest.raises(UnsupportedRegistryError, match="no host"):
        open_registry("file://elsewhere/share")


def test_missing_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnreadableError, match=r"nowhere.*index\.json is missing"):
        open_registry(str(tmp_path / "nowhere")).index()
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryUnreadableError, match="Not a directory"):
        open_registry(str(tmp_path / "file")).index()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"schema_version": "9.0"}', b'{"names": 3, "schema_version": "1.0"}']
)
def test_damaged_index_names_the_file(registry: RegistryFolder, content: bytes) -> None:
    (registry.root / "index.json").write_bytes(content)
    with pytest.raises(RegistryUnreadableError, match=r"index\.json"):
        open_registry(str(registry.root)).index()


def test_shard_with_another_hash_is_refused(registry: RegistryFolder) -> None:
    registry.publish()
    (shard,) = (registry.root / "packages" / "shards").iterdir()
    data = shard.read_bytes()
    for content in (data.replace(b"0.1.0", b"0.2.0"), data[:-1], data + b" ", b""):
        shard.write_bytes(content)
        with pytest.raises(RegistryUnreadableError):
            first_entry(registry)
    shard.unlink()
    with pytest.raises(RegistryUnreadableError, match="missing"):
        first_entry(registry)


def test_paths_stay_inside_and_sizes_are_bounded(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    (tmp_path / "x").write_bytes(b"12345")
    assert source.fetch("x", 5) == b"12345"
    with pytest.raises(RegistryUnreadableError, match="larger than 4"):
        source.fetch("x", 4)
    for path in ("../x", "/etc/hostname", "a/../../x"):
        with pytest.raises(RegistryUnreadableError, match="leads out"):
            source.fetch(path, 5)


def test_embedded_registry_prefers_the_checkout() -> None:
    assert (embedded_registry() / "index.json").is_file()
