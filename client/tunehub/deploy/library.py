"""Compiled libraries: written in one step, and run by TVM's runtime alone."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub._files.atomic import create_file
from tunehub.deploy.interface import FUNCTION, Interface, decoded
from tunehub.exceptions import LibraryError, LinkError, last_line

if TYPE_CHECKING:
    import numpy.typing as npt

    Arrays = Mapping[str, npt.NDArray[Any]]

SUFFIX = ".so"  # TVM's runtime loads a library by it
_COMPILER_REMEDY = "install a C++ compiler (apt install g++), or name one with --cc or CXX"
_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_FULL = "No space left on device"
_DEVICES = {"llvm": "cpu", "c": "cpu"}  # the others are called as their target


def find_linker(path: Path, cc: str | None = None) -> str:
    """What links the library `path`: `cc`, or the first compiler found, in TVM's order. Raises LinkError for none."""
    named = cc or os.environ.get("CXX") or os.environ.get("CC")
    found = named or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        raise LinkError(path, "no C++ compiler was found", remedy=_COMPILER_REMEDY)
    return found


def write_library(executable: Any, path: Path, cc: str | None = None) -> None:
    """Link what TVM compiled as the shared library `path`, in one step: it is whole, or as it was.

    `cc` links it: None is the first compiler found. Raises LinkError.
    """
    linker = find_linker(path, cc)
    try:
        create_file(path, lambda temporary: executable.export_library(str(temporary), cc=linker))
    except OSError as error:
        raise LinkError(path, _missing(error) or error.strerror or str(error), remedy=_remedy(error)) from error
    except Exception as error:  # TVM raises RuntimeError or ValueError with all that the linker said
        said = _linker_said(str(error))
        remedy = "free space there, or give another folder" if _FULL in said else _COMPILER_REMEDY
        raise LinkError(path, said, remedy=remedy) from error


def check_writable(path: Path, option: str) -> None:
    """Raise LibraryError unless a file can be made at `path`: before minutes of compiling, not after."""
    import tempfile

    remedy = "give a file in a folder that you can write"
    if path.is_dir():
        raise LibraryError(path, "is a folder", place=option, remedy=remedy)
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason = "its folder does not exist" if not path.parent.is_dir() else error.strerror or str(error)
        raise LibraryError(path, reason, place=option, remedy=remedy) from None


class Library:
    """A library in this process, on the first device of its kind. Loading one runs its code."""

    def __init__(self, path: Path) -> None:
        """Raises LibraryError: no such file, no whole library, not of `tunehub compile`, or no such device."""
        import tvm
        from tvm.runtime.vm import VirtualMachine

        _check_whole(path)
        try:
            module = tvm.runtime.load_module(str(path))
            cpu = VirtualMachine(module, tvm.cpu())
            self.interface: Interface = decoded(cpu[FUNCTION]().numpy().tobytes(), path)
        except LibraryError:
            raise
        except Exception as error:  # of the system's loader, or of TVM's
            raise _unusable(path, last_line(error)) from None
        self._device = tvm.device(_DEVICES.get(self.interface.device, self.interface.device))
        if not self._device.exist:
            raise _unusable(path, f"it is for a device that is not here: {self.interface.device}")
        self._machine = cpu if self.interface.device in _DEVICES else VirtualMachine(module, self._device)

    def runner(self, inputs: Arrays) -> Callable[[], Any]:
        """A run on `inputs`, by name, which are on the device from then on; it ends when the device is done."""
        import tvm

        main = self._machine["main"]
        arguments = [tvm.runtime.tensor(inputs[each.name], self._device) for each in self.interface.inputs]
        sync = self._device.sync if self.interface.device not in _DEVICES else None

        def run() -> Any:
            found = main(*arguments)
            if sync is not None:
                sync()
            return found

        return run

    def outputs(self, found: Any) -> dict[str, npt.NDArray[Any]]:
        """What a run gave, by name."""
        arrays = [each.numpy() for each in _flat(found)]
        names = [each.name for each in self.interface.outputs]
        return dict(zip(names, arrays, strict=True))


def _flat(found: Any) -> list[Any]:
    return [found] if hasattr(found, "numpy") else [tensor for each in found for tensor in _flat(each)]


def _check_whole(path: Path) -> None:
    """Raise LibraryError for what the system's loader does not refuse: it maps a file whose end is missing, and the
    process dies by a signal when it touches that."""
    if not path.is_file():
        raise _unusable(path, "no such file")
    if path.suffix != SUFFIX:
        raise _unusable(path, f"does not end in {SUFFIX}; `tunehub compile MODEL` makes libraries of models")
    try:
        with path.open("rb") as stream:
            least, size = _elf_bytes(stream.read(64)), os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    if size < least:
        raise _unusable(path, f"is not whole: it has {size} of {least} bytes, copy or compile it again")


def _elf_bytes(header: bytes) -> int:
    """The least bytes of a 64-bit ELF file with this header: linkers write the table of sections last (elf(5)).
    0 for other files."""
    if len(header) < 64 or not header.startswith(b"\x7fELF\x02"):
        return 0
    order = ">" if header[5] == 2 else "<"
    (offset,) = struct.unpack_from(f"{order}Q", header, 40)
    entry_bytes, entries = struct.unpack_from(f"{order}2H", header, 58)
    return int(offset + entry_bytes * entries)


def _unusable(path: Path, reason: str) -> LibraryError:
    remedy = "give a library that `tunehub compile` wrote on this kind of machine"
    return LibraryError(path, reason, place="library", remedy=remedy)


def _linker_said(text: str) -> str:
    """The line of a linker's output that has the reason; TVM puts the command behind it."""
    said = text.partition("Command line:")[0]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = next((line for line in lines if _FULL in line or "error" in line.lower().split(":")), None)
    return f"linking failed: {(found or (lines[-1] if lines else 'no reason given'))[:300]}"


def _missing(error: OSError) -> str | None:
    return f"no program {error.filename}" if isinstance(error, FileNotFoundError) and error.filename else None


def _remedy(error: OSError) -> str:
    return _COMPILER_REMEDY if isinstance(error, FileNotFoundError) else "give a place that can be written"
