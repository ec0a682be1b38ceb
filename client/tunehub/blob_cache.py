"""Package files by their SHA-256, kept on disk and shared by processes: one lock a blob, written once, atomically."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tunehub_registry.package import SUFFIX, sha256_of

CACHEDIR_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of tunehub: delete it at any time.\n"
LOCK_TIMEOUT_S = 120.0
INDEX_SUFFIX = ".index.sqlite"
_TEMPORARY = ".tmp-"


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    """One file of the cache, for listings. `kind` is blob, index, user (index of the user's records) or leftover."""

    path: Path
    kind: str
    size: int


class BlobCache:
    """A folder of blobs and of files made from them. What writes may raise OSError; callers then go on without."""

    def __init__(self, root: Path) -> None:
        """Touches nothing yet."""
        self.root = root
        self._blobs = root / "blobs"

    def blob_path(self, sha256: str) -> Path:
        """Where the blob lies, or would."""
        return self._blobs / f"{sha256}{SUFFIX}"

    def index_path(self, sha256: str) -> Path:
        """Where the index of a blob lies, or would: next to it."""
        return self._blobs / f"{sha256}{INDEX_SUFFIX}"

    def user_index_path(self, records: Path) -> Path:
        """Where the index of a user's records file lies, or would."""
        digest = hashlib.sha256(os.fsencode(records.resolve())).hexdigest()
        return self.root / "user" / f"{digest[:32]}{INDEX_SUFFIX}"

    def lock(self, path: Path) -> AbstractContextManager[object]:
        """A lock for writing `path` among processes. Raises OSError (TimeoutError) after `LOCK_TIMEOUT_S`."""
        import filelock

        self._make_folder(path.parent)
        return _locked(filelock.FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S))

    def blob(self, sha256: str, fetch: Callable[[], bytes]) -> Path:
        """The path of the blob with this hash, fetched unless a sound one is there. Call it under the blob's lock.

        A file with another hash is replaced. Raises HashMismatchError when `fetch` gives other bytes, OSError when
        the cache cannot be written, and what `fetch` raises.
        """
        path = self.blob_path(sha256)
        if is_sound(path, sha256):
            return path
        data = fetch_verified(sha256, fetch)
        self.write(path, lambda temporary: temporary.write_bytes(data))
        return path

    def write(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Let `fill` write a temporary file in the same folder, then put it in place in one step. Raises OSError."""
        self._make_folder(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}{_TEMPORARY}", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            fill(temporary)
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def files(self) -> Iterator[CachedFile]:
        """Every file of the cache but locks and the tag. Raises OSError."""
        for folder in (self._blobs, self.root / "user"):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.suffix != ".lock":
                    yield CachedFile(path=path, kind=_kind(path, folder.name), size=path.stat().st_size)

    def clear(self) -> int:
        """Delete all blobs and indexes; returns the bytes freed. Processes that have them open keep them. OSError."""
        freed = 0
        for file in list(self.files()):
            file.path.unlink(missing_ok=True)
            freed += file.size
        return freed

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_bytes(CACHEDIR_TAG)


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
        return sha256_of(path) == sha256
    except OSError:
        return False


def _kind(path: Path, folder: str) -> str:
    if _TEMPORARY in path.name:
        return "leftover"
    if path.name.endswith(INDEX_SUFFIX):
        return "user" if folder == "user" else "index"
    return "blob" if path.suffix == SUFFIX else "leftover"


@contextmanager
def _locked(lock: AbstractContextManager[object]) -> Iterator[None]:
    """filelock's Timeout is a TimeoutError and so an OSError; its NotImplementedError (no flock here) is made one."""
    try:
        lock.__enter__()
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
