"""Compiled libraries: written in one step, and run by TVM's runtime alone."""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub._files.atomic import create_file
from tunehub.deploy.interface import FUNCTION, Interface, check_sound, decoded
from tunehub.deploy.runtime import as_numpy, cpu_machine, cpu_tensor, flat, load_module
from tunehub.exceptions import LibraryError, LinkError, TunehubError, last_line
from tunehub.target.features import extensions, llvm_features_of_text, not_in
from tunehub.target.host import cpu_features, gpu_descriptor, machine_arch
from tunehub_registry.printable import plain

if TYPE_CHECKING:
    import numpy.typing as npt

    from tunehub.graph.types import Executable, VirtualMachine
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, Device, DeviceTensor, Module, Object

    Arrays = Mapping[str, npt.NDArray[Any]]

SUFFIX = ".so"  # TVM's runtime loads a library by it
COMPILER_REMEDY = "install a C++ compiler (apt install g++), or name one with --cc or CXX"
_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_ELF = b"\x7fELF"
_FULL = "No space left on device"
_CODE_BYTES = 2 << 20  # of objects, beside weights
_OTHER_MACHINE = "compile the model on this machine, or with --target for it (`tunehub compile MODEL --target …`)"
_SM = re.compile(r"sm_(\d+)([af]?)")
_BEGINNING, _MOST_BYTES = b'{"inputs":', 1 << 20  # of an interface, as msgspec writes it
_MACHINE = ("kind", "mcpu", "mtriple", "mattr", "model", "arch")  # of TVM's targets
_DEVICES = frozenset({"llvm", "c"})  # kinds of targets that are CPUs; other devices are called as their kind


def find_linker(path: Path, cc: str | None = None) -> str:
    """What links the library `path`: `cc`, or the first compiler found, in TVM's order. Raises LinkError for none."""
    found = found_linker(cc)
    if found is None:
        raise LinkError(path, "no C++ compiler was found", remedy=COMPILER_REMEDY)
    return found


def found_linker(cc: str | None = None) -> str | None:
    """As `find_linker`, None for none."""
    named = cc or os.environ.get("CXX") or os.environ.get("CC")
    return named or next(filter(None, map(shutil.which, _COMPILERS)), None)


def write_library(executable: Executable, path: Path, cc: str | None = None, weights: int = 0) -> None:
    """Link what TVM compiled, with so many bytes of weights, as the shared library `path`, in one step: it is whole, or
    as it was.

    `cc` links it: None is the first compiler found. Raises LinkError.
    """
    from tunehub.deploy.exporting import export_library

    linker = find_linker(path, cc)
    _check_room(path, weights + _CODE_BYTES)
    try:
        create_file(path, lambda temporary: export_library(executable, temporary, linker))
    except OSError as error:
        raise LinkError(path, _missing(error) or error.strerror or str(error), remedy=_remedy(error)) from error
    except Exception as error:  # TVM raises RuntimeError or ValueError with all that the linker said
        said = _linker_said(str(error))
        remedy = "free space there, or give another folder" if _FULL in said else COMPILER_REMEDY
        raise LinkError(path, said, remedy=remedy) from error


def _check_room(path: Path, needed: int) -> None:
    """Raise LinkError where the folder of temporary files is too full for objects: there LLVM ends the process."""
    folder = tempfile.gettempdir()
    free = needed
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
    if free < needed:
        reason = f"TVM writes about {needed / 1e6:.0f} MB into {folder}, where {free / 1e6:.1f} MB are left"
        raise LinkError(path, reason, remedy="free space there, or set TMPDIR to a folder that has some")


def copy_library(source: Path, path: Path) -> None:
    """Put a copy of a library at `path`, in one step. Raises LinkError."""

    def copy(temporary: Path) -> None:
        shutil.copyfile(source, temporary)
        mode = temporary.stat().st_mode
        temporary.chmod(mode | (mode & 0o444) >> 2)  # linkers let those run it who may read it

    try:
        create_file(path, copy)
    except OSError as error:
        raise LinkError(path, error.strerror or str(error), remedy=_remedy(error)) from error


