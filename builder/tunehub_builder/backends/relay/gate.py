"""The publish gate for TVM <= 0.19: of each workload's best records, the one that is faster than the default.

The finalists of AutoTVM race against their template's own fallback configuration, those of the auto-scheduler against
the graph without a schedule. Whether a network gets faster with the winners is decided end to end, by
``relay.network_gate``: a record's layout changes what its neighbours have to do.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec

from tunehub.measure.protocol import is_lost_in_noise
from tunehub_builder.backends.relay.measure_workload import DEFAULT, SampleOptions, Workload, WorkloadSession
from tunehub_builder.backends.relay.tuner import AUTO_SCHEDULER, AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.exceptions import TuningError
from tunehub_builder.gate.comparison import Answer, Decision, Finalist, Race, Rules, WorkerLostError, ask_worker
from tunehub_builder.gate.samples import speedup
from tunehub_builder.logs.best_records import distill_logs
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_builder.tuning.work_directory import RunFile
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
        return speedup(self.default_s, self.run_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A workload with its best records, the fastest first."""

    task: RelayTask
    best: tuple[LogRecord, ...]

    @property
    def digest(self) -> str:
        """Names this choice of finalists: a verdict on other ones is out of date."""
        return digest_of(record.line for record in self.best)


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
    run: RunFile,
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
    cases = [(entry, _workload(entry, run, graphs.get(entry.task.key, ("", "")))) for entry in due]
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
    return is_lost_in_noise(known.default_s, known.run_s, min_speedup)


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


def target_text(run: RunFile) -> str:
    """The target as TVM wrote it into the records. Raises TuningError for a run of another generation of TVM."""
    if run.relay_target is None:
        raise TuningError(f"{run.target_name} was tuned with TVM {run.tvm_version}, which is not 0.19 or older")
    return run.relay_target


def templates(run: RunFile) -> tuple[str, ...]:
    """The user's own templates that were tuned, as ``module:function``."""
    named = (str(each.options.get("template") or "") for each in run.runs)
    return tuple(dict.fromkeys(filter(None, named)))


def template_modules(run: RunFile) -> tuple[str, ...]:
    """The modules that register them."""
    return tuple(dict.fromkeys(place.partition(":")[0] for place in templates(run)))


def _workload(entry: Entry, run: RunFile, graph: tuple[str, str]) -> str:
    """What a worker needs of the workload, as JSON."""
    workload = Workload(
        tuner=entry.task.tuner,
        target=target_text(run),
        workload_key=graph[0],
        dag=graph[1],
        templates=template_modules(run),
    )
    return msgspec.json.encode(workload).decode()


def _race(entry: Entry, options: RelayGateOptions) -> Race:
    finalists = [
        Finalist(source=found.tuner, tuning_s=found.mean_s, reason=static_reason(found)) for found in entry.best
    ]
    return Race.of(finalists, Rules(tolerance=tolerance(entry.task.name), min_speedup=options.min_speedup))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """A workload's place in a worker, where the default has number 0 and the finalist at a position the next one."""

    worker: Worker
    options: RelayGateOptions
    entry: Entry
    workload: str

    def start_build(self, numbers: Sequence[int]) -> None:
        """As the port says."""
        self.worker.load(self.entry.task.key, self.workload)
        lines = [self.entry.best[number].line.decode() for number in numbers]
        self.worker.send(("build_case", self.workload, lines))

    def built(self) -> Answer:
        """As the port says."""
        return self.worker.receive(self.options.build_limit_s, "build")

    def difference(self, position: int) -> Answer:
        """As the port says."""
        return self._ask("difference", position + 1)

    def sample(self, positions: Sequence[int], rounds: int | None) -> list[tuple[float, ...]]:
        """As the port says."""
        sampling = self.options.sampling
        numbers = [DEFAULT, *(position + 1 for position in positions)]
        kind, samples = self._ask("sample", numbers, sampling if rounds is None else replace(sampling, rounds=rounds))
        if kind != "ok":
            raise WorkerLostError(f"the timer gave {samples}")
        return [samples[number] for number in numbers]

    def _ask(self, *request: Any) -> Answer:
        return ask_worker(self.worker, request, self.options.run_limit_s)


def _judge_all(
    cases: Iterable[tuple[Entry, str]], resources: Resources, log: str, options: RelayGateOptions
) -> Iterator[RelayVerdict]:
    """Yield a verdict for each entry with its workload: built on all workers at once, measured one at a time."""
    remaining = iter(cases)
    workers: list[Worker] = []
    try:
        while chunk := list(islice(remaining, resources.workers)):
            while len(workers) < len(chunk):
                pool = PoolOptions(workers=1, threads=resources.threads, log=log)
                workers.append(Worker(pool, WorkloadSession))
            races = [
                (_Bench(worker=worker, options=options, entry=entry, workload=workload), _race(entry, options))
                for worker, (entry, workload) in zip(workers, chunk, strict=False)
            ]
            for bench, race in races:
                if race.running:
                    bench.start_build(race.running)
            built = [bench.built() if race.running else None for bench, race in races]
            for (bench, race), answer in zip(races, built, strict=True):
                # None: there is no finalist that may be built
                decision = race.decide() if answer is None else race.run(bench, answer)
                yield _verdict(bench.entry, decision, resources.threads)
    finally:
        for worker in workers:
            worker.stop(at_once=True)


def _verdict(entry: Entry, decision: Decision, threads: int) -> RelayVerdict:
    task, winner = entry.task, decision.winner
    return RelayVerdict(
        tuner=task.tuner,
        key=task.key,
        operator=task.operator,
        name=task.name,
        digest=entry.digest,
        threads=threads,
        admitted=decision.reason is None,
        reason=decision.reason,
        default_s=decision.default_s,
        finalists=decision.finalists,
        winner=winner,
        line=entry.best[winner].line.decode() if winner is not None else None,
    )
