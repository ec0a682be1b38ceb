"""The publish gate's workloads with current TVM: the best trials of a tuner, as traces or as choices of knobs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import msgspec
from msgspec import UNSET

from tunehub.comparison.difference import tolerance
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.registries.key_scheme import TEMPLATE
from tunehub_builder.gate.comparison import BuildLimits, ComparedFinalists, Finalist, FinalistRules, plan_for
from tunehub_builder.gate.evidence import speedup, timed_evidence
from tunehub_builder.gate.finalists import FINALISTS, Distilled, distill
from tunehub_builder.gate.workloads import WorkloadCase
from tunehub_builder.tuning.journal import KnobChoice, LineJournal
from tunehub_builder.tuning.runner.pool import Worker
from tunehub_builder.tuning.runner.workers import worker_pool
from tunehub_builder.tuning.search.knobs import RULE
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory
from tunehub_registry.evidence import JudgedRule, RecordEvidence
from tunehub_registry.exceptions import TraceError
from tunehub_registry.trace_rules import validate_trace

LIMITS = BuildLimits(build_s=240.0, run_s=120.0)
_MIN_GAIN_OF_CHOICE = 1.01  # times as fast as a template's default knobs: what another choice needs to win


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one workload: a line of ``verdicts.jsonl``.

    ``digest`` names the finalists that it is about, ``winner`` is one of them, with its ``trace`` or ``choice`` of
    knobs. ``default_s`` and a finalist's ``run_s`` are samples in seconds. ``trials`` is how many were tried. ``rule``
    is what rules had then, where that was among what was measured.
    """

    exact: str
    name: str
    digest: str
    threads: int
    admitted: bool
    reason: str | None = None
    default_s: tuple[float, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    winner: int | None = None
    trace: Any = None
    choice: KnobChoice | None = None
    trials: int | None = None
    rule: JudgedRule | None = None

    @property
    def subject(self) -> str:
        """The workload."""
        return self.exact

    @property
    def candidate(self) -> Any:
        """The winner's trace or choice of knobs."""
        return self.trace if self.choice is None else self.choice

    @property
    def tuned_s(self) -> tuple[float, ...]:
        """The winner's samples; none without a winner."""
        return () if self.winner is None else self.finalists[self.winner].run_s

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default the winner is, by medians; None without a winner."""
        return speedup(self.default_s, self.tuned_s)


def verdict_journal(directory: WorkDirectory) -> LineJournal[Verdict]:
    """The gate's journal in a work directory. Of two verdicts on a workload the later one counts."""
    return LineJournal(directory.path / "verdicts.jsonl", Verdict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaxWorkloads:
    """The workloads of a work directory as the gate's backend; ``threads`` measure."""

    directory: WorkDirectory
    run: RunFile
    threads: int
    limits: BuildLimits = LIMITS

    @property
    def journal(self) -> LineJournal[Verdict]:
        """As the port says."""
        return verdict_journal(self.directory)

    def entries(self) -> Sequence[Distilled]:
        """As the port says."""
        return distill(self.directory, FINALISTS, beside_rule=is_beside_rule(self.run))

    def wanted(self, entry: Distilled) -> Mapping[Hashable, str]:
        """As the port says."""
        return {entry.task.exact: entry.digest} if entry.best else {}

    def cases(self, entries: Sequence[Distilled]) -> Sequence[WorkloadCase[Verdict]]:
        """As the port says."""
        plan = plan_for(str(self.run.target.get("kind")))
        return [case_of(entry, self.run.target, self.threads, plan) for entry in entries]

    @contextmanager
    def workers(self, count: int) -> Iterator[Sequence[Sequence[Worker]]]:
        """As the port says."""
        with worker_pool(self.directory, self.run, workers=count, threads=self.threads) as pool:
            yield places(self.run, pool.workers)


def places(run: RunFile, workers: Sequence[Worker]) -> Sequence[Sequence[Worker]]:
    """Who judges apart from the others: on a GPU, which whoever measures has locked, each worker, and no build is
    waited for by others; on a CPU, where building disturbs, all together."""
    return [[worker] for worker in workers] if run.target.get("kind") == "cuda" else [workers]


def is_beside_rule(run: RunFile) -> bool:
    """Whether its records are compared with what serves without them: rules for GPUs change more often than records,
    and what was the rule's when it was tuned need not be so at the gate."""
    return run.tuner == TEMPLATE and run.target.get("kind") == "cuda"


def case_of(entry: Distilled, target: Mapping[str, Any], threads: int, plan: MeasuringPlan) -> WorkloadCase[Verdict]:
    """What the gate measures of a workload."""
    task, candidates = entry.task, [trial.candidate for trial in entry.best]
    finalists = [
        Finalist(source=trial.source, tuning_s=trial.mean_s, reason=static_reason(trial.candidate))
        for trial in entry.best
    ]
    if entry.beside_rule:
        candidates, finalists = [*candidates, RULE], [*finalists, Finalist(source=RULE.template, tuning_s=0.0)]

    def request(numbers: Sequence[int]) -> tuple[object, ...]:
        return "build_case", task.exact, target, [candidates[number] for number in numbers]

    return WorkloadCase(
        task=task.exact,
        module=task.module,
        finalists=finalists,
        rules=FinalistRules(
            plan=plan,
            tolerance=tolerance(gate_types(entry.task)),
            preferred=entry.preferred,
            min_gain=_MIN_GAIN_OF_CHOICE,
            own=len(entry.best) if entry.beside_rule else None,
        ),
        request=request,
        verdict=partial(_verdict, entry, threads, target),
    )


def static_reason(candidate: Any) -> str | None:
    """Why a trace or a choice of knobs must not reach TVM, or None when the rules allow it."""
    if isinstance(candidate, KnobChoice):
        return _choice_reason(candidate)
    try:
        validate_trace(candidate)
    except TraceError as error:
        return f"the trace is not allowed: {error.reason} (at {error.path})"
    return None


def _choice_reason(choice: KnobChoice) -> str | None:
    from tunehub.kernels.cpu import KnobError, read_knobs, template
    from tunehub.kernels.cuda.templates import VERSIONS

    if choice.template in VERSIONS:
        return _tile_reason(choice)
    try:
        own = template(choice.template)
        read_knobs(own.KNOBS, choice.knobs)
    except KnobError as error:
        return f"the knobs are not allowed: {error}"
    if choice.version != own.VERSION:
        return f"the knobs are for version {choice.version} of the template {own.NAME}, which is {own.VERSION} here"
    return None


def _tile_reason(choice: KnobChoice) -> str | None:
    from tunehub.kernels.cpu import KnobError
    from tunehub.kernels.cuda.knobs import read_tile

    try:
        read_tile(choice)
    except KnobError as error:
        return f"the knobs are not allowed: {error}"
    return None


def evidence(verdict: Verdict) -> RecordEvidence | None:
    """The verdict as a line of a package's evidence; None when nothing was measured that could be stated."""
    measured = verdict.finalists[verdict.winner] if verdict.winner is not None else None
    if measured is None or measured.difference is None or not measured.run_s or not verdict.default_s:
        return None
    if measured.difference == float("inf"):
        return None
    # A package may hold other tuners' records of the workload of a choice of knobs.
    choice: dict[str, Any] = {} if verdict.choice is None else {"tuner": TEMPLATE, "trials": verdict.trials or 0}
    return timed_evidence(
        verdict.exact,
        verdict.default_s,
        measured.run_s,
        difference=measured.difference,
        threads=verdict.threads,
        admitted=verdict.admitted,
        reason=verdict.reason,
        rule=verdict.rule or UNSET,
        **choice,
    )


def gate_types(task: TaskEntry) -> tuple[str, ...]:
    """The element types by which outputs of a workload are compared: what it writes, float16 where anything is (types
    stand in TVM's JSON as text), and "quantised" where it computes with what it rounded to 8 bits and rounds again."""
    half = ("float16",) if 'float16"' in task.module.replace("bfloat16", "") else ()
    return (*task.types, *half, *(("quantised",) if _rounds_again(task) else ()))


def _rounds_again(task: TaskEntry) -> bool:
    if not {"int8", "uint8"} & set(task.types):
        return False
    import tvm

    from tunehub.tir.element_types import roundings_in_a_row

    return roundings_in_a_row(tvm.ir.load_json(task.module)["main"]) > 1


def _verdict(entry: Distilled, threads: int, target: Mapping[str, Any], compared: ComparedFinalists) -> Verdict:
    winner = compared.winner
    best = entry.best[winner] if winner is not None else None
    return Verdict(
        exact=entry.task.exact,
        name=entry.task.name,
        digest=entry.digest,
        threads=threads,
        admitted=compared.reason is None,
        reason=compared.reason,
        default_s=compared.default_s,
        finalists=compared.finalists,
        winner=winner,
        trace=best.trace if best is not None else None,
        choice=best.choice if best is not None else None,
        trials=entry.trials,
        rule=judged_rule(entry, target, compared),
    )


def judged_rule(entry: Distilled, target: Mapping[str, Any], compared: ComparedFinalists) -> JudgedRule | None:
    """What rules have for the workload today, with its time where that was compared: as it is, or as the default knobs
    of the template that are still its choice. None where nothing was measured of it, or a rule fails."""
    if not compared.default_s or (entry.preferred is None and not entry.beside_rule):
        return None
    import tvm

    from tunehub.compiler.schedule.ladder import rule_text
    from tunehub.compiler.schedule.request import Request
    from tunehub.compiler.schedule.rule_choice import NOTHING, choice_hash
    from tunehub.records.lookup import EmptyLookup

    request = Request(mod=tvm.ir.load_json(entry.task.module), target=tvm.target.Target(target), lookup=EmptyLookup())
    choice = request.rule_choice
    if choice is None:
        return None
    own_s = compared.finalists[-1].run_s or compared.default_s if entry.beside_rule else ()
    if entry.preferred is not None and not entry.beside_rule:
        own = entry.best[entry.preferred].choice
        is_todays = own is not None and choice.hash == choice_hash(own.template, own.version, own.knobs)
        own_s = compared.finalists[entry.preferred].run_s if is_todays else ()
        own_s = compared.default_s if choice.hash == choice_hash(NOTHING) else own_s
    if not own_s:
        return None
    return JudgedRule(choice=choice.hash, text=rule_text(request), run_s=median(own_s))
