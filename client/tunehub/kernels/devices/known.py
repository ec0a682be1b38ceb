"""Which device rules go by: the one that a target names, or the nearest that has a file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tunehub.kernels.devices.device import GpuDevice, read_device, read_specification
from tunehub.kernels.devices.scaling import estimated, number
from tunehub.target.nvidia import gpu_model

_MEASURED = "h200"  # whose costs those of the others follow
_NAMES = frozenset({"a10", "a100", "b200", "h100", "h100-pcie", "h200", "l4", "l40s"})
# By the number of an architecture, where no model is named.
_OF_ARCHITECTURE = {80: "a100", 86: "a10", 89: "l40s", 90: "h200", 100: "b200"}


def device_of(target: Any) -> GpuDevice:
    """The GPU that kernels for ``target``, one for CUDA, are chosen for: see :func:`device_for`."""
    attrs = getattr(target, "attrs", {})
    named = str(attrs.get("model") or getattr(target, "tag", "") or "").rpartition("/")[2].removeprefix("nvidia-")
    return device_for(str(attrs.get("arch", "")), named if named in _NAMES else gpu_model(named))


def device_for(architecture: str, model: str | None = None) -> GpuDevice:
    """The GPU of that ``model``, by its short name, else the one that stands for ``architecture``, or for the nearest
    older one, or for the oldest. A ``model`` of another architecture is none. Pure."""
    if model in _NAMES and number(_file(str(model)).architecture) == number(architecture):
        return _file(str(model))
    older = [known for known in _OF_ARCHITECTURE if known <= number(architecture)]
    return _file(_OF_ARCHITECTURE[max(older, default=min(_OF_ARCHITECTURE))])


def default_device() -> GpuDevice:
    """The GPU that costs were fitted on."""
    return _file(_MEASURED)


@cache
def _file(name: str) -> GpuDevice:
    """The device of a file, which is read once."""
    file = f"{name}.toml"
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return read_device(text, file) if name == _MEASURED else estimated(read_specification(text, file), default_device())
