"""The network within a time budget: work runs in a daemon thread, which is left behind when the time is over.

DNS, proxies and servers that send a byte a minute can hold a thread for minutes whatever time-outs its sockets have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, TypeVar, cast

from tunehub_registry.stores.address import normalise_address
from tunehub_registry.stores.open import open_store
from tunehub_registry.stores.port import Content, Deadline, OnBytes, Store, UnreachableError
from tunehub_registry.stores.waiting import run_until

T = TypeVar("T")
Opener = Callable[[str], Store]
_SILENT_S = 300.0
_silent: dict[str, float] = {}  # addresses that used up a time budget of this process, and when
_REMEDY = "try again later; TUNEHUB_BUDGET sets the seconds that compiling may wait for the network"
_OFFLINE = "it is not in the cache, and offline mode forbids the network"
_OFFLINE_REMEDY = "unset TUNEHUB_OFFLINE once, or run `tunehub sync` while there is a network"


class BoundedStore:
    """A store of the network, opened when it is first used and given up after the first failure to reach it.

    `address` and `url` cost nothing: only `get` and `download` go to the network, and none of them after `deadline`.
    """

    def __init__(self, address: str, deadline: Deadline, *, offline: bool = False, opener: Opener = open_store) -> None:
        """`offline`: the network is never used. Raises UnsupportedAddressError for a malformed address."""
        self._given = address
        self._address = normalise_address(address)
        self._deadline = deadline
        self._offline = offline
        self._opener = opener
        self._store: Store | None = None
        self._failed: UnreachableError | None = None

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    def url(self, path: str) -> str:
        """As the port says."""
        return self._open().url(path)

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        end = deadline or self._deadline
        return self._run(path, lambda: self._open().get(path, max_bytes=max_bytes, etag=etag, deadline=end))

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
        """As the port says. After it has returned or raised, nothing is written to `stream` any more."""
        end = deadline or self._deadline
        gate = _Gate(stream)
        target = cast("BinaryIO", gate)

        def download() -> None:
            self._open().download(path, target, size=size, offset=offset, deadline=end, on_bytes=on_bytes)

        try:
            self._run(path, download, lambda: gate.count > 0)
        finally:
            gate.close()

    def _open(self) -> Store:
        if self._store is None:
            self._store = self._opener(self._given)
        return self._store

    def _run(self, path: str, work: Callable[[], T], anything_came: Callable[[], bool] = lambda: False) -> T:
        if self._offline:
            raise UnreachableError(_OFFLINE, address=self.address, path=path, remedy=_OFFLINE_REMEDY)
        self._failed = self._failed or self._known_silence(path)
        if self._failed is not None:
            raise self._failed
        try:
            return run_until(self._deadline, work)
        except TimeoutError:
            reason = "the time budget was over before the answer was there"
            self._failed = UnreachableError(reason, address=self.address, path=path, remedy=_REMEDY)
            raise self._failed from None
        except UnreachableError as error:
            self._failed = error
            raise
        finally:
            if self._failed is not None and self._deadline.over and not anything_came():
                _silent[self.address] = time.monotonic()

    def _known_silence(self, path: str) -> UnreachableError | None:
        """That the address used up a time budget a moment ago: each context would wait for it as long again."""
        since = _silent.get(self.address)
        if since is None or self._deadline.remaining() is None or time.monotonic() - since > _SILENT_S:
            return None
        ago = time.monotonic() - since
        reason = f"it did not answer in time {ago:.0f} s ago, and is not asked again for {_SILENT_S:.0f} s"
        return UnreachableError(reason, address=self.address, path=path, remedy=_REMEDY)


class _Gate:
    """A stream for writing that can be closed to a thread that was left behind."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: BinaryIO | None = stream
        self.count = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> int:
        with self._lock:
            if self._stream is None:
                raise ValueError("nobody waits for the download any more")
            self.count += 1
            return self._stream.write(data)

    def flush(self) -> None:
        with self._lock, suppress(AttributeError):
            cast("BinaryIO", self._stream).flush()

    def close(self) -> None:
        with self._lock:
            self._stream = None
