from __future__ import annotations

from pathlib import Path

import pytest

from tunehub.exceptions import RegistryUnreadableError, UnsupportedRegistryError
from tunehub.registries.embedded import embedded_registry
from tunehub.registries.opening import open_registry
from tunehub_registry.index import ShardEntry

from ..conftest import RegistryFolder

pytestmark = pytest.mark.fast


def first_entry(folder: RegistryFolder) -> ShardEntry:
    registry = open_registry(str(folder.root))
    return registry.shard(next(iter(registry.names()))).versions[0]


def test_folder_and_file_address(registry: RegistryFolder) -> None:
    package = registry.publish()
    for address in (str(registry.root), registry.root.as_uri(), f"file://localhost{registry.root.as_posix()}"):
        opened = open_registry(address)
        assert list(opened.names()) == ["llvm-znver5"]
        assert opened.fetch_package(first_entry(registry)) == package.read_bytes()


def test_other_schemes_say_what_to_do() -> None:
    with pytest.raises(UnsupportedRegistryError, match=r"the scheme ftp:// is not supported .*https://host/path"):
        open_registry("ftp://host/x")


def test_file_addresses_name_no_host() -> None:
    with pytest.raises(UnsupportedRegistryError, match="no host"):
        open_registry("file://elsewhere/share")


def test_missing_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnreadableError, match=r"nowhere: index\.json: there is no folder"):
        open_registry(str(tmp_path / "nowhere")).names()
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryUnreadableError, match="no folder"):
        open_registry(str(tmp_path / "file")).names()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"schema_version": "9.0"}', b'{"names": 3, "schema_version": "1.0"}']
)
def test_damaged_index_names_the_file(registry: RegistryFolder, content: bytes) -> None:
    (registry.root / "index.json").write_bytes(content)
    with pytest.raises(RegistryUnreadableError, match=r"index\.json"):
        open_registry(str(registry.root)).names()


def test_shard_with_another_hash_is_refused(registry: RegistryFolder) -> None:
    registry.publish()
    (shard,) = (registry.root / "packages" / "shards").iterdir()
    data = shard.read_bytes()
    for content in (data.replace(b"0.1.0", b"0.2.0"), data[:-1], data + b" ", b""):
        shard.write_bytes(content)
        with pytest.raises(RegistryUnreadableError):
            first_entry(registry)
    shard.unlink()
    with pytest.raises(RegistryUnreadableError, match="no such file"):
        first_entry(registry)


def test_embedded_registry_prefers_the_checkout() -> None:
    assert (embedded_registry() / "index.json").is_file()
