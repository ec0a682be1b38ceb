"""Package files by their SHA-256, kept on disk and shared by processes: one lock a blob, written once, atomically.

A download that breaks off stays as `<blob>.part` and goes on from there. What killed processes leave is swept up.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from tunehub._files.atomic import TEMPORARY, fill_file, open_regular
from tunehub._files.lock import locked
from tunehub_registry.package import SUFFIX, sha256_of
from tunehub_registry.stores.port import Deadline

CACHEDIR_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of tunehub: delete it at any time.\n"
LOCK_TIMEOUT_S = 120.0
ORPHAN_AGE_S = 3600.0
INDEX_SUFFIX = ".index.sqlite"
PART_SUFFIX = ".part"
LIBRARIES: Literal["libraries"] = "libraries"
KERNELS: Literal["kernels"] = "kernels"
COMPILED = ("library", "kernel")  # kinds
_FOLDERS = {
    "blobs": "blob", "documents": "document", "user": "user", "shards": "shard", "registries": "registry",
    "verdicts": "verdicts", LIBRARIES: "library", KERNELS: "kernel",
}  # fmt: skip
Download = Callable[[BinaryIO, int], None]  # writes the file from an offset on to the stream


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    """One file of the cache, for listings.

    `kind` is blob, partial (a download that broke off), index, document (beside a package), user (index of the user's
    records), shard, registry (metadata), verdicts, library (compiled, or what is said of one), kernel (machine code of
    a GPU) or leftover.
    """

    path: Path
    kind: str
    size: int


class BlobCache:
    """A folder of blobs and of files made from them. What writes may raise OSError; callers then go on without."""

    def __init__(self, root: Path, deadline: Deadline | None = None) -> None:
        """Touches nothing yet. After `deadline` no other process is waited for."""
        self.root = root
        self._blobs = root / "blobs"
        self._deadline = deadline or Deadline(None)

    def blob_path(self, sha256: str) -> Path:
        """Where the blob lies, or would."""
        return self._blobs / f"{sha256}{SUFFIX}"

    def index_path(self, sha256: str) -> Path:
        """Where the index of a blob lies, or would: next to it."""
        return self._blobs / f"{sha256}{INDEX_SUFFIX}"

    def document_path(self, sha256: str) -> Path:
        """Where a document beside a package lies, or would."""
        return self.root / "documents" / f"{sha256}.json"

    def user_index_path(self, records: Path) -> Path:
        """Where the index of a user's records file lies, or would."""
        digest = hashlib.sha256(os.fsencode(records.resolve())).hexdigest()
        return self.root / "user" / f"{digest[:32]}{INDEX_SUFFIX}"

    def lock(self, path: Path) -> AbstractContextManager[None]:
        """A lock for writing `path` and what belongs to it (a blob and its index have one lock) among processes.

        Raises OSError: TimeoutError after `LOCK_TIMEOUT_S` or the deadline, and where the file system has no locks.
        """
        self._make_folder(path.parent)
        left = self._deadline.remaining()
        return locked(_lock_path(path), LOCK_TIMEOUT_S if left is None else min(LOCK_TIMEOUT_S, left))

    def blob(self, sha256: str, size: int, download: Download) -> Path:
        """The path of the blob with this hash, downloaded unless a sound one is there. Call it under the blob's lock.

        A file with another hash is replaced. Raises HashMismatchError when `download` gives other bytes, OSError when
        the cache cannot be written, and what `download` raises; what came before that stays for the next time.
        """
        path = self.blob_path(sha256)
        if is_sound(path, sha256):
            return path
        self._make_folder(path.parent)
        self.sweep()
        part = path.with_name(path.name + PART_SUFFIX)
        if part.exists() and not part.is_file():  # a pipe would keep its reader waiting
            part.unlink()
        resumed = self._complete(part, size, download)
        if resumed and not is_sound(part, sha256):
            part.unlink()
            self._complete(part, size, download)
        found = sha256_of(part)
        if found != sha256:
            part.unlink()
            raise HashMismatchError(f"its sha256 is {found}, the index states {sha256}")
        part.replace(path)
        return path

    def kept_or(self, sha256: str, fetch: Callable[[], bytes]) -> Path | bytes:
        """The blob with this hash where a sound one is there, else what `fetch` gives, which is not kept. Raises
        HashMismatchError where that has another hash, and what `fetch` raises."""
        path = self.blob_path(sha256)
        return path if is_sound(path, sha256) else fetch_verified(sha256, fetch)

    def write(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Let `fill` write a temporary file in the same folder, then put it in place in one step. Raises OSError."""
        self._make_folder(path.parent)
        fill_file(path, fill)

    def sweep(self) -> None:
        """Remove temporary files and broken-off downloads of an hour ago that no process holds the lock of."""
        for folder in (self.root / name for name in _FOLDERS):
            with suppress(OSError):
                for path in list(folder.rglob("*")):
                    if _is_temporary(path):
                        _sweep(path)

    def files(self) -> Iterator[CachedFile]:
        """Every file of the cache but locks and the tag. Raises OSError."""
        for name in _FOLDERS:
            folder = self.root / name
            for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
                if path.suffix != ".lock" and (path.is_symlink() or not path.is_dir()):
                    yield CachedFile(path=path, kind=_kind(path, name), size=path.lstat().st_size)

    def clear(self, kinds: Collection[str] | None = None) -> int:
        """Delete all of them, or those of some kinds; returns the bytes freed. Processes that have them open keep them.
        Raises OSError."""
        freed = 0
        for file in [each for each in self.files() if kinds is None or each.kind in kinds]:
            file.path.unlink(missing_ok=True)
            freed += file.size
        return freed

    def _complete(self, part: Path, size: int, download: Download) -> bool:
        """Download what a partial file lacks; returns whether there was something before."""
        offset = _size(part)
        if offset > size:
            part.unlink()
            offset = 0
        try:
            with part.open("a+b") as stream:
                if offset < size:
                    download(stream, offset)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:  # the disk is full, say: a part of a package is of no use there
            part.unlink(missing_ok=True)
            raise
        return offset > 0

    def _make_folder(self, folder: Path) -> None:
        tag_cache(self.root)
        folder.mkdir(parents=True, exist_ok=True)


class HashMismatchError(Exception):
    """A registry's file does not have the hash that its index states."""


def fetch_verified(sha256: str, fetch: Callable[[], bytes]) -> bytes:
    """What `fetch` gives, if it has the hash. Raises HashMismatchError."""
    data = fetch()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise HashMismatchError(f"its sha256 is {found}, the index states {sha256}")
    return data


def is_sound(path: Path, sha256: str) -> bool:
    """Whether the file is there, can be read, and has the hash."""
    try:
        open_regular(path).close()
        return sha256_of(path) == sha256
    except OSError:
        return False


def sealed(name: str, content: bytes) -> bytes:
    """`content` of the file of this name behind the SHA-256 of both in hexadecimal digits, and a line break."""
    return _seal(name, content) + b"\n" + content


def unsealed(name: str, data: bytes) -> bytes | None:
    """The content of what `sealed` gave; None where that was cut short or changed, or is another file's."""
    digest, _, content = data.partition(b"\n")
    return content if _seal(name, content) == digest else None


def _seal(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + content).hexdigest().encode()


def tag_cache(root: Path) -> None:
    """Make the cache's folder, marked as one that backups leave out. Raises OSError."""
    tag = root / "CACHEDIR.TAG"
    if not tag.exists():
        root.mkdir(parents=True, exist_ok=True)
        tag.write_bytes(CACHEDIR_TAG)


def _kind(path: Path, folder: str) -> str:
    if TEMPORARY in path.name:
        return "leftover"
    if folder != "blobs":
        return _FOLDERS[folder]
    if path.name.endswith(INDEX_SUFFIX):
        return "index"
    if path.name.endswith(PART_SUFFIX):
        return "partial"
    return "blob" if path.suffix == SUFFIX else "leftover"


def _lock_path(path: Path) -> Path:
    """One lock for all files whose names have the same first part."""
    return path.with_name(f"{path.name.partition('.')[0]}.lock")


def _is_temporary(path: Path) -> bool:
    return TEMPORARY in path.name or path.name.endswith(PART_SUFFIX)


def _sweep(path: Path) -> None:
    """Remove one orphan, if it is one."""
    if time.time() - path.stat().st_mtime >= ORPHAN_AGE_S:
        with suppress(OSError), locked(_lock_path(path), 0):
            path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
