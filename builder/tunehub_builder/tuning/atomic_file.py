"""Files that are replaced as a whole. Apart from `work_directory`, because a command that only writes one starts faster
without that module's imports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tunehub._files.atomic import fill_file
from tunehub_builder.exceptions import WorkDirectoryError


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write ``path`` so that a reader sees the old or the new content, never a part. Raises WorkDirectoryError."""

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines(chunks)
        temporary.chmod(0o644)  # temporary files are private

    try:
        fill_file(path, fill)
    except OSError as error:
        raise WorkDirectoryError(
            path, f"cannot be written: {error}", "free some space or mend its permissions"
        ) from error
