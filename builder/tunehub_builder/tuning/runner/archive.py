"""A built candidate on its way from the process that built it to the device that measures it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.tir.types import Module

LIBRARY = "candidate.tar"


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """Object files as a tar, which whoever loads it links, as TVM's own runners do it; so it may be for another CPU.

    ``shapes``: shape and element type of each parameter. ``cubin``: machine code of the CUDA ``source`` in it.
    """

    library: bytes
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    source: str = ""
    cubin: bytes = b""


def packed_library(library: Module) -> bytes:
    """What TVM has built, as a tar of object files."""
    with tempfile.TemporaryDirectory(prefix="tunehub-") as folder:
        path = Path(folder) / LIBRARY
        library.export_library(str(path))
        return path.read_bytes()


def loaded_library(archive: Archive) -> Module:
    """Link and load on this machine. Raises RuntimeError without a C compiler."""
    import tvm

    with tempfile.TemporaryDirectory(prefix="tunehub-") as folder:  # a library stays loaded when its file is gone
        path = Path(folder) / LIBRARY
        path.write_bytes(archive.library)
        return tvm.runtime.load_module(str(path))
