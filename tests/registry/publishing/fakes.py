"""A store in memory that keeps the port's contract, one that fails on purpose, and a client made of python-tuf."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, BinaryIO, Literal

from securesystemslib.signer import CryptoSigner, Signer
from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater

from tunehub_registry.index import Shard, parse_shard, shard_path
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import pack
from tunehub_registry.publishing.administration import Administration
from tunehub_registry.publishing.ledger import RetryPolicy
from tunehub_registry.publishing.setup import init_signed, init_unsigned
from tunehub_registry.publishing.signed import MetadataWriter, SignedLedger
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.port import (
    ConflictError,
    Content,
    Deadline,
    FileMissingError,
    IfAbsent,
    IfMatch,
    OnBytes,
    TooLargeError,
    UnreachableError,
    UnsoundAnswerError,
)
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.metadata import Grant, Publisher

QUICK = RetryPolicy(total_s=5, unreachable_s=2, first_pause_s=0.001, longest_pause_s=0.01)
RECORDS = "records/meta_schedule.jsonl"


def target(model: str = "znver5", kind: str = "llvm") -> TargetDescriptor:
    return TargetDescriptor(kind=kind, model=model, arch="x86_64", features=("avx2",))


def package(model: str = "znver5", version: str = "0.1.0", *, content: bytes = b"{}\n", kind: str = "llvm") -> bytes:
    where = target(model, kind)
    manifest = Manifest(
        name=where.name,
        version=version,
        target=where,
        record_sets=(RecordSet(tuner="meta_schedule", file=RECORDS, tvm=">=0.25,<0.28", key_scheme="k", count=1),),
        provenance=Provenance(
            machine={"cpu": "test"}, tvm_version="0.27.0", tvm_ffi_version="0.1.14", tuner_options={}, trials=1, seed=0,
            command="test", started="2026-01-31T10:00:00Z", finished="2026-01-31T12:00:00Z", threads=2,
        ),
    )  # fmt: skip
    return pack(manifest, {RECORDS: content})


class Clock:
    """A time that tests can set."""

    def __init__(self) -> None:
        self.time = datetime.now(timezone.utc)

    def __call__(self) -> datetime:
        return self.time

    def advance(self, **parts: float) -> None:
        self.time += timedelta(**parts)


class MemoryStore:
    """The port, honestly: conditions are checked and writes happen in one step. `requests` are all calls."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.address = "memory:"
        self.files = dict(files or {})
        self.requests: list[str] = []
        self.lock = threading.Lock()

    def url(self, path: str) -> str:
        return f"memory:/{path}"

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        with self.lock:
            self.requests.append(f"get {path}")
            data = self._read(path)
        if len(data) > max_bytes:
            raise TooLargeError("too large", address=self.address, path=path, remedy="none")
        found = tag(data)
        return None if found == etag else Content(data=data, etag=found)

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
        with self.lock:
            self.requests.append(f"get {path}")
            data = self._read(path)
        if len(data) != size:
            raise UnsoundAnswerError("another size", address=self.address, path=path, remedy="none")
        stream.write(data[offset:])
        if on_bytes is not None:
            on_bytes(size - offset)

    def put(
        self, path: str, data: bytes | Path, condition: IfAbsent | IfMatch, *, on_bytes: OnBytes | None = None
    ) -> str:
        content = data if isinstance(data, bytes) else data.read_bytes()
        with self.lock:
            self.requests.append(f"put {path}")
            present = self.files.get(path)
            wanted = None if isinstance(condition, IfAbsent) else condition.etag
            if (None if present is None else tag(present)) != wanted:
                raise ConflictError("not what it was", address=self.address, path=path, remedy="again")
            self.files[path] = content
        if on_bytes is not None:
            on_bytes(len(content))
        return tag(content)

    def delete(self, path: str) -> None:
        with self.lock:
            self.requests.append(f"delete {path}")
            self.files.pop(path, None)

    def _read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileMissingError("not there", address=self.address, path=path, remedy="none")
        return self.files[path]


def tag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class Killed(BaseException):
    """The process ends here."""


Fault = Literal["killed before", "killed after", "refused", "answer lost"]
FAULTS: tuple[Fault, ...] = ("killed before", "killed after", "refused", "answer lost")


