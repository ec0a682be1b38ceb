"""Files that are replaced as a whole. Apart from `work_directory`, because a command that only writes one starts faster
without that module's imports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tunehub_builder.exceptions import WorkDirectoryError


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write ``path`` so that a reader sees the old or the new content, never a part. Raises WorkDirectoryError."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).chmod(0o644)  # temporary files are private
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise WorkDirectoryError(
            path, f"cannot be written: {error}", "free some space or mend its permissions"
        ) from error
