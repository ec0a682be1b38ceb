"""Speed without tuning: records of other shapes, default knobs, and networks that no record was tuned on.

Sources and held-out workloads (:mod:`benchmarks.transfer_workloads`) are tuned first, in the folder
``TUNEHUB_TRANSFER_WORK``; what its journals hold is not tuned again, so a run that was stopped goes on. Then each
held-out workload is scheduled by every strategy from the records of the sources alone, and all schedules are compared
with TVM's default and timed in turns in one process. Two studies:

* ``knobs``: layouts chosen by the hub, where a template made for the operator serves: its own rule, or the knobs of a
  source;
* ``traces``: layouts kept, traces of sources adapted by each strategy, beside a template with its own knobs.

``TUNEHUB_TRANSFER_TRIALS`` (default 64) bounds the trials of each task, ``TUNEHUB_TRANSFER_LIMIT`` the number of
held-out workloads of each kind, ``TUNEHUB_TRANSFER_KINDS`` the kinds. ``TUNEHUB_TRANSFER_NETWORKS`` names the networks,
none of which a package may have been tuned on; those for which ``tunehub distill`` wrote ``<folder>/<network>.jsonl``
are compared with their own records, too.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks.table import Row
from benchmarks.transfer_workloads import workloads
from tunehub.host import physical_cores
from tunehub.lookup import Candidate, Neighbour
from tunehub.relax_class import OperatorClass, class_of
from tunehub.transfer_sources import WEIGHTS, Strategy, by_model, features, most_efficient, nearest
from tunehub_builder import networks
from tunehub_builder.comparison import Comparison, compare, use_threads
from tunehub_builder.distill import best_trials
from tunehub_builder.tuning.journal import Journal, KnobChoice, LineJournal, Trial
from tunehub_builder.tuning.worker import packed, unpacked

STRATEGIES: dict[str, Strategy] = {"nearest": nearest, "most_efficient": most_efficient, "by_model": by_model}
_FOLDER, _TRIALS = "benchmarks/.transfer", 64
_MEASURED, _ATTEMPTS, _ROUNDS = 8, 3, 7
_OF_A_SOURCE = 2  # its fastest trials: four sources make eight candidates to measure
_TOLERANCE = 1e-3  # relative: templates and tuned schedules add in another order
_LIMIT_S = 600.0
_UNTUNED = ("inception_v1", "inception_v2", "densenet121", "alexnet", "shufflenet", "vgg19")


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out workload: seconds and differences of each schedule that was made, by the name of who made it.

    ``made_s``: seconds that making it took. ``axes``: by source, the model's features and the seconds of its schedule.
    """

    exact: str
    name: str
    run_s: dict[str, float]
    difference: dict[str, float]
    made_s: dict[str, float]
    samples: tuple[tuple[tuple[float, float, float], float, float], ...] = ()


@dataclass(kw_only=True)
class _Task:
    """A workload as a tuning task, and the class of its function."""

    name: str
    held_out: bool
    task: Any
    own: OperatorClass


@dataclass(kw_only=True)
class _Made:
    """The schedules of one workload: candidates of a worker by the name of who made them."""

    candidates: dict[str, Any] = field(default_factory=dict)
    made_s: dict[str, float] = field(default_factory=dict)


def run() -> list[Row]:
    """Tune what is missing, measure what is missing, and summarise."""
    threads = physical_cores()
    use_threads(threads)
    import tunehub

    folder = Path(os.environ.get("TUNEHUB_TRANSFER_WORK", _FOLDER))
    target = tunehub.host_target()
    knobs = _study(folder / "knobs", target, threads, knobs=True)
    traces = _study(folder / "traces", target, threads, knobs=False)
    expert = {item.name for item in knobs}
    shipped = [(item, "rule") for item in knobs]
    shipped += [(item, "by_model") for item in traces if item.name not in expert]
    measured = [item for item, _ in shipped]
    rows = [*_summary("", shipped, measured), *_strategies("knobs", knobs), *_strategies("traces", traces)]
    return [*rows, *_weights(traces), *_networks(folder, target, threads)]


