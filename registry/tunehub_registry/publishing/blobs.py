"""Immutable files: written where nothing is, and accepted where the same bytes are."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    FileMissingError,
    IfAbsent,
    OnBytes,
    Store,
    TooLargeError,
    UnsoundAnswerError,
    WritableStore,
)


class Uploads:
    """Writes blobs to a store, each once however often it is asked for."""

    def __init__(self, store: WritableStore) -> None:
        self._store = store
        self._done: set[str] = set()

    def ensure(self, path: str, data: bytes | Path, *, sha256: str, size: int, on_bytes: OnBytes | None = None) -> None:
        """Make sure that `path` has these bytes.

        Raises PublishError when it has others, and as `WritableStore.put`.
        """
        if path in self._done:
            return
        try:
            self._store.put(path, data, IfAbsent(), on_bytes=on_bytes)
        except ConflictError:
            # Left by a publisher that was killed, or by ourselves when an answer was lost. A name is not yet a content.
            if not has_blob(self._store, path, sha256=sha256, size=size):
                remedy = "someone who may write to the store put other bytes there: delete the file, then try again"
                reason = f"{path} does not have the content that its name says"
                raise PublishError(reason, address=self._store.address, remedy=remedy) from None
        self._done.add(path)

    def note(self, path: str) -> None:
        """Take a blob as written: the present state of the registry refers to it."""
        self._done.add(path)


def has_blob(store: Store, path: str, *, sha256: str, size: int) -> bool:
    """Whether a file is there with these bytes. Raises as `Store.download`."""
    sink = HashingSink()
    try:
        store.download(path, cast(BinaryIO, sink), size=size)
    except (FileMissingError, UnsoundAnswerError):
        return False
    return sink.hexdigest() == sha256


def exists(store: Store, path: str) -> bool:
    """Whether a file that is not empty is there, without reading it. Raises as `Store.get`."""
    try:
        store.get(path, max_bytes=0)
    except TooLargeError:
        return True
    except (FileMissingError, AccessDeniedError):  # the latter is S3's answer to those who may not list
        return False
    return False


class HashingSink(io.RawIOBase):
    """A stream that keeps only the SHA-256 of what is written to it, and passes the bytes on."""

    def __init__(self, write: Callable[[bytes], object] | None = None) -> None:
        self._digest = hashlib.sha256()
        self._write = write

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Take some bytes."""
        self._digest.update(data)
        if self._write is not None:
            self._write(data)
        return len(data)

    def hexdigest(self) -> str:
        """The hash of all bytes so far."""
        return self._digest.hexdigest()
