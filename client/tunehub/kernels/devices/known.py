"""Which device rules go by: the one that a target names, or the nearest that has a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.exceptions import SettingError
from tunehub.kernels.devices.device import GpuDevice, read_device, read_specification
from tunehub.kernels.devices.scaling import calibrated, estimated, number, specified
from tunehub.options import read_options
from tunehub.target.gpu_profile import read_gpu_profile
from tunehub.target.machine_profile import MachineProfileError
from tunehub.target.nvidia import gpu_model
from tunehub.target.nvidia_driver import DriverFacts, driver_facts
from tunehub_registry.gpu_profile import GpuProfile

if TYPE_CHECKING:
    from tunehub.target.types import Target

_MEASURED = "h200"  # whose costs those of the others follow
_NAMES = frozenset({"a10", "a100", "b200", "h100", "h100-pcie", "h200", "l4", "l40s"})
# By the number of an architecture, where no model is named.
_OF_ARCHITECTURE = {80: "a100", 86: "a10", 89: "l40s", 90: "h200", 100: "b200"}


def device_of(target: Target | str) -> GpuDevice:
    """The GPU that kernels for ``target``, one for CUDA, are chosen for: see :func:`device_for`. With the profile of
    this machine's GPU, and what its driver says of it, where the target names it; the profile also where it names no
    model, only its architecture."""
    attrs = getattr(target, "attrs", {})
    named = str(attrs.get("model") or getattr(target, "tag", "") or "").rpartition("/")[2].removeprefix("nvidia-")
    model = None if named in ("", "unknown") else named if named in _NAMES else gpu_model(named)
    return _on_this_machine(str(attrs.get("arch", "")), model, _cache_folder(os.environ.get("TUNEHUB_CACHE")))


def device_for(
    architecture: str,
    model: str | None = None,
    *,
    facts: DriverFacts | None = None,
    profile: GpuProfile | None = None,
) -> GpuDevice:
    """The GPU of that ``model``, by its short name, else the one that stands for ``architecture``, or for the nearest
    older one, or for the oldest. A ``model`` of another architecture is none. By its ``facts`` where they are of
    another GPU than the one found, and at the rates of its ``profile``. Pure."""
    device = _known(architecture, model)
    if profile is not None and profile.multiprocessors != device.multiprocessors:
        device = next((each for each in _forms(device.name) if each.multiprocessors == profile.multiprocessors), device)
    if facts is not None and (facts.model, facts.multiprocessors) != (device.name, device.multiprocessors):
        device = estimated(specified(facts, device), default_device())
    return device if profile is None else calibrated(device, profile, default_device())


def _known(architecture: str, model: str | None) -> GpuDevice:
    if model in _NAMES and number(_file(str(model)).architecture) == number(architecture):
        return _file(str(model))
    older = [known for known in _OF_ARCHITECTURE if known <= number(architecture)]
    return _file(_OF_ARCHITECTURE[max(older, default=min(_OF_ARCHITECTURE))])


def _forms(model: str) -> Iterator[GpuDevice]:
    """Those of the same short name that are built in another way."""
    return (_file(name) for name in sorted(_NAMES) if name.startswith(f"{model}-"))


@lru_cache(maxsize=64)
def _on_this_machine(architecture: str, model: str | None, folder: Path | None) -> GpuDevice:
    """Files are read, and the driver is asked, once."""
    facts = driver_facts() if model is not None and model not in _NAMES else None
    if facts is not None and (facts.model, number(facts.architecture)) != (model, number(architecture)):
        facts = None
    try:
        profile = None if folder is None else read_gpu_profile(folder, architecture, model)
    except MachineProfileError:  # `tunehub doctor` says so
        profile = None
    return device_for(architecture, model, facts=facts, profile=profile)


@lru_cache(maxsize=8)
def _cache_folder(_stated: str | None) -> Path | None:
    """By what the environment states; None where a setting is wrong, of which others tell."""
    try:
        return read_options().cache
    except SettingError:
        return None


def known_devices() -> Mapping[str, GpuDevice]:
    """All that have a file, by their names."""
    return {name: _file(name) for name in sorted(_NAMES)}


def default_device() -> GpuDevice:
    """The GPU that costs were fitted on."""
    return _file(_MEASURED)


@cache
def _file(name: str) -> GpuDevice:
    """The device of a file, which is read once."""
    file = f"{name}.toml"
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return read_device(text, file) if name == _MEASURED else estimated(read_specification(text, file), default_device())
