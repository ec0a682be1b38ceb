"""The publish gate for TVM <= 0.19: of each workload's best records, the one that is faster than the default.

The finalists of AutoTVM race against their template's own fallback configuration, those of the auto-scheduler against
the graph without a schedule. Whether a network gets faster with the winners is decided end to end, by
``relay.network_gate``: a record's layout changes what its neighbours have to do.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from tunehub_builder.check import Finalist, noise_reason
from tunehub_builder.exceptions import TuningError
from tunehub_builder.log_distill import distill_logs
from tunehub_builder.relay.measure_workload import DEFAULT, SampleOptions, Workload, WorkloadSession
from tunehub_builder.relay.tuner import AUTO_SCHEDULER, AUTOTVM
from tunehub_builder.relay.work import RelayTask, RelayWork
from tunehub_builder.sitting import Resources
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.pool import PoolOptions, Worker
from tunehub_builder.work_directory import Run
from tunehub_registry.tuning_log import LogLineError, LogRecord, config_problem

FINALISTS = 5
TOLERANCE = 1e-4
WINOGRAD_TOLERANCE = 1e-3  # its transforms add and subtract numbers of different size


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayGateOptions:
    """What a record, and a set of them, must show. Times in seconds; see ``SampleOptions`` for the first four and for
    ``patience_s``.

    A network is sampled for ``network_sample_s`` in each of ``rounds``, after as long a warm-up as a workload has.
    """

    rounds: int = 11
    sample_s: float = 0.02
    warm_up_s: float = 0.25
    default_budget_s: float = 1.0
    network_sample_s: float = 0.25
    patience_s: float = 20.0
    network_patience_s: float = 120.0
    min_speedup: float = 1.02
    build_limit_s: float = 600.0
    run_limit_s: float = 300.0
    network_limit_s: float = 3600.0

    @property
    def sampling(self) -> SampleOptions:
        """How a workload's candidates are timed."""
        return SampleOptions(
            rounds=self.rounds,
            sample_s=self.sample_s,
            warm_up_s=self.warm_up_s,
            default_budget_s=self.default_budget_s,
            patience_s=self.patience_s,
        )


class RelayVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one workload: a line of ``relay_verdicts.jsonl``.

    ``digest`` names the finalists that it is about; ``winner`` is one of them, ``line`` its record as TVM wrote it.
    ``default_s`` and a finalist's ``run_s`` are samples in seconds.
    """

    tuner: str
    key: str
    operator: str
    name: str
    digest: str
    threads: int
    admitted: bool
    reason: str | None = None
    default_s: tuple[float, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    winner: int | None = None
    line: str | None = None

    @property
    def run_s(self) -> tuple[float, ...]:
        """The winner's samples; none without a winner."""
        return () if self.winner is None else self.finalists[self.winner].run_s

    @property
    def difference(self) -> float | None:
        """How far the winner's output is from the default's, where the two take the same arguments."""
        return None if self.winner is None else self.finalists[self.winner].difference

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default the winner is, by medians; None without a winner."""
        if not self.run_s or not self.default_s:
            return None
        return statistics.median(self.default_s) / statistics.median(self.run_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A workload with its best records, the fastest first."""

    task: RelayTask
    best: tuple[LogRecord, ...]

    @property
    def digest(self) -> str:
        """Names this choice of finalists: a verdict on other ones is out of date."""
        return digest_of(record.line for record in self.best)


@dataclass(kw_only=True, slots=True)
class _Case:
    """A workload at the gate. ``running`` are the numbers of the finalists that are still in the race."""

    entry: Entry
    workload: str
    finalists: list[Finalist]
    running: list[int] = field(default_factory=list)

    def reject(self, number: int, reason: str) -> None:
        self.finalists[number] = msgspec.structs.replace(self.finalists[number], reason=reason)
        self.running.remove(number)


class _WorkerLostError(Exception):
    """The process of a case crashed or hung; any of its finalists may be to blame."""


