"""``tunehub demo``: what the embedded packages are worth on this machine, network by network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import geometric_mean
from typing import Any

import click

from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import NetworkComparison, compare, use_threads

NETWORKS = ("squeezenet", "resnet50", "mobilenet_v2", "bert_base")


def run_demo(names: Sequence[str] = (), *, as_json: bool = False, repeats: int = 7) -> int:
    """Compare ``names`` (default: the networks that the embedded registry covers) and print the table or JSON.

    Returns the exit code. Raises NetworkError for an unknown name before anything is compiled.
    """
    chosen = [networks.get(name) for name in names or NETWORKS]
    threads = physical_cores()
    use_threads(threads)

    import tunehub

    target = tunehub.host_target()
    if not as_json:
        click.echo(
            f"{threads} threads each for TVM and onnxruntime; medians of interleaved runs on {target.attrs['mcpu']}"
        )
    comparisons = []
    for network in chosen:
        _say(f"{network.name}: compiling with TVM's default and with tunehub, then measuring")
        comparisons.append(compare(network, target, threads=threads, rounds=repeats))
        if not as_json:
            _print_row(comparisons[-1])
    summary = {**summarize(comparisons), "threads": threads, "repeats": repeats}
    click.echo(json.dumps(summary, indent=2) if as_json else _closing(summary))
    return 0


def summarize(comparisons: Sequence[NetworkComparison]) -> dict[str, Any]:
    """The demo's JSON: rows, and geometric means of (default ÷ tunehub) and of (tunehub ÷ onnxruntime)."""
    left_out = ("report", "tuned_ms")
    rows = [{k: v for k, v in asdict(item).items() if k not in left_out} for item in _without_reports(comparisons)]
    return {
        "networks": rows,
        "geomean_vs_default": geometric_mean(row["default_ms"] / row["tunehub_ms"] for row in rows),
        "geomean_vs_onnxruntime": geometric_mean(row["tunehub_ms"] / row["onnxruntime_ms"] for row in rows),
    }


def _without_reports(comparisons: Sequence[NetworkComparison]) -> Iterable[NetworkComparison]:
    from dataclasses import replace

    return (replace(item, report=None) for item in comparisons)


def _print_row(item: NetworkComparison) -> None:
    click.echo(f"\n{item.name}")
    click.echo(f"  TVM default   {item.default_ms:10.2f} ms   compiled in {item.compile_default_s:.1f} s")
    click.echo(
        f"  tunehub       {item.tunehub_ms:10.2f} ms   compiled in {item.compile_tunehub_s:.1f} s"
        f"   {item.default_ms / item.tunehub_ms:.0f} times faster than the default"
    )
    click.echo(
        f"  onnxruntime   {item.onnxruntime_ms:10.2f} ms   tunehub takes "
        f"{item.tunehub_ms / item.onnxruntime_ms:.2f} of its time"
    )
    click.echo(f"  largest difference of outputs, relative: {item.max_rel_diff:.1e}")
    for line in str(item.report.summary()).splitlines():
        click.echo(f"  {line}")


def _closing(summary: dict[str, Any]) -> str:
    return (
        f"\nGeometric means: {summary['geomean_vs_default']:.1f} times faster than TVM's default, "
        f"{summary['geomean_vs_onnxruntime']:.2f} of onnxruntime's time"
    )


def _say(text: str) -> None:
    click.echo(text, err=True)