class FaultyStore(MemoryStore):
    """Fails at one write: not at all written, or written and then killed or without an answer."""

    def __init__(self, files: dict[str, bytes], position: int, fault: Fault) -> None:
        super().__init__(files)
        self.position = position
        self.fault = fault
        self.writes = 0

    def put(
        self, path: str, data: bytes | Path, condition: IfAbsent | IfMatch, *, on_bytes: OnBytes | None = None
    ) -> str:
        self.writes += 1
        if self.writes != self.position:
            return super().put(path, data, condition, on_bytes=on_bytes)
        if self.fault == "killed before":
            raise Killed
        if self.fault == "refused":
            raise UnreachableError("503", address=self.address, path=path, remedy="later")
        super().put(path, data, condition, on_bytes=on_bytes)
        if self.fault == "killed after":
            raise Killed
        raise UnreachableError("connection reset", address=self.address, path=path, remedy="later")


def count_writes(store: MemoryStore) -> int:
    return sum(request.startswith("put ") for request in store.requests)


class StoreFetcher(FetcherInterface):  # type: ignore[misc, unused-ignore]
    """python-tuf's port for clients, over a store: `x:/` is its root."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def _fetch(self, url: str) -> Iterator[bytes]:
        path = url.removeprefix("x:/")
        stream = io.BytesIO()
        try:
            content = self._store.get(path, max_bytes=1 << 24)
        except FileMissingError as error:
            raise DownloadHTTPError(str(error), 404) from None
        stream.write(content.data)
        yield stream.getvalue()


class Client:
    """What a reader sees: python-tuf's Updater with a cache folder, then the shard by its hash."""

    def __init__(self, store: Any, root: bytes) -> None:
        self._store = store
        self._root = root
        self._folder = tempfile.mkdtemp(prefix="tunehub-test-")
        self.close = weakref.finalize(self, shutil.rmtree, self._folder)

    def shard(self, name: str) -> Shard | None:
        updater = Updater(self._folder, "x:/metadata/", fetcher=StoreFetcher(self._store), bootstrap=self._root)
        found = updater.get_targetinfo(name)
        if found is None:
            return None
        data = self._store.get(shard_path(found.hashes["sha256"]), max_bytes=found.length).data
        found.verify_length_and_hashes(data)
        return parse_shard(data, name)

    def versions(self, name: str) -> list[str]:
        shard = self.shard(name)
        return [] if shard is None else [entry.version for entry in shard.versions]


@dataclass
class Signed:
    """A signed registry with one publisher, `acme`, of `llvm-*`, and all its keys."""

    store: Any
    clock: Clock = field(default_factory=Clock)
    root_keys: list[Signer] = field(default_factory=lambda: [CryptoSigner.generate_ed25519()])
    targets_key: Signer = field(default_factory=CryptoSigner.generate_ed25519)
    online_key: Signer = field(default_factory=CryptoSigner.generate_ed25519)
    acme_key: Signer = field(default_factory=CryptoSigner.generate_ed25519)
    root: bytes = b""

    def init(self) -> Signed:
        self.root = init_signed(
            self.store,
            root_keys=self.root_keys,
            threshold=len(self.root_keys),
            targets_key=self.targets_key,
            online_key=self.online_key,
            retry=QUICK,
            now=self.clock,
        )
        self.delegate("acme", "llvm-*", key=self.acme_key)
        return self

    def delegate(self, name: str, *patterns: str, key: Signer) -> None:
        publisher = Publisher(name=name, patterns=patterns, grant=Grant(keys=(key.public_key,)))
        self.owner().delegate(publisher, [self.targets_key])

    def owner(self, store: Any = None, online: Signer | None = None) -> Administration:
        writer = MetadataWriter(
            self.store if store is None else store, self.root, online=online or self.online_key, now=self.clock
        )
        return Administration(writer, retry=QUICK)

    def ledger(self, store: Any = None, **options: Any) -> SignedLedger:
        given = {"keys": [self.acme_key], "online": self.online_key, "now": self.clock, **options}
        return SignedLedger(self.store if store is None else store, self.root, **given)

    def client(self, store: Any = None) -> Client:
        return Client(self.store if store is None else store, self.root)


@dataclass
class Unsigned:
    """An unsigned registry; the same interface as far as publishing goes."""

    store: Any

    def init(self) -> Unsigned:
        init_unsigned(self.store, retry=QUICK)
        return self

    def ledger(self, store: Any = None) -> UnsignedLedger:
        return UnsignedLedger(self.store if store is None else store)

    def client(self, store: Any = None) -> PlainClient:
        return PlainClient(self.store if store is None else store)


class PlainClient:
    """Reads `index.json`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def versions(self, name: str) -> list[str]:
        state = UnsignedLedger(self._store).read([name]).names[name]
        return [] if state is None else [entry.version for entry in state.shard.versions]

    def close(self) -> None:
        """Nothing to do."""
