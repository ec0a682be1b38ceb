"""The measurements of the benchmark ``transfer``: what each strategy makes of a workload, compared and timed.

A *case* is a workload that may not use its own record, with the records of others and, to compare with, its own.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.transfer.workloads import workloads
from tunehub.comparison.protocol import MeasuringPlan, Timer, in_turns
from tunehub.compiler.measure.session import packed, unpacked
from tunehub.compiler.schedule.transfer_sources import Strategy, by_model, features, most_efficient, nearest
from tunehub.records.lookup import Candidate, Neighbour
from tunehub.tir.operator_class import OperatorClass, anchor_class_of, class_of
from tunehub_builder.gate.finalists import best_trials
from tunehub_builder.tuning.journal import Journal, KnobChoice, LineJournal, Trial
from tunehub_builder.tuning.trial_record import candidate_of, record_of
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.target.types import Target

STRATEGIES: dict[str, Strategy] = {"nearest": nearest, "most_efficient": most_efficient, "by_model": by_model}
MEASURED = 8
_ATTEMPTS, _TRIALS = 3, 64
_PLAN = MeasuringPlan(rounds=7, sample_s=0.01, budget_s=0.2)  # 0.2 s: slow ones twice
_OF_A_SOURCE = 2  # its fastest trials: four sources make eight candidates to measure
_LIMIT_S = 600.0


class TransferTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A case's schedules by the name of who made them: seconds of a run, relative difference from the default's
    output, seconds that making it took.

    ``neighbours`` could be used. ``samples``: of those measured the model's features, the time without any loss, and
    the time found.
    """

    exact: str
    name: str
    neighbours: int
    run_s: dict[str, float]
    difference: dict[str, float]
    made_s: dict[str, float]
    samples: tuple[tuple[tuple[float, float, float], float, float], ...] = ()


@dataclass(kw_only=True)
class Item:
    """A workload with its classes. ``group``: those of one group are no neighbours of each other."""

    name: str
    exact: str
    mod: Any
    group: str
    own: OperatorClass | None
    anchors: OperatorClass | None

    @classmethod
    def of(cls, name: str, exact: str, mod: Any, group: str) -> Item:
        """The workload ``mod`` (one PrimFunc ``main``)."""
        return cls(name=name, exact=exact, mod=mod, group=group, own=class_of(mod), anchors=anchor_class_of(mod))


@dataclass(kw_only=True)
class TransferCase:
    """``own``: the class by which the ``neighbours`` were found, None when there are none."""

    item: Item
    own: OperatorClass | None
    neighbours: list[Neighbour]
    tuned: Trial


@dataclass(kw_only=True)
class _Made:
    candidates: dict[str, Any] = field(default_factory=dict)
    made_s: dict[str, float] = field(default_factory=dict)


def held_out(folder: Path, target: Target, threads: int, *, knobs: bool) -> list[TransferTimes]:
    """Tune the workloads of :mod:`benchmarks.transfer.workloads` in ``folder``, and time those that are held out."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = _tasks(target, knobs=knobs)
    if not tasks:
        return []
    with _pool(folder, target, threads, knobs=knobs) as pool:
        _tune(folder, [task for task, _ in tasks], target, pool, knobs=knobs)
        best = _best(folder, _OF_A_SOURCE)
        items = [item for _, item in tasks]
        cases = (_case(item, items, best) for item in items if item.group == "held out")
        return _solved(cases, folder, target, pool, _by_knobs if knobs else _by_traces)


def by_client(networks: Iterable[tuple[str, Any]], folder: Path, target: Target, threads: int) -> list[TransferTimes]:
    """What a compile makes of each workload of ``networks`` (names and modules): ``client``, beside the default.

    Those that a compile leaves to TVM, and those with a record of their own, are left out.
    """
    from tunehub.compiler.hub import open_hub
    from tunehub_builder.tuning.tasks import extract_tasks

    folder.mkdir(parents=True, exist_ok=True)
    lookup = open_hub(target).lookup
    tasks = extract_tasks(networks, target, layout="auto")

    chosen = {task.exact: _clients(task.mod, target, lookup) for task in tasks}

    def make(case: TransferCase, _target: Any) -> _Made:
        return _Made(candidates={"client": chosen[case.item.exact]})

    named = [(f"{task.name} of {task.networks[0]}", task) for task in tasks if chosen[task.exact] is not None]
    items = [Item.of(name, task.exact, task.mod, "") for name, task in named]
    cases = (TransferCase(item=i, own=None, neighbours=[], tuned=Trial(task=i.exact, source="none")) for i in items)
    if not items:
        return []
    with _pool(folder, target, threads, knobs=True) as pool:
        return _solved(cases, folder, target, pool, make)


def _clients(mod: Any, target: Target, lookup: Any) -> Any | None:
    """The knobs by which a compile schedules ``mod`` without a record of its own; None when it does not."""
    from tunehub.compiler.schedule.ladder import schedule_function
    from tunehub_builder.tuning.search.knobs import space_of

    served = schedule_function(mod["main"], target, lookup)[0].served
    if served is not None and served.rung == "template":
        return space_of(mod, target)[0]
    if served is not None and served.rung == "anchor" and isinstance(served.record, TemplateRecord):
        return candidate_of(served.record)
    return None


def left_out(directory: Path, folder: Path, target: Target, threads: int) -> tuple[bool, list[TransferTimes]]:
    """Leave out each network of a work directory of ``tunehub tune``: its workloads get the others' records.

    Nothing is tuned. Also returns whether the directory is one of the tuner ``template``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = WorkDirectory(directory)
    knobs = work.existing_run().tuner == "template"
    best = _best(directory, 1)
    cases = _left_out_cases(list(work.tasks()), best)
    with _pool(folder, target, threads, knobs=knobs) as pool:
        return knobs, _solved(cases, folder, target, pool, _by_knobs if knobs else _by_traces)


