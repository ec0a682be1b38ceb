#!/usr/bin/env python
"""tunehub's client behind the command line that tuf-conformance asks for (its CLIENT-CLI.md): `nox -s conformance`.

Metadata is read as registries' is, by `VerifiedMetadata` over a web store. Targets are fetched and checked as shards
are: by the length and the SHA-256 that the publisher has signed; only the place is TUF's, where a registry has its own.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from pathlib import Path
from urllib.parse import quote

from tunehub.exceptions import TunehubError
from tunehub.registries.tuf_client import VerifiedMetadata
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.stores.http import HttpStore

FIRST_ROOT = "first_root.json"  # beside the folder of metadata, where only what is verified may lie


def refresh(metadata: Path, url: str) -> VerifiedMetadata:
    """Read and verify what the registry says now."""
    store = HttpStore(url.rstrip("/").removesuffix("/metadata"))
    return VerifiedMetadata(store, metadata.with_name(FIRST_ROOT).read_bytes(), metadata)


def download(found: VerifiedMetadata, name: str, base: str, folder: Path) -> None:
    """Fetch a target, unless it is there. Raises what the client raises, KeyError for what nobody has signed."""
    target = found.target(name)
    if target is None:
        raise KeyError(f"{name} is signed by nobody to whom it is delegated")
    place = folder / quote(name, safe="")
    if place.exists() and hashlib.sha256(place.read_bytes()).hexdigest() == target.sha256:
        return
    parent, _, last = name.rpartition("/")
    path = f"{parent}/{target.sha256}.{last}" if parent else f"{target.sha256}.{last}"
    content = HttpStore(base.rstrip("/")).get(path, max_bytes=target.length)
    assert content is not None  # no entity tag was given
    if len(content.data) != target.length or hashlib.sha256(content.data).hexdigest() != target.sha256:
        raise ValueError(f"{name} is not what is signed")
    place.write_bytes(content.data)


def main() -> int:
    """Run one command; 0 when it did all that it was told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata-dir", type=Path, required=True)
    parser.add_argument("--metadata-url")
    parser.add_argument("--target-name", action="append", default=[])
    parser.add_argument("--target-base-url")
    parser.add_argument("--target-dir", type=Path)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("root", type=Path)
    commands.add_parser("refresh")
    commands.add_parser("download")
    given = parser.parse_args()
    if given.command == "init":
        shutil.copyfile(given.root, given.metadata_dir.with_name(FIRST_ROOT))
        shutil.copyfile(given.root, given.metadata_dir / "root.json")
        return 0
    try:
        found = refresh(given.metadata_dir, given.metadata_url)
        for name in given.target_name:
            download(found, name, given.target_base_url, given.target_dir)
    except (TunehubError, RegistryError, KeyError, ValueError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
