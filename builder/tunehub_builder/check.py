"""The publish gate: of each workload's finalists, the one that is right, and faster than the default beyond the noise.

A tuning run measures a candidate for a few milliseconds. Here the finalists and the default schedule are measured in
turns, so that a slow phase of the machine hits all of them, and are compared by medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from tunehub_builder.distill import FINALISTS, Distilled, distill
from tunehub_builder.sitting import Resources
from tunehub_builder.tuning.journal import LineJournal, Trial
from tunehub_builder.tuning.pool import PoolOptions, Worker, WorkerPool
from tunehub_builder.tuning.worker import packed, unpacked
from tunehub_builder.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.exceptions import TraceError
from tunehub_registry.trace_rules import validate_trace


@dataclass(frozen=True, kw_only=True, slots=True)
class GateOptions:
    """What a record must show. Times in seconds.

    A sample is the mean of enough runs for ``sample_s``; the default is sampled for ``default_budget_s`` in all (but
    twice at least), since it may be a thousand times slower.
    """

    tolerance: float = 1e-4
    min_speedup: float = 1.02
    rounds: int = 11
    sample_s: float = 0.02
    default_budget_s: float = 1.0
    build_limit_s: float = 240.0
    run_limit_s: float = 120.0


class Finalist(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One candidate at the gate. ``reason`` says why it is out of the race, ``tuning_s`` is its time while tuning."""

    source: str
    tuning_s: float
    run_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one workload: a line of ``verdicts.jsonl``.

    ``digest`` names the finalists that it is about, ``winner`` is one of them. ``default_s`` and a finalist's
    ``run_s`` are samples in seconds.
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

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default the winner is, by medians; None without a winner."""
        if self.winner is None or not self.default_s:
            return None
        return statistics.median(self.default_s) / statistics.median(self.finalists[self.winner].run_s)


@dataclass(kw_only=True, slots=True)
class _Case:
    """A workload at the gate. ``running`` are the numbers of the finalists that are still in the race."""

    task: TaskEntry
    trials: Sequence[Trial]
    digest: str
    finalists: list[Finalist]
    running: list[int] = field(default_factory=list)

    def reject(self, number: int, reason: str) -> None:
        self.finalists[number] = msgspec.structs.replace(self.finalists[number], reason=reason)
        self.running.remove(number)


class _WorkerLostError(Exception):
    """The process of a case crashed or hung; any of its finalists may be to blame."""


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
    pool = PoolOptions(workers=resources.workers, threads=resources.threads, log=str(directory.log))
    with WorkerPool(pool, run.target) as workers:
        verdicts = judge_all(due, workers.workers, run.target, resources.threads, options or GateOptions())
        for position, verdict in enumerate(verdicts, 1):
            journal.append(verdict)
            known[verdict.exact] = verdict
            show(verdict, position, len(due))
    return [known[entry.task.exact] for entry in entries if entry.task.exact in known]


def static_reason(trace: Any) -> str | None:
    """Why a trace must not reach TVM, or None when the rules allow it."""
    try:
        validate_trace(trace)
    except TraceError as error:
        return f"the trace is not allowed: {error.reason} (at {error.path})"
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
    while chunk := [_case(entry) for entry in islice(remaining, len(workers))]:
        pairs = list(zip(workers, chunk, strict=False))
        for worker, case in pairs:
            _start_build(worker, case, target)
        built = [worker.receive(options.build_limit_s, "build") for worker, _ in pairs]
        for (worker, case), answer in zip(pairs, built, strict=True):
            yield _judge(_Bench(worker=worker, target=target, options=options), case, answer, threads)


def evidence(verdict: Verdict) -> RecordEvidence | None:
    """The verdict as a line of a package's evidence; None when nothing was measured that could be stated."""
    measured = verdict.finalists[verdict.winner] if verdict.winner is not None else None
    if measured is None or measured.difference is None or not measured.run_s or not verdict.default_s:
        return None
    if measured.difference == float("inf"):
        return None
    tuned_s = statistics.median(measured.run_s)
    default_s = statistics.median(verdict.default_s)
    return RecordEvidence(
        exact=verdict.exact,
        default_s=default_s,
        tuned_s=tuned_s,
        speedup=default_s / tuned_s,
        repeats=len(measured.run_s),
        spread=interquartile_range(measured.run_s) / tuned_s,
        output_max_rel_diff=measured.difference,
        threads=verdict.threads,
        admitted=verdict.admitted,
        reason=verdict.reason,
    )


