"""Where the embedded registry lies: the checkout when there is one, else what the wheel ships."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = "embedded"  # what messages and lock files call it


def embedded_registry() -> Path:
    """The folder with `index.json` and `packages/` that comes with tunehub.

    An editable install may carry an old `_snapshot`, so a checkout around this file comes first.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "client" / "tunehub") == package:
        return checkout
    return package / "_snapshot"
