"""`tunehub attest`: a sample of a package's records, measured on this machine beside TVM's default as the gate does."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import UNSET

from tunehub.comparison.protocol import interquartile_range
from tunehub.kernels.template_fit import published_rates
from tunehub.options import Layout
from tunehub.registries.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub.target.host import gpu_descriptor, host_descriptor
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder import networks
from tunehub_builder.backends.relax.run import task_entry
from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.backends.relax.workload_gate import LIMITS, Verdict, case_of
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.again_measured import again_places, again_pool
from tunehub_builder.gate.comparison import plan_for
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.gate.packages import opened, published_profile
from tunehub_builder.gate.workloads import judge_on
from tunehub_builder.networks import Network
from tunehub_builder.tuning.progress import milliseconds
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.target import HOST, TuningTarget, tvm_versions
from tunehub_builder.tuning.trial_record import as_trial
from tunehub_builder.tuning.work_directory import TaskEntry
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.attestation import Attestation, ComparedTimes, Measurement, PackageSubject, SampledRecord
from tunehub_registry.manifest import Manifest, NetworkEntry
from tunehub_registry.package import Package, sha256_of
from tunehub_registry.printable import plain
from tunehub_registry.publishing.packages import date_text
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import Rejected, TargetDescriptor, match
from tunehub_registry.template_record import TemplateRecord
from tunehub_registry.trust.attestations import draw_of, seed_of
from tunehub_registry.trust.state import utc_now

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

_TUNERS = (META_SCHEDULE, TEMPLATE)
_MOST_TEXT = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRequest:
    """How many records to measure, drawn by ``seed`` (None: by the key's signature of the package file), and of which
    networks their workloads are; none: the package's own that are known by name. ``shapes`` fix the inputs of the
    models."""

    count: int
    seed: int | None = None
    names: Sequence[str] = ()
    models: Sequence[Path] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    tuner: str
    record: AnyRecord
    task: TaskEntry


def attest_package(
    path: Path, request: SampleRequest, signer: Signer, resources: Resources, stream: TextIO
) -> Attestation:
    """Measure a sample of a package's records for fixed shapes on this machine's CPU or GPU, beside TVM's default and
    what a client has without them; ``signer`` draws it.

    Raises BuilderError for a package that this machine cannot use, or that has no record of the networks' workloads,
    NetworkError, PackageError and FormatError.
    """
    started = date_text(utc_now())
    subject, manifest, records, published = _read(path)
    target = find_relax_target(HOST if manifest.target.kind == "llvm" else manifest.target.kind)
    with published_rates(published):  # as a client here has the networks
        found = _measurable(records, _networks(manifest.networks, request), target)
    if not found:
        reason = "has no record for a workload of these networks on this machine"
        raise BuilderError(f"{path}: {reason}; name networks that it was made of with --network or --model")
    draw = draw_of(subject, signer) if request.seed is None else UNSET
    seed = seed_of(draw) if draw else request.seed or 0
    measured = tuple(_measured(_sample(found, request.count, seed), target, published, resources, stream))
    return Attestation(
        subject=(subject,),
        predicate=Measurement(
            machine=_machine(manifest.target.kind),
            tvm_version=tvm_versions()[0],
            threads=resources.threads,
            started=started,
            finished=date_text(utc_now()),
            seed=seed,
            draw=draw,
            drawn_from=len({(drawn.record.exact, drawn.tuner) for drawn in found}),
            records=measured,
            published=len({(record.exact, tuner) for tuner, record in records}),
        ),
    )


def _read(path: Path) -> tuple[PackageSubject, Manifest, list[tuple[str, AnyRecord]], PublishedProfile | None]:
    """What an attestation is about, the records for fixed shapes and current TVM with their tuners, and the rates by
    which a client's rules go with the package."""
    with opened(path) as package:
        manifest = package.manifest
        _check_served(manifest)
        subject = PackageSubject.of(manifest.name, manifest.version, sha256_of(path))
        return subject, manifest, list(_records(package)), published_profile(package)


def _check_served(manifest: Manifest) -> None:
    """Raise BuilderError unless a client here would use the package."""
    label = f"{manifest.name} {manifest.version}"
    outcome = match(manifest.target, _machine(manifest.target.kind))
    if isinstance(outcome, Rejected):
        raise BuilderError(f"{label} does not serve this machine: {outcome.reason}; attest it on one that it serves")


def _machine(kind: str) -> TargetDescriptor:
    """This machine's CPU, or its GPU. Raises BuilderError where there is none of the ``kind``."""
    found = host_descriptor() if kind == "llvm" else gpu_descriptor() if kind == "cuda" else None
    if found is None:
        raise BuilderError(f"this machine has no {kind} device that TVM can use; attest the package on one that has")
    return found


def _records(package: Package) -> Iterator[tuple[str, AnyRecord]]:
    """The records for fixed shapes and current TVM, with their tuners."""
    for entry in package.manifest.record_sets:
        if entry.tuner not in _TUNERS:
            continue
        with package.open(entry.file) as stream:
            for record in read_any_records(stream, entry.file):
                if isinstance(record, (ScheduleRecord, TemplateRecord)):
                    yield entry.tuner, record


def _networks(entries: Iterable[NetworkEntry], request: SampleRequest) -> list[Network]:
    """Those that are asked for, or the package's own. Raises NetworkError, BuilderError when there are none."""
    names = request.names
    if not names and not request.models:
        names = [e.name for e in entries if networks.OPEN not in e.source and networks.is_known(e.name)]
    found = [networks.get(name) for name in names]
    found += [networks.from_onnx_file(model, shapes=request.shapes) for model in request.models]
    if not found:
        raise BuilderError("the package was made of no network that tunehub knows: give its model with --model FILE")
    return found


def _measurable(
    records: Sequence[tuple[str, AnyRecord]], found: Iterable[Network], target: TuningTarget
) -> list[_Drawn]:
    """The records of these networks' workloads."""
    by_knobs = any(tuner == TEMPLATE for tuner, _ in records)
    layout: Layout = "auto" if by_knobs and target.config.get("kind") == "llvm" else "keep"  # as a client decides
    tasks = {task.exact: task for task in _tasks(list(found), target, layout)}
    return [
        _Drawn(tuner=tuner, record=record, task=tasks[record.exact])
        for tuner, record in records
        if record.exact in tasks
    ]


def _tasks(found: Sequence[Network], target: TuningTarget, layout: Layout) -> Iterator[TaskEntry]:
    """The workloads that a client has of these networks on this machine; on a GPU channels may be last."""
    import tvm

    from tunehub_builder.tuning.tasks import extract_tasks

    own = tvm.target.Target(target.config)
    for network in found:
        modules = [(network.name, network.relax_module())]
        for last in (False, True) if own.kind.name == "cuda" else (False,):
            tasks = extract_tasks(modules, own, layout=layout, channels_last=last, precision=network.compiled_in)
            yield from (task_entry(task, network.name) for task in tasks)


def _sample(found: Sequence[_Drawn], count: int, seed: int) -> list[_Drawn]:
    """By the hash of the seed and the keys: nobody chooses the records."""

    def place(drawn: _Drawn) -> str:
        return hashlib.sha256(f"{seed} {drawn.record.exact} {drawn.tuner}".encode()).hexdigest()

    distinct = {(drawn.record.exact, drawn.tuner): drawn for drawn in found}
    return sorted(distinct.values(), key=place)[:count]


def _measured(
    sample: Sequence[_Drawn],
    target: TuningTarget,
    published: PublishedProfile | None,
    resources: Resources,
    stream: TextIO,
) -> Iterator[SampledRecord]:
    kind, positions = str(target.config.get("kind")), count(1)
    with tempfile.TemporaryDirectory() as folder, again_pool(target, Path(folder), published, resources) as pool:
        places = again_places(kind, pool)
        for tuner in _TUNERS:
            own = {drawn.record.exact: drawn for drawn in sample if drawn.tuner == tuner}
            cases = [case_of(_entry(each), target.config, resources.threads, plan_for(kind)) for each in own.values()]
            for verdict in judge_on(cases, places, LIMITS) if cases else ():
                found = sampled_record(tuner, verdict, op=own[verdict.exact].record.op)
                said = plain(f"[{next(positions)}/{len(sample)}] {verdict.name}: {_said(found)}")
                print(said, file=stream, flush=True)
                yield found


def _entry(drawn: _Drawn) -> Distilled:
    return Distilled(task=drawn.task, best=(as_trial(drawn.record),), trials=1, beside_rule=True)


def _said(record: SampledRecord) -> str:
    times = record.times
    if times is None:
        return f"fault: {record.fault}"
    rule = f", without it {milliseconds(times.rule_s)}" if times.rule_s else ""
    return f"{milliseconds(times.default_s)} → {milliseconds(times.tuned_s)} ({times.gain:.2f}×{rule})"


def sampled_record(tuner: str, verdict: Verdict, *, op: str) -> SampledRecord:
    """What the gate's comparison of one record says of it: a time that is no gain is no fault."""
    compared = verdict.finalists[0]
    if not compared.run_s or not verdict.default_s or compared.difference is None:
        fault = compared.reason or verdict.reason or "its outputs cannot be compared"
        return SampledRecord(exact=verdict.exact, tuner=tuner, op=op, fault=fault[:_MOST_TEXT])
    rule = verdict.finalists[1].run_s if verdict.finalists[1:] else ()
    times = ComparedTimes(
        default_s=statistics.median(verdict.default_s),
        default_spread_s=interquartile_range(verdict.default_s),
        tuned_s=statistics.median(compared.run_s),
        tuned_spread_s=interquartile_range(compared.run_s),
        repeats=len(compared.run_s),
        output_max_rel_diff=compared.difference,
        rule_s=statistics.median(rule) if rule else UNSET,
    )
    return SampledRecord(exact=verdict.exact, tuner=tuner, op=op, times=times)
