"""``tunehub demo``: what the embedded packages are worth on this machine, network by network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from tunehub.cli.output import print_json, say
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.runtimes import OnnxRuntime, Tunehub, TvmDefault

NETWORKS = ("squeezenet", "resnet50", "mobilenet_v2", "bert_base")


def run_demo(names: Sequence[str] = (), *, as_json: bool = False, repeats: int = 7) -> int:
    """Compare ``names`` (default: the networks that the embedded registry covers) and print the table or JSON.

    Returns the exit code, 1 when a runtime failed or outputs are not finite. Raises NetworkError for an unknown name
    before anything is compiled.
    """
    chosen = [networks.get(name) for name in names or NETWORKS]
    threads = physical_cores()
    if not as_json:
        import tunehub

        cpu = tunehub.host_target().attrs["mcpu"]
        say(f"{threads} threads each for TVM and onnxruntime; medians of interleaved runs on {cpu}")
    comparisons = []
    with runtime_processes([TvmDefault(), Tunehub(), OnnxRuntime()], threads=threads) as workers:
        for network in chosen:
            _say(f"{network.name}: compiling with TVM's default and with tunehub, then measuring")
            comparisons.append(compare(network, workers, replace(PLAN, rounds=repeats)))
            if not as_json:
                say(*_lines(comparisons[-1]))
    summary = {**summarize(comparisons), "threads": threads, "repeats": repeats}
    if as_json:
        print_json(summary)
    else:
        say("", _closing(summary))
    return int(any("errors" in row for row in summary["networks"]))


def summarize(comparisons: Sequence[NetworkComparison]) -> dict[str, Any]:
    """The demo's JSON: rows, and geometric means of (default ÷ tunehub) and of (tunehub ÷ onnxruntime).

    Null is what a runtime that failed leaves unknown; ``errors``, only then, says why.
    """
    return {
        "networks": [_row(item) for item in comparisons],
        "geomean_vs_default": _geomean(item.ratio("default", "tunehub") for item in comparisons),
        "geomean_vs_onnxruntime": _geomean(item.ratio("tunehub", "onnxruntime") for item in comparisons),
    }


def _row(item: NetworkComparison) -> dict[str, Any]:
    figures = {
        "default_ms": item.ms("default"),
        "tunehub_ms": item.ms("tunehub"),
        "onnxruntime_ms": item.ms("onnxruntime"),
        "max_rel_diff": item.max_rel_diff("tunehub"),
        "compile_default_s": item.compile_s("default"),
        "compile_tunehub_s": item.compile_s("tunehub"),
    }
    errors = dict(item.errors)
    if math.isinf(figures["max_rel_diff"]):
        errors["max_rel_diff"] = "infinite: outputs that are not finite, or of other shapes"
    known = {name: _known(value) for name, value in figures.items()}
    return {"name": item.name, **known, **({"errors": errors} if errors else {})}


def _known(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _geomean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return geometric_mean(known) if known else None


def _lines(item: NetworkComparison) -> list[str]:
    """What the demo prints of a network."""
    default, ours, other = item.ms("default"), item.ms("tunehub"), item.ms("onnxruntime")
    compiled = {name: f"   compiled in {item.compile_s(name):.1f} s" for name in ("default", "tunehub")}
    lines = {
        "default": f"{default:10.2f} ms{compiled['default']}",
        "tunehub": f"{ours:10.2f} ms{compiled['tunehub']}   {default / ours:.0f} times faster than the default",
        "onnxruntime": f"{other:10.2f} ms   tunehub takes {ours / other:.2f} of its time",
    }
    labels = {"default": "TVM default", "tunehub": "tunehub", "onnxruntime": "onnxruntime"}
    found = [f"  {label:<14}{_failed(item, name) or lines[name]}" for name, label in labels.items()]
    found.append(f"  largest difference of outputs, relative: {item.max_rel_diff('tunehub'):.1e}")
    report = item.facts["tunehub"].report if "tunehub" in item.facts else None
    return ["", item.name, *found, *(f"  {line}" for line in str(report.summary() if report else "").splitlines())]


def _failed(item: NetworkComparison, runtime: str) -> str | None:
    return f"failed: {item.errors[runtime]}" if runtime in item.errors else None


def _closing(summary: dict[str, Any]) -> str:
    means = (
        ("geomean_vs_default", "{:.1f} times faster than TVM's default"),
        ("geomean_vs_onnxruntime", "{:.2f} of onnxruntime's time"),
    )
    known = [text.format(summary[name]) for name, text in means if summary[name] is not None]
    return f"Geometric means: {', '.join(known) or 'unknown'}"


def _say(text: str) -> None:
    say(text, err=True)
