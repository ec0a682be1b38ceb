"""Networks as rows: the share of onnxruntime's time, and for the demo's how many times faster than TVM's default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean

import click

from benchmarks.shared.table import Row
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.demo import NETWORKS
from tunehub_builder.bench.runtimes import OnnxRuntime, Tunehub, TvmDefault
from tunehub_builder.networks import Network

OTHERS = (
    "inception_v1", "inception_v2", "densenet121", "vgg19", "alexnet", "shufflenet", "vit_b16",
)  # fmt: skip
_MOST = 1.2


def run(
    demos: Sequence[Network] | None = None, others: Sequence[Network] | None = None, plan: MeasuringPlan = PLAN
) -> list[Row]:
    """Compile and measure networks as the demo does (by default its own), and others without TVM's default."""
    demos = [networks.get(name) for name in NETWORKS] if demos is None else demos
    others = [networks.get(name) for name in OTHERS] if others is None else others
    with runtime_processes([Tunehub(), OnnxRuntime(), TvmDefault()], threads=physical_cores()) as workers:
        fast = {name: worker for name, worker in workers.items() if name != "default"}
        found = [compare(network, workers, plan) for network in demos]
        found += [compare(network, fast, plan) for network in others]
    items = [item for item in found if is_whole(item)]
    return [*_summary(items), *(row for item in items for row in _rows(item))]


def is_whole(item: NetworkComparison) -> bool:
    """Whether every runtime has times; else says on stderr what failed, and the network is left out."""
    for name, reason in item.errors.items():
        click.echo(f"{item.name} is left out: {name}: {reason}", err=True)
    return not item.errors


def _summary(items: list[NetworkComparison]) -> list[Row]:
    shares = [_share(item) for item in items]
    demo = [item for item in items if "default" in item.facts]
    return [
        Row(
            name="tuned_geomean_vs_onnxruntime",
            value=geometric_mean(shares),
            unit="ratio",
            note=f"tunehub ÷ onnxruntime, {len(items)} networks",
        ),
        Row(
            name="networks_above_1.2_of_onnxruntime",
            value=sum(share > _MOST for share in shares),
            unit="count",
            note=f"of {len(items)}",
        ),
        Row(
            name="geomean_vs_default", value=geometric_mean([i.ratio("default", "tunehub") for i in demo]), unit="times"
        ),
        Row(
            name="geomean_vs_onnxruntime",
            value=geometric_mean([_share(i) for i in demo]),
            unit="ratio",
            note="demo's networks",
        ),
    ]


def _rows(item: NetworkComparison) -> list[Row]:
    name, report = item.name, item.facts["tunehub"].report
    assert report is not None
    rungs = ", ".join(f"{rung} {count}" for rung, count in report.rung_counts().items() if count)
    rows = [
        Row(name=f"{name}_ms", value=item.ms("tunehub"), unit="ms"),
        Row(name=f"{name}_onnxruntime_ms", value=item.ms("onnxruntime"), unit="ms"),
        Row(name=f"{name}_vs_onnxruntime", value=_share(item), unit="ratio", note="tunehub ÷ onnxruntime"),
        Row(name=f"{name}_max_rel_diff", value=item.max_rel_diff("tunehub"), unit="ratio"),
        Row(name=f"{name}_records", value=len(report.hits()), unit="count", note=rungs),
    ]
    compile_s, faster = item.compile_s("tunehub"), item.ratio("default", "tunehub")
    if math.isnan(faster):
        return [*rows, Row(name=f"{name}_compile_s", value=compile_s, unit="s")]
    return [
        *rows,
        Row(name=f"{name}_vs_default", value=faster, unit="times", note="default ÷ tunehub"),
        Row(name=f"{name}_compile_vs_default", value=compile_s / item.compile_s("default"), unit="ratio"),
    ]


def _share(item: NetworkComparison) -> float:
    return item.ratio("tunehub", "onnxruntime")
