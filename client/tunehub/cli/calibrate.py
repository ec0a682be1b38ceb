"""`tunehub calibrate`: measure this machine's CPU for the rules that choose schedules."""

from __future__ import annotations

import os
from typing import Any

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, print_table
from tunehub.options import read_options
from tunehub.report.delayed_bar import DelayedBar
from tunehub.target.machine_profile import MachineProfileError, read_profile, write_profile
from tunehub_registry.machine_profile import MachineProfile

_BY_TILES = "vectors a multiply-add"


@click.command()
@click.option("--dry-run", is_flag=True, help="Measure and print, but keep nothing.")
@json_option
def calibrate(dry_run: bool, as_json: bool) -> None:
    """Measure this machine's CPU, in a few seconds, and keep its profile in the cache.

    From then on compiling for it chooses tiles, threads and algorithms without a record by these rates instead of
    built-in ones. Close what else uses the CPU first. Delete the file to be rid of it.
    """
    from tunehub.target.host import host_target, physical_cores
    from tunehub.target.tvm_generation import require_relax

    require_relax()
    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))  # before TVM's first use, which makes its pool
    from tunehub.compiler.measure import calibration

    with DelayedBar("measuring", calibration.STEPS) as bar:
        profile = calibration.calibrate(host_target(), bar)
    path = None if dry_run else write_profile(read_options().cache, profile)
    rows = _rows(profile)
    if as_json:
        print_json({"path": None if path is None else str(path), **rows["profile"], "rates": rows["rates"]})
        return
    print_table(("MEASURED", "", "BUILT IN"), rows["table"], empty="")
    click.echo("nothing was kept" if path is None else f"kept in {path}")


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
    from tunehub.target.host import host_target

    built_in, vector = BUILT_IN, machine_of(host_target()).vector
    found = rates_of(profile, vector, profile.cores)
    table = [
        (f"{what} ({unit})", f"{scale * value:.3g}", f"{scale * other:.3g}")
        for what, unit, scale, value, other in (
            ("peak of a core", "GFLOP/s", 4 * vector / 1e9, found.cautious_flops, built_in.cautious_flops),
            ("wait for a sum", "multiply-adds", 2.0, found.latency, built_in.latency),
            ("weights from memory, a core", "bytes a multiply-add", vector, found.memory_bytes, built_in.memory_bytes),
            ("products of pairs in bfloat16", "times as fast", 1.0, found.pairs, built_in.pairs),
            ("pairs of bfloat16 by AMX", _BY_TILES, 1.0, found.tiles, built_in.tiles),
            ("groups of four bytes by AMX", _BY_TILES, 1.0, found.byte_tiles, built_in.byte_tiles),
            ("a parallel region", "multiply-adds", 1.0, found.region, built_in.region),
            ("threads pay from", "µs", 1e6, found.worth_s, built_in.worth_s),
        )
        if unit != _BY_TILES or profile.tiles_s is not None
    ]
    return {"profile": to_builtins(profile), "rates": to_builtins(found), "table": table}
