"""From a checked work directory of TVM 0.25 and newer to the contents of a package."""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from tunehub.registries.key_scheme import KEY_SCHEME, LADDER, META_SCHEDULE, TEMPLATE
from tunehub.target.descriptors import descriptor_of
from tunehub.target.tvm_releases import NEWEST_RELAX, OLDEST_RELAX
from tunehub_builder.backends.relax.ladder_gate import (
    LadderVerdict,
    OpenWorkload,
    by_todays_rules,
    ladder_evidence,
    ladder_journal,
    ladder_record_of,
    open_workloads,
)
from tunehub_builder.backends.relax.network_gate import network_journal
from tunehub_builder.backends.relax.workload_gate import (
    Verdict,
    evidence,
    is_beside_rule,
    static_reason,
    verdict_journal,
)
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.disturbance import UNJUDGED
from tunehub_builder.gate.evidence import measured_network, network_evidence
from tunehub_builder.gate.finalists import Distilled, distill
from tunehub_builder.gate.journal import latest
from tunehub_builder.gate.networks import NetworkVerdict, digest_of
from tunehub_builder.packing.contents import (
    Contents,
    measured_with,
    provenance_of,
    sorted_networks,
)
from tunehub_builder.packing.curves import tuning_curve
from tunehub_builder.tuning.trial_record import record_of
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory
from tunehub_registry.any_record import AnyRecord, encode_any_record
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence
from tunehub_registry.ladder_record import LadderRecord, encode_ladder_record
from tunehub_registry.manifest import RecordSet
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trace_rules import required_features
from tunehub_registry.tuning_curves import TuningCurve

TVM_VERSIONS = f">={OLDEST_RELAX.version},<{NEWEST_RELAX.numbers[0]}.{NEWEST_RELAX.numbers[1] + 1}"
CUDA_LEAST = "sm_80"  # whose limits the records keep, and whose asynchronous copies they may use


@dataclass(frozen=True, kw_only=True)
class JudgedWorkloads:
    """The workloads of a directory with their finalists and verdicts, by key: its files are read once."""

    directory: WorkDirectory
    entries: Mapping[str, Distilled]
    verdicts: Mapping[str, Verdict]

    @cached_property
    def records(self) -> dict[str, AnyRecord]:
        """The records that the gate admitted one by one. Raises PackingError for a verdict without measurements."""
        return {
            exact: _record(verdict, _classified(self.entries[exact].task))
            for exact, verdict in self.verdicts.items()
            if _is_publishable(verdict)
        }

    @property
    def trials(self) -> int:
        """How many candidates were tried."""
        return sum(entry.trials_of_all_versions for entry in self.entries.values())

    @property
    def lines(self) -> bytes:
        """Those as a file of records."""
        return b"".join(map(encode_any_record, self.records.values()))

    def network_verdicts(self) -> dict[str, NetworkVerdict]:
        """What the end-to-end gate said of networks with these very records."""
        journal = network_journal(self.directory)
        if not journal.path.exists():
            return {}
        digest = digest_of(self.lines, self.directory.profile())
        found = (verdict for verdict in latest(journal.entries()) if verdict.reason != UNJUDGED)
        return {verdict.network: verdict for verdict in found if verdict.digest == digest}

    def evidence(self, networks: Mapping[str, NetworkVerdict]) -> Iterator[RecordEvidence]:
        """What was measured of each workload; not admitted is also what :func:`outvoted` leaves out."""
        for exact, verdict in self.verdicts.items():
            line = evidence(verdict)
            if line is None:
                continue
            entry = self.entries[exact]
            reason = outvoted(entry.task, networks)
            if line.admitted and reason is not None:
                line = msgspec.structs.replace(line, admitted=False, reason=reason)
            yield _with_own_choice(line, verdict, entry)


