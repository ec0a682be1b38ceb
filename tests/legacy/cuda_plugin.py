"""CUDA for a TVM 0.19 that was built without it, where a library adds it: for tests that need no GPU."""

from __future__ import annotations

import ctypes
import os

import pytest

VARIABLE = "TUNEHUB_TVM19_CUDA"
TARGET = "cuda -arch=sm_90 -model=h200"


def _problem() -> str:
    """Why this TVM generates no CUDA source; empty when it does. Loads what the variable names."""
    import tvm

    if tvm.get_global_func("target.build.cuda", allow_missing=True) is None:
        places = os.environ.get(VARIABLE, "")
        if not places:
            names = "libraries that add it to TVM 0.19, in the order in which they are loaded, separated by colons"
            return f"this TVM was built without CUDA; {VARIABLE} may name {names}"
        for place in places.split(":"):
            ctypes.CDLL(place, ctypes.RTLD_GLOBAL)
    if tvm.get_global_func("target.build.cuda", allow_missing=True) is None:
        return f"{VARIABLE} names libraries that do not add CUDA to this TVM"
    return ""


_reason = _problem()
needs_cuda = pytest.mark.skipif(bool(_reason), reason=_reason or "CUDA is there")
