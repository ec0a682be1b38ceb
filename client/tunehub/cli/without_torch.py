"""TVM imports PyTorch where it is installed, to take its tensors: seconds, in commands that have none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_IMPORTERS, _TORCH = ("tvm_ffi", "tvm"), "torch"


class _Finder(MetaPathFinder):
    """Finds nothing; to TVM, while that is imported, PyTorch is not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == _TORCH and any(map(_is_being_imported, _IMPORTERS)):
            raise ModuleNotFoundError("not needed by this command", name=name)


def _is_being_imported(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def leave_out_torch(arguments: Sequence[str]) -> None:
    """Have TVM leave PyTorch alone, unless a command's arguments name a program of PyTorch's."""
    if any(each.endswith(".pt2") for each in arguments):
        return
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    sys.meta_path.insert(0, _Finder())