def _best(directory: Path, top: int) -> dict[str, list[Trial]]:
    return {task: found.best for task, found in best_trials(Journal(directory).trials(), top).items()}


def _left_out_cases(entries: Sequence[TaskEntry], best: dict[str, list[Trial]]) -> Iterator[TransferCase]:
    import tvm

    limit, counts = _limit(), defaultdict[str, int](int)
    tuned = [entry for entry in entries if best.get(entry.exact)]
    items = [Item.of(entry.name, entry.exact, tvm.ir.load_json(entry.module), "") for entry in tuned]
    for entry, item in zip(tuned, items, strict=True):
        network = min(entry.counts)
        if len(entry.counts) > 1 or counts[network] >= limit:
            continue  # one that several networks have is served by its own record in any of them
        counts[network] += 1
        others = [other for other, its in zip(items, tuned, strict=True) if network not in its.counts]
        yield _case(item, others, best)


def _limit() -> int:
    return int(os.environ.get("TUNEHUB_TRANSFER_LIMIT", "1000"))


def _case(item: Item, others: Iterable[Item], best: dict[str, list[Trial]]) -> TransferCase:
    """With the neighbours of its class, else those of its anchor's: as a compile looks for them."""
    tuned = best[item.exact][0] if best.get(item.exact) else Trial(task=item.exact, source="none")
    sources = [other for other in others if other is not item and other.group != "held out"]
    for anchored, own in enumerate((item.own, item.anchors)):
        found = [_neighbour(other, trial, bool(anchored)) for other in sources for trial in best.get(other.exact, [])
                 if own is not None and _class(other, bool(anchored)) == own.key]  # fmt: skip
        if found:
            return TransferCase(item=item, own=own, neighbours=found, tuned=tuned)
    return TransferCase(item=item, own=None, neighbours=[], tuned=tuned)


def _class(item: Item, anchored: bool) -> str | None:
    found = item.anchors if anchored else item.own
    return None if found is None else found.key


def _neighbour(item: Item, trial: Trial, anchored: bool) -> Neighbour:
    """What a lookup gives, without the default's time: no strategy uses it."""
    task = TaskEntry(name=item.name, exact=item.exact, anchor=None, counts={}, module="")
    record = record_of(task, trial.candidate, trial.run_s, trial.source)
    found = item.anchors if anchored else item.own
    candidate = Candidate(record=record, rung="transfer", package=item.name, anchored=anchored)
    return Neighbour(
        extents=() if found is None else found.extents, run_s=record.mean_s, default_s=None,
        knobs=trial.choice is not None, package=item.name, read=lambda: candidate, anchored=anchored,
    )  # fmt: skip


