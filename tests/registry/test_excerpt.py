"""The newest versions of this repository's registry, as the wheel embeds them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tunehub_registry.document import describe_document
from tunehub_registry.exceptions import PackageError
from tunehub_registry.excerpt import excerpt
from tunehub_registry.index import (
    Shard,
    encode_index,
    mark_yanked,
    parse_index,
    parse_shard,
    replace_shard,
    set_documents,
)

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]


def shards(files: dict[str, bytes]) -> dict[str, Shard]:
    names = parse_index(files["index.json"], "index.json").names
    return {name: parse_shard(files[entry.shard_path], name) for name, entry in names.items()}


def test_the_newest_versions_are_there_and_all_hashes_hold() -> None:
    files = excerpt(ROOT, 2)
    index = parse_index((ROOT / "index.json").read_bytes(), "index.json")
    assert parse_index(files["index.json"], "index.json").serial == index.serial
    for name, shard in shards(files).items():
        whole = parse_shard((ROOT / index.names[name].shard_path).read_bytes(), name)
        assert shard.versions == whole.versions[-2:]
        for entry in shard.versions:
            for file in (entry, *(entry.documents or ())):
                assert hashlib.sha256(files[file.file]).hexdigest() == file.sha256
    assert files == excerpt(ROOT, 2)


def test_no_tuner_is_lost_with_the_older_versions() -> None:
    whole, kept = shards(excerpt(ROOT, 1000)), shards(excerpt(ROOT, 2))
    for name, shard in whole.items():
        tuners = {tuner for entry in shard.versions for tuner in entry.tuners}
        assert tuners == {tuner for entry in kept[name].versions for tuner in entry.tuners}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The registry of this repository in a folder of its own, with the newest llvm-znver4 yanked."""
    shutil.copytree(ROOT / "packages", tmp_path / "packages")
    index = parse_index((ROOT / "index.json").read_bytes(), "index.json")
    known = index.names["llvm-znver4"]
    shard = parse_shard((ROOT / known.shard_path).read_bytes(), "llvm-znver4")
    update = replace_shard(index, mark_yanked(shard, shard.versions[-1].version, "slower"), target=known.target)
    (tmp_path / update.shard_path).write_bytes(update.shard_data)
    (tmp_path / "index.json").write_bytes(encode_index(update.index))
    return tmp_path


def test_yanked_versions_stay_behind(copy: Path) -> None:
    all_versions = shards(excerpt(ROOT, 1000))["llvm-znver4"].versions
    assert shards(excerpt(copy, 1))["llvm-znver4"].versions == all_versions[-2:-1]


def test_documents_beside_a_package_go_along(copy: Path) -> None:
    data = b'{"replayed": true}'
    document = describe_document("compat", data)
    index = parse_index((copy / "index.json").read_bytes(), "index.json")
    shard = shards(excerpt(copy, 1000))["llvm-znver4"]
    changed = set_documents(shard, shard.versions[-1].version, (document,))
    update = replace_shard(index, changed, target=index.names["llvm-znver4"].target)
    (copy / update.shard_path).write_bytes(update.shard_data)
    (copy / "index.json").write_bytes(encode_index(update.index))
    (copy / document.file).parent.mkdir(exist_ok=True)
    (copy / document.file).write_bytes(data)
    assert excerpt(copy, 1)[document.file] == data
    (copy / document.file).write_bytes(b"{}")
    with pytest.raises(PackageError, match=document.file):
        excerpt(copy, 1)


def test_a_damaged_package_is_not_shipped(copy: Path) -> None:
    newest = shards(excerpt(ROOT, 1))["llvm-znver5"].versions[-1]
    (copy / newest.file).write_bytes(b"something else")
    with pytest.raises(PackageError, match=newest.file):
        excerpt(copy, 1)
