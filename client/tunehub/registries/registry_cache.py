"""What the cache keeps of registries: the last verified state of each, TUF's metadata, and shards by their SHA-256.

    registries/<hash of the address>/state.json   what was last verified, for when the network is away
    registries/<hash of the address>/index        `index.json` of an unsigned registry, with its entity tag
    registries/<hash of the address>/metadata/    python-tuf's own
    shards/<sha256>.json

Without a folder, or when it cannot be written, nothing is kept and nothing fails.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from tunehub._files.atomic import open_regular, write_file
from tunehub._files.lock import locked
from tunehub.registries.blob_cache import tag_cache
from tunehub.registries.delegated import Delegated
from tunehub_registry.index import MAX_INDEX_BYTES, MAX_SHARD_BYTES
from tunehub_registry.stores.port import Content, Deadline
from tunehub_registry.target import TargetDescriptor

REGISTRIES = "registries"
SHARDS = "shards"
LOCK_TIMEOUT_S = 60.0


class ShardRef(msgspec.Struct, frozen=True, kw_only=True):
    """A shard as a publisher signed it, and the SHA-256 of the snapshot that this was seen in. `target` is what the
    name is for, where the publisher says that: of names in bins."""

    sha256: str
    length: int
    snapshot: str
    target: TargetDescriptor | None = None


class VerifiedState(msgspec.Struct, frozen=True, kw_only=True):
    """What a signed registry's metadata said when it was last verified: the catalogue, and the shards asked for.

    `root` and `snapshot` are the SHA-256 of the root that it was verified from, and of the snapshot. `delegated` are
    the publishers with their names, in order; None in states that were kept before aliases belonged to publishers.
    `expires` is the end of the timestamp, in ISO 8601, at most `MAX_TIMESTAMP_DAYS` after it was first seen; empty in
    states from before it was kept. `timestamp` is the timestamp's SHA-256, `etag` its entity tag, kept of large ones.
    `in_bins` are the publishers whose names the catalogue does not list.
    """

    address: str
    root: str
    snapshot: str
    catalogue: str
    shards: dict[str, ShardRef] = {}
    delegated: tuple[Delegated, ...] | None = None
    expires: str = ""
    timestamp: str = ""
    etag: str = ""
    in_bins: tuple[str, ...] = ()

    def has_ended(self, now: datetime) -> bool:
        """Whether its timestamp says that nobody should take it for the present state any more."""
        try:
            return now >= datetime.fromisoformat(self.expires.replace("Z", "+00:00"))
        except (ValueError, TypeError):
            return True


class RegistryCache:
    """One registry's part of the cache."""

    def __init__(self, root: Path | None, address: str) -> None:
        """`root` is the cache's folder, None for no cache. Touches nothing yet."""
        self._root = root
        self._address = address
        digest = hashlib.sha256(address.encode()).hexdigest()[:32]
        self._folder = None if root is None else root / REGISTRIES / digest

    @property
    def metadata(self) -> Path | None:
        """The folder for python-tuf."""
        return self._folder and self._folder / "metadata"

    def state(self, root: str) -> VerifiedState | None:
        """The state that was last verified, from this root, or None."""
        data = self._read("state.json")
        if data is None:
            return None
        try:
            state = msgspec.json.decode(data, type=VerifiedState)
        except (msgspec.MsgspecError, UnicodeError):
            return None
        return state if (state.address, state.root) == (self._address, root) else None

    def keep_state(self, state: VerifiedState) -> None:
        """Keep a state that has just been verified."""
        self._write("state.json", msgspec.json.encode(state))

    def confirm_state(self) -> None:
        """The kept state has just been verified again."""
        self._touch("state.json")

    def index(self) -> Content | None:
        """The kept `index.json` with its entity tag, or None."""
        data = self._read("index")
        head, newline, body = (data or b"").partition(b"\n")
        digest, _, etag = head.decode("utf-8", "replace").partition(" ")
        if not newline or hashlib.sha256(body).hexdigest() != digest:
            return None
        return Content(data=body, etag=etag)

    def keep_index(self, content: Content) -> None:
        """Keep `index.json` as it has just been read."""
        if "\n" not in content.etag:
            head = f"{hashlib.sha256(content.data).hexdigest()} {content.etag}\n"
            self._write("index", head.encode() + content.data)

    def confirm_index(self) -> None:
        """The kept index has just been found to be the present one."""
        self._touch("index")

    def age(self) -> float | None:
        """Seconds since the registry was last read from where it lies; None when it never was."""
        verified = self.verified()
        return None if verified is None else max(0.0, time.time() - verified)

    def verified(self) -> float | None:
        """When that was, by the clock of the time."""
        times = []
        for name in ("state.json", "index"):
            with suppress(OSError, TypeError):
                times.append((self._folder / name).stat().st_mtime)  # type: ignore[operator]
        return max(times, default=None)

    def shard(self, sha256: str) -> bytes | None:
        """The bytes of a shard, or None; they have the hash."""
        if self._root is None:
            return None
        try:
            with open_regular(self._shard_path(sha256)) as stream:
                data = stream.read(MAX_SHARD_BYTES + 1)
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == sha256 else None

    def keep_shard(self, sha256: str, data: bytes) -> None:
        """Keep a shard."""
        if self._root is not None:
            with suppress(OSError):
                self._keep(self._shard_path(sha256), data)

    def lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        """The registry's part for this process alone. Raises OSError (TimeoutError), also where there is no cache."""
        if self._folder is None or self._root is None:
            raise FileNotFoundError("there is no cache")
        tag_cache(self._root)
        self._folder.mkdir(parents=True, exist_ok=True)
        left = deadline.remaining()
        return locked(Path(f"{self._folder}.lock"), LOCK_TIMEOUT_S if left is None else min(left, LOCK_TIMEOUT_S))

    def _shard_path(self, sha256: str) -> Path:
        assert self._root is not None
        return self._root / SHARDS / f"{sha256}.json"

    def _read(self, name: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            with open_regular(self._folder / name) as stream:
                return stream.read(2 * MAX_INDEX_BYTES)
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        if self._folder is not None:
            with suppress(OSError):
                self._keep(self._folder / name, data)
                self._touch(name)

    def _touch(self, name: str) -> None:
        """Note the time by this machine's clock, which a network file system's may differ from."""
        if self._folder is not None:
            now = time.time()
            with suppress(OSError):
                os.utime(self._folder / name, (now, now))

    def _keep(self, path: Path, data: bytes) -> None:
        assert self._root is not None
        tag_cache(self._root)
        write_file(path, data)
