"""The CUDA GPUs of this machine, as their driver describes them. Needs neither TVM nor CUDA's own packages."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from tunehub.target.gpu_architectures import REGISTERS, SM_80, WARP
from tunehub_registry.target import model_name

# Fields of `nvidia-smi --query-gpu`, in the order that they are asked for.
_FIELDS = ("name", "compute_cap", "memory.total", "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit")
_LIMIT_S = 20.0  # the first call after a boot loads the driver
_CAPABILITY = re.compile(r"(\d+)\.(\d)")
_NOISE = re.compile(r"\b(nvidia|amd|intel|geforce|tesla|quadro|graphics|gpu|sxm\d?|pcie|hbm\w*|\d+gb)\b|\(.*?\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU: the driver's ``name`` of it, ``arch`` (``sm_90``), and what the driver says of the rest.

    Memory in MiB, clocks in MHz, power in watts; None where the driver does not tell.
    """

    name: str
    arch: str
    memory_mib: int | None = None
    driver: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None

    @property
    def model(self) -> str:
        """The short name that packages use: ``NVIDIA H200`` is ``h200``."""
        return gpu_model(self.name)

    def tvm_config(self) -> dict[str, object]:
        """A target of TVM for tuning on this GPU, with the limits that every GPU from sm_80 on keeps."""
        return {
            "kind": "cuda",
            "arch": self.arch,
            "model": self.model,
            "max_threads_per_block": SM_80.threads,
            "max_num_threads": SM_80.threads,
            "max_shared_memory_per_block": SM_80.shared_memory,
            "registers_per_block": REGISTERS,
            "thread_warp_size": WARP,
        }

    def facts(self) -> dict[str, str | int | float]:
        """What evidence states of the device."""
        stated = {
            "gpu": self.name,
            "gpu_arch": self.arch,
            "gpu_memory_mib": self.memory_mib,
            "gpu_driver": self.driver,
            "gpu_max_sm_clock_mhz": self.sm_clock_mhz,
            "gpu_max_memory_clock_mhz": self.memory_clock_mhz,
            "gpu_power_limit_w": self.power_limit_w,
        }
        return {name: value for name, value in stated.items() if value is not None}


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that ``nvidia-smi`` lists, in its order; none without a driver."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_gpus(answer.stdout) if answer.returncode == 0 else ()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read the answer of ``nvidia-smi``, a line for each GPU; lines that are none are left out."""
    return tuple(filter(None, map(_gpu, text.splitlines())))


def gpu_model(name: str) -> str:
    """The short name of a GPU: vendor, product line, form factor and memory go (`NVIDIA A100-SXM4-80GB` → `a100`)."""
    words = re.findall(r"[a-z0-9.]+", _NOISE.sub(" ", name.lower()))
    return model_name("-".join(words))


def _gpu(line: str) -> Gpu | None:
    values = [value.strip() for value in line.split(",")]
    found = _CAPABILITY.fullmatch(values[1]) if len(values) == len(_FIELDS) else None
    if found is None or not values[0]:
        return None
    numbers = [_number(value) for value in (values[2], *values[4:])]
    return Gpu(
        name=values[0],
        arch=f"sm_{found[1]}{found[2]}",
        memory_mib=_whole(numbers[0]),
        driver=values[3] or None,
        sm_clock_mhz=_whole(numbers[1]),
        memory_clock_mhz=_whole(numbers[2]),
        power_limit_w=numbers[3],
    )


def _number(text: str) -> float | None:
    """The number in a field; ``[N/A]`` and the like are none."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
