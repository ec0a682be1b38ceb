"""`tunehub calibrate`: measure this machine's CPU, or its GPU, for the rules that choose schedules."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, print_table, say
from tunehub.exceptions import UnknownTargetError
from tunehub.options import read_options
from tunehub.report.delayed_bar import DelayedBar
from tunehub.target.gpu_profile import read_gpu_profile, write_gpu_profile
from tunehub.target.machine_profile import MachineProfileError, read_profile, write_profile
from tunehub_registry.machine_profile import MachineProfile

if TYPE_CHECKING:
    from tunehub.target.nvidia_driver import DriverFacts
    from tunehub_registry.gpu_profile import GpuProfile

_Profile = TypeVar("_Profile")
_BY_TILES = "vectors a multiply-add"
_OF_ONE = "times as long as one"


@click.command()
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="What to measure: the CPU, or the first NVIDIA GPU.",
)
@click.option("--dry-run", is_flag=True, help="Measure and print, but keep nothing.")
@json_option
def calibrate(device: str, dry_run: bool, as_json: bool) -> None:
    """Measure this machine's CPU, or its GPU, in a few seconds, and keep its profile in the cache.

    From then on compiling for it chooses tiles, threads and algorithms without a record by these rates instead of
    built-in ones. Close what else uses it first. Delete the file to be rid of it.
    """
    from tunehub.target.tvm_generation import require_relax

    require_relax()
    rows, path = (_measured_gpu if device == "cuda" else _measured_cpu)(dry_run)
    if as_json:
        print_json({"path": None if path is None else str(path), **rows["profile"], "rates": rows["rates"]})
        return
    print_table(("MEASURED", "", "BUILT IN"), rows["table"], empty="")
    say("nothing was kept" if path is None else f"kept in {path}")


def _measured_cpu(dry_run: bool) -> tuple[dict[str, Any], Path | None]:
    """The profile as :func:`_rows` has it, and where it is kept."""
    from tunehub.target.host import host_target, physical_cores

    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))  # before TVM's first use, which makes its pool
    from tunehub.compiler.measure import calibration

    with DelayedBar("measuring", calibration.STEPS) as bar:
        profile = calibration.calibrate(host_target(), bar)
    return _rows(profile), None if dry_run else _kept(write_profile, profile)


def _measured_gpu(dry_run: bool) -> tuple[dict[str, Any], Path | None]:
    """As :func:`_measured_cpu`, of the first NVIDIA GPU."""
    import tvm

    from tunehub.compiler.measure import gpu_calibration
    from tunehub.target.nvidia import Gpu
    from tunehub.target.nvidia_driver import driver_facts

    facts = driver_facts()
    if facts is None:
        remedy = "run on a machine with an NVIDIA GPU and its driver"
        raise UnknownTargetError("cuda", "NVIDIA's driver names no GPU here", remedy=remedy)
    target = tvm.target.Target(Gpu(name=facts.model, arch=facts.architecture).tvm_config())
    with DelayedBar("measuring", gpu_calibration.STEPS) as bar:
        profile = gpu_calibration.calibrate_gpu(facts, gpu_calibration.on_this_gpu(target), bar)
    return gpu_rows(profile, facts), None if dry_run else _kept(write_gpu_profile, profile)


def _kept(write: Callable[[Path, _Profile], Path], profile: _Profile) -> Path:
    """Where a profile is kept. Raises ClickException where it cannot be."""
    cache = read_options().cache
    try:
        return write(cache, profile)
    except OSError as error:
        remedy = "free some space, or set TUNEHUB_CACHE to a folder that can be written"
        raise click.ClickException(
            f"the profile cannot be kept in {cache}: {error.strerror or error} ({remedy})"
        ) from None


def gpu_rows(profile: GpuProfile, facts: DriverFacts | None = None) -> dict[str, Any]:
    """The profile for programs, with the rates that rules take from it, and for people beside those without it."""
    from msgspec import to_builtins

    from tunehub.kernels.devices.known import device_for

    known = device_for(profile.architecture, profile.gpu, facts=facts)
    found = device_for(profile.architecture, profile.gpu, facts=facts, profile=profile)
    table = [
        (f"{what} ({unit})", f"{scale * value:.4g}" if value else "-", f"{scale * getattr(known, name):.4g}")
        for what, unit, scale, name, value in (
            ("clock", "MHz", 1e-6, "clock", profile.clock),
            ("memory", "GB/s", 1e-9, "bandwidth", profile.bandwidth),
            ("cache", "GB/s", 1e-9, "l2_bandwidth", profile.l2_bandwidth),
            ("multiply-adds in float32", "TFLOP/s", 1e-12, "flops", profile.flops),
            ("tensor cores in float16", "TFLOP/s", 1e-12, "tensor_flops", profile.tensor_flops),
        )
    ]
    table.append(("a launch (µs)", f"{1e6 * profile.launch_s:.3g}", f"{1e6 * known.launches.moving:.3g}"))
    rates = {name: getattr(found, name) for name in ("clock", "bandwidth", "l2_bandwidth", "flops", "tensor_flops")}
    return {"profile": to_builtins(profile), "rates": rates, "table": table}


def gpu_profile_state() -> dict[str, str]:
    """As :func:`profile_state`, of the first GPU; empty without one."""
    from tunehub.target.nvidia_driver import driver_facts

    facts = driver_facts()
    try:
        found = None if facts is None else read_gpu_profile(read_options().cache, facts.architecture, facts.model)
    except MachineProfileError as error:
        return {"problem": str(error)}
    return {} if found is None else {"measured": found.measured}


def profile_state() -> dict[str, str]:
    """For `tunehub doctor`: the day on which this machine was measured, if it was, or what is wrong with the file."""
    from tunehub.target.host import host_cpu, physical_cores

    cpu = host_cpu()
    try:
        found = None if cpu is None else read_profile(read_options().cache, cpu.model, cpu.mattr, physical_cores())
    except MachineProfileError as error:
        return {"problem": str(error)}
    return {} if found is None else {"measured": found.measured}


def rules_state() -> dict[str, str | None]:
    """For `tunehub doctor`: whose rates rules go by in compiles for this CPU, None for built-in ones, and why
    `precision="auto"` rounds nothing, None where it does. Nothing with TVM ≤ 0.19. Warns as opening a hub does."""
    from tunehub.target.tvm_generation import find_tvm, is_relay

    installed = find_tvm()
    if installed is None or is_relay(installed.version):
        return {}
    from tunehub.compiler.hub import open_hub
    from tunehub.exceptions import TunehubError
    from tunehub.graph.layout.narrowing import doubt
    from tunehub.kernels.cpu.base import machine_of
    from tunehub.target.host import host_target

    target, published = host_target(), None
    try:
        hub = open_hub(target, strict=False)
        published = hub.published_profile
        hub.close()
    except TunehubError:
        pass  # a wrong setting, of which the doctor tells elsewhere
    machine = machine_of(target, published=published)
    return {"profile": machine.profile, "float32": doubt(target, machine, asked=False)}


def _rows(profile: MachineProfile) -> dict[str, Any]:
    """The profile for programs, and beside what rules have without one for people."""
    from msgspec import to_builtins

    from tunehub.kernels.cpu.base import BUILT_IN, machine_of, rates_of
    from tunehub.kernels.cpu.register_tile import SECOND_LEVEL
    from tunehub.target.host import host_target

    built_in, vector = BUILT_IN, machine_of(host_target()).vector
    found = rates_of(profile, vector, profile.cores)
    table = [
        (f"{what} ({unit})", f"{scale * value:.3g}", f"{scale * other:.3g}")
        for what, unit, scale, value, other in (
            ("peak of a core", "GFLOP/s", 4 * vector / 1e9, found.cautious_flops, built_in.cautious_flops),
            ("wait for a sum", "multiply-adds", 2.0, found.latency, built_in.latency),
            ("weights from memory, a core", "bytes a multiply-add", vector, found.memory_bytes, built_in.memory_bytes),
            ("weights from the second cache", "loads a vector", 1.0, found.weight_loads or SECOND_LEVEL, SECOND_LEVEL),
            ("products of pairs in bfloat16", "times as fast", 1.0, found.pairs, built_in.pairs),
            ("pairs of bfloat16 by AMX", _BY_TILES, 1.0, found.tiles, built_in.tiles),
            ("groups of four bytes by AMX", _BY_TILES, 1.0, found.byte_tiles, built_in.byte_tiles),
            ("two tiles of rows at once, all cores", _OF_ONE, 1.0, found.two_tiles, built_in.two_tiles),
            ("a parallel region", "multiply-adds", 1.0, found.region, built_in.region),
            ("threads pay from", "µs", 1e6, found.worth_s, built_in.worth_s),
        )
        if unit not in (_BY_TILES, _OF_ONE) or profile.tiles_s is not None
    ]
    return {"profile": to_builtins(profile), "rates": to_builtins(found), "table": table}
