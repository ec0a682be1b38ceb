"""Files of compiled code in the cache, shared by processes: at most so many bytes, used longest ago goes first.

Each is put in place in one step, and has the SHA-256 of its content as its name, or that of both in front of it: one
that is cut short, changed or another's counts as missing, and is made again. Code in a folder or file that others may
write to is never used. Whatever goes wrong here, a compile goes on without.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from tunehub._files.atomic import TEMPORARY, open_regular, write_file
from tunehub.options import Options
from tunehub.registries.blob_cache import KERNELS, LIBRARIES, BlobCache, is_sound, sealed, tag_cache, unsealed
from tunehub_registry.package import sha256_of

Folder = Literal["libraries", "kernels"]
SUFFIX = ".so"
_KEPT_SHARE = 0.9  # of the most bytes, once there are more
_MOST_SEALED_BYTES = 64 << 20
_EACH = 64  # kernels that are kept between two looks at the size of all


class ArtifactStore:
    """At most ``most_bytes`` of libraries and kernels in ``root``, the folder of the cache."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        """Touches nothing yet. With 0 bytes nothing is read or written."""
        self._root, self._most_bytes = root, most_bytes
        self._written = 0

    @property
    def is_used(self) -> bool:
        """Whether anything is to be kept, in a folder that only this user, or nobody yet, has written to."""
        return self._most_bytes > 0 and all(map(_is_own, (self._root, self._root / LIBRARIES, self._root / KERNELS)))

    def library(self, sha256: str) -> Path | None:
        """The library whose content has this hash; None without a whole one."""
        path = self.place(sha256)
        return path if _used(path, sound=_is_own(path) and is_sound(path, sha256)) else None

    def place(self, sha256: str) -> Path:
        """Where the library whose content has this hash lies, if it does."""
        return self._root / LIBRARIES / f"{sha256}{SUFFIX}"

    def keep_library(self, write: Callable[[Path], object]) -> str | None:
        """The hash of a library that ``write`` makes; None where that fails, or where it is larger than all may be."""
        folder = self._root / LIBRARIES
        try:
            self._make(folder)
            descriptor, name = tempfile.mkstemp(prefix=f"library{TEMPORARY}", suffix=SUFFIX, dir=folder)
            os.close(descriptor)
            made = Path(name)
            try:
                return self._named(made, write)
            finally:
                made.unlink(missing_ok=True)
        except Exception:  # of the disk, the linker, TVM
            return None

    def read(self, folder: Folder, name: str) -> bytes | None:
        """What :meth:`keep` has kept; None where it is not there, or not whole."""
        path = self._root / folder / name
        try:
            with open_regular(path) as stream:
                content = unsealed(name, stream.read(_MOST_SEALED_BYTES))
        except OSError:
            return None
        return content if _used(path, sound=content is not None) else None

    def keep(self, folder: Folder, name: str, content: bytes) -> None:
        """Keep ``content``."""
        with suppress(OSError):
            self._make(self._root / folder)
            write_file(self._root / folder / name, sealed(name, content))
            self._written += 1
            if folder == LIBRARIES or self._written % _EACH == 0:
                self.prune()

    def prune(self) -> None:
        """Remove what was used longest ago where there is more than may be, and what killed processes left."""
        with suppress(OSError):
            BlobCache(self._root).sweep()
            found = sorted(self._files())
            total = sum(size for _, size, _ in found)
            if total <= self._most_bytes:
                return
            for _, size, path in found:
                if total <= _KEPT_SHARE * self._most_bytes:
                    return
                path.unlink(missing_ok=True)
                total -= size

    def _named(self, made: Path, write: Callable[[Path], object]) -> str | None:
        write(made)
        if made.stat().st_size > _KEPT_SHARE * self._most_bytes:
            return None
        with made.open("rb+") as stream:
            os.fsync(stream.fileno())
        digest = sha256_of(made)
        made.replace(made.with_name(f"{digest}{SUFFIX}"))
        return digest

    def _make(self, folder: Path) -> None:
        tag_cache(self._root)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of the last use, bytes and path of each file that is whole."""
        for folder in (LIBRARIES, KERNELS):
            for path in (self._root / folder).glob("*"):
                with suppress(OSError):
                    state = path.stat()
                    if TEMPORARY not in path.name and path.suffix != ".lock":
                        yield state.st_mtime, state.st_size, path


def store_of(options: Options | None) -> ArtifactStore:
    """The store in the cache of a hub that was opened with `options`; None of these keep nothing."""
    if options is None:
        return ArtifactStore(Path(), 0)
    return ArtifactStore(options.cache, options.compiled << 20)


def _used(path: Path, *, sound: bool) -> bool:
    """``sound``, after a note that the file was used now; one that is not sound is removed."""
    with suppress(OSError):
        if sound:
            os.utime(path)
        else:
            path.unlink(missing_ok=True)
    return sound


def _is_own(path: Path) -> bool:
    """Whether nobody but this user, and root, may have written to a folder or file; one that is not there yet will be
    so."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return not hasattr(os, "geteuid") or (state.st_uid in (0, os.geteuid()) and not state.st_mode & 0o002)
