"""From a checked work directory to a package file and an index. The same directory gives the same bytes."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from tunehub.records.key_scheme import KEY_SCHEME, META_SCHEDULE, TEMPLATE
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.finalists import Distilled, as_record, distill
from tunehub_builder.gate.networks import NetworkVerdict, as_evidence, current, digest_of, network_journal
from tunehub_builder.gate.workloads import Verdict, evidence, static_reason, verdict_journal
from tunehub_builder.tuning.journal import Journal, Trial, write_atomically
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory
from tunehub_registry import index as registry_index
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence
from tunehub_registry.manifest import Manifest, NetworkEntry, Provenance, RecordSet
from tunehub_registry.package import EVIDENCE, pack, package_filename
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.template_record import encode_template_record
from tunehub_registry.trace_rules import required_features

TVM_VERSIONS = ">=0.25,<0.28"
CUDA_LEAST = "sm_80"  # whose limits the records keep, and whose asynchronous copies they may use


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltPackage:
    """A package in memory. ``counts``: records, and workloads that were rejected or not checked."""

    manifest: Manifest
    data: bytes
    counts: dict[str, int]

    @property
    def sha256(self) -> str:
        """Of the package file, in hex."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What goes into a package, before it has a version. ``files`` by their names in it, without the evidence;
    ``counts`` as in :class:`BuiltPackage`."""

    target: TargetDescriptor
    record_sets: tuple[RecordSet, ...]
    networks: tuple[NetworkEntry, ...]
    provenance: Provenance
    files: Mapping[str, bytes]
    evidence: bytes
    counts: dict[str, int]


def pack_directory(
    directory: WorkDirectory,
    version: str,
    *,
    name: str | None = None,
    measured: Sequence[NetworkEvidence] = (),
    base: Path | None = None,
) -> BuiltPackage:
    """Pack the admitted records of ``directory``, with the evidence on them and on the rejected ones.

    ``measured`` are end-to-end times with these records, for networks that were tuned; others are left out. With
    ``base``, a package of the same target, all that it holds goes into the new one too, unchanged.

    Raises PackingError: nothing is admitted, a wrong ``name`` or ``version``, a ``base`` that does not go with it;
    WorkDirectoryError: a damaged file; PackageError, FormatError: a damaged ``base``.
    """
    run = directory.existing_run()
    if run.relay_target is not None:
        from tunehub_builder.backends.relay.contents import relay_contents

        contents = relay_contents(directory, run)
    else:
        contents = _contents(directory, run, measured)
    if name is not None and name != contents.target.name:
        raise PackingError(f"the package of target {run.target_name} is called {contents.target.name}, not {name}")
    if base is not None:
        from tunehub_builder.packing.base_package import with_base

        contents = with_base(contents, base)
    manifest = Manifest(
        name=contents.target.name,
        version=_version(version),
        target=contents.target,
        record_sets=contents.record_sets,
        networks=contents.networks,
        provenance=contents.provenance,
    )
    data = pack(manifest, {**contents.files, EVIDENCE: contents.evidence})
    return BuiltPackage(manifest=manifest, data=data, counts=contents.counts)


def _contents(directory: WorkDirectory, run: RunFile, measured: Sequence[NetworkEvidence]) -> Contents:
    """The records of a directory that was tuned with TVM 0.25 to 0.27."""
    tuner = run.tuner or META_SCHEDULE
    file = f"records/{tuner}.jsonl"
    tasks = {task.exact: task for task in directory.tasks()}
    verdicts = {v.exact: v for v in verdict_journal(directory).entries() if v.exact in tasks}
    networks = _network_verdicts(directory)
    admitted = [verdicts[exact] for exact in sorted(verdicts) if _is_publishable(verdicts[exact])]
    admitted = [verdict for verdict in admitted if _outvoted(tasks[verdict.exact], networks) is None]
    if not admitted:
        raise nothing_admitted(directory, checked=bool(verdicts))
    records = [_record(verdict, _classified(tasks[verdict.exact])) for verdict in admitted]
    lines: list[Evidence] = [*_evidence(directory, verdicts, networks)]
    lines += _measured_with(run, [*measured, *_measured_here(networks, measured)])
    return Contents(
        target=_descriptor(run, records),
        record_sets=(RecordSet(tuner=tuner, file=file, tvm=TVM_VERSIONS, key_scheme=KEY_SCHEME, count=len(records)),),
        networks=sorted_networks(run),
        provenance=provenance_of(run, sum(trial.task in tasks for trial in Journal(directory.path).trials())),
        files={file: b"".join(map(encoded, records))},
        evidence=b"".join(map(encode_evidence, lines)),
        counts={
            "records": len(records),
            "rejected": len(verdicts) - len(records),
            "not_checked": len(tasks) - len(verdicts),
        },
    )


def admitted_records(directory: WorkDirectory) -> list[AnyRecord]:
    """The records that the gate admitted one by one, by their keys. Raises WorkDirectoryError for a damaged file."""
    tasks = {task.exact: task for task in directory.tasks()}
    verdicts = {v.exact: v for v in verdict_journal(directory).entries() if v.exact in tasks}
    found = [verdicts[exact] for exact in sorted(verdicts) if _is_publishable(verdicts[exact])]
    return [_record(verdict, _classified(tasks[verdict.exact])) for verdict in found]


def measured_evidence(directory: WorkDirectory) -> list[RecordEvidence]:
    """What the gate measured of each workload, admitted or not. Raises WorkDirectoryError for a damaged file."""
    tasks = {task.exact for task in directory.tasks()}
    verdicts = {v.exact: v for v in verdict_journal(directory).entries() if v.exact in tasks}
    return list(_evidence(directory, verdicts, {}))


def _network_verdicts(directory: WorkDirectory) -> dict[str, NetworkVerdict]:
    """What the end-to-end gate said of networks with the records that are admitted now."""
    journal = network_journal(directory)
    if not journal.path.exists():
        return {}
    return current(journal.entries(), digest_of(b"".join(map(encoded, admitted_records(directory)))))


def _outvoted(task: TaskEntry, networks: Mapping[str, NetworkVerdict]) -> str | None:
    """Why a record is not published though it is admitted: every network that calls it was rejected end to end."""
    judged = [networks.get(name) for name in task.counts]
    rejected = [verdict for verdict in judged if verdict is not None and not verdict.admitted]
    if len(rejected) < len(judged) or not rejected:
        return None
    return f"{rejected[0].network} {rejected[0].reason}" + (f", and {len(rejected) - 1} more" if rejected[1:] else "")


def _evidence(
    directory: WorkDirectory, verdicts: Mapping[str, Verdict], networks: Mapping[str, NetworkVerdict]
) -> Iterator[RecordEvidence]:
    """What was measured of each workload; not admitted is also what :func:`_outvoted` leaves out."""
    for entry in sorted(distill(directory), key=lambda entry: entry.task.exact):
        verdict = verdicts.get(entry.task.exact)
        line = evidence(verdict) if verdict is not None else None
        if verdict is None or line is None:
            continue
        reason = _outvoted(entry.task, networks)
        if line.admitted and reason is not None:
            line = msgspec.structs.replace(line, admitted=False, reason=reason)
        yield _with_own_choice(line, verdict, entry)


def _with_own_choice(line: RecordEvidence, verdict: Verdict, entry: Distilled) -> RecordEvidence:
    """``line`` with the time of the template's own knobs, if they raced in what the verdict is about."""
    if verdict.choice is None or entry.preferred is None or entry.digest != verdict.digest:
        return line
    own_s = verdict.finalists[entry.preferred].run_s
    if not own_s:
        return line
    return msgspec.structs.replace(line, template=verdict.choice.template, untuned_s=statistics.median(own_s))


