"""TopHub's public files, to be imported as packages: which there are, and how they come here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunehub.records.tophub_export import FILE_VERSIONS
from tunehub_builder.exceptions import BuilderError
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.stores.open import is_folder, open_store
from tunehub_registry.stores.port import Deadline, FileMissingError

TOPHUB = "tophub"
PUBLIC = "https://raw.githubusercontent.com/tlc-pack/tophub/main/tophub"
LICENSE = "Apache-2.0"  # of the public files
_MOST_BYTES = 64 << 20  # the largest, cuda_v0.10.log, has half a megabyte
_SECONDS = 300.0
_FILE = re.compile(r"[a-z0-9_]+_v\d+\.\d+\.log\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedLogs:
    """The files that were fetched from a ``place``, in order, and the names of those that it has not. ``origin``: the
    URL of the place, for packages; a folder of this machine is none of their business."""

    place: str
    origin: str | None
    files: tuple[Path, ...]
    missing: tuple[str, ...]


def fetch_tophub(place: str, wanted: Sequence[str], folder: Path, show: Callable[[str], None]) -> FetchedLogs:
    """Fetch TopHub's files into ``folder`` from ``place``: ``tophub`` for the public ones, the URL of a mirror, or a
    folder. ``wanted``: backends (``mali``) or names of files (``mali_v0.05.log``); none: the newest of each backend, as
    far as the place has them.

    Raises BuilderError for a name that is none, a file that was asked for and is not there, and a place that cannot be
    read.
    """
    address = PUBLIC if place == TOPHUB else place
    found, missing = [], []
    try:
        store = open_store(address)
        for name in [*map(_file_name, wanted)] or [_newest(backend) for backend in FILE_VERSIONS]:
            try:
                data = store.get(name, max_bytes=_MOST_BYTES, deadline=Deadline(_SECONDS))
            except FileMissingError as error:
                if wanted:
                    raise BuilderError(
                        f"{store.address} has no {name}; without names all that it has is read"
                    ) from error
                missing.append(name)
                continue
            assert data is not None  # no tag was asked for
            (folder / name).write_bytes(data.data)
            show(f"{store.address}/{name}: {len(data.data)} bytes")
            found.append(folder / name)
    except RegistryError as error:
        raise BuilderError(f"{address}: {error}; give a mirror or a folder: --from PLACE") from error
    origin = None if is_folder(address) else store.address
    return FetchedLogs(place=store.address, origin=origin, files=tuple(found), missing=tuple(missing))


def _newest(backend: str) -> str:
    return f"{backend}_{FILE_VERSIONS[backend]}.log"


def _file_name(wanted: str) -> str:
    if wanted in FILE_VERSIONS:
        return _newest(wanted)
    if _FILE.match(wanted):
        return wanted
    known = ", ".join(FILE_VERSIONS)
    raise BuilderError(f"{wanted!r} is neither a backend of TopHub ({known}) nor a name such as mali_v0.06.log")
