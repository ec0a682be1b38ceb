"""What TVM compiled for a CPU, linked as one library.

Machine code of each of its parts, and what holds its weights, is written by a thread of its own. LLVM and TVM hold no
lock of Python's meanwhile, and what they write depends on nothing else. Weights need no LLVM
(:mod:`tunehub.deploy.data_object`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tunehub.deploy.data_object import write_data_object

if TYPE_CHECKING:
    from tunehub.graph.types import Executable

OPTIONS = ("-Wl,--build-id=none",)  # without a hash of the weights, two thirds of the time that GNU's linker takes


def export_library(executable: Executable, path: Path, linker: str) -> None:
    """Write `executable` as the shared library `path`, byte for byte as its own `export_library` does with such options
    for the linker. Raises OSError, and what TVM raises."""
    mod = getattr(executable, "mod", None)
    parts = [] if mod is None else mod._collect_dso_modules()
    if not parts or any(each.kind != "llvm" or each["__tvm_is_system_module"]() for each in parts):
        executable.export_library(str(path), cc=linker)
        return
    from tvm.support import cc

    with TemporaryDirectory(prefix="tunehub-") as folder:
        objects = _objects(mod, parts, Path(folder))
        try:
            cc.create_shared(str(path), objects, list(OPTIONS), cc=linker)
        except RuntimeError:  # it may not know them; what else is wrong it says again
            cc.create_shared(str(path), objects, cc=linker)


def _objects(mod: Any, parts: list[Any], folder: Path) -> list[str]:
    """Files of the machine code of `parts`, and of all else that `mod` has."""

    def write(at: int) -> str:
        name = str(folder / f"lib{at}.o")
        parts[at].write_to_file(name)
        return name

    with ThreadPoolExecutor(len(parts) + 1) as pool:
        written = [pool.submit(write, at) for at in range(len(parts))]
        if mod.imports:
            written.append(pool.submit(_write_imports, mod, parts[-1], folder / f"lib{len(parts)}.o", written[0]))
        return [each.result() for each in written]


def _write_imports(mod: Any, part: Any, path: Path, first: Future[str]) -> str:
    """Write all that `mod` has but machine code, for the machine of `part` and of the `first` file of code."""
    import numpy as np
    import tvm
    from tvm.runtime import _ffi_api

    pack = tvm.get_global_func("runtime.ModulePackImportsToTensor", allow_missing=True)
    name = tvm.get_global_func("runtime.ModuleImportsBlobName", allow_missing=True)
    known = pack is not None and name is not None
    if not known or not write_data_object(path, str(name()), np.from_dlpack(pack(mod)), lambda: Path(first.result())):
        packed = _ffi_api.ModulePackImportsToLLVM(mod, False, part["_get_target_string"](), "")
        packed.write_to_file(str(path))
    return str(path)
