"""Lock files for registries of tests, and whether what they pin serves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tunehub.compiler.hub import Hub, open_hub
from tunehub_registry.index import encode_index, encode_shard, parse_shard, yank_version
from tunehub_registry.lock import Lock, LockedPackage, encode_lock
from tunehub_registry.target import TargetDescriptor

from ..conftest import ZNVER5, RegistryFolder, key, make_record

TVM = "0.27.0.post1"


def pin_of(folder: RegistryFolder, stated: str, target: TargetDescriptor = ZNVER5, **changes: Any) -> LockedPackage:
    index = folder.index()
    shard = parse_shard((folder.root / index.names[target.name].shard_path).read_bytes(), "shard")
    entry = next(item for item in shard.versions if item.version == stated)
    fields: dict[str, Any] = {
        "name": target.name,
        "version": stated,
        "registry": str(folder.root),
        "url": (folder.root / entry.file).as_uri(),
        "size": entry.size,
        "sha256": entry.sha256,
        "published": entry.published,
        "target": target,
        "record_sets": entry.record_sets,
        **changes,
    }
    return LockedPackage(**fields)


def write_lock(folder: Path, *pins: LockedPackage, name: str = "tunehub.lock") -> Path:
    path = folder / name
    path.write_bytes(encode_lock(Lock(created_by="test", tvm=(TVM,), packages=pins)))
    return path


def open_quietly(lock: Path | None = None, target: object = ZNVER5, **options: Any) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(target, lock=lock, **{"tvm_version": TVM, **options})


def serves(hub: Hub, number: int = 1) -> bool:
    found = hub.lookup.by_exact(key(number))
    hub.close()
    return found is not None and found.record == make_record(number)


def yank(registry: RegistryFolder, version: str) -> None:
    index = registry.index()
    shard = parse_shard((registry.root / index.names["llvm-znver5"].shard_path).read_bytes(), "shard")
    update = yank_version(index, shard, version, "wrong numbers")
    (registry.root / update.shard_path).write_bytes(encode_shard(update.shard))
    (registry.root / "index.json").write_bytes(encode_index(update.index))
