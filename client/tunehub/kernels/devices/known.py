"""Which device rules go by."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from tunehub.kernels.devices.device import GpuDevice, read_device

_FILE = "h200.toml"


@cache
def default_device() -> GpuDevice:
    """The GPU that costs were fitted on, which rules that know no target go by. Its file is read once."""
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    return read_device(text, _FILE)


def device_of(target: Any) -> GpuDevice:
    """The GPU that kernels for ``target``, one for CUDA, are chosen for: as yet :func:`default_device` for each of
    them. Those of other targets follow."""
    return default_device()
