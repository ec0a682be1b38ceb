"""TVM's runtime, without the package `tvm` where a library needs no more: `libtvm_runtime.so` and apache-tvm-ffi.

`import tvm` takes a second and 300 MB on disk, most of it the compiler. A library for a CPU runs on 16 MB: the wheel
apache-tvm-ffi, and `libtvm_runtime.so` of the release that compiled it, in one of these places: the folder that TVM's
own variable `TVM_LIBRARY_PATH` names, the installed `tvm`, the library's own folder.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.exceptions import UnsupportedTVMError
from tunehub.target.tvm_generation import INSTALL_REMEDY, require_relax

if TYPE_CHECKING:
    from tunehub.graph.types import VirtualMachine
    from tunehub.tir.types import Array, DeviceTensor, Module, Object

ALIGNMENT = 64  # bytes: what TVM's kernels expect of memory
_RUNTIME, _EXTRA = "libtvm_runtime.so", "libtvm_runtime_extra.so"  # the second sorts and draws random numbers
_CPU, _POOLED = 1, 2  # DLPack's number of the device, and the VM's of its allocator
_LOADED: list[ctypes.CDLL] = []  # stays for the life of the process
_LOCK = threading.Lock()


def load_module(path: Path) -> Module:
    """The module of a library, which runs its code. Raises UnsupportedTVMError where TVM's runtime is not found, and
    what the system's loader raises."""
    _load_runtime(path)
    import tvm_ffi

    try:
        return tvm_ffi.load_module(str(path.resolve()))  # the system's loader looks elsewhere for names alone
    except Exception:
        if "tvm" in sys.modules or not _of_package():
            raise
        import tvm  # code of GPUs is read by what this loads

        return tvm.runtime.load_module(str(path.resolve()))


def cpu_machine(module: Module) -> VirtualMachine:
    """The virtual machine of a module on the CPU: its functions by name."""
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](_CPU, 0, _POOLED)
    return machine


def is_plain(dtype: str) -> bool:
    """Whether numpy itself has this element type, so that no `tvm` is needed for its arrays."""
    import numpy as np

    try:
        return np.dtype(dtype).isbuiltin == 1
    except TypeError:
        return False


def aligned(array: Array) -> Array:
    """`array` where kernels can read it as it lies: contiguous, aligned and writable; else a copy that is."""
    import numpy as np

    if array.size and array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    at = -memory.ctypes.data % ALIGNMENT
    if not array.size:  # whose strides numpy and TVM count differently
        strides = [array.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        empty: Array = np.ndarray(array.shape, array.dtype, memory, at, strides)
        return empty
    copy = memory[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def cpu_tensor(array: Array) -> DeviceTensor:
    """A tensor of the CPU with the elements of `array`, and its memory where that is aligned."""
    if not is_plain(str(array.dtype)):
        import tvm

        return tvm.runtime.tensor(array)
    import tvm_ffi

    return tvm_ffi.from_dlpack(aligned(array))


def as_numpy(tensor: DeviceTensor) -> Array:
    """A tensor's elements: its own memory on a CPU, where numpy has its element type."""
    import numpy as np

    if is_plain(str(tensor.dtype)) and str(tensor.device).startswith("cpu"):
        return np.from_dlpack(tensor)
    found: Array = tensor.numpy()
    return found


def flat(found: Object) -> list[DeviceTensor]:
    """The tensors of what `main` gave, in order. Raises TypeError for what is none."""
    if hasattr(found, "__dlpack__"):
        return [found]
    return [tensor for each in found for tensor in flat(each)]


def _load_runtime(path: Path) -> None:
    """Load TVM's runtime into this process, once. `tvm` loads it itself, and finds it there when it comes later."""
    with _LOCK:
        if "tvm" in sys.modules or _LOADED:
            return
        folder = next((each for each in _folders(path) if (each / _RUNTIME).is_file()), None)
        if folder is None:
            remedy = f"{INSTALL_REMEDY}; or put {_RUNTIME} of the release that compiled the library beside it"
            raise UnsupportedTVMError("TVM's runtime is not installed", remedy=remedy)
        try:
            import tvm_ffi  # noqa: F401 - the runtime takes its symbols from this one's library
        except ModuleNotFoundError:
            raise UnsupportedTVMError("apache-tvm-ffi is not installed", remedy=INSTALL_REMEDY) from None
        _LOADED.append(ctypes.CDLL(str(folder / _RUNTIME), ctypes.RTLD_GLOBAL))
        with suppress(OSError):  # few models sort
            _LOADED.append(ctypes.CDLL(str(folder / _EXTRA), ctypes.RTLD_GLOBAL))


def _folders(path: Path) -> Iterator[Path]:
    """Where TVM's runtime may lie. Raises UnsupportedTVMError for an installed TVM that is none of those supported."""
    named = os.environ.get("TVM_LIBRARY_PATH")
    if named:
        yield Path(named)
    for folder in _of_package():
        require_relax()
        yield Path(folder) / "lib"
    yield path.resolve().parent


def _of_package() -> Iterable[str]:
    try:
        spec = importlib.util.find_spec("tvm")
    except (ImportError, ValueError):
        return ()
    return (spec.submodule_search_locations or ()) if spec else ()