def share_library(source: Path, path: Path) -> None:
    """As `copy_library`; the same file by another name where the folders are on one disk: it may not be written to."""
    try:
        create_file(path, lambda temporary: temporary.hardlink_to(source))
    except OSError:
        copy_library(source, path)


def check_writable(path: Path, option: str) -> None:
    """Raise LibraryError unless a file can be made at `path`: before minutes of compiling, not after."""
    remedy = "give a file in a folder that you can write"
    if path.is_dir():
        raise LibraryError(path, "is a folder", place=option, remedy=remedy)
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason = "its folder does not exist" if not path.parent.is_dir() else error.strerror or str(error)
        raise LibraryError(path, reason, place=option, remedy=remedy) from None


def check_replaceable(path: Path, target: Target, source: str | None, remedy: str) -> None:
    """Raise LibraryError where the file `path` is there, and is no library of the model's file `source` for `target`.
    `source` None is a language model's folder, of which libraries say nothing."""
    if not path.exists():
        return
    found = stated_interface(path)
    if found is None:
        reason = None if source is None else "is there, and is no library of a model's file"
    elif found.source != source:
        reason = f"is the library of {found.source}"
    else:
        here, there = _machine(str(target)), _machine(found.target)
        reason = None if here == there else f"is the library for {there}, not for {here}"
    if reason is not None:
        raise LibraryError(path, plain(reason), place="--output", remedy=remedy)


def stated_interface(path: Path) -> Interface | None:
    """What a library says of itself, read from its bytes: nothing of it runs, so that it may be for any machine.
    None for other files. Raises OSError."""
    with path.open("rb") as stream, suppress(ValueError, RecursionError, LibraryError):  # an empty file has no map
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(_BEGINNING)
            text = data[at : at + _MOST_BYTES].decode(errors="replace") if at >= 0 else ""
        return decoded(json.dumps(json.JSONDecoder().raw_decode(text)[0]).encode(), path)
    return None


def runs_here(interface: Interface) -> bool:
    """Whether this machine has what a library is for."""
    return _lacking(interface) is None if interface.device in _DEVICES else gpu_descriptor() is not None


def _machine(target: str) -> str:
    """What code is generated for, of a target of TVM's in JSON: without what a user may change of it at no harm."""
    try:
        config = json.loads(target)
        return ", ".join(f"{key} {config[key]}" for key in _MACHINE if config.get(key))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return target


