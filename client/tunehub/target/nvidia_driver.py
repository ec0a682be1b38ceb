"""What NVIDIA's driver says of a GPU, by its own library: rates and sizes that no target has, nor `nvidia-smi`."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tunehub.target.nvidia import gpu_model

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NAME_BYTES = 128
_KILO = 1000  # clocks are in kHz
# CUDA Driver API, CUdevice_attribute.
_CAPABILITY = (75, 76)
_COUNTS = {
    "multiprocessors": 16,
    "shared_memory": 81,
    "block_shared_memory": 97,
    "registers": 82,
    "blocks": 106,
    "l2": 38,
}
_CLOCK, _MEMORY_CLOCK, _BUS_BITS, _WARP, _THREADS = 13, 36, 37, 10, 39


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFacts:
    """A GPU: its short name ``model``, ``architecture`` (``sm_86``), the number of ``multiprocessors``, their ``clock``
    in Hz, the most that one has of ``shared_memory`` (bytes, of which a block may ask for ``block_shared_memory``),
    ``registers``, ``blocks`` and ``warps``, bytes of ``l2``, and the ``bandwidth`` of memory in bytes a second."""

    model: str
    architecture: str
    multiprocessors: int
    clock: float
    shared_memory: int
    block_shared_memory: int
    registers: int
    blocks: int
    warps: int
    l2: int
    bandwidth: float


@cache
def driver_facts() -> DriverFacts | None:
    """Of the first GPU; None without one, or where the driver does not tell. The driver is asked once."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return facts_of(driver)


def facts_of(driver: ctypes.CDLL) -> DriverFacts | None:
    """As :func:`driver_facts`, of what ``driver``, its library, says."""
    device, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    if driver.cuDeviceGetName(name, _NAME_BYTES, device):
        return None

    def ask(attribute: int) -> int:
        value = ctypes.c_int()
        failed = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        return 0 if failed else value.value

    return _facts(name.value.decode("utf-8", "replace"), ask)


def _facts(name: str, ask: Callable[[int], int]) -> DriverFacts | None:
    counts = {field: ask(attribute) for field, attribute in _COUNTS.items()}
    clock, bandwidth = _KILO * ask(_CLOCK), 2 * _KILO * ask(_MEMORY_CLOCK) * ask(_BUS_BITS) // 8
    warps = ask(_THREADS) // max(1, ask(_WARP))
    if min(*counts.values(), clock, bandwidth, warps) < 1:
        return None
    architecture = "sm_" + "".join(str(ask(part)) for part in _CAPABILITY)
    return DriverFacts(
        model=gpu_model(name),
        architecture=architecture,
        clock=float(clock),
        bandwidth=float(bandwidth),
        warps=warps,
        **counts,
    )