# -- the studies


def _study(folder: Path, target: Any, threads: int, *, knobs: bool) -> list[Timed]:
    """Tune all workloads of a study and time the held-out ones that its way of scheduling is for."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = _tasks(target, knobs=knobs)
    results = LineJournal(folder / "results.jsonl", Timed)
    results.heal()
    known = {entry.exact: entry for entry in results.entries()}
    with _pool(folder, target, threads, knobs=knobs) as pool:
        _tune(folder, [item.task for item in tasks], target, pool, knobs=knobs)
        best, _ = best_trials(Journal(folder).trials(), _OF_A_SOURCE)
        neighbours = _neighbours(tasks, best)
        for item in tasks:
            if item.held_out and item.task.exact not in known and best.get(item.task.exact):
                made = (_by_knobs if knobs else _by_traces)(item, neighbours[item.own.key], target)
                made.candidates["tuned"] = best[item.task.exact][0].candidate
                timed = _timed(item, made, neighbours[item.own.key], pool, target)
                if timed is not None:
                    results.append(timed)
                    known[item.task.exact] = timed
    return [known[item.task.exact] for item in tasks if item.task.exact in known]


def _tasks(target: Any, *, knobs: bool) -> list[_Task]:
    """The heaviest function of each workload: layout transforms around it are no workloads here."""
    from tunehub.relax_schedule import GENERAL_TEMPLATES
    from tunehub.templates import find
    from tunehub_builder.tuning.tasks import extract_tasks

    limit, counts, found = int(os.environ.get("TUNEHUB_TRANSFER_LIMIT", "99")), defaultdict[str, int](int), []
    kinds = os.environ.get("TUNEHUB_TRANSFER_KINDS")
    for workload in workloads():
        kind = workload.name.rpartition("_")[0]
        if kinds is not None and kind not in kinds.split(","):
            continue
        counts[kind] += workload.held_out
        if workload.held_out and counts[kind] > limit:
            continue
        made = extract_tasks([(workload.name, workload.make())], target, layout="auto" if knobs else "keep")
        classed = [(task, own) for task in made if (own := class_of(task.mod)) is not None]
        task, own = max(classed, key=lambda pair: pair[1].work)
        match = find(task.mod) if knobs else None
        expert = match is not None and match.template.NAME not in GENERAL_TEMPLATES
        if expert == knobs:
            found.append(_Task(name=workload.name, held_out=workload.held_out, task=task, own=own))
    return found


def _pool(folder: Path, target: Any, threads: int, *, knobs: bool) -> Any:
    from tunehub_builder.tuning.knob_worker import KnobSession
    from tunehub_builder.tuning.pool import PoolOptions, WorkerPool

    options = PoolOptions(workers=threads, threads=threads, log=str(folder / "native.log"))
    return WorkerPool(options, str(target), make_session=KnobSession if knobs else None)


def _tune(folder: Path, tasks: Sequence[Any], target: Any, pool: Any, *, knobs: bool) -> None:
    from tunehub_builder.tuning.tuner import KnobOptions, TunerOptions, tune

    trials = int(os.environ.get("TUNEHUB_TRANSFER_TRIALS", str(_TRIALS)))
    options = KnobOptions(trials=trials) if knobs else TunerOptions(trials=trials, search_trials=trials // 2)
    tune(tasks, target, folder, pool, options)


def _neighbours(tasks: Iterable[_Task], best: dict[str, list[Trial]]) -> dict[str, list[Neighbour]]:
    """The best records of the sources by class. What the default takes plays no part in the comparison."""
    found: dict[str, list[Neighbour]] = defaultdict(list)
    for item in tasks:
        if not item.held_out and best.get(item.task.exact):
            found[item.own.key] += [_neighbour(item, trial) for trial in best[item.task.exact]]
    return found


def _neighbour(item: _Task, trial: Trial) -> Neighbour:
    from tunehub_builder.distill import as_record
    from tunehub_builder.work_directory import TaskEntry

    entry = TaskEntry(
        name=item.name, exact=item.task.exact, anchor=item.task.anchor, counts={}, module="",
        op_class=item.own.key, extents=item.own.extents,
    )  # fmt: skip
    record = as_record(entry, trial)
    return Neighbour(
        extents=item.own.extents,
        run_s=record.mean_s,
        default_s=None,
        knobs=trial.choice is not None,
        package=item.name,
        read=lambda: Candidate(record=record, rung="transfer", package=item.name),
    )


def _by_traces(item: _Task, neighbours: Sequence[Neighbour], target: Any) -> _Made:
    """One schedule by each strategy, those that are measured, and what a template makes of the layout as it is."""
    made = _Made()
    _make(made, "rule", [None], lambda _: _templated(item, target))
    first = by_model(item.own, neighbours)[:_MEASURED]
    for number, neighbour in enumerate(first):
        _make(made, f"measured {number}", [neighbour], lambda other: _transferred(item, other, target))
    for name, strategy in STRATEGIES.items():
        chosen = strategy(item.own, neighbours)[:_ATTEMPTS]
        _make(made, name, chosen, lambda other: _transferred(item, other, target))
    return made


def _transferred(item: _Task, neighbour: Neighbour, target: Any) -> Any:
    """The adapted trace; whatever TVM raises when it does not fit."""
    from tunehub.relax_guard import check_function
    from tunehub.relax_schedule import apply_transfer
    from tunehub.relax_traces import export_trace, import_trace

    candidate = neighbour.read()
    assert candidate is not None
    schedule = apply_transfer(item.task.mod, import_trace(list(candidate.record.trace)), target)  # type: ignore[union-attr]
    check_function(schedule.mod["main"], item.task.mod["main"], target)
    return export_trace(schedule.trace)


def _templated(item: _Task, target: Any) -> Any:
    """The trace of the schedule by a template's own knobs; an error when none fits."""
    from tunehub.relax_template import TemplateFit
    from tunehub.relax_traces import export_trace

    fit = TemplateFit(item.task.mod, target)
    if fit.match is None:
        raise LookupError("no template fits")
    return export_trace(fit.by_default(fit.match).trace)