def _measured_with(run: RunFile, measured: Iterable[NetworkEvidence]) -> list[NetworkEvidence]:
    """The times of networks that were tuned; those with templates say so, beside times with other records."""
    tuned = {network.name for network in run.networks}
    found = [item for item in measured if item.network in tuned]
    if run.tuner != TEMPLATE:
        return found
    return [msgspec.structs.replace(item, network=f"{item.network} ({TEMPLATE})") for item in found]


def _measured_here(
    networks: Mapping[str, NetworkVerdict], measured: Iterable[NetworkEvidence]
) -> Iterator[NetworkEvidence]:
    """What the end-to-end gate measured of networks that are not among ``measured``."""
    known = {item.network for item in measured}
    for name in sorted(networks.keys() - known):
        line = as_evidence(networks[name])
        if line is not None:
            yield line


def nothing_admitted(directory: WorkDirectory, *, checked: bool) -> PackingError:
    """The error for a directory without anything to publish."""
    reason = "the gate admitted no record" if checked else "nothing is checked yet"
    return PackingError(f"{directory.path}: {reason}; run `tunehub check {directory.path}` first")


def publish_locally(built: BuiltPackage, output: Path, index: Path | None) -> Path:
    """Write the package, and with ``index`` also its new shard and index, the index last.

    Raises VersionConflictError when the index has this version with other content, FormatError for an index that
    cannot be read, WorkDirectoryError when the disk refuses.
    """
    if index is None:
        output.mkdir(parents=True, exist_ok=True)
        path = output / package_filename(built.manifest.name, built.manifest.version)
        write_atomically(path, [built.data])
        return path
    root = index.parent
    before = _read_index(index)
    update = registry_index.add_version(
        before, _read_shard(root, before, built.manifest.name), _shard_entry(built), target=built.manifest.target
    )
    path = root / registry_index.package_path(built.manifest.name, built.manifest.version)
    (root / update.shard_path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [built.data])
    write_atomically(root / update.shard_path, [update.shard_data])
    write_atomically(index, [registry_index.encode_index(update.index)])
    return path


