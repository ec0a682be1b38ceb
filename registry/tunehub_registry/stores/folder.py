"""A registry in a folder of a local or network file system, read and written by many processes.

Every write goes to a temporary file beside its target, is flushed to the disk, and is put in place in one step: by a
hard link (it fails where something is, also on NFS) or, over a known content, by a rename under the folder's lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from tunehub_registry.stores._paths import OWN_PREFIX, check_path
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    Content,
    Deadline,
    FileMissingError,
    FullStoreError,
    IfAbsent,
    IfMatch,
    OnBytes,
    StoreError,
    TooLargeError,
    UnfitStoreError,
    UnreachableError,
    UnsoundAnswerError,
)

TEMPORARY_PREFIX = f"{OWN_PREFIX}tmp-"  # what a killed writer leaves; no reader ever sees it
LOCK_NAME = f"{OWN_PREFIX}lock"  # in the root; stays there
LOCK_TIMEOUT_S = 60.0
_MOST_ATTEMPTS = 100  # to make a file in a folder that other writers take away
_CHUNK = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
_NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class FolderStore:
    """The files of a folder. An entity tag is the content's SHA-256. Reading makes no files; links are followed then,
    but writing through a link out of the folder is refused.
    """

    def __init__(self, root: Path, address: str | None = None) -> None:
        """`address` is what messages call it, the path by default. The first write makes the folder."""
        self._root = root
        self._address = address or str(root)

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    def url(self, path: str) -> str:
        """The absolute path of the file."""
        check_path(path, self.address)
        return str(self._root.absolute() / path)

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        try:
            data = self._whole(path, max_bytes + 1)
        except UnreachableError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ESTALE:
                raise
            data = self._whole(path, max_bytes + 1)  # NFS: another machine replaced the file in this moment
        if len(data) > max_bytes:
            remedy = "the registry is damaged or hostile: publish the file again"
            raise self._error(TooLargeError, f"it is larger than {max_bytes} bytes", path, remedy)
        found = hashlib.sha256(data).hexdigest()
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
        """As the port says. What `stream.write` raises goes through as it is."""
        with self._opened(path) as source:
            self._check_size(path, os.fstat(source.fileno()).st_size, size)
            source.seek(offset)
            left = size - offset
            while left > 0:
                self._check_time(path, deadline)
                chunk = self._read(path, source, min(_CHUNK, left))
                if not chunk:  # it was cut while it was read
                    self._check_size(path, size - left, size)
                stream.write(chunk)
                left -= len(chunk)
                _report(on_bytes, len(chunk))

    def put(
        self, path: str, data: bytes | Path, condition: IfAbsent | IfMatch, *, on_bytes: OnBytes | None = None
    ) -> str:
        """As the port says. Raises OSError when `data` is a file that cannot be read."""
        check_path(path, self.address)
        target = self._root / path
        with BytesIO(data) if isinstance(data, bytes) else data.open("rb") as source, self._explained(path):
            temporary, digest = self._write_temporary(path, target, source, on_bytes)
            try:
                if isinstance(condition, IfAbsent):
                    self._place_new(path, temporary, target)
                else:
                    self._place_over(path, temporary, target, condition.etag)
            finally:
                temporary.unlink(missing_ok=True)
            _flush_folder(target.parent)
        return digest

    def delete(self, path: str) -> None:
        """As the port says; its folder goes too when that is empty then."""
        check_path(path, self.address)
        target = self._root / path
        with self._explained(path):
            self._check_inside(path, target.parent)
            with suppress(FileNotFoundError, NotADirectoryError):
                target.unlink()
            if target.parent != self._root:
                with suppress(OSError):
                    target.parent.rmdir()

    def _place_new(self, path: str, temporary: Path, target: Path) -> None:
        try:
            os.link(temporary, target)
        except FileExistsError:
            # NFS repeats a call whose answer was lost, and then finds its own link.
            if temporary.stat().st_nlink < 2:
                raise self._conflict(path, "the file exists already") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with self._locked(path):  # no hard links here, for no writer: all of them come this way
                if os.path.lexists(target):
                    raise self._conflict(path, "the file exists already") from None
                temporary.replace(target)

    def _place_over(self, path: str, temporary: Path, target: Path, etag: str) -> None:
        with self._locked(path):
            if _sha256(target) != etag:
                raise self._conflict(path, "the file is not what it was when it was read")
            temporary.replace(target)

    def _write_temporary(self, path: str, target: Path, source: BinaryIO, on_bytes: OnBytes | None) -> tuple[Path, str]:
        temporary, stream = self._new_temporary(path, target.parent)
        digest = hashlib.sha256()
        try:
            with stream:
                while chunk := source.read(_CHUNK):
                    stream.write(chunk)
                    digest.update(chunk)
                    _report(on_bytes, len(chunk))
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary, digest.hexdigest()

    def _new_temporary(self, path: str, folder: Path) -> tuple[Path, BinaryIO]:
        """A new file with the rights that the umask gives, which mkstemp's would not have: others read the registry."""
        for attempt in range(_MOST_ATTEMPTS):
            self._check_inside(path, folder)
            temporary = folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return temporary, temporary.open("xb")
            except (FileNotFoundError, FileExistsError):  # a `delete` took the folder, even inside mkdir
                if attempt + 1 == _MOST_ATTEMPTS:
                    raise
        raise AssertionError

    def _check_inside(self, path: str, folder: Path) -> None:
        if not folder.resolve().is_relative_to(self._root.resolve()):
            remedy = "replace the symbolic link by a folder"
            raise self._error(AccessDeniedError, "a symbolic link leads out of the registry", path, remedy)

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        """A regular file: a pipe or a device would keep its reader waiting."""
        check_path(path, self.address)
        with self._explained(path):
            stream: BinaryIO = open(self._root / path, "rb", buffering=0, opener=_open_at_once)  # noqa: SIM115
        with stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise self._error(AccessDeniedError, "it is no regular file", path, "replace it by the file itself")
            yield stream

    def _whole(self, path: str, size: int) -> bytes:
        with self._opened(path) as stream:
            return self._read(path, stream, size)

    def _read(self, path: str, stream: BinaryIO, size: int) -> bytes:
        parts = []
        with self._explained(path):
            while size > 0 and (part := stream.read(min(size, _CHUNK))):  # it has a buffer of what is asked for
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    @contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        import filelock

        try:
            # One lock for the folder: only the commit point is ever written over, so nobody waits for nothing.
            with filelock.FileLock(str(self._root / LOCK_NAME), timeout=LOCK_TIMEOUT_S, mode=0o666):
                yield
        except filelock.Timeout:
            reason = f"another publisher held {LOCK_NAME} for {LOCK_TIMEOUT_S:.0f} s"
            raise self._error(UnreachableError, reason, path, "wait for the other publisher, then try again") from None
        except NotImplementedError:
            remedy = "use a file system that has file locks (NFS has them when its lock service runs)"
            raise self._error(UnfitStoreError, "its file system has no file locks", path, remedy) from None

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(error, path) from error

    def _explain(self, error: OSError, path: str) -> StoreError:
        reason = error.strerror or str(error) or type(error).__name__
        if error.errno in _MISSING:
            if not self._root.is_dir():
                return self._error(FileMissingError, f"there is no folder {self._root}", path, "correct the address")
            remedy = "is it the folder of a registry, with metadata/ or index.json in it?"
            return self._error(FileMissingError, "there is no such file", path, remedy)
        if error.errno in _DENIED:
            remedy = f"check the owner and the permissions of {self._root}, and that it is not mounted read-only"
            return self._error(AccessDeniedError, reason, path, remedy)
        if error.errno in _FULL:
            return self._error(FullStoreError, reason, path, "make room on the disk, or raise the quota; try again")
        return self._error(UnreachableError, reason, path, "check the disk or the network file system; try again")

    def _conflict(self, path: str, reason: str) -> ConflictError:
        return ConflictError(reason, address=self.address, path=path, remedy="read the registry again and try again")

    def _error(self, kind: Callable[..., StoreError], reason: str, path: str, remedy: str) -> StoreError:
        return kind(reason, address=self.address, path=path, remedy=remedy)

    def _check_size(self, path: str, found: int, size: int) -> None:
        if found != size:
            remedy = "the file was damaged or is still being copied: fetch it again, or publish it again"
            raise self._error(UnsoundAnswerError, f"it has {found} bytes instead of {size}", path, remedy)

    def _check_time(self, path: str, deadline: Deadline | None) -> None:
        if deadline is not None and deadline.over:
            raise self._error(UnreachableError, "it took too long to read", path, "check the disk; try again")


def _open_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # or opening a pipe waits for its writer


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _flush_folder(folder: Path) -> None:
    """Make a new name durable. Some file systems cannot, and do it by themselves."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _report(on_bytes: OnBytes | None, count: int) -> None:
    if on_bytes is not None:
        on_bytes(count)