def judged_workloads(directory: WorkDirectory) -> JudgedWorkloads:
    """Read a work directory. Raises WorkDirectoryError for a damaged file."""
    beside_rule = is_beside_rule(directory.existing_run())
    entries = {entry.task.exact: entry for entry in distill(directory, beside_rule=beside_rule)}
    found = {verdict.exact: verdict for verdict in verdict_journal(directory).entries()}
    judged = sorted(key for key in found.keys() & entries.keys() if found[key].reason != UNJUDGED)
    verdicts = {exact: found[exact] for exact in judged}
    return JudgedWorkloads(directory=directory, entries=entries, verdicts=verdicts)


@dataclass(frozen=True, kw_only=True)
class JudgedLadders:
    """The symbolic workloads of a directory: those whose finalists were judged, with what is admitted of them."""

    entries: Sequence[OpenWorkload]
    verdicts: Sequence[LadderVerdict]
    records: Sequence[LadderRecord]

    @property
    def evidence(self) -> list[RecordEvidence]:
        """What was measured of each."""
        return [line for verdict in self.verdicts if (line := ladder_evidence(verdict)) is not None]


def judged_ladders(directory: WorkDirectory, source: str) -> JudgedLadders:
    """Read the symbolic workloads of a work directory. Raises WorkDirectoryError for a damaged file."""
    entries = {entry.task.exact: entry for entry in open_workloads(directory) if entry.choices}
    found = {verdict.exact: verdict for verdict in ladder_journal(directory).entries()} if entries else {}
    verdicts = [by_todays_rules(found[exact], entries[exact]) for exact in sorted(found.keys() & entries.keys())]
    records = [ladder_record_of(v, entries[v.exact].task, source) for v in verdicts if v.admitted]
    return JudgedLadders(entries=list(entries.values()), verdicts=verdicts, records=records)


def relax_contents(
    directory: WorkDirectory, run: RunFile, measured: Sequence[NetworkEvidence], *, rejected_too: bool = False
) -> Contents:
    """The records that the gate admitted and that no network speaks against, with the evidence on all; with
    ``rejected_too`` also what was measured of networks that were rejected.

    Raises PackingError for a verdict without measurements, WorkDirectoryError for a damaged file.
    """
    judged = judged_workloads(directory)
    networks = judged.network_verdicts()
    found = judged.records.items()
    records = [record for exact, record in found if outvoted(judged.entries[exact].task, networks) is None]
    rejected = {name for name, verdict in networks.items() if not (verdict.admitted or rejected_too)}
    ladders = judged_ladders(directory, source=run.tuner or META_SCHEDULE)
    sets = {run.tuner or META_SCHEDULE: b"".join(map(encode_any_record, records)),
            LADDER: b"".join(map(encode_ladder_record, ladders.records))}  # fmt: skip
    numbers = {run.tuner or META_SCHEDULE: len(records), LADDER: len(ladders.records)}
    files = {tuner: f"records/{tuner}.jsonl" for tuner, lines in sets.items() if lines}
    lines: list[Evidence] = [*judged.evidence(networks), *ladders.evidence]
    lines += _measured_with(run, [*measured, *_measured_here(networks, measured, rejected_too=rejected_too)])
    return Contents(
        target=_descriptor(run, records),
        record_sets=tuple(
            RecordSet(tuner=tuner, file=file, tvm=TVM_VERSIONS, key_scheme=KEY_SCHEME, count=numbers[tuner])
            for tuner, file in files.items()
        ),
        networks=tuple(entry for entry in sorted_networks(run) if entry.name not in rejected),
        provenance=provenance_of(run, judged.trials + sum(entry.trials for entry in ladders.entries)),
        files={file: sets[tuner] for tuner, file in files.items()},
        evidence=b"".join(map(encode_evidence, lines)),
        counts={
            "records": len(records) + len(ladders.records),
            "rejected": len(judged.verdicts) + len(ladders.verdicts) - len(records) - len(ladders.records),
            "not_checked": len(judged.entries) + len(ladders.entries) - len(judged.verdicts) - len(ladders.verdicts),
        },
        curves=_curves(run, judged, ladders, {record.exact for record in (*records, *ladders.records)}),
    )