def interquartile_range(samples: Sequence[float]) -> float:
    """The distance between the quartiles, linearly interpolated; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low


def noise_reason(default_s: Sequence[float], run_s: Sequence[float], min_speedup: float) -> str | None:
    """Why ``run_s`` are not faster than ``default_s`` beyond doubt, or None when they are."""
    default, tuned = statistics.median(default_s), statistics.median(run_s)
    noise = max(interquartile_range(default_s), interquartile_range(run_s))
    if default / tuned <= min_speedup:
        return f"{default / tuned:.3g} times as fast as the default schedule; the least is {min_speedup:.3g}"
    if default - tuned <= noise:
        return f"the gain of {default - tuned:.3g} s is within the noise of {noise:.3g} s"
    return None


def _case(entry: Distilled) -> _Case:
    finalists = [Finalist(source=t.source, tuning_s=t.mean_s, reason=static_reason(t.trace)) for t in entry.best]
    running = [number for number, finalist in enumerate(finalists) if finalist.reason is None]
    return _Case(task=entry.task, trials=entry.best, digest=entry.digest, finalists=finalists, running=running)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """Where a case is measured."""

    worker: Worker
    target: Any
    options: GateOptions

    def build(self, case: _Case) -> tuple[str, Any]:
        _start_build(self.worker, case, self.target)
        return self.worker.receive(self.options.build_limit_s, "build")

    def ask(self, *request: Any) -> tuple[str, Any]:
        """As the worker's; raises _WorkerLostError when the process is gone."""
        kind, value = self.worker.ask(request, self.options.run_limit_s)
        if not self.worker.alive:
            raise _WorkerLostError(value)
        return kind, value

    def sample(self, number: int, runs: int) -> float:
        """One sample in seconds. Raises _WorkerLostError also when the timer fails, which leaves no usable state."""
        kind, value = self.ask("time", number, runs)
        if kind != "ok" or not value > 0:
            raise _WorkerLostError(f"the timer gave {value}")
        return float(value)


def _start_build(worker: Worker, case: _Case, target: Any) -> None:
    worker.load(case.task.exact, case.task.module)
    worker.send(("build_case", case.task.exact, target, [case.trials[number].trace for number in case.running]))


def _judge(bench: _Bench, case: _Case, answer: tuple[str, Any], threads: int) -> Verdict:
    """Measure a case that was built with ``answer``; a crash leads to a second try without what crashes."""
    try:
        default_s, reason = _measure(bench, case, answer)
    except _WorkerLostError:
        _drop_crashing(bench, case)
        try:
            default_s, reason = _measure(bench, case, bench.build(case))
        except _WorkerLostError as lost:
            default_s, reason = (), f"its process ended twice: {lost}"
    return _decide(case, default_s, reason, threads, bench.options)


def _drop_crashing(bench: _Bench, case: _Case) -> None:
    """Try the finalists of ``case`` one by one and reject those that end the process."""
    for number in list(case.running):
        alone = replace(case, finalists=list(case.finalists), running=[number])
        try:
            _measure(bench, alone, bench.build(alone), rounds=1)
        except _WorkerLostError as lost:
            case.reject(number, str(lost))


def _measure(
    bench: _Bench, case: _Case, answer: tuple[str, Any], rounds: int | None = None
) -> tuple[tuple[float, ...], str | None]:
    """Compare and time the running finalists of ``case``; return the default's samples, or why there are none."""
    kind, errors = answer
    if kind != "ok":
        raise _WorkerLostError(errors)
    if errors[0] is not None:
        return (), f"the default schedule does not build: {errors[0]}"
    numbers = dict(enumerate(list(case.running)))
    for i, number in numbers.items():
        reason = errors[i + 1] and f"does not build: {errors[i + 1]}"
        reason = reason or _output_reason(bench, case, number, i)
        if reason:
            case.reject(number, reason)
    alive = {i: number for i, number in numbers.items() if number in case.running}
    samples = _samples(bench, [0, *map(packed, alive)], rounds or bench.options.rounds)
    for i, number in alive.items():
        measured = msgspec.structs.replace(case.finalists[number], run_s=tuple(samples[packed(i)]))
        case.finalists[number] = measured
    return tuple(samples[0]), None


def _output_reason(bench: _Bench, case: _Case, number: int, position: int) -> str | None:
    """Compare one finalist's output with the default's; the difference is kept in ``case``."""
    kind, value = bench.ask("difference", unpacked(position), 0)
    if kind != "ok":
        return f"does not run: {value}"
    case.finalists[number] = msgspec.structs.replace(case.finalists[number], difference=value)
    if value <= bench.options.tolerance:
        return None
    return f"its output differs from the default's by {value:.2g}, relative; the most is {bench.options.tolerance:.2g}"


def _samples(bench: _Bench, numbers: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Sample ``numbers`` in turns; number 0, the default, only as long as its budget lasts."""
    options = bench.options
    single = {number: min(bench.sample(number, 1), bench.sample(number, 1)) for number in numbers}
    runs = {number: max(1, round(options.sample_s / seconds)) for number, seconds in single.items()}
    default_rounds = min(rounds, max(2, int(options.default_budget_s / (runs[0] * single[0]))))
    samples: dict[int, list[float]] = {number: [] for number in numbers}
    for turn in range(max(rounds, 2)):
        for number in numbers:
            if number != 0 or turn < default_rounds:
                samples[number].append(bench.sample(number, runs[number]))
    return samples


def _decide(
    case: _Case, default_s: tuple[float, ...], reason: str | None, threads: int, options: GateOptions
) -> Verdict:
    running = [number for number in case.running if case.finalists[number].run_s]
    winner = min(running, key=lambda number: statistics.median(case.finalists[number].run_s), default=None)
    if winner is not None and reason is None:
        reason = noise_reason(default_s, case.finalists[winner].run_s, options.min_speedup)
    elif reason is None:
        reason = case.finalists[0].reason or "no finalist is left"
    return Verdict(
        exact=case.task.exact,
        name=case.task.name,
        digest=case.digest,
        threads=threads,
        admitted=reason is None,
        reason=reason,
        default_s=default_s,
        finalists=tuple(case.finalists),
        winner=winner,
        trace=case.trials[winner].trace if winner is not None else None,
    )