class Library:
    """A library in this process, on the first device of its kind. Loading one runs its code."""

    def __init__(self, path: Path) -> None:
        """Raises LibraryError: no such file, no whole library, not of `tunehub compile`, for another CPU or GPU."""
        _check_whole(path)
        try:
            module = load_module(path)
            cpu = cpu_machine(module)
            self.interface: Interface = decoded(as_numpy(cpu[FUNCTION]()).tobytes(), path)
            check_sound(self.interface, path)
            self._device = None if self.interface.device in _DEVICES else _device_of(self.interface)
        except TunehubError:
            raise
        except Exception as error:  # of the system's loader, or of TVM's
            raise _unusable(path, last_line(error)) from None
        if self._device is not None and not self._device.exist:
            raise _unusable(path, f"it is for a device that is not here: {self.interface.device}")
        lacking = _lacking(self.interface) if self._device is None else self._other_gpu()
        if lacking is not None:
            raise LibraryError(path, lacking, place="library", remedy=_OTHER_MACHINE)
        self.path = path
        self._machine = cpu if self._device is None else _machine_on(module, self._device)

    @property
    def device(self) -> Device | None:
        """TVM's device that it runs on, None for the CPU."""
        return self._device

    @property
    def main(self) -> Callable[..., Object]:
        """Its function `main`, of tensors on its device. Raises LibraryError where it has none."""
        try:
            found: Callable[..., Object] = self._machine["main"]
        except Exception as error:
            raise _unusable(self.path, f"it has no function main: {last_line(error)}") from None
        return found

    def tensor(self, array: Array) -> DeviceTensor:
        """`array` on its device: a copy, but on the CPU where its memory is aligned."""
        if self._device is None:
            return cpu_tensor(array)
        import tvm

        return tvm.runtime.tensor(array, self._device)

    def runner(self, inputs: Arrays) -> Callable[[], Object]:
        """A run on `inputs`, by name, which are on the device from then on; it ends when the device is done."""
        arguments = [self.tensor(inputs[each.name]) for each in self.interface.inputs]
        sync = None if self._device is None else self._device.sync
        main = self.main

        def run() -> Object:
            try:
                found = main(*arguments)
                if sync is not None:
                    sync()
            except Exception as error:
                raise self.failed(error) from None
            return found

        return run

    def failed(self, error: Exception) -> LibraryError:
        """What a run raised, as an error of this library."""
        return _unusable(self.path, f"running it failed: {last_line(error)}")

    def outputs(self, found: Object) -> dict[str, Array]:
        """What a run gave, by name, on the CPU. Raises LibraryError where that is not what its interface says."""
        names = [each.name for each in self.interface.outputs]
        return dict(zip(names, map(as_numpy, self.tensors(found)), strict=True))

    def tensors(self, found: Object) -> list[DeviceTensor]:
        """What a run gave, in order. Raises LibraryError where there are not as many as its interface says."""
        try:
            tensors = flat(found)
        except (TypeError, RecursionError):
            tensors = []
        if len(tensors) != len(self.interface.outputs):
            reason = f"its interface names {len(self.interface.outputs)} outputs, it gave {len(tensors)} arrays"
            raise _unusable(self.path, reason)
        return tensors

    def _other_gpu(self) -> str | None:
        """Why the code is not for the GPU that is here, or None."""
        wanted = _SM.fullmatch(self.interface.arch or "")
        here = str((self._device and self._device.compute_version) or "").replace(".", "")
        if wanted is None or not here.isdigit():
            return None
        number, of_one = int(wanted[1]), bool(wanted[2])
        if int(here) == number or (int(here) > number and not of_one):
            return None
        return f"it is compiled for {self.interface.arch}, the GPU here is sm_{here}"


def _lacking(interface: Interface) -> str | None:
    """What the code may use and this machine's CPU lacks; None where that is nothing, or not known. Code that uses it
    ends the process by a signal."""
    arch = machine_arch()
    if interface.arch not in (None, arch):
        return f"it is compiled for {interface.arch}, this machine is {arch}"
    features = interface.features or extensions(llvm_features_of_text(interface.target))
    missing = not_in(cpu_features(), features, arch)
    return f"its code may use what this CPU lacks: {', '.join(missing)}" if missing else None


def _device_of(interface: Interface) -> Device:
    import tvm

    return tvm.device(interface.device)


def _machine_on(module: Module, device: Device) -> VirtualMachine:
    from tvm.runtime.vm import VirtualMachine

    return VirtualMachine(module, device)


def _check_whole(path: Path) -> None:
    """Raise LibraryError for what the system's loader does not refuse: it maps a file whose end is missing, and the
    process dies by a signal when it touches that."""
    if not path.is_file():
        raise _unusable(path, "no such file")
    if path.suffix != SUFFIX:
        raise _unusable(path, f"does not end in {SUFFIX}; `tunehub compile MODEL` makes libraries of models")
    try:
        with path.open("rb") as stream:
            header, size = stream.read(64), os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    if not header.startswith(_ELF):
        raise _unusable(path, "is no shared library")
    if size < (least := _elf_bytes(header)):
        raise _unusable(path, f"is not whole: it has {size} of {least} bytes, copy or compile it again")


def _elf_bytes(header: bytes) -> int:
    """The least bytes of a 64-bit ELF file with this header: linkers write the table of sections last (elf(5)).
    0 for other files."""
    if len(header) < 64 or not header.startswith(_ELF + b"\x02"):
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
    return COMPILER_REMEDY if isinstance(error, FileNotFoundError) else "give a place that can be written"
