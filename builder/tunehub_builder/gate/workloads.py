"""The publish gate: of each workload's finalists, the one that is right, and faster than the default beyond the noise.

A tuning run measures a candidate for a few milliseconds. Here the finalists and the default schedule are measured in
turns, so that a slow phase of the machine hits all of them, and are compared by medians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from tunehub.measure.session import packed, unpacked
from tunehub.records.key_scheme import TEMPLATE
from tunehub_builder.gate.comparison import Answer, Decision, Finalist, Race, Rules, WorkerLostError, ask_worker
from tunehub_builder.gate.finalists import FINALISTS, Distilled, distill
from tunehub_builder.gate.samples import speedup, timed_evidence
from tunehub_builder.tuning.journal import KnobChoice, LineJournal
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import Worker
from tunehub_builder.tuning.runner.workers import worker_pool
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.exceptions import TraceError
from tunehub_registry.trace_rules import validate_trace


@dataclass(frozen=True, kw_only=True, slots=True)
class GateOptions:
    """What a record must show. Times in seconds.

    Of two right results of a function of float16, one may be the next number up and the other the next one down, with
    11 bits each: ``half_tolerance`` is twice that at the largest value.

    A sample is the mean of enough runs for ``sample_s``; the default is sampled for ``default_budget_s`` in all (but
    twice at least), since it may be a thousand times slower. Another choice than a template's own must be
    ``min_gain_of_choice`` times as fast as that.
    """

    tolerance: float = 1e-4
    half_tolerance: float = 2e-3
    min_speedup: float = 1.02
    min_gain_of_choice: float = 1.01
    rounds: int = 11
    sample_s: float = 0.02
    default_budget_s: float = 1.0
    build_limit_s: float = 240.0
    run_limit_s: float = 120.0


def options_for(target: Mapping[str, Any]) -> GateOptions:
    """The gate's options for a target: a GPU's times are steady, and its kernels short."""
    if target.get("kind") == "cuda":
        return GateOptions(rounds=9, sample_s=0.002, default_budget_s=0.1)
    return GateOptions()


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one workload: a line of ``verdicts.jsonl``.

    ``digest`` names the finalists that it is about, ``winner`` is one of them, with its ``trace`` or ``choice`` of
    knobs. ``default_s`` and a finalist's ``run_s`` are samples in seconds. ``trials`` is how many were tried.
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

    @property
    def candidate(self) -> Any:
        """The winner's trace or choice of knobs."""
        return self.trace if self.choice is None else self.choice

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default the winner is, by medians; None without a winner."""
        return None if self.winner is None else speedup(self.default_s, self.finalists[self.winner].run_s)


def verdict_journal(directory: WorkDirectory) -> LineJournal[Verdict]:
    """The gate's journal in a work directory. Of two verdicts on a workload the later one counts."""
    return LineJournal(directory.path / "verdicts.jsonl", Verdict)


def is_due(entry: Distilled, known: Verdict | None, threads: int) -> bool:
    """True when the workload has finalists that the verdict ``known`` is not about."""
    return bool(entry.best) and (known is None or known.digest != entry.digest or known.threads != threads)


def check_directory(
    directory: WorkDirectory,
    resources: Resources,
    show: Callable[[Verdict, int, int], None],
    *,
    options: GateOptions | None = None,
    top: int = FINALISTS,
) -> list[Verdict]:
    """Judge what is due in ``directory``, which the caller holds locked; return the verdicts on all its workloads.

    ``show`` gets each new verdict with its position and how many there are. Raises WorkDirectoryError (a damaged
    file, full disk) and TuningError; verdicts that were written stay, and a later call goes on from there.
    """
    run = directory.existing_run()
    entries = distill(directory, top)
    journal = verdict_journal(directory)
    journal.heal()
    known = {verdict.exact: verdict for verdict in journal.entries()}
    due = [entry for entry in entries if is_due(entry, known.get(entry.task.exact), resources.threads)]
    with worker_pool(directory, run, workers=resources.workers, threads=resources.threads) as workers:
        verdicts = judge_all(due, workers.workers, run.target, resources.threads, options or options_for(run.target))
        for position, verdict in enumerate(verdicts, 1):
            journal.append(verdict)
            known[verdict.exact] = verdict
            show(verdict, position, len(due))
    return [known[entry.task.exact] for entry in entries if entry.task.exact in known]


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
    from tunehub.templates import KnobError, read_knobs, template

    try:
        own = template(choice.template)
        read_knobs(own.KNOBS, choice.knobs)
    except KnobError as error:
        return f"the knobs are not allowed: {error}"
    if choice.version != own.VERSION:
        return f"the knobs are for version {choice.version} of the template {own.NAME}, which is {own.VERSION} here"
    return None


