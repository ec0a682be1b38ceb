"""What the transforms of Winograd's algorithm should take on a large GPU. Pure.

Fitted to 40 kernels of ResNet-18, ResNet-50 and VGG-16 at batch 1 and 8 on an H200, 0.4 to 330 MB each
(docs/adr/0044).
"""

from __future__ import annotations

from tunehub.kernels.devices.device import GpuDevice


def transform_s(moved: int, device: GpuDevice) -> float:
    """Seconds of a kernel that reads and writes so many bytes on ``device``."""
    return device.launches.moving + moved / device.bandwidth