def digest_of(lines: Iterable[bytes]) -> str:
    """A short name of some lines in their order."""
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]


def verdict_journal(work: RelayWork) -> LineJournal[RelayVerdict]:
    """The gate's journal in a work directory. Of two verdicts on a workload the later one counts."""
    return LineJournal(work.path / "relay_verdicts.jsonl", RelayVerdict)


def entries(work: RelayWork, top: int = FINALISTS) -> list[Entry]:
    """The workloads that AutoTVM and the auto-scheduler tuned, with their ``top`` records each.

    Raises WorkDirectoryError for a damaged file of tasks. Lines that are no records count for nothing.
    """
    logs = {AUTOTVM: work.autotvm_log, AUTO_SCHEDULER: work.auto_scheduler_log}
    found = distill_logs([log for log in logs.values() if log.exists()], top)
    best = {(workload.tuner, workload.key): workload.best for workload in found.workloads}
    tasks = [task for task in work.tasks() if task.tuner in logs]
    return [Entry(task=task, best=best.get((task.tuner, task.key), ())) for task in tasks]


def check_workloads(
    work: RelayWork,
    run: Run,
    resources: Resources,
    dags: Callable[[Sequence[RelayTask]], Mapping[str, tuple[str, str]]],
    show: Callable[[RelayVerdict, int, int], None],
    options: RelayGateOptions,
) -> list[RelayVerdict]:
    """Judge what is due in ``work``, whose directory the caller holds locked; return the verdicts on all workloads.

    ``dags`` gives the auto-scheduler's workloads by key: TVM's key and the JSON of the tensors. ``show`` gets each new
    verdict with its position and how many there are. Raises WorkDirectoryError and TuningError; verdicts that were
    written stay, and a later call goes on from there.
    """
    journal = verdict_journal(work)
    journal.heal()
    known = {(verdict.tuner, verdict.key): verdict for verdict in journal.entries()}
    found = entries(work)
    due = [e for e in found if is_due(e, known.get((e.task.tuner, e.task.key)), resources.threads, options.min_speedup)]
    graphs = dags([entry.task for entry in due if entry.task.tuner == AUTO_SCHEDULER])
    cases = [_case(entry, run, graphs.get(entry.task.key, ("", ""))) for entry in due]
    for position, verdict in enumerate(_judge_all(cases, resources, str(work.directory.log), options), 1):
        journal.append(verdict)
        known[verdict.tuner, verdict.key] = verdict
        show(verdict, position, len(due))
    keys = [(entry.task.tuner, entry.task.key) for entry in found]
    return [known[key] for key in keys if key in known]


def is_due(entry: Entry, known: RelayVerdict | None, threads: int, min_speedup: float) -> bool:
    """True when the workload has finalists that the verdict ``known`` is not about, or was lost in the noise."""
    if not entry.best:
        return False
    if known is None or known.digest != entry.digest or known.threads != threads:
        return True
    return lost_in_noise(known.default_s, known.run_s, min_speedup)


def lost_in_noise(default_s: Sequence[float], run_s: Sequence[float], min_speedup: float) -> bool:
    """True for times that show a gain which their noise hides: on a quieter machine the decision may be another."""
    if not default_s or not run_s or statistics.median(default_s) / statistics.median(run_s) <= min_speedup:
        return False
    return noise_reason(default_s, run_s, min_speedup) is not None


def static_reason(record: LogRecord) -> str | None:
    """Why a record must not reach TVM, or None when nothing is wrong with it as far as one can tell without TVM."""
    try:
        problem = config_problem(record.config) if record.tuner == AUTOTVM else None
    except LogLineError as error:
        return error.reason
    return problem and f"the configuration is not allowed: {problem}"


def tolerance(name: str) -> float:
    """The most that an output may differ from the default's, relative to its largest magnitude."""
    return WINOGRAD_TOLERANCE if "winograd" in name else TOLERANCE


