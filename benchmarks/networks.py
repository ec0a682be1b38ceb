"""Networks as rows: the share of onnxruntime's time, and for the demo's how many times faster than TVM's default."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.table import Row
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import NetworkComparison, compare, use_threads
from tunehub_builder.bench.demo import NETWORKS

OTHERS = (
    "inception_v1", "inception_v2", "densenet121", "vgg19", "alexnet", "shufflenet", "vit_b16",
)  # fmt: skip
_MOST = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """``against_default``: TVM's default was compiled and run, too."""

    item: NetworkComparison
    against_default: bool


def run() -> list[Row]:
    """Compile and measure every network of the demo, as the demo does, and others without TVM's default."""
    threads = physical_cores()
    use_threads(threads)

    import tunehub

    target = tunehub.host_target()
    measured = [
        _Measured(
            item=compare(networks.get(name), target, threads=threads, with_default=name in NETWORKS),
            against_default=name in NETWORKS,
        )
        for name in (*NETWORKS, *OTHERS)
    ]
    return [*_summary(measured), *(row for entry in measured for row in _rows(entry))]


def _summary(measured: list[_Measured]) -> list[Row]:
    items = [entry.item for entry in measured]
    demo = [entry.item for entry in measured if entry.against_default]
    shares = [_share(item) for item in items]
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
        Row(name="geomean_vs_default", value=geometric_mean([i.default_ms / i.tunehub_ms for i in demo]), unit="times"),
        Row(
            name="geomean_vs_onnxruntime",
            value=geometric_mean([_share(i) for i in demo]),
            unit="ratio",
            note="demo's networks",
        ),
    ]


def _rows(entry: _Measured) -> list[Row]:
    item, name = entry.item, entry.item.name
    rows = [
        Row(name=f"{name}_ms", value=item.tunehub_ms, unit="ms"),
        Row(name=f"{name}_onnxruntime_ms", value=item.onnxruntime_ms, unit="ms"),
        Row(name=f"{name}_vs_onnxruntime", value=_share(item), unit="ratio", note="tunehub ÷ onnxruntime"),
        Row(name=f"{name}_max_rel_diff", value=item.max_rel_diff, unit="ratio"),
        Row(name=f"{name}_records", value=len(item.report.hits()), unit="count", note=_rungs(item)),
    ]
    if not entry.against_default:
        return [*rows, Row(name=f"{name}_compile_s", value=item.compile_tunehub_s, unit="s")]
    slower = item.compile_tunehub_s / item.compile_default_s
    return [
        *rows,
        Row(name=f"{name}_vs_default", value=item.default_ms / item.tunehub_ms, unit="times", note="default ÷ tunehub"),
        Row(name=f"{name}_compile_vs_default", value=slower, unit="ratio"),
    ]


def _rungs(item: NetworkComparison) -> str:
    """How many workloads each rung serves."""
    return ", ".join(f"{rung} {count}" for rung, count in item.report.rung_counts().items() if count)


def _share(item: NetworkComparison) -> float:
    return item.tunehub_ms / item.onnxruntime_ms
