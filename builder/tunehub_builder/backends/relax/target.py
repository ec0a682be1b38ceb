"""Targets of TVM 0.25 to 0.27: CPUs by LLVM's names, and the GPU of this machine."""

from __future__ import annotations

from tunehub.target.host import HostCpu, physical_cores
from tunehub_builder.exceptions import UnsuitableTargetError
from tunehub_builder.tuning.target import TuningTarget, find_cpu


def find_relax_target(name: str) -> TuningTarget:
    """The target called ``name``: ``host``, ``llvm-`` and LLVM's name of a CPU, or a GPU (:func:`find_gpu`).

    Raises NoSuchTargetError, or UnsuitableTargetError for a device that this machine is or has not.
    """
    if name == "cuda" or name.startswith("cuda-"):
        return find_gpu(name)
    found = find_cpu(name)
    own = HostCpu(model=found.model, mattr=found.mattr).config()
    config = {**own, "num-cores": physical_cores()}
    return TuningTarget(name=f"llvm-{found.model}", config=config, vector=found.vector)


def find_gpu(name: str) -> TuningTarget:
    """The GPU of this machine, as ``cuda`` or by its package's name (``cuda-h200``).

    Raises UnsuitableTargetError when the machine has none, or another one.
    """
    from tunehub.target.nvidia import find_gpus

    gpus = find_gpus()
    if not gpus:
        raise UnsuitableTargetError(name, "this machine has no CUDA GPU that its driver knows")
    gpu = gpus[0]
    if name not in ("cuda", f"cuda-{gpu.model}"):
        raise UnsuitableTargetError(name, f"this machine has a {gpu.name} (cuda-{gpu.model})")
    return TuningTarget(name=f"cuda-{gpu.model}", config=gpu.tvm_config())