def judge_all(
    entries: Iterable[Distilled],
    workers: Sequence[Worker],
    target: Any,
    threads: int,
    options: GateOptions,
) -> Iterator[Verdict]:
    """Yield a verdict for each entry: built on all workers at once, measured one at a time.

    Raises TuningError when a worker cannot be started.
    """
    remaining = iter(entries)
    while chunk := list(islice(remaining, len(workers))):
        races = [
            (_Bench(worker=worker, target=target, options=options, entry=entry), _race(entry, options))
            for worker, entry in zip(workers, chunk, strict=False)
        ]
        for bench, race in races:
            bench.start_build(race.running)
        built = [bench.built() for bench, _ in races]
        for (bench, race), answer in zip(races, built, strict=True):
            yield _verdict(bench.entry, race.run(bench, answer), threads)


def evidence(verdict: Verdict) -> RecordEvidence | None:
    """The verdict as a line of a package's evidence; None when nothing was measured that could be stated."""
    measured = verdict.finalists[verdict.winner] if verdict.winner is not None else None
    if measured is None or measured.difference is None or not measured.run_s or not verdict.default_s:
        return None
    if measured.difference == float("inf"):
        return None
    return timed_evidence(
        verdict.exact,
        verdict.default_s,
        measured.run_s,
        difference=measured.difference,
        threads=verdict.threads,
        admitted=verdict.admitted,
        reason=verdict.reason,
        **_about_choice(verdict),
    )


def _about_choice(verdict: Verdict) -> dict[str, Any]:
    """What the evidence of a choice of knobs says besides; a package may hold other tuners' records of its workload."""
    return {} if verdict.choice is None else {"tuner": TEMPLATE, "trials": verdict.trials or 0}


def _race(entry: Distilled, options: GateOptions) -> Race:
    finalists = [Finalist(source=t.source, tuning_s=t.mean_s, reason=static_reason(t.candidate)) for t in entry.best]
    rules = Rules(
        tolerance=options.half_tolerance if _is_half(entry) else options.tolerance,
        min_speedup=options.min_speedup,
        default="the default schedule",
        min_gain=options.min_gain_of_choice,
    )
    return Race.of(finalists, rules, preferred=entry.preferred)


def _is_half(entry: Distilled) -> bool:
    """Whether anything in the workload is float16: types stand in TVM's JSON as text."""
    return 'float16"' in entry.task.module.replace("bfloat16", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """A workload's place in a worker, where the default has number 0."""

    worker: Worker
    target: Any
    options: GateOptions
    entry: Distilled

    def start_build(self, numbers: Sequence[int]) -> None:
        """As the port says."""
        task = self.entry.task
        self.worker.load(task.exact, task.module)
        candidates = [self.entry.best[number].candidate for number in numbers]
        self.worker.send(("build_case", task.exact, self.target, candidates))

    def built(self) -> Answer:
        """As the port says."""
        return self.worker.receive(self.options.build_limit_s, "build")

    def difference(self, position: int) -> Answer:
        """As the port says."""
        return self._ask("difference", unpacked(position), 0)

    def sample(self, positions: Sequence[int], rounds: int | None) -> list[tuple[float, ...]]:
        """As the port says; the default only as long as its budget lasts."""
        options = self.options
        numbers = [0, *map(packed, positions)]
        first = {number: (self._time(number, 1), self._time(number, 1)) for number in numbers}
        runs = {number: max(1, round(options.sample_s / min(seconds))) for number, seconds in first.items()}
        rounds = rounds or options.rounds
        default_rounds = min(rounds, int(options.default_budget_s / (runs[0] * min(first[0]))))
        samples: dict[int, list[float]] = {number: [] for number in numbers}
        if default_rounds < 2:  # so slow that two runs are enough, and have been made
            default_rounds, samples[0] = 0, list(first[0])
        for turn in range(max(rounds, 2)):
            for number in numbers:
                if number != 0 or turn < default_rounds:
                    samples[number].append(self._time(number, runs[number]))
        return [tuple(samples[number]) for number in numbers]

    def _time(self, number: int, runs: int) -> float:
        """One sample in seconds. Raises WorkerLostError also when the timer fails, which leaves no usable state."""
        kind, value = self._ask("time", number, runs)
        if kind != "ok" or not value > 0:
            raise WorkerLostError(f"the timer gave {value}")
        return float(value)

    def _ask(self, *request: Any) -> Answer:
        return ask_worker(self.worker, request, self.options.run_limit_s)


def _verdict(entry: Distilled, decision: Decision, threads: int) -> Verdict:
    winner = decision.winner
    best = entry.best[winner] if winner is not None else None
    return Verdict(
        exact=entry.task.exact,
        name=entry.task.name,
        digest=entry.digest,
        threads=threads,
        admitted=decision.reason is None,
        reason=decision.reason,
        default_s=decision.default_s,
        finalists=decision.finalists,
        winner=winner,
        trace=best.trace if best is not None else None,
        choice=best.choice if best is not None else None,
        trials=entry.trials,
    )
