"""The least time that a workload can take: arithmetic and bytes over what no device of its kind exceeds. Pure.

Ceilings are generous on purpose: what is refused is impossible, and what is merely unlikely passes. CPUs: two vector
multiply-adds of the widest vectors a cycle, two loads of one, at 6.5 GHz on every thread; a profile in the package can
only lower that. GPUs: dense peaks of their files (:mod:`tunehub.kernels.devices`), and 16 times the memory's rate, as
caches serve repeats.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tunehub.kernels.devices.known import known_devices
from tunehub_registry.machine_profile import MachineProfile
from tunehub_registry.target import TargetDescriptor

_HERTZ = 6.5e9
_FASTER_THAN_PROFILE = 1.5  # a core alone may run at a higher clock than when it was measured
_COUNTED_TWICE = 2.0  # operations that a compiler may save: those of a multiply-add by a constant, say
_WINOGRAD = 9.0  # multiplications that its largest tiles for 3x3 save at most
MOST_THREADS = 1024
# Times as fast as in float32: groups of bytes or pairs in vectors, or tiles of AMX.
_NARROW = {"int8": 64.0, "uint8": 64.0, "bfloat16": 32.0, "float16": 2.0}
_GPU_WIDE = 0.5  # of the rate in float16: TF32, what float32 may become
_GPU_NARROW = {"int8": 2.0, "uint8": 2.0, "bfloat16": 1.0, "float16": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """What a device does at most: operations and bytes a second. ``source``: in words."""

    operations: float
    moved: float
    source: str

    def least_s(self, operations: float, moved: float, *, winograd: bool = False) -> float:
        """Seconds below which nobody can be, for so many operations and bytes."""
        saved = _COUNTED_TWICE * (_WINOGRAD if winograd else 1.0)
        return max(operations / saved / self.operations, moved / self.moved)


def ceiling_of(
    target: TargetDescriptor, threads: int, types: Collection[str], profile: MachineProfile | None
) -> Ceiling:
    """The ceiling of a device with so many ``threads``, for functions with elements of ``types``."""
    if target.kind == "cuda":
        known = known_devices()
        device = known.get(target.model) or max(known.values(), key=lambda each: each.tensor_flops)
        narrow = max((_GPU_NARROW.get(each, _GPU_WIDE) for each in types), default=_GPU_WIDE)
        return Ceiling(
            operations=device.tensor_flops * narrow,
            moved=16 * device.peak_bandwidth,
            source=f"data sheet of {target.model}",
        )
    lanes = 8 if target.features and "avx512f" not in target.features and target.arch == "x86_64" else 16
    threads = min(threads, MOST_THREADS)
    narrow = max((_NARROW.get(each, 1.0) for each in types), default=1.0)
    core, source = 4 * lanes * _HERTZ, f"{lanes} lanes, 6.5 GHz"
    if profile is not None and 2 * lanes / profile.multiply_add_s * _FASTER_THAN_PROFILE < core:
        core, source = 2 * lanes / profile.multiply_add_s * _FASTER_THAN_PROFILE, "the package's machine profile"
    return Ceiling(operations=core * narrow * threads, moved=8 * lanes * _HERTZ * threads, source=source)
