"""`tunehub check --again`: the rows of a package beside what rules have today, measured on this machine.

Each row, its workload's default and what a client has without the row are built and timed in turns, as at the gate.
What comes out is evidence, a line for each row, from which `tunehub pack --judged` makes the package's next version
(docs/adr/0076-rows-that-stay-true.md).
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import UNSET

from tunehub.compiler.schedule.ladder import Request
from tunehub.compiler.schedule.rule_choice import text_hash
from tunehub.kernels.template_fit import published_rates
from tunehub.records.lookup import EmptyLookup
from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub.target.descriptors import as_tvm_target
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.backends.relax.workload_gate import LIMITS, Verdict, case_of, evidence
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.again_ladders import compared_ladder, is_ladder_disturbed, ladder_line, ladder_verdict
from tunehub_builder.gate.again_networks import judged_networks
from tunehub_builder.gate.comparison import plan_for
from tunehub_builder.gate.evidence import is_disturbed
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.gate.judged import Judged, read_judged, write_judged
from tunehub_builder.gate.packages import evidence_of, opened, published_profile
from tunehub_builder.gate.report import CheckResult, NetworkResult, Rejection, network_results, shown_on
from tunehub_builder.gate.workloads import judge_on
from tunehub_builder.replay.records import Record, records_by_tuner, scheduled_by_record
from tunehub_builder.replay.workloads import MatchedRecord, WorkloadFiles, matched_records
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.again_worker import AgainSession, CudaAgainSession
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker, WorkerPool, warm_up
from tunehub_builder.tuning.target import TuningTarget
from tunehub_builder.tuning.trial_record import as_trial
from tunehub_builder.tuning.work_directory import TaskEntry
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.evidence import JudgedRule, RecordEvidence
from tunehub_registry.ladder_record import LadderRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class _PackagedRow:
    """A row with its workload, and what rules have for it today; ``rule`` has no time yet. ``same``: that is the very
    schedule of the row."""

    tuner: str
    record: AnyRecord | LadderRecord
    task: TaskEntry
    rule: JudgedRule
    known: RecordEvidence | None
    same: bool

    @property
    def as_rules(self) -> RecordEvidence | None:
        """What is known of a row that rules have, too: its time is theirs. None where it has to be measured."""
        if not self.same or self.known is None or not self.known.admitted:
            return None
        rule = msgspec.structs.replace(self.rule, run_s=self.known.tuned_s)
        return msgspec.structs.replace(self.known, rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainRequest:
    """Which rows are judged: at most ``count`` are measured (None: all; 0 needs no machine), drawn by the hashes of
    their keys; of workloads that are in no network known by name, ``files`` have some. ``names``: only rows of these
    networks. ``end_to_end``: networks are run, too: these, if any, and the models of ``files``."""

    count: int | None = None
    names: Sequence[str] = ()
    end_to_end: bool = False
    files: WorkloadFiles = field(default_factory=WorkloadFiles)


def check_again(path: Path, request: AgainRequest, output: Path, resources: Resources, stream: TextIO) -> CheckResult:
    """Judge rows of the package ``path``, and its networks where that is asked for, and append their evidence to
    ``output``; those that it has stay as they are.

    What other programs disturbed gets none: the next call judges it.

    Raises BuilderError for a package that cannot be read, or without a row whose workload is at hand;
    NoSuchTargetError and UnsuitableTargetError for one of another machine, PackageError and FormatError for a damaged
    one, TuningError when a worker cannot be started.
    """
    with opened(path) as package:
        manifest, records = package.manifest, records_by_tuner(package)
        known, published = evidence_of(package), published_profile(package)
    done, measures = read_judged(output), request.count != 0
    target = find_relax_target(manifest.name) if measures else None  # said before minutes of work
    wanted = {tuner: _asked(tuner, of, done, request.names) for tuner, of in records.items()}
    unread: list[str] = []
    with published_rates(published):
        own = as_tvm_target(manifest.name) if target is None else _tvm_target(target)
        found = matched_records(manifest, wanted, request.files, own, unread)
        rows = [_row(each, own, known.get((each.tuner, each.record.exact))) for each in found]
    if not rows and not done.rows and not request.end_to_end:
        reason = "; ".join(["no row has a workload at hand", *unread])
        raise BuilderError(f"{path}: {reason}; give --model or --from-misses")
    same = [line for row in rows if (line := row.as_rules) is not None]
    stream.write(f"{len(same)} of {len(rows)} rows have the very schedule of rules: nothing of them is measured\n")
    others = _drawn([row for row in rows if row.as_rules is None], request.count)
    measured = () if target is None else _measured(others, target, published, resources, stream)
    for line in chain(same, measured):
        write_judged(output, line)
        done.add(line)
    left = sum((row.tuner, row.record.exact) not in done.rows for row in others) if measures else 0
    if left:
        reason = "other programs disturbed their times, or they do not run"
        stream.write(f"{left} of the rows have no verdict: {reason}; the same call tries them again\n")
    result = _result(records, done)
    if not request.end_to_end:
        return result
    return replace(result, networks=_networks(path, request, done, output, resources, stream))


def _asked(tuner: str, records: Mapping[str, Record], done: Judged, names: Sequence[str]) -> dict[str, Record]:
    """The records of a tuner that are not ``done``, and of networks with these names, if any."""
    return {
        key: record
        for key, record in records.items()
        if (tuner, key) not in done.rows and (not names or {*names} & {*record.networks})
    }


def _tvm_target(target: TuningTarget) -> Any:
    import tvm

    return tvm.target.Target(target.config)


def _drawn(rows: Sequence[_PackagedRow], most: int | None) -> list[_PackagedRow]:
    """By the hashes of their keys, so that nobody chooses them; all in their order."""

    def place(row: _PackagedRow) -> str:
        return hashlib.sha256(f"{row.record.exact} {row.tuner}".encode()).hexdigest()

    return list(rows) if most is None else sorted(rows, key=place)[:most]


def _row(matched: MatchedRecord, target: Any, known: RecordEvidence | None) -> _PackagedRow:
    """Raises nothing: a rule that fails leaves the workload to TVM, and a record that fails is judged so."""
    import tvm

    from tunehub.tir.element_types import written_types

    record, request = matched.record, Request(mod=matched.mod, target=target, lookup=EmptyLookup())
    text, choice = request.rule_text, request.rule_choice
    task = TaskEntry(  # of open sizes without those that it was tuned for: the record has them
        name=record.op,
        exact=record.exact,
        anchor=record.anchor,
        counts=dict.fromkeys(record.networks, 1),
        module=str(tvm.ir.save_json(matched.mod)),
        types=tuple(sorted(written_types(matched.mod["main"]))),
    )
    rule = JudgedRule(choice=text if choice is None else choice.hash, text=text, run_s=1.0)
    same = _text_of(matched, target) == text
    return _PackagedRow(tuner=matched.tuner, record=record, task=task, rule=rule, known=known, same=same)


def _text_of(matched: MatchedRecord, target: Any) -> str | None:
    """The hash of the workload as the record schedules it, None where it does not."""
    try:
        with target:
            return text_hash(scheduled_by_record(matched.record, matched.mod, target)["main"])
    except Exception:  # of any kind: the gate says what
        return None


def _measured(
    rows: Sequence[_PackagedRow],
    target: TuningTarget,
    published: PublishedProfile | None,
    resources: Resources,
    stream: TextIO,
) -> Iterator[RecordEvidence]:
    """The evidence on each row, as it comes."""
    if not rows:
        return
    kind = str(target.config.get("kind"))
    with tempfile.TemporaryDirectory() as folder, again_pool(target, Path(folder), published, resources) as pool:
        places = again_places(kind, pool)
        show, positions = shown_on(stream), count(1)
        for tuner in dict.fromkeys(row.tuner for row in rows):
            own = {row.record.exact: row for row in rows if row.tuner == tuner}
            cases = [
                case_of(_entry(row.task, row.record), target.config, resources.threads, plan_for(kind))
                for row in own.values()
                if not isinstance(row.record, LadderRecord)
            ]
            for verdict in judge_on(cases, places, LIMITS) if cases else ():
                show(verdict, next(positions), len(rows))
                line = judged_line(verdict, own[verdict.exact])
                if line is not None and not is_verdict_disturbed(verdict):
                    yield line
        for row in rows:
            if isinstance(row.record, LadderRecord):
                compared = compared_ladder(row.record, row.task, target.config, places[0])
                ladder = ladder_verdict(row.record, compared, resources.threads)
                show(ladder, next(positions), len(rows))
                line = ladder_line(ladder, row.rule, row.known)
                if line is not None and not is_ladder_disturbed(compared):
                    yield line


def _entry(task: TaskEntry, record: AnyRecord) -> Distilled:
    return Distilled(task=task, best=(as_trial(record),), trials=1, beside_rule=True)


@contextmanager
def again_pool(
    target: TuningTarget, folder: Path, published: PublishedProfile | None, resources: Resources
) -> Iterator[WorkerPool]:
    """Workers that build records of any kind, and what rules have by the ``published`` rates. Raises TuningError."""
    from tunehub_builder.tuning.runner.cuda_worker import gpu_lock

    on_cuda = target.config.get("kind") == "cuda"
    session: Any = partial(CudaAgainSession, gpu_lock(folder)) if on_cuda else partial(AgainSession, published)
    options = PoolOptions(workers=resources.workers, threads=resources.threads, log=str(folder / "native.log"))
    with WorkerPool(options, target.config, make_session=session) as pool:
        warm_up(pool.workers, target.config)
        yield pool


def again_places(kind: str, pool: WorkerPool) -> Sequence[Sequence[Worker]]:
    """Who judges apart from the others: on a GPU, which whoever measures has locked, each worker."""
    return [[worker] for worker in pool.workers] if kind == "cuda" else [pool.workers]


def is_verdict_disturbed(verdict: Verdict) -> bool:
    """Whether times were so far apart that they say nothing for or against a row: it is judged another time."""
    samples = [verdict.default_s, *(finalist.run_s for finalist in verdict.finalists)]
    return any(map(is_disturbed, samples))


def judged_line(verdict: Verdict, row: _PackagedRow) -> RecordEvidence | None:
    """The evidence on a row: what was measured with its rule's time, or that it is not admitted, and why; None where
    nothing was measured of it, and never was."""
    line = evidence(verdict)
    if line is None:
        return None if row.known is None else msgspec.structs.replace(row.known, admitted=False, reason=verdict.reason)
    own_s = verdict.finalists[-1].run_s or verdict.default_s  # without a rule a client has TVM's default
    rule = msgspec.structs.replace(row.rule, run_s=statistics.median(own_s))
    said = {} if row.known is None else {name: getattr(row.known, name) for name in ("trials", "space", "template")}
    untuned = {"untuned_s": rule.run_s} if said.get("template") else {}
    tuner = UNSET if row.tuner == META_SCHEDULE else row.tuner
    return msgspec.structs.replace(line, tuner=tuner, rule=rule, **said, **untuned)


def _networks(
    path: Path, request: AgainRequest, done: Judged, output: Path, resources: Resources, stream: TextIO
) -> tuple[NetworkResult, ...]:
    """What was found of whole networks in this call, each appended to ``output`` as it comes."""
    verdicts, models = [], [Path(model) for model in request.files.models]
    for verdict, line in judged_networks(path, request.names, models, done.networks, resources, stream):
        verdicts.append(verdict)
        if line is not None:
            write_judged(output, line)
    return network_results(verdicts)


def _result(records: Mapping[str, Mapping[str, Any]], done: Judged) -> CheckResult:
    names = {(tuner, key): record.op for tuner, of in records.items() for key, record in of.items()}
    own = {about: line for about, line in done.rows.items() if about in names}
    rejected = tuple(
        Rejection(where=about[1], name=names[about], reason=line.reason or "")
        for about, line in own.items()
        if not line.admitted
    )
    speedups = tuple(line.speedup for line in own.values() if line.admitted)
    return CheckResult(admitted=len(speedups), rejected=rejected, measured=True, speedups=speedups)