def overruled(verdicts: Iterable[RelayVerdict]) -> dict[tuple[str, str], str]:
    """Admitted AutoTVM records, by tuner and key, that lose to another way to compute their operator.

    TVM prefers an implementation with a record to all without one, and among those with a record the one whose record
    states the lowest time, which is that of tuning (``relay/backend/te_compiler.py``, select_implementation). So only
    the implementation that is the fastest here may have a record, and only when no default is faster.
    """
    groups: dict[str, list[RelayVerdict]] = {}
    for verdict in verdicts:
        if verdict.tuner == AUTOTVM and verdict.default_s:
            groups.setdefault(verdict.operator, []).append(verdict)
    reasons = {}
    for group in groups.values():
        ways = [(statistics.median(v.default_s), "without any record", v) for v in group]
        ways += [(statistics.median(v.run_s), "with its record", v) for v in group if v.admitted and v.run_s]
        least_s, how, best = min(ways, key=lambda way: way[0])
        for verdict in group:
            if verdict.admitted and verdict is not best and verdict.run_s:
                tuned_s = statistics.median(verdict.run_s)
                reason = f"takes {tuned_s:.3g} s, and {best.name} takes {least_s:.3g} s {how}"
                reasons[verdict.tuner, verdict.key] = reason
    return reasons


def target_text(run: Run) -> str:
    """The target as TVM wrote it into the records. Raises TuningError for a run of another generation of TVM."""
    if run.relay_target is None:
        raise TuningError(f"{run.target_name} was tuned with TVM {run.tvm_version}, which is not 0.19 or older")
    return run.relay_target


def templates(run: Run) -> tuple[str, ...]:
    """The user's own templates that were tuned, as ``module:function``."""
    named = (str(sitting.options.get("template") or "") for sitting in run.sittings)
    return tuple(dict.fromkeys(filter(None, named)))


def template_modules(run: Run) -> tuple[str, ...]:
    """The modules that register them."""
    return tuple(dict.fromkeys(place.partition(":")[0] for place in templates(run)))


def _case(entry: Entry, run: Run, graph: tuple[str, str]) -> _Case:
    workload = Workload(
        tuner=entry.task.tuner,
        target=target_text(run),
        workload_key=graph[0],
        dag=graph[1],
        templates=template_modules(run),
    )
    finalists = [
        Finalist(source=found.tuner, tuning_s=found.mean_s, reason=static_reason(found)) for found in entry.best
    ]
    running = [number for number, finalist in enumerate(finalists) if finalist.reason is None]
    text = msgspec.json.encode(workload).decode()
    return _Case(entry=entry, workload=text, finalists=finalists, running=running)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """Where a case is measured."""

    worker: Worker
    options: RelayGateOptions

    def start_build(self, case: _Case) -> None:
        self.worker.load(case.entry.task.key, case.workload)
        lines = [case.entry.best[number].line.decode() for number in case.running]
        self.worker.send(("build_case", case.workload, lines))

    def built(self) -> tuple[str, Any]:
        return self.worker.receive(self.options.build_limit_s, "build")

    def ask(self, *request: Any) -> tuple[str, Any]:
        """As the worker's; raises _WorkerLostError when the process is gone."""
        kind, value = self.worker.ask(request, self.options.run_limit_s)
        if not self.worker.alive:
            raise _WorkerLostError(value)
        return kind, value


def _judge_all(
    cases: Iterable[_Case], resources: Resources, log: str, options: RelayGateOptions
) -> Iterator[RelayVerdict]:
    """Yield a verdict for each case: built on all workers at once, measured one at a time."""
    remaining = iter(cases)
    benches: list[_Bench] = []
    try:
        while chunk := list(islice(remaining, resources.workers)):
            while len(benches) < len(chunk):
                pool = PoolOptions(workers=1, threads=resources.threads, log=log)
                benches.append(_Bench(worker=Worker(pool, WorkloadSession), options=options))
            pairs = [(bench, case) for bench, case in zip(benches, chunk, strict=False) if case.running]
            for bench, case in pairs:
                bench.start_build(case)
            answers = {id(case): (bench, bench.built()) for bench, case in pairs}
            for case in chunk:
                yield _judge(case, answers.get(id(case)), resources.threads)
    finally:
        for bench in benches:
            bench.worker.stop(at_once=True)


