"""A whole folder put in place at once: who is killed while writing leaves the old one."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunehub.exceptions import SettingError

MARKER = "catalogue.txt"  # in every catalogue: only a folder with it is replaced
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_HERE = -100  # AT_FDCWD of fcntl.h


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which takes the place of `folder` when the block ends without an error.

    Raises SettingError when `folder` is something else than a catalogue, an empty folder or nothing, OSError when it
    cannot be written.
    """
    _check(folder)
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=parent))
    try:
        (new / MARKER).write_text("Made by `tunehub catalogue`, which replaces this folder as a whole.\n")
        yield new
        new.chmod(0o777 & ~_umask())
        _put(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).is_file()):
        reason = "is there and is not a catalogue"
        raise SettingError(folder, reason, place="-o", remedy="give a new folder, or empty this one")


def _put(new: Path, folder: Path) -> None:
    """`new` becomes `folder`; what was there is then at `new`."""
    if not folder.exists():
        new.replace(folder)
    elif not _exchange(new, folder):  # this file system cannot: for a moment there is no folder
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=new.parent))
        folder.replace(aside)
        new.replace(folder)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step (renameat2, Linux); False where that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
