"""Writing small files so that no reader ever sees half of one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp-"  # between the name of the file and what makes the temporary one unique


class NotRegularError(OSError):
    """A pipe, device or folder is where a file should be."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError: NotRegularError where a pipe or a device would keep a reader waiting."""
    stream = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller's
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise NotRegularError(errno.EINVAL, "it is no regular file", str(path))
    return stream


def _open_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def write_file(path: Path, data: bytes) -> None:
    """Put a file in place in one step, with its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fill_file(path, lambda temporary: temporary.write_bytes(data))


def fill_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a temporary file in the same folder, then put it in place in one step. Raises OSError."""
    import tempfile  # reading needs none of it

    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}{TEMPORARY}", dir=path.parent)
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


def create_file(path: Path, create: Callable[[Path], object]) -> None:
    """As `fill_file`, but `create` makes the temporary file, with the rights of any new file. Raises OSError."""

    def fill(temporary: Path) -> None:
        temporary.unlink()  # mkstemp's is for its owner alone
        create(temporary)

    fill_file(path, fill)