def _tasks(target: Target, *, knobs: bool) -> list[tuple[Any, Item]]:
    """The heaviest function of each workload: layout transforms around it are no workloads here."""
    from tunehub.compiler.schedule.request import GENERAL_TEMPLATES
    from tunehub.kernels.cpu import find
    from tunehub_builder.tuning.tasks import extract_tasks

    limit, counts, found = _limit(), defaultdict[str, int](int), []
    kinds = os.environ.get("TUNEHUB_TRANSFER_KINDS")
    for workload in workloads():
        kind = workload.name.rpartition("_")[0]
        counts[kind] += workload.held_out
        if (kinds is not None and kind not in kinds.split(",")) or (workload.held_out and counts[kind] > limit):
            continue
        made = extract_tasks([(workload.name, workload.make())], target, layout="auto" if knobs else "keep")
        group = "held out" if workload.held_out else "sources"
        pairs = [(task, Item.of(workload.name, task.exact, task.mod, group)) for task in made]
        task, item = max(pairs, key=lambda pair: pair[1].own.work if pair[1].own else 0)
        match = find(task.mod) if knobs else None
        if (match is not None and match.template.NAME not in GENERAL_TEMPLATES) == knobs:
            found.append((task, item))
    return found


def _pool(folder: Path, target: Target, threads: int, *, knobs: bool) -> Any:
    from tunehub_builder.tuning.runner.knob_worker import KnobSession
    from tunehub_builder.tuning.runner.pool import PoolOptions, WorkerPool

    options = PoolOptions(workers=threads, threads=threads, log=str(folder / "native.log"))
    return WorkerPool(options, str(target), make_session=KnobSession if knobs else None)


