"""`site.json` beside a registry: which files of the store are the catalogue's, and what they hold.

It is signed by nobody, as the catalogue is not: clients never read it. Publishers learn from it what they need not
upload again and what they may delete, so it never names a file of the registry itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError
from tunehub_registry.index import INDEX_PATH
from tunehub_registry.trust.layout import LOG, METADATA

SITE_MANIFEST_PATH = "site.json"
MAX_SITE_MANIFEST_BYTES = 64 << 20
SCHEMA_VERSION = "1.0"
_REGISTRYS_OWN = frozenset({LOG, METADATA, "packages", INDEX_PATH, SITE_MANIFEST_PATH})


class SiteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was last written; None while a publisher is at it, or was when it was killed."""

    sha256: _fields.Sha256 | None = None
    etag: Annotated[str, Meta(max_length=256)] | None = None


class SiteManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`site.json`: the files by their paths. `transaction` differs for each write, so that no two are the same."""

    transaction: _fields.Label
    schema_version: str = SCHEMA_VERSION
    files: dict[str, SiteFile] = {}

    def __post_init__(self) -> None:
        for path in self.files:
            problem = site_path_problem(path)
            if problem is not None:
                raise FieldError("files", problem)


def site_path_problem(path: str) -> str | None:
    """Why the catalogue may not have a file there, or None: it keeps clear of the registry's own names."""
    problem = _fields.path_problem(path)
    if problem is None and path.split("/")[0] in _REGISTRYS_OWN:
        return f"{path!r} is the registry's own"
    return problem


def parse_site_manifest(data: bytes, source: str) -> SiteManifest:
    """Read `site.json`; ``source`` names it in messages. Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_SITE_MANIFEST_BYTES)
    _json.check_version(value, "schema_version", source, major=1, minor=0)
    return _json.convert(value, SiteManifest, source)


def encode_site_manifest(manifest: SiteManifest) -> bytes:
    """Write `site.json`, keys sorted."""
    return _json.encode(manifest)
