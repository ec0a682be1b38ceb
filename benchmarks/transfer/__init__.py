"""Speed without tuning: records of other shapes, default knobs, and networks that no record was tuned on.

Sources and held-out workloads (:mod:`benchmarks.transfer.workloads`) are tuned first, in the folder
``TUNEHUB_TRANSFER_WORK``; what its journals hold is not tuned again, so a run that was stopped goes on. Then each
held-out workload is scheduled by every strategy from the records of the sources alone, and all schedules are compared
with TVM's default and timed in turns in one process (:mod:`benchmarks.transfer.study`). Two studies:

* ``knobs``: layouts chosen by the hub, where a template made for the operator serves: its own rule, or the knobs of a
  source;
* ``traces``: layouts kept, traces of sources adapted by each strategy, beside a template with its own knobs.

With ``TUNEHUB_TRANSFER_TUNED`` (work directories of ``tunehub tune``, separated by commas) nothing is tuned: each of
their networks is left out in turn, and its workloads get the records of the others.

``TUNEHUB_TRANSFER_TRIALS`` (default 64) bounds the trials of each task, ``TUNEHUB_TRANSFER_LIMIT`` the number of
held-out workloads of each kind or network, ``TUNEHUB_TRANSFER_KINDS`` the kinds. ``TUNEHUB_TRANSFER_NETWORKS`` names
some of :mod:`benchmarks.shared.untuned_networks` (empty: none); they are compared with their own records, too, where
``tunehub distill`` wrote ``<folder>/networks.jsonl`` from a tuning of ``<folder>/onnx/*.onnx``.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.networks import is_whole
from benchmarks.shared import untuned_networks
from benchmarks.shared.table import Row
from benchmarks.transfer.study import STRATEGIES, TransferTimes, by_client, held_out, left_out
from tunehub.comparison.difference import tolerance
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.compiler.schedule.transfer_sources import WEIGHTS
from tunehub.target.host import physical_cores
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.runtimes import OnnxRuntime, Runtime, Tunehub, TvmDefault
from tunehub_builder.networks import Network

if TYPE_CHECKING:
    from tunehub.target.types import Target

_FOLDER = "benchmarks/.transfer"


def run(networks: Sequence[Network] | None = None, plan: MeasuringPlan = PLAN) -> list[Row]:
    """Tune what is missing, measure what is missing, and summarise. ``networks``: in place of the environment's."""
    import tunehub

    threads = physical_cores()
    folder, target = Path(os.environ.get("TUNEHUB_TRANSFER_WORK", _FOLDER)), tunehub.host_target()
    studies: dict[bool, list[TransferTimes]] = {True: [], False: []}
    tuned = os.environ.get("TUNEHUB_TRANSFER_TUNED")
    for number, name in enumerate(tuned.split(",") if tuned else ()):
        knobs, items = left_out(Path(name), folder / f"left-out-{number}", target, threads)
        studies[knobs] += items
    if not tuned:
        studies[True] = held_out(folder / "knobs", target, threads, knobs=True)
        studies[False] = held_out(folder / "traces", target, threads, knobs=False)
    expert = {item.name for item in studies[True]}
    shipped = [(item, "rule") for item in studies[True]]
    shipped += [(item, "most_efficient") for item in studies[False] if tuned or item.name not in expert]
    rows = [*_summary(shipped), *_strategies("knobs", studies[True]), *_strategies("traces", studies[False])]
    return [*rows, *_weights(studies[False]), *_networks(folder, target, threads, networks, plan)]


# -- rows