def _judge(case: _Case, built: tuple[_Bench, tuple[str, Any]] | None, threads: int) -> RelayVerdict:
    """Measure a case that was built on a bench; a crash leads to a second try without what crashes."""
    if built is None:  # no finalist may be built
        return _decide(case, (), None, threads, 1.0)
    bench, answer = built
    try:
        default_s, reason = _measure(bench, case, answer)
    except _WorkerLostError:
        _drop_crashing(bench, case)
        try:
            bench.start_build(case)
            default_s, reason = _measure(bench, case, bench.built())
        except _WorkerLostError as lost:
            default_s, reason = (), f"its process ended twice: {lost}"
    return _decide(case, default_s, reason, threads, bench.options.min_speedup)


def _drop_crashing(bench: _Bench, case: _Case) -> None:
    """Try the finalists of ``case`` one by one and reject those that end the process."""
    for number in list(case.running):
        alone = replace(case, finalists=list(case.finalists), running=[number])
        try:
            bench.start_build(alone)
            _measure(bench, alone, bench.built(), rounds=1)
        except _WorkerLostError as lost:
            case.reject(number, str(lost))


def _measure(
    bench: _Bench, case: _Case, answer: tuple[str, Any], rounds: int | None = None
) -> tuple[tuple[float, ...], str | None]:
    """Compare and time the running finalists of ``case``; return the default's samples, or why there are none."""
    kind, errors = answer
    if kind != "ok":
        raise _WorkerLostError(errors)
    if errors[DEFAULT] is not None:
        return (), f"the default does not build: {errors[DEFAULT]}"
    numbers = dict(enumerate(list(case.running), 1))
    for i, number in numbers.items():
        reason = errors[i] and f"does not build: {errors[i]}"
        reason = reason or _output_reason(bench, case, number, i)
        if reason:
            case.reject(number, reason)
    alive = {i: number for i, number in numbers.items() if number in case.running}
    sampling = bench.options.sampling if rounds is None else replace(bench.options.sampling, rounds=rounds)
    kind, samples = bench.ask("sample", [DEFAULT, *alive], sampling)
    if kind != "ok":
        raise _WorkerLostError(f"the timer gave {samples}")
    for i, number in alive.items():
        case.finalists[number] = msgspec.structs.replace(case.finalists[number], run_s=samples[i])
    return samples[DEFAULT], None


def _output_reason(bench: _Bench, case: _Case, number: int, position: int) -> str | None:
    """Compare one finalist's output with the default's, where possible; the difference is kept in ``case``."""
    kind, value = bench.ask("difference", position)
    if kind != "ok":
        return f"does not run: {value}"
    case.finalists[number] = msgspec.structs.replace(case.finalists[number], difference=value)
    most = tolerance(case.entry.task.name)
    if value is None or value <= most:
        return None
    return f"its output differs from the default's by {value:.2g}, relative; the most is {most:.2g}"


def _decide(
    case: _Case, default_s: tuple[float, ...], reason: str | None, threads: int, min_speedup: float
) -> RelayVerdict:
    running = [number for number in case.running if case.finalists[number].run_s]
    winner = min(running, key=lambda number: statistics.median(case.finalists[number].run_s), default=None)
    if winner is not None and reason is None:
        reason = noise_reason(default_s, case.finalists[winner].run_s, min_speedup)
    elif reason is None:
        reason = case.finalists[0].reason or "no finalist is left"
    task = case.entry.task
    return RelayVerdict(
        tuner=task.tuner,
        key=task.key,
        operator=task.operator,
        name=task.name,
        digest=case.entry.digest,
        threads=threads,
        admitted=reason is None,
        reason=reason,
        default_s=default_s,
        finalists=tuple(case.finalists),
        winner=winner,
        line=case.entry.best[winner].line.decode() if winner is not None else None,
    )
