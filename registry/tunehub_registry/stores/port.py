"""The port of stores: where a registry's files lie. Small, so that a folder, a web site and a bucket can all be one.

Paths are relative to the registry's root, with forward slashes. Every file but the commit point is immutable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from tunehub_registry.exceptions import RegistryFileError

OnBytes = Callable[[int], None]  # called with the number of bytes that were moved since the last call


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """A file's content and its entity tag, which changes with the content."""

    data: bytes
    etag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IfAbsent:
    """Write only where nothing is (`If-None-Match: *`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IfMatch:
    """Write only over the content with this entity tag."""

    etag: str


class Deadline:
    """A point in time, by the monotonic clock, after which nothing is waited for."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` from now; None never comes."""
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Seconds that are left, at least 0; None without an end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self.remaining() == 0.0


class Store(Protocol):
    """Files that can be read."""

    @property
    def address(self) -> str:
        """What messages call the store; `open_store` takes it. It never holds a secret."""

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """The whole file; None when it still has the tag `etag`.

        Raises FileMissingError, AccessDeniedError, TooLargeError (more than `max_bytes`: reading stops there),
        UnsoundAnswerError, UnreachableError (also when the deadline passes).
        """

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
        """Write the bytes of a file of `size` bytes from `offset` on to `stream`.

        The bytes that arrived before an error are in `stream`, so that the next call can go on after them. A store
        that cannot begin at `offset` skips what is before. Raises as `get`; UnsoundAnswerError when the file has
        another size.
        """

    def url(self, path: str) -> str:
        """Where the file is, for lock files and people: a URL or an absolute path, without secrets."""


class WritableStore(Store, Protocol):
    """Files that can be written, with conditions that hold among all writers."""

    def put(
        self, path: str, data: bytes | Path, condition: IfAbsent | IfMatch, *, on_bytes: OnBytes | None = None
    ) -> str:
        """Write a file whole, or not at all; returns its new entity tag.

        A store that serves files to browsers states their content type by the ending of the path.
        Raises ConflictError when the condition does not hold. After UnreachableError it is not known whether the file
        was written: read it again. Raises AccessDeniedError too.
        """

    def delete(self, path: str) -> None:
        """Delete a file if it is there. Only for what was never referenced (the probe's). Raises as `put`."""


class StoreError(RegistryFileError):
    """A store cannot do what it was asked to."""


class FileMissingError(StoreError):
    """There is no such file (404)."""


class AccessDeniedError(StoreError):
    """The store refuses (401, 403, permission denied). Public buckets answer so for files that are not there."""


class TooLargeError(StoreError):
    """The file is larger than its reader allows; not all of it was read."""


class UnsoundAnswerError(StoreError):
    """The answer is cut off, of another length than stated, encoded although that was not asked for, or a web page."""


class UnreachableError(StoreError):
    """The store cannot be reached now: DNS, connection, time-out, 429, 5xx, a full disk. Trying later may help."""


class FullStoreError(UnreachableError):
    """There is no room for a file: trying again at once does not help."""


class ConflictError(StoreError):
    """The condition of a write does not hold: another writer was first (412, 409, or 404 for `IfMatch`)."""


class UnfitStoreError(StoreError):
    """The store ignores conditions of writes, or has none: two publishers would lose updates."""
