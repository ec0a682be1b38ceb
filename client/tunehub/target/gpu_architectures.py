"""NVIDIA's GPU architectures: which GPU has which, what a launch may take, and what a multiprocessor has.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; NVIDIA's CUDA GPU table.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of GPUs that TVM has no tag for, by the short names that packages use.
ARCHITECTURES = {"h200": "sm_90", "h100": "sm_90", "b200": "sm_100", "a100": "sm_80", "l4": "sm_89", "l40s": "sm_89"}

WARP = 32  # threads
BANKS = 32  # of shared memory, 4 bytes wide
REGISTERS = 1 << 16  # of a multiprocessor, all of which one block may have
REGISTERS_OF_A_THREAD = 255
RESERVED_BYTES = 1 << 10  # of shared memory that a block takes for itself, since sm_80
# Shared memory that a block may ask for at its launch on every GPU from sm_80 on (sm_86, sm_89 and sm_120 have least).
# TVM's runtime asks for it where the dynamic part alone is more than a block gets without asking.
ASKED_SHARED_BYTES, FEWEST_ASKED_BYTES = 99 << 10, 48 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchLimits:
    """The most of everything in one launch: threads of a block, bytes of its static shared memory, and with what it
    asks for, extents by axis."""

    threads: int = 1024
    shared_memory: int = 48 << 10
    asked_shared_memory: int = ASKED_SHARED_BYTES
    block: tuple[int, int, int] = (1024, 1024, 64)
    grid: tuple[int, int, int] = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)


SM_80 = LaunchLimits()
ASKED_BYTES = {"sm_90": 227 << 10}  # by architecture, where it is more