def _tune(folder: Path, tasks: Sequence[Any], target: Target, pool: Any, *, knobs: bool) -> None:
    from tunehub_builder.tuning.scheduler.batches import KnobOptions, TunerOptions, tune

    trials = int(os.environ.get("TUNEHUB_TRANSFER_TRIALS", str(_TRIALS)))
    options = KnobOptions(trials=trials) if knobs else TunerOptions(trials=trials, search_trials=trials // 2)
    tune(tasks, target, folder, pool, options)


# -- schedules


def _solved(
    cases: Iterable[TransferCase], folder: Path, target: Target, pool: Any, make: Callable[[TransferCase, Any], _Made]
) -> list[TransferTimes]:
    """Those that ``results.jsonl`` does not have are measured now."""
    results = LineJournal(folder / "results.jsonl", TransferTimes)
    results.heal()
    known = {entry.exact: entry for entry in results.entries()}
    solved = []
    for case in cases:
        if case.item.exact not in known:
            made = make(case, target)
            if case.tuned.run_s:
                made.candidates["tuned"] = case.tuned.candidate
            timed = _timed(case, made, pool, target)
            if timed is None:
                continue
            results.append(timed)
            known[case.item.exact] = timed
        solved.append(known[case.item.exact])
    return solved


def _by_traces(case: TransferCase, target: Target) -> _Made:
    """One schedule by each strategy, those that are measured, and what a template makes of the layout as it is."""
    made = _Made()
    _make(made, "rule", [None], lambda _: _templated(case.item, target))
    if case.own is not None:
        for number, neighbour in enumerate(by_model(case.own, case.neighbours)[:MEASURED]):
            _make(made, f"measured {number}", [neighbour], lambda other: _transferred(case.item, other, target))
        for name, strategy in STRATEGIES.items():
            chosen = strategy(case.own, case.neighbours)[:_ATTEMPTS]
            _make(made, name, chosen, lambda other: _transferred(case.item, other, target))
    return made


def _transferred(item: Item, neighbour: Neighbour, target: Target) -> Any:
    """The adapted trace; whatever TVM raises when it does not fit."""
    from tunehub.compiler.schedule.apply import apply_transfer
    from tunehub.tir.guard import check_function
    from tunehub.tir.traces import export_trace, import_trace
    from tunehub_registry.record import ScheduleRecord

    record = _record(neighbour)
    assert isinstance(record, ScheduleRecord)
    trace = import_trace(list(record.trace))
    schedule = apply_transfer(item.mod, trace, target, anchored=neighbour.anchored)
    check_function(schedule.mod["main"], item.mod["main"], target)
    return export_trace(schedule.trace)


def _templated(item: Item, target: Target) -> Any:
    """The trace of the schedule by a template's own knobs; an error when none fits."""
    from tunehub.kernels.template_fit import TemplateFit
    from tunehub.tir.traces import export_trace

    fit = TemplateFit(item.mod, target)
    if fit.match is None:
        raise LookupError("no template fits")
    return export_trace(fit.by_default(fit.match).trace)


def _by_knobs(case: TransferCase, target: Target) -> _Made:
    """The template's rule, the knobs of the source that each strategy chooses, and those that are measured."""
    from tunehub_builder.tuning.search.knobs import space_of

    made, item = _Made(), case.item
    _make(made, "rule", [None], lambda _: space_of(item.mod, target)[0])
    rule = made.candidates.get("rule")
    if rule is None or case.own is None:
        return made
    for number, neighbour in enumerate(by_model(case.own, case.neighbours)[: MEASURED - 1]):
        _make(made, f"measured {number}", [neighbour], lambda other: _fitting(item, other, target))
    for name, strategy in STRATEGIES.items():
        chosen = [*strategy(case.own, case.neighbours)[:_ATTEMPTS], None]
        _make(made, name, chosen, lambda other: rule if other is None else _fitting(item, other, target))
    return made


def _fitting(item: Item, neighbour: Neighbour, target: Target) -> KnobChoice:
    """The knobs of a source; KnobError when they do not fit."""
    from tunehub.kernels.template_fit import TemplateFit

    record = _record(neighbour)
    assert isinstance(record, TemplateRecord)
    TemplateFit(item.mod, target).by_knobs(record)
    return KnobChoice(template=record.template, version=record.version, knobs=dict(record.knobs))


def _record(neighbour: Neighbour) -> Any:
    candidate = neighbour.read()
    assert candidate is not None
    return candidate.record


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


# -- measurements


def _timed(case: TransferCase, made: _Made, pool: Any, target: Target) -> TransferTimes | None:
    """Compare and time all candidates beside the default, in turns, in one worker; None when its process ends."""
    import tvm

    worker, item = pool.workers[0], case.item
    worker.load(item.exact, tvm.ir.save_json(item.mod))
    places, candidates = _once(made.candidates)
    kind, errors = worker.ask(("build_case", item.exact, str(target), candidates), _LIMIT_S)
    if kind != "ok" or errors[0] is not None:
        return None
    built = {i for i, error in enumerate(errors[1:]) if error is None}
    found = {i: worker.ask(("difference", unpacked(i), 0), _LIMIT_S) for i in built}
    run_s = _medians(worker, {-1: 0, **{i: packed(i) for i in built}})
    if run_s is None or any(kind != "ok" for kind, _ in found.values()):
        return None
    names = {name: i for name, i in places.items() if i in built}
    times = {"default": run_s[-1], **{name: run_s[i] for name, i in names.items()}}
    return TransferTimes(
        exact=item.exact, name=item.name, neighbours=len(case.neighbours), run_s=times,
        difference={name: float(found[i][1]) for name, i in names.items()}, made_s=made.made_s,
        samples=_samples(case, times),
    )  # fmt: skip


def _once(candidates: dict[str, Any]) -> tuple[dict[str, int], list[Any]]:
    """Each different candidate once, and its place by name: strategies often agree."""
    different: dict[bytes, int] = {}
    places: dict[str, int] = {}
    kept: list[Any] = []
    for name, candidate in candidates.items():
        text = msgspec.json.encode(candidate)
        if text not in different:
            different[text] = len(kept)
            kept.append(candidate)
        places[name] = different[text]
    return places, kept


def _samples(
    case: TransferCase, times: dict[str, float]
) -> tuple[tuple[tuple[float, float, float], float, float], ...]:
    own = case.own
    if own is None:
        return ()
    found = []
    for number, other in enumerate(by_model(own, case.neighbours)[:MEASURED]):
        work = max(map(math.prod, own.same_shape(other.extents) or ((1,),)))
        if f"measured {number}" in times:
            found.append((features(own, other.extents), own.work * other.run_s / work, times[f"measured {number}"]))
    return tuple(found)


def _medians(worker: Any, numbers: dict[int, int]) -> dict[int, float] | None:
    """Median seconds of each program; None when one fails."""

    def timer(number: int) -> Timer:
        def timed(runs: int) -> float:
            kind, value = worker.ask(("time", number, runs), _LIMIT_S)
            if kind != "ok":
                raise _FailedError
            return float(value)

        return timed

    try:
        samples = in_turns({place: timer(number) for place, number in numbers.items()}, _PLAN)
    except _FailedError:
        return None
    return {place: median(values) for place, values in samples.items()}


class _FailedError(Exception):
    """A program that was to be timed crashed, or took too long."""
