"""Our own records on TVM 0.25 and newer: networks are built as for tuning, and each record schedules its workload.

Records come from a package: they pass the parser, the allow-list and the guards that a compile has. No code is made, so
that no GPU is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from msgspec import structs

from tunehub.measure.difference import difference_reason
from tunehub.records.key_scheme import LADDER, RECORD_TUNERS, TEMPLATE
from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub.relax.keys import workload_key
from tunehub.relax.schedule.apply import apply_candidate
from tunehub.relax.schedule.ladder import Request
from tunehub.relax.schedule.size_ladder import by_ladder
from tunehub.relax.schedule.template_fit import TemplateFit
from tunehub.target.descriptors import as_tvm_target
from tunehub.target.host import host_descriptor, host_target
from tunehub.verify.limits import VerifyLimits
from tunehub.verify.port import ScheduledFunction, ScheduleVerifier, TrustingVerifier
from tunehub.verify.workers import WorkerVerifier
from tunehub_builder import networks
from tunehub_builder.networks.network import OPEN
from tunehub_builder.replay.results import OnBegin, failure, not_run
from tunehub_builder.tuning.tasks import extract_tasks
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.compat import RecordReplay
from tunehub_registry.evidence import BadLine
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.package import Package
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import Rejected, TargetDescriptor, match
from tunehub_registry.trace_rules import validate_trace

SAMPLE = 4  # records of a tuner that are run, of as many networks
_OPEN_SIZES = (16,)  # keys do not depend on them
_NO_NETWORK = "the networks that have its workload cannot be built by name"
_OTHER_WORKLOADS = "this TVM makes no such workload of its networks"
Record = AnyRecord | LadderRecord


def replay_records(
    package: Package, done: Collection[tuple[str, str]], passed_over: Collection[str], on_begin: OnBegin
) -> Iterator[RecordReplay]:
    """What comes of each record but those ``done``, network by network but for those ``passed_over``."""
    target = as_tvm_target(package.manifest.target.name)
    with _runner(package.manifest.target) as runner:
        for tuner, records in _by_tuner(package).items():
            runs = 0
            missing = {key: record for key, record in records.items() if (tuner, key) not in done}
            for entry in _networks_of(package.manifest.networks, missing, passed_over):
                if not _wants(entry.name, missing):
                    continue
                on_begin("", entry.name)
                to_run = runs + 1 if runner is not None and runs < SAMPLE else runs
                for key, mod in _workloads(entry, tuner, target).items():
                    record = missing.pop(key, None)
                    if record is not None:
                        on_begin(tuner, key)
                        found = replay_record(record, tuner, mod, target, runner if runs < to_run else None)
                        runs += found.ran
                        yield found
            for key, record in missing.items():
                known = any(map(_is_known, record.networks))
                yield from not_run(tuner, [key], _OTHER_WORKLOADS if known else _NO_NETWORK)


def replay_record(
    record: Record, tuner: str, mod: Any, target: Any, runner: ScheduleVerifier | None = None
) -> RecordReplay:
    """What comes of one record on its workload; with a ``runner`` it is run beside TVM's default."""
    try:
        with target:
            scheduled = _scheduled(record, mod, target)
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
def _runner(described: TargetDescriptor) -> Iterator[ScheduleVerifier | None]:
    """What runs schedules on this machine's CPU, in a process of its own; None for a target that it cannot be."""
    if described.kind != "llvm" or isinstance(match(described, host_descriptor()), Rejected):
        yield None
        return
    runner = WorkerVerifier(str(host_target()), TrustingVerifier(), workers=1, limits=VerifyLimits())
    try:
        yield runner
    finally:
        runner.close()


def _scheduled(record: Record, mod: Any, target: Any) -> Any:
    if isinstance(record, LadderRecord):
        for step in record.ladder:
            if step.trace is not None:
                validate_trace(step.trace)
        rule = Request(mod=mod, target=target, lookup=EmptyLookup()).by_rule
        return by_ladder(mod["main"], target, record, rule).mod
    if isinstance(record, ScheduleRecord):
        validate_trace(record.trace)
    candidate = Candidate(record=record, rung="exact", package="replay")
    return apply_candidate(mod, candidate, target, TemplateFit(mod, target)).mod


def _by_tuner(package: Package) -> dict[str, dict[str, Record]]:
    """The records of the package by tuner and key; of several with a key the first, which is the fastest."""
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for item in package.manifest.record_sets:
        if item.tuner in RECORD_TUNERS:
            with package.open(item.file) as stream:
                for record in read_any_records(stream, item.file):
                    if not isinstance(record, BadLine):
                        found[item.tuner].setdefault(record.exact, record)
    return found


def _networks_of(
    entries: Collection[NetworkEntry], missing: dict[str, Record], passed_over: Collection[str]
) -> list[NetworkEntry]:
    """The networks that records name and that can be built by name, those of many records first."""
    counts: dict[str, int] = defaultdict(int)
    for record in missing.values():
        for name in record.networks:
            counts[name] += 1
    known = [entry for entry in entries if entry.name not in passed_over and _is_known(entry.name)]
    return sorted(known, key=lambda entry: -counts[entry.name])


def _wants(name: str, missing: dict[str, Record]) -> bool:
    return any(name in record.networks for record in missing.values())


def _is_known(name: str) -> bool:
    return networks.is_known(name.removesuffix("_open"))


def _workloads(entry: NetworkEntry, tuner: str, target: Any) -> dict[str, Any]:
    """The workloads of a network by key, as the tuner had them."""
    dims: dict[str, tuple[int, ...]] = {}
    if OPEN in entry.source:
        dims = {name.strip(): _OPEN_SIZES for name in entry.source.partition(OPEN)[2].split(",")}
    network = networks.get_open(entry.name.removesuffix("_open"), dims)
    by_knobs = tuner in (TEMPLATE, LADDER)
    cuda = target.kind.name == "cuda"
    tasks = extract_tasks(
        [(network.name, network.relax_module())], target, layout="auto" if by_knobs and not cuda else "keep",
        dims=network.dims or None, turned=by_knobs and cuda, precision=network.compiled_in,
    )  # fmt: skip
    return {task.exact: task.mod for task in tasks}