def _is_publishable(verdict: Verdict) -> bool:
    """Admitted, and by today's rules too, which may be stricter than on the day of the verdict."""
    return verdict.admitted and verdict.winner is not None and static_reason(verdict.candidate) is None


def _classified(task: TaskEntry) -> TaskEntry:
    """``task`` with its classes, also when it was written down before there were any."""
    if task.op_class is not None and task.anchor_class is not None:
        return task
    import tvm

    from tunehub.relax.schedule.operator_class import class_fields

    return msgspec.structs.replace(task, **class_fields(tvm.ir.load_json(task.module)))


def _record(verdict: Verdict, task: TaskEntry) -> AnyRecord:
    registered = evidence(verdict)
    if registered is None or verdict.winner is None:
        raise PackingError(f"{task.name}: the verdict has no measurements; run `tunehub check` again")
    winner = verdict.finalists[verdict.winner]
    trial = Trial(task=task.exact, trace=verdict.trace, choice=verdict.choice, source=winner.source, run_s=winner.run_s)
    return as_record(task, trial, registered.default_s)


def encoded(record: AnyRecord) -> bytes:
    """The record as a line of its file."""
    return encode_record(record) if isinstance(record, ScheduleRecord) else encode_template_record(record)


def sorted_networks(run: RunFile) -> tuple[NetworkEntry, ...]:
    """The networks of a run by name."""
    return tuple(sorted(run.networks, key=lambda network: network.name))


def provenance_of(run: RunFile, trials: int, tuner: str | None = None) -> Provenance:
    """How the records were made, those of ``tuner`` if given.

    Options and machine are those of the last run, the commands those of all.
    """
    runs = [each for each in run.runs if tuner is None or each.options.get("tuner") == tuner]
    runs = runs or list(run.runs)
    last = runs[-1]
    seeds = sorted({each.seed for each in runs})
    commands = dict.fromkeys(each.command for each in runs)
    return Provenance(
        machine=last.machine,
        tvm_version=run.tvm_version,
        tvm_ffi_version=run.tvm_ffi_version,
        tuner_options={**last.options, "sittings": len(runs), "seeds": ", ".join(map(str, seeds))},
        trials=trials,
        seed=last.seed,
        command="\n".join(commands),
        started=runs[0].started,
        finished=last.updated,
        threads=last.threads,
    )


def _descriptor(run: RunFile, records: Iterable[AnyRecord]) -> TargetDescriptor:
    """The target as the client describes it, with the features that a record cannot do without.

    Templates leave instructions to the compiler, and their workloads are keyed with the vectors' width.
    """
    from tunehub.target.host import descriptor_of

    traces = [list(record.trace) for record in records if isinstance(record, ScheduleRecord)]
    needed = frozenset[str]().union(*map(required_features, traces))
    descriptor: TargetDescriptor = descriptor_of(run.target)
    if descriptor.kind == "cuda":
        needed |= {CUDA_LEAST}
        gpu = str(run.runs[-1].machine.get("gpu", ""))
        descriptor = msgspec.structs.replace(descriptor, aliases=(gpu,) if gpu else ())
    return msgspec.structs.replace(descriptor, required_features=tuple(sorted(needed)))


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise PackingError(f"{text!r} is not a version; give one such as 0.1.0 (PEP 440)") from error


def _read_index(path: Path) -> registry_index.Index:
    try:
        return registry_index.parse_index(path.read_bytes(), str(path))
    except OSError as error:
        remedy = 'create it with {"schema_version": "1.0", "serial": 0, "names": {}}, or leave --index out'
        raise PackingError(f"{path}: {error.strerror}; {remedy}") from error


def _read_shard(root: Path, index: registry_index.Index, name: str) -> registry_index.Shard | None:
    known = index.names.get(name)
    if known is None:
        return None
    path = root / known.shard_path
    try:
        return registry_index.parse_shard(path.read_bytes(), str(path))
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; the index names this shard: restore it") from error


def _shard_entry(built: BuiltPackage) -> registry_index.ShardEntry:
    manifest = built.manifest
    sets = tuple(registry_index.RecordSetSummary(tuner=s.tuner, tvm=s.tvm) for s in manifest.record_sets)
    return registry_index.ShardEntry(
        version=manifest.version,
        file=registry_index.package_path(manifest.name, manifest.version),
        sha256=built.sha256,
        size=len(built.data),
        record_sets=sets,
        published=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
