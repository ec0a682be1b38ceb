"""CPUs by the instructions that a test is about, and whether this machine runs code for them.

A test names its target, so that it means the same on every machine. What must run is skipped where the machine lacks
the instruction, with a reason that names it; what can be read off the code is asserted everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pytest

from tunehub.target.features import EXTENSIONS, all_llvm_features
from tunehub.target.host import host_cpu
from tunehub.target.tvm_generation import find_tvm

AVX2, AVX512, AVX_VNNI, AVX512_VNNI = "x86-64-v3", "skylake-avx512", "alderlake", "cascadelake"
AVX512_BF16, ZEN4, AMX = "cooperlake", "znver4", "sapphirerapids"
FEATURE_SETS = (AVX2, AVX512, AVX_VNNI, AVX512_VNNI, AVX512_BF16, ZEN4, AMX)
# What of each CPU decides, from the most special on: the first that a machine lacks is the reason to skip a test.
_NAMES = {
    "amx-bf16": "AMX-BF16", "amx-int8": "AMX-INT8", "avx512bf16": "AVX512_BF16", "avx512vnni": "AVX512-VNNI",
    "avxvnni": "AVX-VNNI", "avx512f": "AVX-512", "avx2": "AVX2",
}  # fmt: skip
_ABOUT = {AVX512_BF16: "avx512bf16", ZEN4: "avx512bf16", AMX: "amx-bf16"}
_REASON = re.compile(r"no (AVX[-_\w]*|AMX[-_\w]*|x86[-_\w]*)$")
_TVM = find_tvm()
needs_tvm = pytest.mark.skipif(_TVM is None or _TVM.release < (0, 27), reason="needs TVM 0.27")


def cpu(model: str, cores: int = 2) -> Any:
    """TVM's target for a CPU that LLVM calls ``model``."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": model, "num-cores": cores})


def host(cores: int) -> Any:
    """This machine with so many cores: for a test of what has to be right on any CPU."""
    import tvm

    found = host_cpu()
    return tvm.target.Target({**({"kind": "llvm"} if found is None else found.config()), "num-cores": cores})


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """What this machine has, in LLVM's spelling; not what LLVM takes its model to have."""
    found = host_cpu()
    return frozenset() if found is None else all_llvm_features(found.config())


@lru_cache(maxsize=32)
def lacking_here(model: str) -> str | None:
    """Why this machine does not run code for ``model``, or None: "no " and an instruction."""
    needed = all_llvm_features({"kind": "llvm", "mcpu": model})
    missing = {name for name in needed if EXTENSIONS.fullmatch(name)} - host_features()
    if not missing:
        return None
    about = _ABOUT.get(model)
    if about in missing:
        return f"no {_NAMES[about]}"
    return f"no {next((name for feature, name in _NAMES.items() if feature in missing), f'x86 as in {model}')}"


def runs_here(model: str) -> bool:
    """Whether this machine runs code for ``model``."""
    return lacking_here(model) is None


def skip_unless_runs(model: str) -> None:
    """Skip the test where this machine does not run code for ``model``."""
    reason = lacking_here(model)
    if reason is not None:
        pytest.skip(reason)


def needs(model: str) -> pytest.MarkDecorator:
    """The marker of a test that runs code for ``model``."""
    reason = lacking_here(model)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def here(*models: str) -> list[Any]:
    """Parameters of a test that runs code for each of ``models``."""
    return [pytest.param(model, marks=needs(model), id=model) for model in models]


def best_here(models: Iterable[str]) -> str:
    """The first of ``models`` whose code this machine runs; without any the test is skipped."""
    listed = list(models)
    found = next((model for model in listed if runs_here(model)), None)
    if found is None:
        pytest.skip(str(lacking_here(listed[-1])))
    return found


def instruction_missed(reason: str) -> str | None:
    """The instruction that a reason of a skip names, or None."""
    found = _REASON.search(reason)
    return None if found is None else found[1]
