"""Files of lines that only grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def append_lines(path: Path, lines: bytes) -> None:
    """Add whole lines to a file, in one step and synced. What a killed writer left of a line becomes one of its own.

    The caller keeps other processes from writing at the same time. Raises OSError.
    """
    with path.open("a+b") as stream:
        stream.write(b"\n" + lines if lines and _is_torn(stream) else lines)
        stream.flush()
        os.fsync(stream.fileno())


def _is_torn(stream: BinaryIO) -> bool:
    if stream.seek(0, os.SEEK_END) == 0:
        return False
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) != b"\n"
