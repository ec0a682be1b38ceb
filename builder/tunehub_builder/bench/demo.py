"""``tunehub demo``: what the embedded packages are worth on this machine, network by network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from statistics import geometric_mean
from typing import Any

from tunehub.cli.output import print_json, say
from tunehub.cli.waiting import WaitingLine
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.compiler.workers.process import WorkerProcess
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, measured, prepared_at_once, runtime_processes
from tunehub_builder.bench.runtimes import OnnxRuntime, OpenVino, Runtime, Tunehub, TvmDefault

NETWORKS = ("squeezenet", "resnet50", "mobilenet_v2", "bert_base")
DEFAULT_S = 10.0
"""What TVM's default may take for its one run, in seconds: it is up to 300 times as slow, and people wait."""
_PLAN = replace(PLAN, sample_s=0.15, warm_up_s=0.1, budget_s=4.0)
_STEPS = {"compile": "compiling with TVM's default and with tunehub, all at once", "measure": "measuring"}


def run_demo(
    names: Sequence[str] = (), *, as_json: bool = False, repeats: int = 7, default_s: float = DEFAULT_S
) -> int:
    """Compare ``names`` (default: the networks that the embedded registry covers) and print the table or JSON.

    The default has one run, of at most ``default_s``; OpenVINO is measured where it is installed. Returns the exit
    code, 1 when a runtime failed or outputs are not finite. Raises NetworkError for an unknown name before anything is
    compiled.
    """
    chosen = [networks.get(name) for name in names or NETWORKS]
    runtimes: list[Runtime] = [TvmDefault(), Tunehub(), OnnxRuntime(), *([OpenVino()] if find_spec("openvino") else [])]
    threads = physical_cores()
    if not as_json:
        import tunehub

        cpu = tunehub.host_target().attrs["mcpu"]
        say(f"{threads} threads each for TVM and onnxruntime; medians of interleaved runs on {cpu}")
    comparisons = []
    with runtime_processes(runtimes, threads=threads) as workers:
        for place, network in enumerate(chosen, 1):
            name = f"{network.name} ({place} of {len(chosen)})"
            comparisons.append(_compared(network, name, workers, replace(_PLAN, rounds=repeats), default_s))
            if not as_json:
                say(*_lines(comparisons[-1], default_s))
    summary = {**summarize(comparisons, default_s), "threads": threads, "repeats": repeats, "measured_with": _made_by()}
    if as_json:
        print_json(summary)
    else:
        say("", _closing(summary))
    return int(any("errors" in row for row in summary["networks"]))


def _compared(
    network: networks.Network, name: str, workers: Mapping[str, WorkerProcess], plan: MeasuringPlan, default_s: float
) -> NetworkComparison:
    """The runtimes compile at the same time, the default runs once, the others in turns; on a terminal with what is
    being done, and for how long."""
    with WaitingLine(f"{name}: {_STEPS['compile']}"):
        ready = prepared_at_once(network, workers, "default", default_s)
    with WaitingLine(f"{name}: {_STEPS['measure']}"):
        return measured(ready, workers, plan)


def summarize(comparisons: Sequence[NetworkComparison], default_s: float = DEFAULT_S) -> dict[str, Any]:
    """The demo's JSON: rows, and geometric means of (default ÷ tunehub) and of (tunehub ÷ onnxruntime).

    Null is what a runtime that failed leaves unknown; ``errors``, only then, says why. A default whose run was given up
    has ``default_over_ms`` instead, and is in no mean.
    """
    return {
        "networks": [_row(item, default_s) for item in comparisons],
        "geomean_vs_default": _geomean(item.ratio("default", "tunehub") for item in comparisons),
        "geomean_vs_onnxruntime": _geomean(item.ratio("tunehub", "onnxruntime") for item in comparisons),
    }


def _row(item: NetworkComparison, default_s: float) -> dict[str, object]:
    figures = {
        "default_ms": item.ms("default"),
        "tunehub_ms": item.ms("tunehub"),
        "onnxruntime_ms": item.ms("onnxruntime"),
        **({"openvino_ms": item.ms("openvino")} if "openvino" in item.facts else {}),
        "max_rel_diff": item.max_rel_diff("tunehub"),
        "compile_default_s": item.compile_s("default"),
        "compile_tunehub_s": item.compile_s("tunehub"),
    }
    errors = dict(item.errors)
    if math.isinf(figures["max_rel_diff"]):
        errors["max_rel_diff"] = "infinite: outputs that are not finite, or of other shapes"
    if _too_slow(item):
        figures["default_over_ms"] = 1e3 * default_s
    known = {name: _known(value) for name, value in figures.items()}
    return {"name": item.name, **known, **({"errors": errors} if errors else {})}


def _known(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _geomean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return geometric_mean(known) if known else None


def _lines(item: NetworkComparison, default_s: float = DEFAULT_S) -> list[str]:
    """What the demo prints of a network."""
    default, ours = item.ms("default"), item.ms("tunehub")
    more = ""
    if _too_slow(item):
        default, more = 1e3 * default_s, "more than "
    compiled = {name: f"   compiled in {item.compile_s(name):.1f} s" for name in ("default", "tunehub")}
    lines = {
        "default": f"{more}{default:{0 if more else 10}.{0 if more else 2}f} ms{compiled['default']}",
        "tunehub": f"{ours:10.2f} ms{compiled['tunehub']}   {more}{default / ours:.0f} times as fast as the default",
    }
    labels = {"default": "TVM default", "tunehub": "tunehub", "onnxruntime": "onnxruntime"}
    if "openvino" in {*item.facts, *item.errors}:
        labels["openvino"] = "OpenVINO"
    for name in ("onnxruntime", "openvino"):
        other = item.ms(name)
        lines[name] = f"{other:10.2f} ms   tunehub takes {ours / other:.2f} of its time"
    found = [f"  {label:<14}{_failed(item, name) or lines[name]}" for name, label in labels.items()]
    found.append(f"  largest difference of outputs, relative: {item.max_rel_diff('tunehub'):.1e}")
    report = item.facts["tunehub"].report if "tunehub" in item.facts else None
    return ["", item.name, *found, *(f"  {line}" for line in str(report.summary() if report else "").splitlines())]


def _too_slow(item: NetworkComparison) -> bool:
    """Whether the default was given up after `DEFAULT_S`."""
    return "default" in item.facts and "default" not in item.samples_s and "default" not in item.errors


def _failed(item: NetworkComparison, runtime: str) -> str | None:
    return f"failed: {item.errors[runtime]}" if runtime in item.errors else None


def _made_by() -> str:
    """When and by what, for evidence."""
    named = {"apache-tvm": "TVM", "onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
    found = [f"{title} {version(name)}" for name, title in named.items() if _is_installed(name)]
    return f"{datetime.now(timezone.utc).date().isoformat()}; {', '.join(found)}"


def _is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def _closing(summary: dict[str, Any]) -> str:
    means = (
        ("geomean_vs_default", "{:.1f} times as fast as TVM's default"),
        ("geomean_vs_onnxruntime", "{:.2f} of onnxruntime's time"),
    )
    known = [text.format(summary[name]) for name, text in means if summary[name] is not None]
    return f"Geometric means: {', '.join(known) or 'unknown'}"
