"""Our own records on TVM 0.25 and newer: workloads are made as for tuning, and each record schedules its own.

Records come from a package: they pass the parser, the allow-list and the guards that a compile has. No code is made, so
that no GPU is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tunehub.comparison.difference import difference_reason
from tunehub.compiler.schedule.apply import apply_candidate
from tunehub.compiler.schedule.ladder import by_rule
from tunehub.compiler.schedule.request import Request
from tunehub.compiler.schedule.size_ladder import by_ladder
from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.compiler.verify.port import ScheduledFunction, ScheduleVerifier, TrustingVerifier
from tunehub.compiler.verify.workers import WorkerVerifier
from tunehub.exceptions import typed_last_line
from tunehub.kernels.template_fit import TemplateFit
from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub.registries.key_scheme import RECORD_TUNERS
from tunehub.target.descriptors import as_tvm_target, descriptor_of
from tunehub.target.features import extensions, llvm_features_of_text, not_in
from tunehub.target.host import cpu_features, machine_arch
from tunehub.tir.cpu_check import check_proven
from tunehub.tir.keys import workload_key
from tunehub_builder.replay.results import OnBegin, failure, not_run
from tunehub_builder.replay.workloads import WorkloadFiles, WorkloadSource, is_known, sources
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.compat import RecordReplay
from tunehub_registry.evidence import BadLine
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.package import Package
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.trace_rules import validate_trace

if TYPE_CHECKING:
    from tunehub.target.types import Target

SAMPLE = 4  # records of a tuner that are run, of as many networks
_NO_NETWORK = "the networks that have its workload cannot be built by name, and no file has it"
_OTHER_WORKLOADS = "this TVM makes no such workload of its networks"
Record = AnyRecord | LadderRecord


def replay_records(
    package: Package, files: WorkloadFiles, done: Collection[tuple[str, str]], passed_over: Collection[str],
    on_begin: OnBegin,
) -> Iterator[RecordReplay]:  # fmt: skip
    """What comes of each record but those ``done``, source by source of workloads but for those ``passed_over``."""
    target = as_tvm_target(package.manifest.target.name)
    with _runner(target) as runner:
        for tuner, records in records_by_tuner(package).items():
            replay = _TunerReplay(tuner=tuner, target=target, on_begin=on_begin, runner=runner)
            replay.missing = {key: record for key, record in records.items() if (tuner, key) not in done}
            for source in sources(package.manifest, files, replay.missing):
                if source.name not in passed_over and replay.missing:
                    yield from replay.of(source)
            yield from replay.not_tried()


@dataclass(kw_only=True)
class _TunerReplay:
    """The records of one tuner: those ``missing`` yet, how many were run, and why sources have no workloads."""

    tuner: str
    target: Target
    on_begin: OnBegin
    runner: ScheduleVerifier | None
    missing: dict[str, Record] = field(default_factory=dict)
    _runs: int = 0
    _unread: list[str] = field(default_factory=list)

    def of(self, source: WorkloadSource) -> Iterator[RecordReplay]:
        """Replay what is missing on the workloads of a source; one record of each is run, until there is a sample."""
        self.on_begin("", source.name)
        most = min(self._runs + 1, SAMPLE)
        try:
            workloads = source.workloads(self.tuner, self.target)
        except Exception as error:  # importers and passes raise anything
            self._unread.append(f"{Path(source.name).name}: {typed_last_line(error)}")
            return
        for key, mod in workloads.items():
            record = self.missing.pop(key, None)
            if record is not None:
                self.on_begin(self.tuner, key)
                runner = self.runner if self._runs < most else None
                found = replay_record(record, self.tuner, mod, self.target, runner)
                self._runs += found.ran
                yield found

    def not_tried(self) -> Iterator[RecordReplay]:
        """The records that no source has a workload of."""
        for key, record in self.missing.items():
            reason = _OTHER_WORKLOADS if any(map(is_known, record.networks)) else _NO_NETWORK
            yield from not_run(self.tuner, [key], "; ".join([reason, *self._unread]))


def replay_record(
    record: Record, tuner: str, mod: Any, target: Target, runner: ScheduleVerifier | None = None
) -> RecordReplay:
    """What comes of one record on its workload; with a ``runner`` it is run beside TVM's default."""
    try:
        with target:
            scheduled = scheduled_by_record(record, mod, target)
            if target.kind.name == "llvm":
                check_proven(scheduled["main"], target)
            text = workload_key(scheduled)
    except Exception as error:  # TVM raises many kinds
        return failure(tuner, record.exact, error)
    result = RecordReplay(tuner=tuner, key=record.exact, outcome="ok", text=text)
    return result if runner is None else _run(result, ScheduledFunction(
        exact=record.exact, original=mod["main"], scheduled=scheduled["main"], record=record
    ), runner)  # fmt: skip


def _run(result: RecordReplay, asked: ScheduledFunction, runner: ScheduleVerifier) -> RecordReplay:
    verdict = runner.verdict(asked)
    if verdict.refusal is None:
        return structs.replace(result, ran=verdict.check == "run")
    apart, most = verdict.refusal.difference, verdict.refusal.tolerance or 0.0
    reason = verdict.refusal.reason or difference_reason(inf if apart is None else apart, most)
    return structs.replace(failure(result.tuner, result.key, f"run beside the default: {reason}"), ran=True)


@contextmanager
def _runner(target: Target) -> Iterator[ScheduleVerifier | None]:
    """What runs schedules on this machine's CPU, in a process of its own; None for a target that it cannot be."""
    if not runs_here(target):
        yield None
        return
    runner = WorkerVerifier(str(target), TrustingVerifier(), workers=1, limits=VerifyLimits())
    try:
        yield runner
    finally:
        runner.close()


def runs_here(target: Target) -> bool:
    """Whether this machine's CPU has all that code for ``target`` may use."""
    features, arch = extensions(llvm_features_of_text(str(target))), machine_arch()
    return descriptor_of(target).arch == arch and not not_in(cpu_features(), features, arch)


def scheduled_by_record(record: Record, mod: Any, target: Target) -> Any:
    """The workload ``mod`` as a record schedules it, by the rules of a compile. Raises TraceError for a trace outside
    the allow-list, and what schedules and guards raise where it does not fit."""
    if isinstance(record, LadderRecord):
        for step in record.ladder:
            if step.trace is not None:
                validate_trace(step.trace)
        rule = partial(by_rule, Request(mod=mod, target=target, lookup=EmptyLookup()))
        return by_ladder(mod["main"], target, record, rule).mod
    if isinstance(record, ScheduleRecord):
        validate_trace(record.trace)
    candidate = Candidate(record=record, rung="exact", package="replay")
    return apply_candidate(mod, candidate, target, TemplateFit(mod, target)).mod


def records_by_tuner(package: Package) -> dict[str, dict[str, Record]]:
    """The records of the package by tuner and key; of several with a key the first, which is the fastest."""
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for item in package.manifest.record_sets:
        if item.tuner in RECORD_TUNERS:
            with package.open(item.file) as stream:
                for record in read_any_records(stream, item.file):
                    if not isinstance(record, BadLine):
                        found[item.tuner].setdefault(record.exact, record)
    return found
