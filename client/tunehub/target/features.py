"""Features of CPUs in LLVM's spelling: the one list of those that matter, and what a target has of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# LLVM features that decide which schedules are legal or fast; the rest (ciphers, tuning flags, system instructions)
# would only keep related machines apart.
RELEVANT = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq",
    "avx512cd", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "avxvnniint8", "avxifma", "avxneconvert",
    "amx-tile", "amx-int8", "amx-bf16", "amx-fp16", "neon", "fullfp16", "dotprod", "i8mm", "bf16", "fp16fml", "sve",
    "sve2", "sme", "sme2", "v", "zvl128b", "zvl256b", "zvl512b",
}  # fmt: skip
# Linux spells some of them in its own way (/proc/cpuinfo).
_FROM_LINUX = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx_vnni": "avxvnni", "avx_vnni_int8": "avxvnniint8", "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert", "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16", "asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod", "asimdfhm": "fp16fml",
}  # fmt: skip
# What generated code may use and a machine may lack; tuning flags such as `fast-lzcnt` are left out.
EXTENSIONS = re.compile(r"avx.*|fma|f16c|amx.*|sse4\.[12]|neon|dotprod|fullfp16|bf16|i8mm|sve.*|sme.*|v|zv.*")


def relevant(names: Iterable[str]) -> tuple[str, ...]:
    """Those of ``names`` that matter, sorted."""
    return tuple(sorted(RELEVANT.intersection(names)))


def linux_features(flags: Iterable[str]) -> tuple[str, ...]:
    """The features that matter of the flags in ``/proc/cpuinfo``."""
    return relevant(_FROM_LINUX.get(flag, flag) for flag in flags)


def llvm_features(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The relevant features that LLVM generates code with for a target, mattr considered."""
    import tvm
    from tvm.target import codegen

    try:
        return relevant(str(name) for name in codegen.llvm_get_cpu_features(tvm.target.Target(dict(config))))
    except Exception:  # an architecture that this build of LLVM lacks: nothing is known about it
        return ()
