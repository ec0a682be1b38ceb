"""What TVM compiled for a CPU, linked as one library.

Machine code of each of its parts, and what holds its weights, is written by a thread of its own. LLVM and TVM hold no
lock of Python's meanwhile, and what they write depends on nothing else.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunehub.graph.types import Executable


def export_library(executable: Executable, path: Path, linker: str) -> None:
    """Write `executable` as the shared library `path`, byte for byte as its own `export_library` does. Raises OSError,
    and what TVM raises."""
    mod = getattr(executable, "mod", None)
    parts = [] if mod is None else mod._collect_dso_modules()
    if not parts or any(each.kind != "llvm" or each["__tvm_is_system_module"]() for each in parts):
        executable.export_library(str(path), cc=linker)
        return
    from tvm.support import cc

    with TemporaryDirectory(prefix="tunehub-") as folder:
        cc.create_shared(str(path), _objects(mod, parts, Path(folder)), cc=linker)


def _objects(mod: Any, parts: list[Any], folder: Path) -> list[str]:
    """Files of the machine code of `parts`, and of all else that `mod` has."""
    from tvm.runtime import _ffi_api

    def packed() -> Any:
        return _ffi_api.ModulePackImportsToLLVM(mod, False, parts[-1]["_get_target_string"](), "")

    def write(at: int) -> str:
        part = parts[at] if at < len(parts) else packed()
        name = str(folder / f"lib{at}.o")
        part.write_to_file(name)
        return name

    count = len(parts) + bool(mod.imports)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(write, range(count)))
