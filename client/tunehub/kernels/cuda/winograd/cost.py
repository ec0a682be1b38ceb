"""What the transforms of Winograd's algorithm should take on a large GPU. Pure.

Fitted to 40 kernels of ResNet-18, ResNet-50 and VGG-16 at batch 1 and 8 on an H200, 0.4 to 330 MB each
(docs/adr/0044).
"""

from __future__ import annotations

_LAUNCH_S = 1.7e-6  # of which 0.4 µs are the gap to the kernel before, in a CUDA graph
_BYTES_A_S = 4.0e12


def transform_s(moved: int) -> float:
    """Seconds of a kernel that reads and writes so many bytes."""
    return _LAUNCH_S + moved / _BYTES_A_S
