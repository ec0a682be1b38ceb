"""A GPU that nobody measured, by one that was: what is not known of it follows from its rates. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict, replace

from tunehub.kernels.devices.device import NAMES, DeviceCosts, GpuDevice, GpuSpecification

_ON_TENSOR_CORES = frozenset({"tensor_cores", "warpgroups", "warpgroups_tf32", "warpgroups_bulk"})
# What limits each thing that is counted; others wait for the clock.
_LIMITS: Mapping[str, str] = {
    "launch": "launch",
    "bytes": "memory",
    "sectors": "l2",
    "loads": "l2",
    "work": "flops",
    "window_work": "flops",
}
_FIRST_WITH_CLUSTERS = 90


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
