"""What this machine is: its CPU and its GPU as a TargetDescriptor or as TVM's target, and its cores."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.exceptions import UnknownTargetError
from tunehub.target.amx_permission import refuses_amx
from tunehub.target.features import (
    all_llvm_features,
    differences,
    linux_features,
    llvm_features,
    names_by_features,
    relevant,
)
from tunehub.target.nvidia import find_gpus, gpu_model
from tunehub.target.tvm_generation import find_tvm
from tunehub_registry.target import TargetDescriptor, model_name

if TYPE_CHECKING:
    from tunehub.target.types import Target

_ARCH_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCpu:
    """This machine's CPU: ``model`` is LLVM's name of it, a guess where a virtual machine hides the model; ``mattr`` is
    what the CPU itself says otherwise of its features (``+amx-tile``, ``-avx512f``)."""

    model: str
    mattr: tuple[str, ...] = ()

    def config(self) -> dict[str, object]:
        """A target of TVM that is true of its features."""
        return {"kind": "llvm", "mcpu": self.model, **({"mattr": list(self.mattr)} if self.mattr else {})}


def host_cpu() -> HostCpu | None:
    """This machine's CPU; None when TVM cannot name it (before 0.15, or built without LLVM)."""
    name = _system_cpu()
    if name is None:
        return None
    arch = arch_of_triple(system_triple())
    of_model = all_llvm_features({"kind": "llvm", "mcpu": name})
    return HostCpu(model=name, mattr=differences(_system_features(arch), of_model, arch) if of_model else ())


def host_descriptor(*, use_tvm: bool | None = None) -> TargetDescriptor:
    """Describe the CPU of this machine: its model by LLVM when TVM is there (or `use_tvm`), its features by
    /proc/cpuinfo, and what that does not say by the model."""
    if use_tvm is None:
        use_tvm = find_tvm() is not None
    cpu = host_cpu() if use_tvm else None
    if cpu is not None:
        return TargetDescriptor(
            kind="llvm",
            model=model_name(cpu.model),
            arch=arch_of_triple(system_triple()),
            features=llvm_features(cpu.config()),
            num_cores=physical_cores(),
            aliases=names_by_features(cpu.model, cpu.mattr),
        )
    arch = machine_arch()
    return TargetDescriptor(
        kind="llvm",
        model=f"generic-{arch}",
        arch=arch,
        features=relevant(_system_features(arch) or ()),
        num_cores=physical_cores(),
    )


def host_target(kind: str = "llvm") -> Target:
    """A `tvm.target.Target` for this machine: its CPU with its LLVM name, the features in which it differs from what
    LLVM takes that name to mean (`mattr`) and its physical cores, or with `kind` `cuda` its first NVIDIA GPU with
    architecture, model and limits, as the driver's `nvidia-smi` describes it.

    Raises UnknownTargetError for another `kind`, or when there is no such GPU.
    """
    import tvm

    if kind == "cuda":
        gpus = find_gpus()
        if not gpus:
            remedy = "run on a machine with an NVIDIA GPU and its driver, or name the model, such as 'cuda-h100'"
            raise UnknownTargetError(kind, "nvidia-smi lists no GPU here", remedy=remedy)
        return tvm.target.Target(gpus[0].tvm_config())
    if kind != "llvm":
        raise UnknownTargetError(kind, "is no kind of this machine's targets", remedy="give 'llvm' or 'cuda'")
    cpu = host_cpu()
    config = {"kind": "llvm"} if cpu is None else cpu.config()
    return tvm.target.Target({**config, "num-cores": physical_cores()})


def gpu_descriptor() -> TargetDescriptor | None:
    """Describe the first CUDA GPU, or None when there is none (or no TVM to ask)."""
    if find_tvm() is None:
        return None
    import tvm

    device = tvm.device("cuda", 0)
    if not device.exist:
        return None
    arch = f"sm_{str(device.compute_version).replace('.', '')}"
    return TargetDescriptor(
        kind="cuda",
        model=gpu_model(str(device.device_name)),
        arch=arch,
        features=(arch,),
        max_threads_per_block=int(device.max_threads_per_block),
        max_shared_memory_per_block=int(device.max_shared_memory_per_block),
    )


def cpu_features() -> frozenset[str] | None:
    """What the system says that this machine's CPU has, in LLVM's spelling, and code may use; None where it does not
    tell. TVM is not asked."""
    return _system_features(machine_arch())


def physical_cores() -> int:
    """Physical cores that this process may use: /proc/cpuinfo's, else psutil's count, else all logical CPUs."""
    usable = usable_threads()
    return max(1, min(len(_linux_cores()) or _psutil_cores() or usable, usable))


def small_pool(environ: Mapping[str, str] | None = None) -> str | None:
    """Why TVM's thread pool is smaller than the physical cores, or None. TVM is not asked: that would start the pool.

    The rule is TVM's (`src/runtime/threading_backend.cc`, MaxConcurrency): half of the hardware threads on x86.
    """
    env = os.environ if environ is None else environ
    if env.get("TVM_NUM_THREADS") or env.get("OMP_NUM_THREADS") or machine_arch() != "x86_64":
        return None
    pool, cores = max(1, usable_threads() // 2), physical_cores()
    if pool >= cores:
        return None
    return (
        f"TVM's thread pool takes {pool} of {cores} physical cores (half of the hardware threads): "
        f"set TVM_NUM_THREADS={cores} before TVM is first used"
    )


def _psutil_cores() -> int | None:
    """psutil is not needed on Linux, where importing it would take longer than opening a hub."""
    try:
        import psutil
    except ImportError:
        return None
    cores: int | None = psutil.cpu_count(logical=False)
    return cores


def usable_threads() -> int:
    """The hardware threads that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def system_triple() -> str:
    """LLVM's triple of this machine."""
    return str(_ask_llvm("llvm_get_system_triple") or f"{machine_arch()}-unknown-linux-gnu")


def _system_cpu() -> str | None:
    """LLVM's name of this machine's CPU; None when TVM cannot say (before 0.15, or built without LLVM)."""
    name = _ask_llvm("llvm_get_system_cpu")
    return None if name is None else str(name)


def _ask_llvm(function: str) -> object:
    """What a function of `tvm.target.codegen` without arguments says, None where TVM does not have it."""
    from tvm.target import codegen

    try:
        return getattr(codegen, function)()
    except Exception:  # AttributeError in old releases, TVMError or TypeError without LLVM
        return None


def arch_of_triple(triple: str) -> str:
    """The instruction set in a triple, by one name each."""
    arch = triple.partition("-")[0].lower() or "unknown"
    return _ARCH_NAMES.get(arch, arch)


def machine_arch() -> str:
    """The instruction set of this machine; TVM is not asked."""
    machine = platform.machine().lower() or "unknown"
    return _ARCH_NAMES.get(machine, machine)


def _system_features(arch: str) -> frozenset[str] | None:
    """The features of ``/proc/cpuinfo`` without those of AMX where a sandbox refuses it to this process."""
    features = linux_features(_cpuinfo(), arch)
    amx = frozenset(name for name in features or () if name.startswith("amx-"))
    return features - amx if features and amx and refuses_amx() else features


def _linux_cores() -> set[tuple[str, str]]:
    """The physical cores in ``/proc/cpuinfo``: package and core."""
    pairs = [
        (key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in _cpuinfo().splitlines())
    ]
    packages, cores = ([value for key, value in pairs if key == name] for name in ("physical id", "core id"))
    return set(zip(packages, cores, strict=False))


def _cpuinfo(path: str = "/proc/cpuinfo") -> str:
    """The text of ``/proc/cpuinfo``; empty where there is none."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
