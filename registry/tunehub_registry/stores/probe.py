"""Whether a store keeps the conditions of writes: some S3 servers take the headers, ignore them, and lose updates."""

from __future__ import annotations

import secrets
from contextlib import suppress

from tunehub_registry.stores.port import ConflictError, IfAbsent, IfMatch, StoreError, UnfitStoreError, WritableStore

PROBE_FOLDER = ".probe"
_REMEDY = "publish to a store that keeps If-Match and If-None-Match: AWS S3, SeaweedFS, MinIO, or a folder"


def probe_conditional_writes(store: WritableStore) -> None:
    """Write, write over and delete a file of its own below `.probe/`, in about eight requests.

    Raises UnfitStoreError with the reason when a condition is not kept, or a StoreError when the store cannot be
    written to.
    """
    path = f"{PROBE_FOLDER}/{secrets.token_hex(16)}"
    first, second = f"1 {path}".encode(), f"2 {path}".encode()
    try:
        _expect_refusal(store, path, second, IfMatch(etag='"00000000000000000000000000000000"'), "that is not there")
        tag = _expect_write(store, path, first, IfAbsent())
        _expect_refusal(store, path, second, IfAbsent(), "that is there, asked for only if absent")
        _expect_refusal(store, path, second, IfMatch(etag='"00000000000000000000000000000000"'), "of another tag")
        if _read(store, path) != first:
            raise _unfit(store, path, "it refuses a write over a file, and still changes the file")
        new_tag = _expect_write(store, path, second, IfMatch(etag=tag))
        if new_tag == tag or _read(store, path) != second:
            raise _unfit(store, path, "a write over a file that it accepts changes nothing")
        _expect_refusal(store, path, first, IfMatch(etag=tag), "of a tag that it had before")
    finally:
        with suppress(StoreError):  # a stray file of 40 bytes harms nobody; what went wrong before is what to tell
            store.delete(path)


def _expect_write(store: WritableStore, path: str, data: bytes, condition: IfAbsent | IfMatch) -> str:
    try:
        return store.put(path, data, condition)
    except ConflictError as error:
        raise _unfit(store, path, f"it refuses a write whose condition holds: {error.reason}") from error


def _expect_refusal(store: WritableStore, path: str, data: bytes, condition: IfAbsent | IfMatch, what: str) -> None:
    try:
        store.put(path, data, condition)
    except ConflictError:
        return
    raise _unfit(store, path, f"it ignores conditions of writes: it wrote over a file {what}")


def _read(store: WritableStore, path: str) -> bytes | None:
    found = store.get(path, max_bytes=1000)
    return None if found is None else found.data


def _unfit(store: WritableStore, path: str, reason: str) -> UnfitStoreError:
    return UnfitStoreError(reason, address=store.address, path=path, remedy=_REMEDY)
