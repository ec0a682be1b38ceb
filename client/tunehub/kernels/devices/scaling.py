"""A GPU that nobody measured, by one that was: what is not known of it follows from its rates. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import asdict, replace

from tunehub.kernels.devices.device import NAMES, DeviceCosts, GpuDevice, GpuSpecification, LaunchCosts
from tunehub.target.nvidia_driver import DriverFacts
from tunehub_registry.gpu_profile import GpuProfile

_ON_TENSOR_CORES = frozenset(
    {"tensor_cores", "warpgroups", "warpgroups_tf32", "warpgroups_bulk", "warps", "warpgroups_integers"}
)
# What limits each thing that is counted; others wait for the clock.
_LIMITS: Mapping[str, str] = {
    "launch": "launch",
    "bytes": "memory",
    "sectors": "l2",
    "loads": "l2",
    "multicast": "l2",
    "work": "flops",
    "window_work": "flops",
}
_FIRST_WITH_CLUSTERS = 90
_ALIKE = 1.1  # times a rate, within which a measured one counts as the known one: it is not measured more exactly
_MEASURED_RATES = ("clock", "bandwidth", "l2_bandwidth", "flops", "tensor_flops")


def estimated(known: GpuSpecification, base: GpuDevice) -> GpuDevice:
    """The device of which ``known`` is known, and the rest as if its parts were those of ``base`` at other rates: of
    its memory as great a part of the peak is used, its cache serves as many bytes in a clock of each multiprocessor."""
    speed = known.multiprocessors * known.clock / (base.multiprocessors * base.clock)
    clusters = number(known.architecture) >= _FIRST_WITH_CLUSTERS
    size = known.multiprocessors / base.multiprocessors
    places = {blocks: max(1, int(count * size)) for blocks, count in base.places.items() if clusters or blocks == 1}
    rates = GpuDevice(
        **asdict(known),
        bandwidth=known.peak_bandwidth * base.bandwidth / base.peak_bandwidth,
        l2_bandwidth=speed * base.l2_bandwidth,
        clustered_multiprocessors=int(base.clustered_multiprocessors * size) if clusters else known.multiprocessors,
        places=places,
        launches=base.launches,
        costs=base.costs,
    )
    return replace(rates, costs=scaled_costs(base, rates))


def specified(facts: DriverFacts, near: GpuSpecification) -> GpuSpecification:
    """What its driver says of a GPU; a multiprocessor does as much in a clock as one of ``near``."""
    speed = facts.multiprocessors * facts.clock / (near.multiprocessors * near.clock)
    return GpuSpecification(
        name=facts.model,
        architecture=facts.architecture,
        measured=False,
        multiprocessors=facts.multiprocessors,
        clock=facts.clock,
        shared_memory=facts.shared_memory,
        block_shared_memory=facts.block_shared_memory,
        registers=facts.registers,
        blocks=facts.blocks,
        warps=facts.warps,
        l2=facts.l2,
        flops=speed * near.flops,
        tensor_flops=speed * near.tensor_flops,
        peak_bandwidth=facts.bandwidth,
    )


def calibrated(device: GpuDevice, profile: GpuProfile, base: GpuDevice) -> GpuDevice:
    """``device`` at the rates of its ``profile``: those of ``base``, times as fast as its kernels were than on that.
    ``device`` itself where all of them are about the same."""
    known = base.calibrated
    if known is None:
        return device
    gains = {name: (getattr(profile, name) or math.nan) / getattr(known, name) for name in _MEASURED_RATES}
    rates = {name: gain * getattr(base, name) for name, gain in gains.items() if not math.isnan(gain)}
    changed = {name: rate for name, rate in rates.items() if not _alike(rate, getattr(device, name))}
    slower = profile.launch_s / known.launch_s * base.launches.moving / device.launches.moving
    if not changed and _alike(slower, 1.0):
        return device
    launches = device.launches if _alike(slower, 1.0) else _slowed(device.launches, slower)
    found = replace(device, launches=launches, **changed)
    return replace(found, costs=scaled_costs(base, found))


def _alike(rate: float, other: float) -> bool:
    return rate <= _ALIKE * other and other <= _ALIKE * rate


def _slowed(launches: LaunchCosts, slower: float) -> LaunchCosts:
    """Each of them so many times as long."""
    return LaunchCosts(
        moving=slower * launches.moving,
        low_batch=slower * launches.low_batch,
        threads=(slower * launches.threads[0], slower * launches.threads[1]),
        tensor_cores=(slower * launches.tensor_cores[0], slower * launches.tensor_cores[1]),
        winograd={size: slower * less for size, less in launches.winograd.items()},
    )


def scaled_costs(base: GpuDevice, device: GpuDevice) -> DeviceCosts:
    """The costs of ``base`` by what ``device`` is slower in."""
    slower = {
        "launch": device.launches.moving / base.launches.moving,
        "memory": base.bandwidth / device.bandwidth,
        "l2": _of_each(base, base.l2_bandwidth) / _of_each(device, device.l2_bandwidth),
        "flops": _of_each(base, base.flops) / _of_each(device, device.flops),
        "tensor_flops": _of_each(base, base.tensor_flops) / _of_each(device, device.tensor_flops),
        "clock": base.clock / device.clock,
    }

    def limit(table: str, name: str) -> str:
        if name == "products":
            return "tensor_flops" if table in _ON_TENSOR_CORES else "flops"
        return _LIMITS.get(name, "clock")

    return DeviceCosts(
        **{
            table: {name: getattr(base.costs, table)[name] * slower[limit(table, name)] for name in names}
            for table, names in NAMES.items()
        }
    )


def number(architecture: str) -> int:
    """90 for ``sm_90`` and ``sm_90a``; 0 for what is none."""
    digits = architecture.removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else 0


def _of_each(device: GpuDevice, rate: float) -> float:
    return rate / device.multiprocessors