def _by_knobs(item: _Task, neighbours: Sequence[Neighbour], target: Any) -> _Made:
    """The template's rule, the knobs of the source that each strategy chooses, and those that are measured."""
    from tunehub_builder.tuning.knob_search import space_of

    made = _Made()
    rule = space_of(item.task.mod, target)[0]
    _make(made, "rule", [None], lambda _: rule)
    for number, neighbour in enumerate(by_model(item.own, neighbours)[: _MEASURED - 1]):
        _make(made, f"measured {number}", [neighbour], lambda other: _fitting(item, other, target))
    for name, strategy in STRATEGIES.items():
        chosen: list[Neighbour | None] = [*strategy(item.own, neighbours)[:_ATTEMPTS], None]
        _make(made, name, chosen, lambda other: rule if other is None else _fitting(item, other, target))
    return made


def _fitting(item: _Task, neighbour: Neighbour, target: Any) -> KnobChoice:
    """The knobs of a source; KnobError when they do not fit."""
    from tunehub.relax_template import TemplateFit
    from tunehub_registry.template_record import TemplateRecord

    candidate = neighbour.read()
    assert candidate is not None and isinstance(candidate.record, TemplateRecord)
    record = candidate.record
    TemplateFit(item.task.mod, target).by_record(record)
    return KnobChoice(template=record.template, version=record.version, knobs=dict(record.knobs))


def _make(made: _Made, name: str, sources: Sequence[Any], make: Callable[[Any], Any]) -> None:
    """The first candidate that can be made of ``sources``, in this order."""
    began = time.perf_counter()
    for source in sources:
        try:
            made.candidates[name] = make(source)
            made.made_s[name] = time.perf_counter() - began
            return
        except Exception:  # TVM raises many kinds for a trace that does not fit
            continue


