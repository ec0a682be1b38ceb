"""Where the file of a locked package may be, and getting it from the first place that has the right bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO
from urllib.parse import unquote, urlsplit, urlunsplit

from tunehub.registries.embedded import EMBEDDED, embedded_registry
from tunehub.registries.servers import reserved
from tunehub_registry.document import Document
from tunehub_registry.lock import LockedPackage
from tunehub_registry.stores.open import UnsupportedAddressError, is_folder, open_store, split_unsigned
from tunehub_registry.stores.port import (
    AccessDeniedError,
    Deadline,
    FileMissingError,
    OnBytes,
    Store,
    StoreError,
    UnsoundAnswerError,
)

Opener = Callable[[str], Store]
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A store, opened when it is its turn, and the paths that the file may have there."""

    address: str
    open: Callable[[], Store]
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a place did not give the file."""

    address: str
    reason: str


def places_of(pin: LockedPackage, registries: Sequence[str], opener: Opener) -> Iterator[Place]:
    """The places, in the order of trying: embedded, `registries`, the pin's URL, the registry that it came from."""
    embedded = embedded_registry()
    yield Place(address=EMBEDDED, open=lambda: open_store(embedded), paths=pin.paths)
    seen = {EMBEDDED}
    own = [_registry_place(pin, address, opener) for address in registries]
    for place in (*own, _url_place(pin, opener), _registry_place(pin, pin.registry, opener)):
        if place is not None and place.address not in seen:
            seen.add(place.address)
            yield place


def places_of_document(
    document: Document, pin: LockedPackage, registries: Sequence[str], opener: Opener
) -> Iterator[Place]:
    """The places of a document beside a package: as `places_of`, but the URL of the package is no help."""
    for place in places_of(pin, registries, opener):
        if place.paths == pin.paths:
            yield replace(place, paths=(document.file,))


def bounded_opener(deadline: Deadline, *, offline: bool, servers: Collection[str] = ()) -> Opener:
    """How to open stores that are not waited for after the deadline; buckets on other servers than AWS's and these are
    read without a signature."""

    def open_bounded(address: str) -> Store:
        address = reserved(address, servers)
        if offline or is_folder(address):
            return open_store(address, offline=offline)
        from tunehub.registries.bounded_store import BoundedStore

        return BoundedStore(address, deadline)

    return open_bounded


def download_verified(
    pin: LockedPackage | Document,
    places: Iterable[Place],
    stream: BinaryIO,
    offset: int = 0,
    on_bytes: OnBytes | None = None,
) -> tuple[Place | None, list[Failure]]:
    """Write the file to `stream`, which already has `offset` bytes of it; the place that had it, and the failures.

    What one place gave before it failed is kept for the next. Bytes with a wrong hash are thrown away and the next
    place is tried; so `stream` has to be readable when `offset` is not 0. OSErrors of `stream` go through.
    """
    sink = _Sink(stream, offset)
    failures: list[Failure] = []
    for place in places:
        try:
            store = place.open()
            if _fill(pin, store, place.paths, sink, on_bytes):
                return place, failures
            reason = f"its sha256 is not the one in the lock, {pin.sha256}"
        except StoreError as error:
            reason = f"{error.path}: {error.reason}" if error.path else error.reason
            reason += f" ({error.remedy})" if isinstance(error, AccessDeniedError | UnsupportedAddressError) else ""
        failures.append(Failure(address=place.address, reason=reason))
    return None, failures


def _fill(
    pin: LockedPackage | Document, store: Store, paths: Sequence[str], sink: _Sink, on_bytes: OnBytes | None
) -> bool:
    """Take the file from a store; whether it has the right hash. Otherwise the sink is empty again. StoreError."""
    began = sink.size
    _download(pin, store, paths, sink, on_bytes)
    if sink.has(pin.sha256):
        return True
    sink.empty()
    if began:  # what was there before may have been the wrong part
        _download(pin, store, paths, sink, on_bytes)
        if sink.has(pin.sha256):
            return True
        sink.empty()
    return False


def _download(
    pin: LockedPackage | Document, store: Store, paths: Sequence[str], sink: _Sink, on_bytes: OnBytes | None
) -> None:
    for path in paths[:-1]:
        try:
            return store.download(path, sink, size=pin.size, offset=sink.size, on_bytes=on_bytes)  # type: ignore[arg-type]
        except (FileMissingError, UnsoundAnswerError):
            continue  # a site may answer with a page instead of 404
    return store.download(paths[-1], sink, size=pin.size, offset=sink.size, on_bytes=on_bytes)  # type: ignore[arg-type]


class _Sink:
    """A stream that is hashed while it is written."""

    def __init__(self, stream: BinaryIO, offset: int) -> None:
        self._stream = stream
        self.size = offset
        self._digest = hashlib.sha256()
        if offset:
            self._read_back()

    def write(self, data: bytes, /) -> int:
        self._stream.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def has(self, sha256: str) -> bool:
        return self._digest.hexdigest() == sha256

    def empty(self) -> None:
        self._stream.seek(0)
        self._stream.truncate()
        self.size = 0
        self._digest = hashlib.sha256()

    def _read_back(self) -> None:
        self._stream.seek(0)
        while chunk := self._stream.read(_CHUNK):
            self._digest.update(chunk)


def _registry_place(pin: LockedPackage, address: str, opener: Opener) -> Place | None:
    if address == EMBEDDED:
        return None
    bare, _ = split_unsigned(address)  # the hash is what is trusted: no signature is needed, nor missed
    return Place(address=bare, open=lambda: opener(bare), paths=pin.paths)


def _url_place(pin: LockedPackage, opener: Opener) -> Place | None:
    """The URL, unless it lies in the registry, which is asked anyway."""
    parts = urlsplit(pin.url or "")
    registry = urlsplit(split_unsigned(pin.registry)[0])
    inside = (parts.scheme, parts.netloc) == (registry.scheme, registry.netloc) and not pin.url_expires
    if pin.url is None or (inside and parts.path.startswith(f"{registry.path}/")):
        return None
    folder, _, file = parts.path.rpartition("/")
    address = urlunsplit((parts.scheme, parts.netloc, folder, parts.query, ""))
    shown = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))  # a query may be a signature
    return Place(address=shown, open=lambda: opener(address), paths=(unquote(file),))