def _curves(
    run: RunFile, judged: JudgedWorkloads, ladders: JudgedLadders, published: Container[str]
) -> tuple[TuningCurve, ...]:
    tuned = [(key, run.tuner or META_SCHEDULE, entry.so_far) for key, entry in judged.entries.items()]
    tuned += [(entry.task.exact, LADDER, entry.so_far) for entry in ladders.entries]
    found = (tuning_curve(key, tuner, so_far) for key, tuner, so_far in tuned if key in published)
    return tuple(filter(None, found))


def outvoted(task: TaskEntry, networks: Mapping[str, NetworkVerdict]) -> str | None:
    """Why a record is not published though it is admitted: every network that calls it was rejected end to end."""
    judged = [networks.get(name) for name in task.counts]
    rejected = [verdict for verdict in judged if verdict is not None and not verdict.admitted]
    if len(rejected) < len(judged) or not rejected:
        return None
    return f"{rejected[0].network} {rejected[0].reason}" + (f", and {len(rejected) - 1} more" if rejected[1:] else "")


def _with_own_choice(line: RecordEvidence, verdict: Verdict, entry: Distilled) -> RecordEvidence:
    """``line`` with the time of the template's default knobs, if they were compared in what the verdict is about."""
    if verdict.choice is None or entry.preferred is None or entry.digest != verdict.digest:
        return line
    own_s = verdict.finalists[entry.preferred].run_s
    if not own_s:
        return line
    return msgspec.structs.replace(line, template=verdict.choice.template, untuned_s=statistics.median(own_s))


def _measured_with(run: RunFile, measured: Iterable[NetworkEvidence]) -> list[NetworkEvidence]:
    """The times of networks that were tuned; those with templates say so, beside times with other records."""
    found = measured_with(run, measured)
    if run.tuner != TEMPLATE:
        return found
    return [msgspec.structs.replace(item, network=f"{item.network} ({TEMPLATE})") for item in found]


def _measured_here(
    networks: Mapping[str, NetworkVerdict], measured: Iterable[NetworkEvidence], *, rejected_too: bool
) -> Iterator[NetworkEvidence]:
    """What the end-to-end gate measured of networks that are not among ``measured``."""
    known = {item.network for item in measured}
    for name in sorted(networks.keys() - known):
        line = measured_network(networks[name]) if rejected_too else network_evidence(networks[name])
        if line is not None:
            yield line


def _is_publishable(verdict: Verdict) -> bool:
    """Admitted, and by today's rules too, which may be stricter than on the day of the verdict."""
    return verdict.admitted and verdict.winner is not None and static_reason(verdict.candidate) is None


def _classified(task: TaskEntry) -> TaskEntry:
    """``task`` with its classes, also when it was written down before there were any."""
    if task.op_class is not None and task.anchor_class is not None:
        return task
    import tvm

    from tunehub.tir.operator_class import class_fields

    return msgspec.structs.replace(task, **class_fields(tvm.ir.load_json(task.module)))


def _record(verdict: Verdict, task: TaskEntry) -> AnyRecord:
    registered = evidence(verdict)
    if registered is None or verdict.winner is None:
        raise PackingError(f"{task.name}: the verdict has no measurements; run `tunehub check` again")
    winner = verdict.finalists[verdict.winner]
    return record_of(task, verdict.candidate, winner.run_s, winner.source, default_s=registered.default_s)


def _descriptor(run: RunFile, records: Iterable[AnyRecord]) -> TargetDescriptor:
    """The target as the client describes it, with the features that a record cannot do without.

    Templates leave instructions to the compiler, and their workloads are keyed with the vectors' width.
    """
    traces = [list(record.trace) for record in records if isinstance(record, ScheduleRecord)]
    needed = frozenset[str]().union(*map(required_features, traces))
    descriptor: TargetDescriptor = descriptor_of(run.target)
    if descriptor.kind == "cuda":
        needed |= {CUDA_LEAST}
        gpu = str(run.runs[-1].machine.get("gpu", ""))
        descriptor = msgspec.structs.replace(descriptor, aliases=(gpu,) if gpu else ())
    return msgspec.structs.replace(descriptor, required_features=tuple(sorted(needed)))
