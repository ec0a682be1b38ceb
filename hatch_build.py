"""Builds the wheel with the newest packages of this repository's registry embedded: all of them would be too large."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EMBEDDED_VERSIONS = 2  # of each name: the newest, and the one that projects which locked yesterday pin
ROOT_OF_TRUST = "packages/root.json"

if sys.version_info < (3, 10):  # noqa: UP036 - pip builds before it compares
    raise SystemExit(f"tunehub needs Python 3.10 to 3.13, this is {sys.version.split()[0]}: use a newer one")


class EmbeddedRegistry(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the excerpt of the registry into wheels. Editable installs read the checkout itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "registry")))
        from tunehub_registry.excerpt import excerpt

        self._folder = tempfile.TemporaryDirectory(prefix="tunehub-snapshot-")
        for path, data in excerpt(Path(self.root), EMBEDDED_VERSIONS).items():
            file = Path(self._folder.name, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        build_data["force_include"] |= {
            self._folder.name: "tunehub/_snapshot",
            str(Path(self.root, ROOT_OF_TRUST)): f"tunehub/_snapshot/{ROOT_OF_TRUST}",
        }
