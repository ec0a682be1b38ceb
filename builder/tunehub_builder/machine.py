"""This machine and what it can be tuned for. Records of it name the hardware, never the host, the user or a path."""

from __future__ import annotations

import difflib
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunehub.host import physical_cores
from tunehub_builder.exceptions import UnknownTargetError, UnsuitableTargetError

HOST = "host"
# LLVM's names of the extensions that a schedule's code may use; tuning flags such as `fast-lzcnt` are left out.
_EXTENSIONS = re.compile(r"avx.*|fma|f16c|amx.*|sse4\.[12]|neon|dotprod|fullfp16|bf16|i8mm|sve.*|sme.*|v|zv.*")


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTarget:
    """A CPU to tune for: the package name, TVM's target as JSON, and float32 elements in its widest vector."""

    name: str
    config: dict[str, Any]
    vector: int


def find_target(name: str) -> TuningTarget:
    """Return the target called ``name``: ``host``, or ``llvm-`` and LLVM's name of a CPU.

    Raises UnknownTargetError, or UnsuitableTargetError for a CPU with instructions that this machine does not have.
    """
    from tvm.target import codegen

    host = str(codegen.llvm_get_system_cpu())
    model = host if name == HOST else name.removeprefix("llvm-")
    known = [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(_llvm(host))]
    if not (name == HOST or name.startswith("llvm-")) or model not in known:
        raise UnknownTargetError(name, _alike(name, known, host))
    features = _extensions(model)
    missing = sorted(features - _extensions(host))
    if missing:
        raise UnsuitableTargetError(name, f"this machine ({host}) lacks {', '.join(missing)}")
    config = {"kind": "llvm", "mcpu": model, "num-cores": physical_cores()}
    return TuningTarget(name=f"llvm-{model}", config=config, vector=_vector(features))


def describe_machine() -> dict[str, str | int | float]:
    """The hardware and the family of the operating system, as a package's manifest states them."""
    import psutil
    from tvm.target import codegen

    kernel = re.match(r"\d+\.\d+", platform.release())
    return {
        "cpu": _cpu_model(),
        "llvm_cpu": str(codegen.llvm_get_system_cpu()),
        "arch": platform.machine(),
        "physical_cores": physical_cores(),
        "hardware_threads": psutil.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "os": f"{platform.system()} {kernel.group() if kernel else ''}".strip(),
        "python": platform.python_version(),
    }


def tvm_versions() -> tuple[str, str]:
    """The versions of apache-tvm and apache-tvm-ffi that are imported here."""
    import tvm
    import tvm_ffi

    return str(tvm.__version__), str(tvm_ffi.__version__)


def _llvm(model: str) -> Any:
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": model})


def _extensions(model: str) -> set[str]:
    from tvm.target import codegen

    features = codegen.llvm_get_cpu_features(_llvm(model))
    return {str(feature) for feature in features if _EXTENSIONS.fullmatch(str(feature))}


def _vector(features: set[str]) -> int:
    if "avx512f" in features:
        return 16
    return 8 if "avx" in features else 4


def _alike(name: str, known: list[str], host: str) -> list[str]:
    close = difflib.get_close_matches(name.removeprefix("llvm-"), known, n=4)
    return [HOST, *(f"llvm-{cpu}" for cpu in dict.fromkeys([host, *close]))]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()
