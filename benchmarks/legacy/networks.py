"""The table of the graph tuner's RFC (apache/tvm#1585) for this machine: networks end to end, all in one process.

TVM 0.19 with its default schedules, with the best AutoTVM record of each operator, with the graph-level records, and in
NHWC with its defaults and with the auto-scheduler's records; all records from the embedded registry.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.table import Row
from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan, in_turns, wall_timer


def network_rows(names: Sequence[str], plan: MeasuringPlan) -> list[Row]:
    """Medians in milliseconds, and the ratios of the defaults to them (more than 1: faster than the default)."""
    os.environ["TOPHUB_LOCATION"] = "NONE"
    return [row for name in names for row in _rows(name, plan)]


def _rows(name: str, plan: MeasuringPlan) -> list[Row]:
    from tunehub_builder.backends.relay import networks

    runners, outputs, notes = {}, {}, {}
    for layout in (networks.NCHW, networks.NHWC):
        network = networks.get(name, layout=layout)
        for variant, library in _variants(network).items():
            runners[variant], outputs[variant] = _runner(network, library)
            notes[variant] = library[1]
    timers = {variant: wall_timer(run) for variant, run in runners.items()}
    times = {variant: 1e3 * median(samples) for variant, samples in in_turns(timers, plan).items()}
    label = name.replace("-", "").replace(".", "")
    rows = [
        Row(name=f"{label}_{variant}_ms", value=ms, unit="ms", note=notes[variant]) for variant, ms in times.items()
    ]
    for variant, default in (("history", "plain"), ("graph", "plain"), ("nhwc_ansor", "nhwc_plain")):
        if variant in times:
            note = f"times as fast as {'NHWC ' if default != 'plain' else ''}default"
            prefix = f"{label}_{variant}_vs_default"
            rows.append(Row(name=prefix, value=times[default] / times[variant], unit="times", note=note))
    worst = max(difference([outputs[variant]], [outputs[_default_of(variant)]]) for variant in outputs)
    return [*rows, Row(name=f"{label}_max_rel_diff", value=worst, unit="ratio", note="outputs, to their largest value")]


def _variants(network: Any) -> dict[str, tuple[Any, str]]:
    """The compiled libraries by variant, and what they used. Only those whose records the registry really has."""
    import tunehub

    mod, params = network.module()
    nhwc = network.layout == "NHWC"
    default = "nhwc_plain" if nhwc else "plain"
    found = {default: (_build(mod, params), "TVM's default")}
    with tunehub.context(tunehub.host_target()) as hub:
        library = _build(mod, params)
    report = hub.report()
    tuners = {item.tuner for item in report.workloads if item.hit}
    used = f"{len(report.hits())} of {len(report.workloads)} workloads have records"
    if nhwc:
        if "auto_scheduler" in tuners:
            found["nhwc_ansor"] = (library, used)
        return found
    if "graph_tuner" in tuners:
        found["graph"] = (library, used)
        library = _with_history(hub, mod, params)
        used = "AutoTVM records by workload"
    if tuners & {"autotvm", "graph_tuner"}:
        found["history"] = (library, used)
    return found


def _with_history(hub: Any, mod: Any, params: Any) -> Any:
    """The network with the package's AutoTVM log through TVM's own context: the graph-level records stay out."""
    from tvm import autotvm

    from tunehub.registries.embedded import embedded_registry
    from tunehub_registry.package import open_package

    chosen = hub.resolution.chosen
    with open_package(embedded_registry() / chosen.entry.file) as package, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "autotvm.log"
        log.write_bytes(package.read("records/autotvm.log"))
        with autotvm.apply_history_best(str(log)):
            return _build(mod, params)


def _build(mod: Any, params: Any) -> Any:
    import tvm
    from tvm import relay

    import tunehub

    with tvm.transform.PassContext(opt_level=3):
        return relay.build(mod, tunehub.host_target(), params=params)


def _runner(network: Any, library: tuple[Any, str]) -> tuple[Callable[[], Any], Any]:
    import numpy as np
    import tvm
    from tvm.contrib import graph_executor

    module = graph_executor.GraphModule(library[0]["default"](tvm.cpu()))
    ((name, shape),) = network.inputs.items()
    planar = (shape[0], *shape[-1:], *shape[1:-1]) if network.layout == "NHWC" else shape
    values = np.random.default_rng(0).standard_normal(planar).astype(network.dtype)
    module.set_input(name, np.moveaxis(values, 1, -1) if network.layout == "NHWC" else values)
    module.run()
    return module.run, module.get_output(0).numpy()


def _default_of(variant: str) -> str:
    return "nhwc_plain" if variant.startswith("nhwc") else "plain"
