"""The publish gate's symbolic workloads: choices of knobs at many sizes, each compared with TVM's default."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tunehub.comparison.difference import tolerance
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.registries.key_scheme import LADDER
from tunehub_builder.backends.relax.workload_gate import LIMITS, gate_types, places, static_reason
from tunehub_builder.gate.comparison import ComparedFinalists, Finalist, FinalistRules
from tunehub_builder.gate.disturbance import spread
from tunehub_builder.gate.finalists import is_measured
from tunehub_builder.gate.journal import judge_due
from tunehub_builder.gate.ladders import (
    ChosenStep,
    SizeTimes,
    is_doubtful,
    ladder_finalists,
    ladder_of,
    mean_seconds,
    no_gain_reason,
    seconds,
    sizes_to_check,
    step_at,
    with_more,
)
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.gate.workloads import WorkloadCase, judge, stop_workers
from tunehub_builder.tuning.best_so_far import BestSoFar
from tunehub_builder.tuning.journal import Journal, KnobChoice, LineJournal, Trial
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import Worker
from tunehub_builder.tuning.runner.workers import worker_pool
from tunehub_builder.tuning.search.knobs import RULE
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt

_PLAN = MeasuringPlan(rounds=7, sample_s=0.01, budget_s=0.3, only_first=True)
_GPU_PLAN = MeasuringPlan(rounds=7, sample_s=0.002, budget_s=0.06, only_first=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenWorkload:
    """A symbolic workload with its finalists (none when all trials failed), how many were tried, and how the best time
    of its template's newest version fell."""

    task: TaskEntry
    choices: tuple[KnobChoice, ...]
    trials: int
    so_far: BestSoFar

    @property
    def digest(self) -> str:
        """Names these finalists and sizes: a verdict on other ones is out of date."""
        text = json.dumps([msgspec.to_builtins(self.choices), self.task.points], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class LadderVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one symbolic workload: a line of ``ladders.jsonl``. ``choices`` are those that are right
    everywhere; ``steps`` refer to them, ``instances`` are the keys of the static workloads of these sizes.
    ``difference`` and ``spread`` (of samples, over their median) are the largest of all."""

    exact: str
    name: str
    digest: str
    threads: int
    admitted: bool
    reason: str | None = None
    choices: tuple[KnobChoice, ...] = ()
    times: tuple[SizeTimes, ...] = ()
    steps: tuple[ChosenStep, ...] = ()
    instances: tuple[str, ...] = ()
    difference: float = 0.0
    spread: float = 0.0
    trials: int = 0

    @property
    def subject(self) -> str:
        """The workload."""
        return self.exact

    @property
    def default_s(self) -> tuple[float, ...]:
        """Of all sizes the geometric mean in seconds; none where nothing was timed."""
        return mean_seconds(self.times, self.steps)[:1] if self.steps else ()

    @property
    def tuned_s(self) -> tuple[float, ...]:
        """As ``default_s``, of the ladder."""
        return mean_seconds(self.times, self.steps)[1:] if self.steps else ()

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default the ladder is, over all sizes; None where nothing was timed."""
        return self.default_s[0] / self.tuned_s[0] if self.steps else None


def ladder_journal(directory: WorkDirectory) -> LineJournal[LadderVerdict]:
    """The gate's journal of symbolic workloads in a work directory."""
    return LineJournal(directory.path / "ladders.jsonl", LadderVerdict)


def open_workloads(directory: WorkDirectory) -> list[OpenWorkload]:
    """The symbolic workloads of a directory with their finalists. Raises WorkDirectoryError."""
    tasks = {task.exact: task for task in directory.tasks() if task.points}
    if not tasks:
        return []
    trials: dict[str, list[Trial]] = {key: [] for key in tasks}
    for trial in Journal(directory.path).trials():
        if trial.task in trials:
            trials[trial.task].append(trial)
    return [_open_workload(task, trials[key]) for key, task in tasks.items()]


def _open_workload(task: TaskEntry, trials: Sequence[Trial]) -> OpenWorkload:
    newest, so_far = _newest(trials), BestSoFar()
    for trial in newest:
        so_far.add(trial.mean_s if is_measured(trial) and trial.points == task.points else math.inf)
    choices = tuple(ladder_finalists(newest, task.points))
    return OpenWorkload(task=task, choices=choices, trials=len(trials), so_far=so_far)


def check_ladders(
    directory: WorkDirectory, run: RunFile, resources: Resources, show: Callable[[LadderVerdict, int, int], None]
) -> list[LadderVerdict]:
    """Judge the symbolic workloads that are due, in a directory that the caller holds locked; return all verdicts.

    Raises WorkDirectoryError and TuningError.
    """

    def wanted(entry: OpenWorkload) -> Mapping[Hashable, str]:
        return {entry.task.exact: entry.digest} if entry.choices else {}

    def judged(due: Sequence[OpenWorkload]) -> Iterator[list[LadderVerdict]]:
        with worker_pool(directory, run, workers=_workers(run, resources, due), threads=resources.threads) as pool:
            apart = places(run, pool.workers)
            for verdict in judge_at_once(due, apart, judge_each, partial(stop_workers, apart)):
                yield [verdict]

    def judge_each(entries: Iterable[OpenWorkload], workers: Sequence[Worker]) -> Iterator[LadderVerdict]:
        for entry in entries:
            compared = compared_at(_sizes(entry), entry.task, run.target, entry.choices, workers)
            yield _verdict(entry, resources.threads, list(compared.items()))

    return judge_due(ladder_journal(directory), open_workloads(directory), wanted, resources.threads, judged, show)


def _workers(run: RunFile, resources: Resources, due: Sequence[OpenWorkload]) -> int:
    """One on a CPU: each size is measured after the other, and building takes the cores that measuring needs."""
    return min(resources.workers, len(due)) if run.target.get("kind") == "cuda" else 1


def ladder_record_of(verdict: LadderVerdict, task: TaskEntry, source: str) -> LadderRecord:
    """An admitted verdict as a record in the format of packages."""
    return LadderRecord(
        exact=task.exact,
        anchor=task.anchor,
        op_class=task.op_class,
        extents=task.extents,
        anchor_class=task.anchor_class,
        anchor_extents=task.anchor_extents,
        op=task.name,
        networks=tuple(sorted(task.counts)),
        source=source,
        symbols=len(task.points[0]),
        ladder=tuple(_step(verdict, step) for step in verdict.steps),
    )


def by_todays_rules(verdict: LadderVerdict, workload: OpenWorkload) -> LadderVerdict:
    """``verdict``, not admitted where rules that are younger than it find nothing gained."""
    own = 0 if verdict.choices[:1] == workload.choices[:1] else None  # the first of either is the rule's
    reason = no_gain_reason(verdict.times, verdict.steps, own) if verdict.admitted else None
    return verdict if reason is None else msgspec.structs.replace(verdict, admitted=False, reason=reason)


def ladder_evidence(verdict: LadderVerdict) -> RecordEvidence | None:
    """The verdict as a line of a package's evidence: geometric means over all sizes; None when nothing was timed."""
    if not verdict.steps:
        return None
    (default_s,), (tuned_s,) = verdict.default_s, verdict.tuned_s
    return RecordEvidence(
        exact=verdict.exact,
        default_s=default_s,
        tuned_s=tuned_s,
        speedup=default_s / tuned_s,
        repeats=_PLAN.rounds,
        spread=verdict.spread,
        output_max_rel_diff=verdict.difference,
        threads=verdict.threads,
        admitted=verdict.admitted,
        reason=verdict.reason,
        tuner=LADDER,
        baseline=baseline_of(verdict.times),
        trials=verdict.trials,
    )


def baseline_of(times: Iterable[SizeTimes]) -> str:
    """What evidence on a ladder says of its times."""
    sizes = ", ".join(" x ".join(map(str, each.at)) for each in times)
    return f"TVM's default; geometric means over the sizes {sizes}"


def ladder_reason(record: LadderRecord) -> str | None:
    """Why a ladder must not reach TVM: the first of its steps whose trace or knobs are not allowed."""
    return next((reason for step in record.ladder if (reason := _step_reason(step)) is not None), None)


def _step_reason(step: LadderStep) -> str | None:
    from tunehub.kernels.cpu import KnobError, read_knobs
    from tunehub.kernels.symbolic import rows  # directories of TVM <= 0.19 are packed where there is no tirx

    if step.trace is not None:
        return static_reason(step.trace)
    named = step.named
    if named is None:
        return None
    if named.template != rows.NAME:
        return static_reason(KnobChoice(template=named.template, version=named.version, knobs=named.knobs))
    try:
        read_knobs(rows.RowKnobs, named.knobs)
    except KnobError as error:
        return f"the knobs are not allowed: {error}"
    known = named.version == rows.VERSION
    return None if known else f"the knobs are for version {named.version} of {rows.NAME}, which is {rows.VERSION} here"


def _newest(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of the newest version of the template."""
    newest = max((trial.choice.version for trial in trials if trial.choice is not None), default=0)
    return [trial for trial in trials if trial.choice is not None and trial.choice.version == newest]


def compared_at(
    sizes: Iterable[tuple[int, ...]],
    task: TaskEntry,
    target: Mapping[str, Any],
    candidates: Sequence[Any],
    workers: Sequence[Worker],
) -> dict[tuple[int, ...], ComparedFinalists]:
    """What comparing ``candidates`` with the default found at each of these sizes of a symbolic workload. Where noise
    may have made one slower than the default, it is compared again, and all samples count: such a size would have a
    step of its own."""
    cases = _cases(sizes, task, target, candidates)
    first = list(judge(cases, workers, LIMITS))
    again = [case for case, (_, found) in zip(cases, first, strict=True) if is_doubtful(found)]
    found = dict(first)
    for at, more in judge(again, workers, LIMITS):
        found[at] = with_more(found[at], more)
    return found


def _cases(
    sizes: Iterable[tuple[int, ...]], task: TaskEntry, target: Mapping[str, Any], candidates: Sequence[Any]
) -> list[WorkloadCase[tuple[tuple[int, ...], ComparedFinalists]]]:
    on_gpu = target.get("kind") == "cuda"
    plan = _GPU_PLAN if on_gpu else _PLAN
    rules = FinalistRules(plan=plan, tolerance=tolerance(gate_types(task)), cold=on_gpu)

    def case(at: tuple[int, ...]) -> WorkloadCase[tuple[tuple[int, ...], ComparedFinalists]]:
        return WorkloadCase(
            task=task.exact,
            module=task.module,
            finalists=[Finalist(source=getattr(each, "template", LADDER), tuning_s=1.0) for each in candidates],
            rules=rules,
            request=lambda numbers: ("build_at", task.exact, target, at, [candidates[n] for n in numbers]),
            verdict=lambda compared: (at, compared),
        )

    return [case(at) for at in sizes]


def _sizes(entry: OpenWorkload) -> list[tuple[int, ...]]:
    import tvm

    from tunehub.tir.symbols import probes

    return sizes_to_check(entry.task.points, probes(tvm.ir.load_json(entry.task.module)["main"]), entry.choices)


def _instances(task: TaskEntry, sizes: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    import tvm

    from tunehub.tir.keys import workload_key
    from tunehub.tir.nodes import main_module
    from tunehub.tir.symbols import instance

    function = tvm.ir.load_json(task.module)["main"]
    return tuple(workload_key(main_module(instance(function, at))) for at in sizes)


def _verdict(
    entry: OpenWorkload, threads: int, compared: Sequence[tuple[tuple[int, ...], ComparedFinalists]]
) -> LadderVerdict:
    """What was found at all sizes together: a choice that is wrong, or does not run, at one of them is out."""
    task = entry.task
    out = {n: finalist.reason for _, found in compared for n, finalist in enumerate(found.finalists) if finalist.reason}
    untimed = next((found.reason for _, found in compared if not found.default_s), None)
    right = [n for n in range(len(entry.choices)) if n not in out]
    common: dict[str, Any] = {
        "exact": task.exact,
        "name": task.name,
        "digest": entry.digest,
        "threads": threads,
        "trials": entry.trials,
    }
    if untimed is not None or not right:
        reason = untimed if right else next(iter(out.values()))
        return LadderVerdict(**common, admitted=False, reason=reason)
    times = tuple(times_at(at, found, right) for at, found in compared)
    steps = ladder_of(times, len(right))
    reason = no_gain_reason(times, steps, own=0 if right[0] == 0 else None)
    return LadderVerdict(
        **common,
        admitted=reason is None,
        reason=reason,
        choices=tuple(entry.choices[n] for n in right),
        times=times,
        steps=steps,
        instances=_instances(task, [each.at for each in times]),
        spread=max(spread(found.finalists[n].run_s) for _, found in compared for n in right),
        difference=max(found.finalists[n].difference or 0.0 for _, found in compared for n in right),
    )


def times_at(at: tuple[int, ...], found: ComparedFinalists, right: Sequence[int]) -> SizeTimes:
    """The medians at a size of the candidates with the numbers ``right``."""
    run_s = tuple(statistics.median(found.finalists[n].run_s) for n in right)
    return SizeTimes(at=at, default_s=statistics.median(found.default_s), run_s=run_s)


def _step(verdict: LadderVerdict, step: ChosenStep) -> LadderStep:
    times = tuple(
        TimesAt(at=each.at, run_s=seconds(each, verdict.steps), default_s=each.default_s, exact=exact)
        for each, exact in zip(verdict.times, verdict.instances, strict=True)
        if step_at(verdict.steps, each.size) == step
    )
    if step.choice is None:
        return LadderStep(up_to=step.up_to, own="default", times=times)
    choice = verdict.choices[step.choice]
    if choice == RULE:
        return LadderStep(up_to=step.up_to, own="rule", times=times)
    return LadderStep(up_to=step.up_to, times=times, **msgspec.to_builtins(choice))
