"""What the transforms of Winograd's algorithm should take on a large GPU. Pure.

Fitted to 40 kernels of ResNet-18, ResNet-50 and VGG-16 at batch 1 and 8 on an H200, 0.4 to 330 MB each
(docs/adr/0044).
"""

from __future__ import annotations

from tunehub.kernels.devices.known import default_device

_LAUNCH_S = 1.7e-6  # of which 0.4 µs are the gap to the kernel before, in a CUDA graph


def transform_s(moved: int) -> float:
    """Seconds of a kernel that reads and writes so many bytes."""
    return _LAUNCH_S + moved / default_device().bandwidth