def _timed(item: _Task, made: _Made, neighbours: Sequence[Neighbour], pool: Any, target: Any) -> Timed | None:
    """Compare and time all candidates beside the default, in turns, in one worker; None when its process ends."""
    import tvm

    worker, exact = pool.workers[0], item.task.exact
    pool.add_task(exact, tvm.ir.save_json(item.task.mod))
    worker.load(exact, tvm.ir.save_json(item.task.mod))
    names = list(made.candidates)
    kind, errors = worker.ask(("build_case", exact, str(target), [made.candidates[name] for name in names]), _LIMIT_S)
    if kind != "ok" or errors[0] is not None:
        return None
    places = {name: i for i, (name, error) in enumerate(zip(names, errors[1:], strict=True)) if error is None}
    difference = {name: worker.ask(("difference", unpacked(i), 0), _LIMIT_S)[1] for name, i in places.items()}
    run_s = _in_turns(worker, {"default": 0, **{name: packed(i) for name, i in places.items()}})
    if run_s is None:
        return None
    first = by_model(item.own, neighbours)[:_MEASURED]
    samples = [
        (features(item.own, other.extents), item.own.work / _rate(item, other), run_s[f"measured {number}"])
        for number, other in enumerate(first)
        if f"measured {number}" in run_s
    ]
    return Timed(
        exact=exact, name=item.name, run_s=run_s, difference=difference, made_s=made.made_s,
        samples=tuple(samples),
    )  # fmt: skip


def _rate(item: _Task, neighbour: Neighbour) -> float:
    shape = item.own.same_shape(neighbour.extents) or ((1,),)
    return max(map(math.prod, shape)) / neighbour.run_s


def _in_turns(worker: Any, numbers: dict[str, int]) -> dict[str, float] | None:
    """Median seconds of each; in every round each runs for about 10 ms, slow ones once in all."""
    samples: dict[str, list[float]] = defaultdict(list)
    for name, number in numbers.items():
        kind, value = worker.ask(("time", number, 1), _LIMIT_S)
        if kind != "ok":
            return None
        samples[name].append(float(value))
    for _ in range(_ROUNDS):
        for name, number in numbers.items():
            if samples[name][0] > 0.1 and len(samples[name]) > 1:
                continue
            runs = max(1, int(0.01 / max(samples[name][0], 1e-7)))
            kind, value = worker.ask(("time", number, runs), _LIMIT_S)
            if kind != "ok":
                return None
            samples[name].append(float(value))
    return {name: median(values[1:]) for name, values in samples.items()}


# -- rows


def _summary(prefix: str, shipped: Sequence[tuple[Timed, str]], everything: Sequence[Timed]) -> list[Row]:
    """What a user gets: template where one serves, else a transfer."""
    shares = sorted(_share(item, name) for item, name in shipped)
    best = [max(_share(item, name) for name in item.run_s if name not in ("tuned", "default")) for item in everything]
    wrong = sum(value > _TOLERANCE for item in everything for name, value in item.difference.items() if name != "tuned")
    slower = sum(item.run_s.get(name, math.inf) > item.run_s["default"] for item, name in shipped)
    made_s = [item.made_s[name] for item, name in shipped if name in item.made_s]
    count = f"of {len(shipped)}"
    return [
        Row(name=f"{prefix}transfer_median_of_tuned", value=_quantile(shares, 0.5), unit="ratio", note=count),
        Row(name=f"{prefix}transfer_p10_of_tuned", value=_quantile(shares, 0.1), unit="ratio"),
        Row(name=f"{prefix}transfer_worst_of_tuned", value=min(shares, default=0.0), unit="ratio"),
        Row(name=f"{prefix}measured8_median_of_tuned", value=_quantile(sorted(best), 0.5), unit="ratio"),
        Row(name=f"{prefix}transfer_wrong_outputs", value=wrong, unit="count", note="all schedules of all strategies"),
        Row(name=f"{prefix}workloads_slower_than_default", value=slower, unit="count", note=count),
        Row(
            name=f"{prefix}ms_per_transferred_workload",
            value=1e3 * (sum(made_s) / len(made_s) if made_s else 0.0),
            unit="ms",
            note="adapting, postprocessing, checks",
        ),
    ]


