"""A store for registries with more names than a disk should have files: it counts, and can drop packages and shards.

Metadata, with what rides in it, is written as ever; shards and packages only while `keeps_packages`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO

from tunehub_registry.stores.port import Content, Deadline, IfAbsent, IfMatch, OnBytes, WritableStore


class SparseStore:
    """The port of stores that can be written. `counted` are calls and bytes of each kind since they were last taken."""

    def __init__(self, store: WritableStore) -> None:
        self._store = store
        self.keeps_packages = True
        self.counted: dict[str, int] = {}
        self.latency_s = 0.0  # of each request, as a network has it

    def take(self) -> dict[str, int]:
        """What was counted since the last call: `get`, `put` and their bytes."""
        counted, self.counted = self.counted, {}
        return {kind: counted.get(kind, 0) for kind in ("get", "put", "get_bytes", "put_bytes")}

    @property
    def address(self) -> str:
        """As the port says."""
        return self._store.address

    def url(self, path: str) -> str:
        """As the port says."""
        return self._store.url(path)

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        self._count("get", 0)
        content = self._store.get(path, max_bytes=max_bytes, etag=etag, deadline=deadline)
        self._count("get_bytes", len(content.data) if content else 0)
        return content

    def download(
        self,
        path: str,
        stream: BinaryIO,
        *,
        size: int,
        offset: int = 0,
        deadline: Deadline | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """As the port says."""
        self._store.download(path, stream, size=size, offset=offset, deadline=deadline, on_bytes=on_bytes)

    def put(
        self, path: str, data: bytes | Path, condition: IfAbsent | IfMatch, *, on_bytes: OnBytes | None = None
    ) -> str:
        """As the port says, or not at all."""
        self._count("put", 0)
        self._count("put_bytes", len(data) if isinstance(data, bytes) else data.stat().st_size)
        if path.startswith("packages/") and not self.keeps_packages:
            return ""
        return self._store.put(path, data, condition, on_bytes=on_bytes)

    def delete(self, path: str) -> None:
        """As the port says."""
        self._store.delete(path)

    def _count(self, kind: str, size: int) -> None:
        if self.latency_s and not kind.endswith("bytes"):
            time.sleep(self.latency_s)
        self.counted[kind] = self.counted.get(kind, 0) + (size if kind.endswith("bytes") else 1)
