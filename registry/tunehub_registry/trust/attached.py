"""Files that ride in other files of a large registry, so that its clients ask less often.

A metadata file may carry others in a field beside what is signed: a timestamp the snapshot and what every reader needs
next, a bin the shards of its names. They count as if the store had given them, and are verified so: who changes them
gets no further than who changes the files. What is missing, or cannot be read, is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import BinaryIO

import msgspec

from tunehub_registry.index import shard_path
from tunehub_registry.stores.port import Content, Deadline, OnBytes, Store
from tunehub_registry.trust.layout import LOG, METADATA, TIMESTAMP_PATH

ATTACHED_FIELD = "x-tunehub-attached"
MAX_ATTACHED_BYTES = 16 << 20  # unpacked
_ROLE = re.compile(rf"{METADATA}/[0-9]+\.(?!root\.json)[a-z0-9._-]+\.json")  # what may ride in a timestamp
_TILE = re.compile(rf"{LOG}/tile/[0-9a-zx/.]+")


class _Attached(msgspec.Struct):
    """The one field that is read of a metadata file."""

    field: str = msgspec.field(name=ATTACHED_FIELD, default="")


def encode_attached(files: Mapping[str, bytes]) -> dict[str, str]:
    """The field with these files, by path: their lengths as a line of JSON, then one after the other, by zlib and
    base85. No field for no files; the same files give the same text."""
    if not files:
        return {}
    ordered = dict(sorted(files.items()))
    head = msgspec.json.encode({path: len(data) for path, data in ordered.items()})
    packed = zlib.compress(b"\n".join((head, b"".join(ordered.values()))), 9)
    return {ATTACHED_FIELD: base64.b85encode(packed).decode("ascii")}


def attached_files(path: str, data: bytes) -> dict[str, bytes]:
    """The files in a metadata file that lies at `path`, by path; none of what may not ride there, or is damaged.

    A publisher's metadata gives shards alone, each under its own hash: nothing that another publisher's names need.
    """
    try:
        text = msgspec.json.decode(data, type=_Attached).field
        inflate = zlib.decompressobj()
        unpacked = inflate.decompress(base64.b85decode(text), MAX_ATTACHED_BYTES) if text else b"{}\n"
        head, _, body = unpacked.partition(b"\n")
        lengths = msgspec.json.decode(head, type=dict[str, int])
    except (ValueError, RecursionError, zlib.error):
        return {}
    files: dict[str, bytes] = {}
    start = 0
    for name, length in lengths.items():
        part = body[start : start + length]
        start += max(length, 0)
        if len(part) == length and _may_ride(name, part, in_timestamp=path == TIMESTAMP_PATH):
            files[name] = part
    return files


def _may_ride(name: str, data: bytes, *, in_timestamp: bool) -> bool:
    if in_timestamp:
        return bool(_ROLE.fullmatch(name) or _TILE.fullmatch(name))
    return name == shard_path(hashlib.sha256(data).hexdigest())


class AttachedStore:
    """A store whose metadata is looked into: what rides in it is not asked for again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        """As the port says."""
        return self._store.address

    def learn(self, path: str, data: bytes) -> None:
        """Look into a metadata file that was read before. A timestamp ends what was known: files of other states."""
        if path == TIMESTAMP_PATH:
            self._files.clear()
        self._files.update(attached_files(path, data))

    def keep(self, path: str, data: bytes) -> None:
        """Know a file that was just written, until the next timestamp."""
        self._files[path] = data

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        known = self._files.get(path)
        content: Content | None
        if known is not None and len(known) <= max_bytes:
            content = Content(data=known, etag="")
        else:
            content = self._store.get(path, max_bytes=max_bytes, etag=etag, deadline=deadline)
        if content is not None and path.startswith(f"{METADATA}/"):
            self.learn(path, content.data)
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

    def url(self, path: str) -> str:
        """As the port says."""
        return self._store.url(path)
