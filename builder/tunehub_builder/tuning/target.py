"""This machine and what it can be tuned for. Records of it name the hardware, never the host, the user or a path.

Works with both generations of TVM: 0.25 to 0.27, and 0.8 to 0.19 (which also takes targets as TVM's text of them).
"""

from __future__ import annotations

import difflib
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.target.features import EXTENSIONS
from tunehub.target.host import host_cpu, physical_cores
from tunehub.target.tvm_generation import Generation, find_tvm
from tunehub.target.tvm_releases import RELAX_RANGE, RELAY_RANGE
from tunehub_builder.exceptions import NoSuchTargetError, TuningError, UnsuitableTargetError
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub.target.types import Target

HOST = "host"
NO_FFI = "none"
_BOARD_TRIPLES = ("aarch64-linux-gnu", "x86_64-linux-gnu", "armv7l-linux-gnueabihf", "riscv64-linux-gnu")


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTarget:
    """A device to tune for: the package name, TVM's target as JSON, and float32 elements in a CPU's widest vector.

    For TVM <= 0.19 ``config`` is ``{"text": ...}``: the target as that TVM writes it into its records.
    """

    name: str
    config: dict[str, Any]
    vector: int = 0


def generation() -> Generation:
    """Which TVM is installed: ``relax`` or ``relay``. Raises TuningError for one that is neither."""
    installed = find_tvm()
    if installed is None:
        return "relax"  # importing it says what is missing
    if installed.generation is None:
        raise TuningError(
            f"TVM {installed.version} cannot be tuned with: install {RELAX_RANGE} ({pip_install('builder')}), "
            f"or {RELAY_RANGE} ({pip_install('legacy')})"
        )
    return installed.generation


def find_board_cpu(name: str, cores: int) -> TuningTarget:
    """The CPU with ``cores`` of a board: as :func:`find_cpu`, but of any architecture that boards run Linux on.

    Raises NoSuchTargetError. What only LLVM's name tells is not asked of the board.
    """
    from tvm.target import codegen

    host = str(codegen.llvm_get_system_cpu())
    model = host if name == HOST else name.removeprefix("llvm-")
    known = {"": [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(_llvm(host))]}
    for triple in _BOARD_TRIPLES:
        known[triple] = [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(_llvm("", triple))]
    found = [triple for triple, models in known.items() if model in models]
    if not found or not (name == HOST or name.startswith("llvm-")):
        raise NoSuchTargetError(name, _alike(name, [cpu for models in known.values() for cpu in models], host))
    config = {"kind": "llvm", "mcpu": model, "num-cores": cores, **({"mtriple": found[0]} if found[0] else {})}
    cpu = Cpu(model, frozenset(_extensions(model, found[0])))
    return TuningTarget(name=f"llvm-{model}", config=config, vector=cpu.vector)


@dataclass(frozen=True, slots=True)
class Cpu:
    """LLVM's name of a CPU, its extensions, and in which of these it differs from what LLVM takes the name to mean."""

    model: str
    features: frozenset[str]
    mattr: tuple[str, ...] = ()

    @property
    def vector(self) -> int:
        """float32 elements in the widest vector register."""
        if "avx512f" in self.features:
            return 16
        return 8 if "avx" in self.features else 4


def find_cpu(name: str, *, remote: bool = False) -> Cpu:
    """The CPU that ``host`` or ``llvm-`` and LLVM's name mean.

    Raises NoSuchTargetError, and UnsuitableTargetError when this machine lacks its extensions (``remote``: it need not
    have them).
    """
    from tvm.target import codegen

    own = host_cpu()
    host = own.model if own is not None else "generic"
    model = host if name == HOST else name.removeprefix("llvm-")
    known = [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(_llvm(host))]
    if not (name == HOST or name.startswith("llvm-")) or model not in known:
        raise NoSuchTargetError(name, _alike(name, known, host))
    mattr = own.mattr if own is not None else ()
    features, here = _extensions(model), _extensions(host, mattr=mattr)
    if model == host and not remote:
        return Cpu(model, frozenset(here), mattr)
    missing = sorted(features - here)
    if missing and not remote:
        raise UnsuitableTargetError(name, f"this machine ({host}) lacks {', '.join(missing)}")
    return Cpu(model, frozenset(features))


def describe_machine(target: TuningTarget | None = None) -> dict[str, str | int | float]:
    """The hardware and the family of the operating system, as a package's manifest states them.

    For a ``target`` that is a GPU also what its driver says of that; for a CPU that has less than this one, which of
    this one's extensions were switched off.
    """
    import psutil

    from tunehub.target.nvidia import find_gpus

    gpus = find_gpus()[:1] if target is not None and target.config.get("kind") == "cuda" else ()
    kernel = re.match(r"\d+\.\d+", platform.release())
    return {
        "cpu": _cpu_model(),
        "llvm_cpu": _llvm_cpu(),
        "arch": platform.machine(),
        "physical_cores": physical_cores(),
        "hardware_threads": psutil.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "os": f"{platform.system()} {kernel.group() if kernel else ''}".strip(),
        "python": platform.python_version(),
        **(gpus[0].facts() if gpus else {}),
        **({} if target is None else _switched_off(target)),
    }


def _switched_off(target: TuningTarget) -> dict[str, str]:
    """The extensions of this CPU that code for a CPU like it goes without."""
    own, config = host_cpu(), target.config
    if own is None or config.get("kind") != "llvm" or config.get("mtriple"):
        return {}
    here = _extensions(own.model, mattr=own.mattr)
    off = here - _extensions(str(config.get("mcpu", own.model)), mattr=tuple(config.get("mattr", ())))
    return {"switched_off": " ".join(sorted(off))} if off else {}


def tvm_versions() -> tuple[str, str]:
    """The versions of apache-tvm and apache-tvm-ffi that are imported here; ``none`` for a TVM without that part."""
    import tvm

    if generation() == "relay":
        return str(tvm.__version__), NO_FFI
    import tvm_ffi

    return str(tvm.__version__), str(tvm_ffi.__version__)


def _llvm_cpu() -> str:
    """LLVM's name of this CPU; TVM tells it since 0.15."""
    from tvm.target import codegen

    ask = getattr(codegen, "llvm_get_system_cpu", None)
    return str(ask()) if ask else "unknown"


def _llvm(model: str, triple: str = "", mattr: tuple[str, ...] = ()) -> Target:
    import tvm

    given = {"mcpu": model, "mtriple": triple, "mattr": list(mattr)}
    return tvm.target.Target({"kind": "llvm", **{name: value for name, value in given.items() if value}})


def _extensions(model: str, triple: str = "", mattr: tuple[str, ...] = ()) -> set[str]:
    from tvm.target import codegen

    features = codegen.llvm_get_cpu_features(_llvm(model, triple, mattr))
    return {str(feature) for feature in features if EXTENSIONS.fullmatch(str(feature))}


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
