"""The publish gate for TVM <= 0.19: of each workload's best records, the one that is faster than the default.

The finalists of AutoTVM are compared with their template's own fallback configuration, those of the auto-scheduler
with the graph without a schedule. Whether a network gets faster with the winners is decided end to end, by
``network_gate``: a record's layout changes what its neighbours have to do.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec

from tunehub.comparison.difference import tolerance
from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.backends.relay.run_place import RunPlace, kind_of, places_by_device
from tunehub_builder.backends.relay.tuner import AUTO_SCHEDULER, AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.backends.relay.workload_worker import RelayWorkload, WorkloadSession
from tunehub_builder.exceptions import TuningError
from tunehub_builder.gate.comparison import BuildLimits, ComparedFinalists, Finalist, FinalistRules, plan_for
from tunehub_builder.gate.evidence import speedup
from tunehub_builder.gate.networks import digest_of
from tunehub_builder.gate.workloads import WorkloadCase
from tunehub_builder.logs.best_records import distill_logs
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_builder.tuning.work_directory import RunFile
from tunehub_registry.tuning_log import LogLineError, LogRecord

FINALISTS = 5
_HALF = "float16"
_OF_GPU = 3  # whose times are steadier, and whose time is dear
LIMITS = BuildLimits(build_s=600.0, run_s=300.0)


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
    def subject(self) -> tuple[str, str]:
        """The tuner and the key of the workload: a tuner's verdicts are its own."""
        return self.tuner, self.key

    @property
    def tuned_s(self) -> tuple[float, ...]:
        """The winner's samples; none without a winner."""
        return () if self.winner is None else self.finalists[self.winner].run_s

    @property
    def difference(self) -> float | None:
        """How far the winner's output is from the default's, where the two take the same arguments."""
        return None if self.winner is None else self.finalists[self.winner].difference

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default the winner is, by medians; None without a winner."""
        return speedup(self.default_s, self.tuned_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayEntry:
    """A workload with its best records, the fastest first."""

    task: RelayTask
    best: tuple[LogRecord, ...]

    @property
    def digest(self) -> str:
        """Names this choice of finalists: a verdict on other ones is out of date."""
        return digest_of(b"\n".join(record.line for record in self.best))


def verdict_journal(work: RelayWork) -> LineJournal[RelayVerdict]:
    """The gate's journal in a work directory. Of two verdicts on a workload the later one counts."""
    return LineJournal(work.path / "relay_verdicts.jsonl", RelayVerdict)


def entries(work: RelayWork, top: int = FINALISTS) -> list[RelayEntry]:
    """The workloads that AutoTVM and the auto-scheduler tuned, with their ``top`` records each.

    Raises WorkDirectoryError for a damaged file of tasks. Lines that are no records count for nothing.
    """
    logs = {AUTOTVM: work.autotvm_log, AUTO_SCHEDULER: work.auto_scheduler_log}
    found = distill_logs([log for log in logs.values() if log.exists()], top)
    best = {(workload.tuner, workload.key): workload.best for workload in found.workloads}
    tasks = [task for task in work.tasks() if task.tuner in logs]
    return [RelayEntry(task=task, best=best.get((task.tuner, task.key), ())) for task in tasks]


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayWorkloads:
    """The workloads of a work directory as the gate's backend; ``threads`` measure.

    ``dags`` gives the auto-scheduler's workloads by key: TVM's key and the JSON of the tensors. It raises NetworkError.
    """

    work: RelayWork
    run: RunFile
    threads: int
    dags: Callable[[Sequence[RelayTask]], Mapping[str, tuple[str, str]]]
    plan: MeasuringPlan | None = None
    limits: BuildLimits = LIMITS

    @property
    def journal(self) -> LineJournal[RelayVerdict]:
        """As the port says."""
        return verdict_journal(self.work)

    def entries(self) -> Sequence[RelayEntry]:
        """As the port says."""
        return entries(self.work, _OF_GPU if self._kind == "cuda" else FINALISTS)

    def wanted(self, entry: RelayEntry) -> Mapping[Hashable, str]:
        """As the port says."""
        return {(entry.task.tuner, entry.task.key): entry.digest} if entry.best else {}

    def cases(self, entries: Sequence[RelayEntry]) -> Sequence[WorkloadCase[RelayVerdict]]:
        """As the port says."""
        graphs = self.dags([entry.task for entry in entries if entry.task.tuner == AUTO_SCHEDULER])
        return [self._case(entry, *graphs.get(entry.task.key, ("", ""))) for entry in entries]

    @contextmanager
    def workers(self, count: int) -> Iterator[Sequence[Sequence[Worker]]]:
        """As the port says."""
        options = PoolOptions(workers=1, threads=self.threads, log=str(self.work.directory.log))
        places = places_by_device(target_text(self.run), self.work.path, count)
        with ExitStack() as stack:

            def started(place: RunPlace) -> Worker:
                worker = Worker(options, partial(WorkloadSession, place))
                stack.callback(worker.stop, at_once=True)
                return worker

            yield [[started(place) for place in of_device] for of_device in places.values()]

    @property
    def _kind(self) -> str:
        return kind_of(target_text(self.run))

    def _case(self, entry: RelayEntry, workload_key: str, dag: str) -> WorkloadCase[RelayVerdict]:
        workload = RelayWorkload(
            tuner=entry.task.tuner,
            target=target_text(self.run),
            workload_key=workload_key,
            dag=dag,
            templates=template_modules(self.run),
        )
        module = msgspec.json.encode(workload).decode()

        def request(numbers: Sequence[int]) -> tuple[object, ...]:
            return "build_case", module, [entry.best[number].line.decode() for number in numbers]

        return WorkloadCase(
            task=entry.task.key,
            module=module,
            finalists=[
                Finalist(source=found.tuner, tuning_s=found.mean_s, reason=static_reason(found)) for found in entry.best
            ],
            rules=FinalistRules(plan=self.plan or plan_for(self._kind), tolerance=tolerance_of(_text_of(entry.task))),
            request=request,
            verdict=partial(_verdict, entry, self.threads),
        )


def static_reason(record: LogRecord) -> str | None:
    """Why a record must not reach TVM, or None when nothing is wrong with it as far as one can tell without TVM."""
    try:
        problem = record.config_problem
    except LogLineError as error:
        return error.reason
    return problem and f"the configuration is not allowed: {problem}"


def tolerance_of(text: str) -> float:
    """The most that an output may differ from the default's, by what records say of their algorithms and types."""
    if _HALF in text:  # TVM's schedules add up in the type of the output
        return tolerance([_HALF], "narrow sums")
    return tolerance(algorithm="winograd" if "winograd" in text else "direct")


def _text_of(task: RelayTask) -> str:
    return f"{task.name} {task.workload}"


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
        ways += [(statistics.median(v.tuned_s), "with its record", v) for v in group if v.admitted and v.tuned_s]
        least_s, how, best = min(ways, key=lambda way: way[0])
        for verdict in group:
            if verdict.admitted and verdict is not best and verdict.tuned_s:
                tuned_s = statistics.median(verdict.tuned_s)
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


def _verdict(entry: RelayEntry, threads: int, compared: ComparedFinalists) -> RelayVerdict:
    task, winner = entry.task, compared.winner
    return RelayVerdict(
        tuner=task.tuner,
        key=task.key,
        operator=task.operator,
        name=task.name,
        digest=entry.digest,
        threads=threads,
        admitted=compared.reason is None,
        reason=compared.reason,
        default_s=compared.default_s,
        finalists=compared.finalists,
        winner=winner,
        line=entry.best[winner].line.decode() if winner is not None else None,
    )
