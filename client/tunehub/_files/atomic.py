"""Writing small files so that no reader ever sees half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".tmp-"  # between the name of the file and what makes the temporary one unique


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
