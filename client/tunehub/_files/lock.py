"""Locks among processes, as files beside what they guard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file `path`, whose folder is there.

    Raises OSError: TimeoutError after `timeout_s`, and where the file system has no locks.
    """
    import filelock  # reading needs none of it

    lock = filelock.FileLock(str(path), timeout=timeout_s)
    try:
        lock.acquire()
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    try:
        yield
    finally:
        lock.release()
