"""The newest versions of a registry in a folder, as a registry of their own: what the wheel embeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from tunehub_registry.exceptions import REMEDY_DAMAGED, PackageError
from tunehub_registry.index import INDEX_PATH, ShardEntry, encode_index, parse_index, parse_shard, replace_shard
from tunehub_registry.package import sha256_of


def excerpt(root: Path, versions: int) -> dict[str, bytes]:
    """The files, by path, of a registry with the newest ``versions`` of each name in ``root`` that are not yanked.

    It has the serial of ``root``. Raises OSError for a missing file, FormatError for a damaged index or shard,
    PackageError for a package or a document with another hash.
    """
    index = parse_index((root / INDEX_PATH).read_bytes(), INDEX_PATH)
    files: dict[str, bytes] = {}
    for known in index.names.values():
        shard = parse_shard((root / known.shard_path).read_bytes(), known.shard_path)
        kept = [entry for entry in shard.versions if entry.yanked is None][-versions:]
        update = replace_shard(index, structs.replace(shard, versions=tuple(kept)), target=known.target)
        index = structs.replace(update.index, serial=index.serial)
        files[update.shard_path] = update.shard_data
        files.update(file for entry in kept for file in _files(root, entry))
    return {INDEX_PATH: encode_index(index), **files}


def _files(root: Path, entry: ShardEntry) -> Iterator[tuple[str, bytes]]:
    beside = [(document.file, document.sha256) for document in entry.documents or ()]
    for path, sha256 in [(entry.file, entry.sha256), *beside]:
        if sha256_of(root / path) != sha256:
            raise PackageError("its sha256 is not that of its shard", source=path, remedy=REMEDY_DAMAGED)
        yield path, (root / path).read_bytes()