def _summary(shipped: Sequence[tuple[TransferTimes, str]]) -> list[Row]:
    """What a user gets: a template where one is for the operator, else a transfer; what neither serves is left out."""
    served = [(item, name) for item, name in shipped if name in item.run_s and _is_compared(item)]
    shares = [_share(item, name) for item, name in served]
    best = [max(_share(item, name) for name in item.run_s if name not in ("tuned", "default")) for item, _ in served]
    wrong = sum(
        value > tolerance() for item, _ in shipped for name, value in item.difference.items() if name != "tuned"
    )
    slower = sum(item.run_s[name] > item.run_s["default"] for item, name in served)
    made_s = [item.made_s[name] for item, name in served if name in item.made_s]
    count = f"of {len(served)}; {len(shipped) - len(served)} not served"
    return [
        Row(name="transfer_median_of_tuned", value=_quantile(shares, 0.5), unit="ratio", note=count),
        Row(name="transfer_p10_of_tuned", value=_quantile(shares, 0.1), unit="ratio"),
        Row(name="transfer_worst_of_tuned", value=min(shares, default=0.0), unit="ratio"),
        Row(name="measured8_median_of_tuned", value=_quantile(best, 0.5), unit="ratio"),
        Row(name="transfer_wrong_outputs", value=wrong, unit="count", note="all schedules of all strategies"),
        Row(name="workloads_slower_than_default", value=slower, unit="count", note=count),
        Row(
            name="ms_per_transferred_workload",
            value=1e3 * (sum(made_s) / len(made_s) if made_s else 0.0),
            unit="ms",
            note="adapting, postprocessing, checks",
        ),
    ]


def _is_compared(item: TransferTimes) -> bool:
    return "tuned" in item.run_s


def _strategies(study: str, items: Sequence[TransferTimes]) -> list[Row]:
    """The same figures for each strategy of a study, over the workloads that have neighbours."""
    compared = [item for item in items if _is_compared(item) and item.neighbours]
    if not compared:
        return []
    rows = [Row(name=f"{study}_with_neighbours", value=len(compared), unit="count", note=f"of {len(items)}")]
    for name in ("rule", *STRATEGIES):
        served = [item for item in compared if name in item.run_s]
        if not served:
            continue
        shares = [_share(item, name) for item in served]
        made = [item.made_s[name] for item in served if name in item.made_s]
        slower = sum(item.run_s[name] > item.run_s["default"] for item in served)
        head = f"{study}_{name}"
        rows += [
            Row(name=f"{head}_median_of_tuned", value=_quantile(shares, 0.5), unit="ratio", note=f"of {len(served)}"),
            Row(name=f"{head}_p10_of_tuned", value=_quantile(shares, 0.1), unit="ratio"),
            Row(name=f"{head}_worst_of_tuned", value=min(shares), unit="ratio"),
            Row(name=f"{head}_geomean_vs_default", value=_gain(served, name), unit="times"),
            Row(name=f"{head}_slower_than_default", value=slower, unit="count"),
            Row(name=f"{head}_ms_per_workload", value=1e3 * sum(made) / max(1, len(made)), unit="ms"),
        ]
    return rows


def _weights(items: Sequence[TransferTimes]) -> list[Row]:
    """The weights of the model that fit best what was measured: least squares of the logarithms."""
    samples = [sample for item in items for sample in item.samples]
    if len(samples) < 3 * len(WEIGHTS):
        return []
    matrix = np.array([features for features, _, _ in samples])
    losses = np.log([run_s / ideal_s for _, ideal_s, run_s in samples])
    fitted, *_ = np.linalg.lstsq(np.column_stack([matrix, np.ones(len(samples))]), losses, rcond=None)
    names = ("misfit", "smaller", "distance")
    return [
        Row(name=f"model_weight_{name}", value=math.expm1(max(0.0, float(value))), unit="ratio", note=f"now {weight}")
        for name, value, weight in zip(names, fitted[:-1], WEIGHTS, strict=True)
    ]


