"""The demo's networks as rows: how many times faster than TVM's default, and the share of onnxruntime's time."""

from __future__ import annotations

from benchmarks.table import Row
from tunehub.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.comparison import compare, use_threads
from tunehub_builder.demo import NETWORKS, summarize


def run() -> list[Row]:
    """Compile and measure every network of the demo, as the demo does."""
    threads = physical_cores()
    use_threads(threads)

    import tunehub

    target = tunehub.host_target()
    summary = summarize([compare(networks.get(name), target, threads=threads) for name in NETWORKS])
    rows = []
    for network in summary["networks"]:
        name, ours = network["name"], network["tunehub_ms"]
        rows += [
            Row(name=f"{name}_ms", value=ours, unit="ms"),
            Row(name=f"{name}_vs_default", value=network["default_ms"] / ours, unit="times", note="default ÷ tunehub"),
            Row(
                name=f"{name}_vs_onnxruntime",
                value=ours / network["onnxruntime_ms"],
                unit="ratio",
                note="tunehub ÷ onnxruntime",
            ),
            Row(name=f"{name}_max_rel_diff", value=network["max_rel_diff"], unit="ratio"),
            Row(
                name=f"{name}_compile_vs_default",
                value=network["compile_tunehub_s"] / network["compile_default_s"],
                unit="ratio",
            ),
        ]
    rows.append(Row(name="geomean_vs_default", value=summary["geomean_vs_default"], unit="times"))
    rows.append(Row(name="geomean_vs_onnxruntime", value=summary["geomean_vs_onnxruntime"], unit="ratio"))
    return rows
