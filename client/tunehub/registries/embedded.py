"""Where the embedded registry lies: the checkout when there is one, else what the wheel ships."""

from __future__ import annotations

from pathlib import Path

from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import INDEX_PATH, parse_index, parse_shard

EMBEDDED = "embedded"  # what messages and lock files call it
_LICENSE = "Apache-2.0"  # tunehub's: its packages from before 0.2.0 are part of it and state none


def license_text(stated: str | None, address: str) -> str:
    """The licence of a package in the registry at ``address``, for people."""
    if stated:
        return stated
    return f"not stated in the package; as all of tunehub {_LICENSE}" if address == EMBEDDED else "not stated"


def embedded_registry() -> Path:
    """The folder with `index.json` and `packages/` that comes with tunehub.

    An editable install may carry an old `_snapshot`, so a checkout around this file comes first.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "client" / "tunehub") == package:
        return checkout
    return package / "_snapshot"


def embedded_digests(name: str) -> frozenset[str]:
    """The SHA-256 of each package of this name that comes with tunehub; none where these cannot be read."""
    root = embedded_registry()
    try:
        known = parse_index((root / INDEX_PATH).read_bytes(), INDEX_PATH).names.get(name)
        shard = None if known is None else parse_shard((root / known.shard_path).read_bytes(), known.shard_path)
    except (OSError, RegistryError):
        return frozenset()
    return frozenset() if shard is None else frozenset(entry.sha256 for entry in shard.versions)