def _networks(
    folder: Path, target: Target, threads: int, given: Sequence[Network] | None, plan: MeasuringPlan
) -> list[Row]:
    """Networks without a record of their own, beside TVM's default, onnxruntime, and their own tuning if there is."""
    named = os.environ.get("TUNEHUB_TRANSFER_NETWORKS")
    names = untuned_networks.names() if named is None else filter(None, named.split(","))
    networks = [untuned_networks.get(name, folder / "onnx") for name in names] if given is None else given
    records = folder / "networks.jsonl"
    runtimes: list[Runtime] = [TvmDefault(), Tunehub(), OnnxRuntime()]
    if records.exists():
        runtimes.append(Tunehub(name="tuned", options={"user_records": records}))
    with runtime_processes(runtimes, threads=threads) as workers:
        compared = [compare(network, workers, plan) for network in networks]
    found = [item for item in compared if is_whole(item)]
    modules = ((network.name, network.relax_module()) for network in networks)
    workloads = by_client(modules, folder / "workloads", target, threads)
    return [*(_network(item) for item in found), *_of_networks(found), *_of_workloads(workloads)] if found else []


def _of_workloads(items: Sequence[TransferTimes]) -> list[Row]:
    slower = {item.name: item.run_s["default"] / item.run_s["client"] for item in items if "client" in item.run_s}
    worst = sorted(slower, key=lambda name: slower[name])[:3]
    return [
        Row(
            name="untuned_workloads_slower_than_default",
            value=sum(gain < 1 for gain in slower.values()),
            unit="count",
            note=f"of {len(slower)}; the least gains " + ", ".join(f"{slower[name]:.2f} {name}" for name in worst),
        ),
        Row(
            name="untuned_wrong_outputs",
            value=sum(value > tolerance() for item in items for value in item.difference.values()),
            unit="count",
            note="of workloads",
        ),
    ]


def _network(item: NetworkComparison) -> Row:
    report = item.facts["tunehub"].report
    assert report is not None
    rungs = Counter(workload.rung for workload in report.workloads)
    note = (
        f"default {item.ms('default'):.1f} ms, tuned {item.ms('tuned'):.2f}, onnxruntime {item.ms('onnxruntime'):.2f}; "
        f"compiles in {item.compile_s('tunehub'):.1f} s, plainly {item.compile_s('default'):.1f}; "
        f"differs by {item.max_rel_diff('tunehub'):.1e}; "
        + ", ".join(f"{count} {rung}" for rung, count in rungs.most_common())
    )
    return Row(name=f"untuned_{item.name}", value=item.ms("tunehub"), unit="ms", note=note)


def _of_networks(found: Sequence[NetworkComparison]) -> list[Row]:
    against_default = [item.ratio("default", "tunehub") for item in found]
    ratios = {
        "untuned_geomean_vs_onnxruntime": [item.ratio("tunehub", "onnxruntime") for item in found],
        "untuned_geomean_vs_tuned": [item.ratio("tunehub", "tuned") for item in found],
        "untuned_compile_time": [item.compile_s("tunehub") / item.compile_s("default") for item in found],
    }
    rows = [
        Row(name=name, value=_geomean(values), unit="ratio", note=f"worst {max(values):.2f}")
        for name, values in ratios.items()
        if not any(map(math.isnan, values))
    ]
    note = f"{len(found)} networks, the least {min(against_default):.1f}"
    return [
        Row(name="untuned_geomean_vs_default", value=_geomean(against_default), unit="times", note=note),
        Row(name="untuned_networks_slower_than_default", value=sum(r < 1 for r in against_default), unit="count"),
        *rows,
    ]


def _share(item: TransferTimes, name: str) -> float:
    """The speed of a schedule as a share of that of the workload's own tuning."""
    return item.run_s["tuned"] / item.run_s[name]


def _gain(items: Iterable[TransferTimes], name: str) -> float:
    return _geomean([item.run_s["default"] / item.run_s[name] for item in items if name in item.run_s])


def _quantile(values: Sequence[float], part: float) -> float:
    return float(np.quantile(values, part)) if values else 0.0


def _geomean(values: Sequence[float]) -> float:
    return geometric_mean(values) if values else 0.0
