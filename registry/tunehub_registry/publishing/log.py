"""Writing the log of a registry: the next head for a commit, and the files of heads that were committed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from securesystemslib.signer import Signer
from tuf.api.metadata import MetaFile

from tunehub_registry.exceptions import RegistryError
from tunehub_registry.publishing.blobs import Uploads, exists
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.stores.port import AccessDeniedError, FileMissingError, WritableStore
from tunehub_registry.trust.checkpoint import Checkpoint, sign_checkpoint
from tunehub_registry.trust.exceptions import UntrustedError
from tunehub_registry.trust.layout import TIMESTAMP_PATH
from tunehub_registry.trust.log import (
    MAX_ENTRIES_BYTES,
    MAX_TILE_BYTES,
    LoggedSnapshot,
    LogTail,
    head_of,
    log_path,
    logged_snapshot,
    tail_places,
)
from tunehub_registry.trust.merkle import entries_path, read_tile_bytes, unpack_entries

_REMEDY = "its files were tampered with: restore them from a mirror or an older version; `tunehub audit` finds which"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogStep:
    """What a commit adds to the log: the next head as a signed note, and what is written once it is committed. `tiles`
    are those that a reader of the head asks for, who never saw another."""

    note: str
    tail: LogTail
    files: Mapping[str, bytes]
    tiles: Mapping[str, bytes]


class LogWriter:
    """The log of one registry. Not to be shared between threads."""

    def __init__(self, store: WritableStore) -> None:
        self._store = store
        self._tail = LogTail()  # whose files are all written

    def next(self, fields: Mapping[str, object], present: MetaFile, new: MetaFile, signer: Signer) -> LogStep | None:
        """The step from the timestamp with these fields, which is for the snapshot `present`, to the snapshot `new`;
        None where there is no log. The files of the present head are there afterwards.

        Raises UntrustedError when what lies there is not the log of that head, and what stores raise.
        """
        head = head_of(fields, self._store.url(TIMESTAMP_PATH))
        return None if head is None else self._step(head.origin, self._tail_of(head, _logged(present)), new, signer)

    def first(self, origin: str, new: MetaFile, signer: Signer) -> LogStep:
        """The step that begins a log, with one snapshot. Raises PublishError where there was one before."""
        if exists(self._store, log_path(entries_path(0, 1))):
            remedy = (
                "restore the timestamp; to give the old log up, move `log/` away: its users then have to trust anew"
            )
            raise PublishError("there was a log here before", address=self._store.address, remedy=remedy)
        return self._step(origin, LogTail(), new, signer)

    def finish(self, step: LogStep) -> None:
        """Write the files of a step that was committed. What fails is left to the next commit."""
        with suppress(RegistryError):
            self._write(step.files)
            self._tail = step.tail

    def _step(self, origin: str, tail: LogTail, new: MetaFile, signer: Signer) -> LogStep:
        after, files = tail.append(_logged(new).entry)
        head = Checkpoint(origin=origin, size=after.size, root=after.frontier.root)
        rows = zip(tail_places(tail.size), tail.rows, strict=True)
        tiles = {log_path(place.path): b"".join(row) for place, row in rows if row}
        return LogStep(note=sign_checkpoint(head, signer).note, tail=after, files=files, tiles=tiles)

    def _tail_of(self, head: Checkpoint, newest: LoggedSnapshot) -> LogTail:
        if (self._tail.size, self._tail.frontier.root) == (head.size, head.root):
            return self._tail
        files: Mapping[str, bytes] = {}
        try:
            tail = self._read(head.size)
        except (FileMissingError, AccessDeniedError):  # its writer was killed after the commit
            tail, files = self._read(head.size - 1).append(newest.entry)
        if tail.frontier.root != head.root:
            raise self._damaged(f"of {head.size} entries does not have the root that its head says")
        self._write(files)
        self._tail = tail
        return tail

    def _read(self, size: int) -> LogTail:
        rows = tuple(
            read_tile_bytes(self._get(place.path, MAX_TILE_BYTES, place.width), place) if place.width else ()
            for place in tail_places(size)
        )
        entries: tuple[bytes, ...] = ()
        if rows and rows[0]:
            width = len(rows[0])
            data = self._get(entries_path(size // 256, width), MAX_ENTRIES_BYTES, 0)
            try:
                entries = unpack_entries(data, width)
            except ValueError as error:
                raise self._damaged(f"of {size} entries: {error}") from None
        return LogTail(rows=rows, entries=entries)

    def _get(self, path: str, max_bytes: int, width: int) -> bytes:
        content = self._store.get(log_path(path), max_bytes=max_bytes)
        assert content is not None  # no tag was given
        if width and len(content.data) != width * 32:
            raise self._damaged(f"has in {log_path(path)} {len(content.data)} bytes, not {width * 32}")
        return content.data

    def _write(self, files: Mapping[str, bytes]) -> None:
        uploads = Uploads(self._store)
        for path, data in files.items():
            uploads.ensure(path, data, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    def _damaged(self, reason: str) -> UntrustedError:
        return UntrustedError(f"the log {reason}", address=self._store.address, path="log", remedy=_REMEDY)


def _logged(meta: MetaFile) -> LoggedSnapshot:
    return logged_snapshot(meta.to_dict())


def origin_of(first_root: bytes) -> str:
    """The name of the log of the registry that began with this root: the same for all mirrors."""
    return f"tunehub/{hashlib.sha256(first_root).hexdigest()[:32]}"
