"""What older entries of a registry's log name, copied into a mirror: with it the copy can be audited.

It is read as an audit reads it, and copied once that has found it whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tunehub_registry.publishing.audit import audit
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.publishing.source import SignedSource, first_root
from tunehub_registry.stores.port import ConflictError, Content, Deadline, IfAbsent, OnBytes, Store, WritableStore
from tunehub_registry.trust.layout import TIMESTAMP_PATH
from tunehub_registry.trust.state import Clock, utc_now


def copy_history(source: SignedSource, destination: WritableStore, *, now: Clock = utc_now) -> int:
    """Copy metadata and shards of all past states of a registry that `copy_registry` has copied; returns how many files
    are new there.

    Raises PublishError for a registry without a log, or with one that does not hold, and what stores raise.
    """
    with tempfile.TemporaryDirectory(prefix="tunehub-history-") as folder:
        kept = _KeptReads(source.store, Path(folder))
        done = audit(kept, first_root(source.store), now=now)
        if not done.is_whole:
            remedy = "audit it, and ask who runs it"
            reason = f"its history does not hold: {done.findings[0].text}"
            raise PublishError(reason, address=source.store.address, remedy=remedy)
        return sum(_put_if_absent(destination, path, data) for path, data in kept.lasting())


def _put_if_absent(store: WritableStore, path: str, data: bytes) -> bool:
    with suppress(ConflictError):  # it is immutable: a run before this one wrote it
        store.put(path, data, IfAbsent())
        return True
    return False


class _KeptReads:
    """A store that keeps, in a folder, what is read from it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._paths: dict[str, Path] = {}

    @property
    def address(self) -> str:
        """As the port says."""
        return self._store.address

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        content = self._store.get(path, max_bytes=max_bytes, etag=etag, deadline=deadline)
        if content is not None:
            place = self._paths.setdefault(path, self._folder / str(len(self._paths)))
            place.write_bytes(content.data)
        return content

    def download(
        self, path: str, stream: BinaryIO, *, size: int, offset: int = 0, deadline: Deadline | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:  # fmt: skip
        """As the port says; nothing is kept."""
        self._store.download(path, stream, size=size, offset=offset, deadline=deadline, on_bytes=on_bytes)

    def url(self, path: str) -> str:
        """As the port says."""
        return self._store.url(path)

    def lasting(self) -> Iterator[tuple[str, bytes]]:
        """What was read and never changes, but for roots, which a mirror copies when it can use them, and the log."""
        for path, place in self._paths.items():
            if path != TIMESTAMP_PATH and not path.endswith(".root.json") and not path.startswith("log/"):
                yield path, place.read_bytes()