def _strategies(study: str, items: Sequence[Timed]) -> list[Row]:
    """The same figures for each strategy of a study; a workload that none of its choices fits counts as 0."""
    rows = []
    for name in ("rule", *STRATEGIES):
        shares = sorted(_share(item, name) for item in items)
        if not any(shares):
            continue
        made = [item.made_s[name] for item in items if name in item.made_s]
        slower = sum(item.run_s[name] > item.run_s["default"] for item in items if name in item.run_s)
        head = f"{study}_{name}"
        rows += [
            Row(name=f"{head}_median_of_tuned", value=_quantile(shares, 0.5), unit="ratio", note=f"of {len(shares)}"),
            Row(name=f"{head}_p10_of_tuned", value=_quantile(shares, 0.1), unit="ratio"),
            Row(name=f"{head}_worst_of_tuned", value=shares[0], unit="ratio"),
            Row(name=f"{head}_geomean_vs_default", value=_gain(items, name), unit="times"),
            Row(name=f"{head}_slower_than_default", value=slower, unit="count"),
            Row(name=f"{head}_ms_per_workload", value=1e3 * sum(made) / max(1, len(made)), unit="ms"),
        ]
    return rows


def _weights(items: Sequence[Timed]) -> list[Row]:
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


def _networks(folder: Path, target: Any, threads: int) -> list[Row]:
    """Networks without a record of their own, beside TVM's default, onnxruntime, and their own tuning if there is."""
    chosen = os.environ.get("TUNEHUB_TRANSFER_NETWORKS")
    names = _UNTUNED if chosen is None else tuple(filter(None, chosen.split(",")))
    found = [compare(networks.get(name), target, threads=threads) for name in names]
    tuned: list[tuple[Comparison, Comparison]] = []
    for item in found:
        records = folder / f"{item.name}.jsonl"
        if records.exists():
            options = {"user_records": records}
            own = compare(networks.get(item.name), target, threads=threads, hub_options=options, with_default=False)
            tuned.append((item, own))
    if not found:
        return []
    exact = sum(w.rung in ("exact", "user") for item in found for w in item.report.workloads)
    note = f"{len(found)} networks, {exact} workloads with a record of their own"
    against_default = [item.default_ms / item.tunehub_ms for item in found]
    against_onnxruntime = [item.tunehub_ms / item.onnxruntime_ms for item in found]
    rows = [
        Row(name="untuned_geomean_vs_default", value=_geomean(against_default), unit="times", note=note),
        Row(name="untuned_geomean_vs_onnxruntime", value=_geomean(against_onnxruntime), unit="ratio"),
        Row(name="untuned_networks_slower_than_default", value=sum(r < 1 for r in against_default), unit="count"),
    ]
    if tuned:
        ratios = [item.tunehub_ms / own.tunehub_ms for item, own in tuned]
        rows.append(Row(name="untuned_geomean_vs_tuned", value=_geomean(ratios), unit="ratio", note=f"{len(tuned)}"))
    return rows


def _share(item: Timed, name: str) -> float:
    """The speed of a schedule as a share of the best known one's; 0 where there is none."""
    best = min(item.run_s.get("tuned", math.inf), item.run_s.get("rule", math.inf))
    return best / item.run_s[name] if name in item.run_s and math.isfinite(best) else 0.0


def _gain(items: Iterable[Timed], name: str) -> float:
    return _geomean([item.run_s["default"] / item.run_s[name] for item in items if name in item.run_s])


def _quantile(values: Sequence[float], part: float) -> float:
    return float(np.quantile(values, part)) if values else 0.0


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0
