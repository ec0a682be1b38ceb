"""`tunehub check`: the publish gate on a work directory, on a file of records and on a package."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from tunehub.registries.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub_builder.backends.relax.contents import judged_workloads
from tunehub_builder.backends.relax.ladder_gate import LadderVerdict, check_ladders, ladder_reason
from tunehub_builder.backends.relax.network_gate import RecordFile, RelaxNetworks, network_cases, network_journal
from tunehub_builder.backends.relax.network_worker import RelaxNetworkCase
from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.backends.relax.workload_gate import RelaxWorkloads, Verdict, is_beside_rule, static_reason
from tunehub_builder.exceptions import BuilderError, WorkDirectoryError
from tunehub_builder.gate.apart import PROCESSES
from tunehub_builder.gate.disturbance import UNJUDGED, all_settled, settled, unjudged_of, until_undisturbed
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.gate.networks import NetworkVerdict, check_networks, judge_networks
from tunehub_builder.gate.packages import opened, published_profile
from tunehub_builder.gate.report import CheckResult, NetworkResult, Rejection, network_results, shown_on
from tunehub_builder.gate.workloads import check_workloads, judge_on
from tunehub_builder.networks import OPEN
from tunehub_builder.packing.contents import nothing_admitted
from tunehub_builder.tuning.progress import native_output_to
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_builder.tuning.target import tvm_versions
from tunehub_builder.tuning.trial_record import as_trial, candidate_of
from tunehub_builder.tuning.work_directory import RunFile, WorkDirectory
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.evidence import encode_evidence
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import EVIDENCE, Package
from tunehub_registry.template_record import BadLine, TemplateRecord

_BUSY = 0.7  # load that other programs may put on the machine before we say that it is busy


def check_work_directory(
    path: Path,
    resources: Resources,
    models: Sequence[Path] = (),
    *,
    end_to_end: bool = False,
    networks: Sequence[str] = (),
    processes: int = PROCESSES,
) -> CheckResult:
    """Judge the finalists in a work directory, and with ``end_to_end`` its networks with the records then admitted.

    ``models``: the ONNX files that were tuned; ``networks``: only these of the standard ones, in so many ``processes``
    with the records and by rules each. With TVM <= 0.19 networks are always judged. Raises WorkDirectoryError,
    TuningError, and for networks PackingError, BuilderError and NetworkError.
    """
    with WorkDirectory(path).locked() as directory:
        run = directory.existing_run()
        _check_versions(directory, run)
        with native_output_to(directory.log) as stream:
            _warn_if_busy(stream)
            if run.relay_target is not None:
                from tunehub_builder.backends.relay.check import check_relay_directory

                return check_relay_directory(directory, resources, models, shown_on(stream))
            backend = RelaxWorkloads(directory=directory, run=run, threads=resources.threads)
            verdicts = check_workloads(backend, resources, shown_on(stream))
            result = _result([*verdicts, *check_ladders(directory, run, resources, shown_on(stream))])
            if end_to_end:
                result = replace(
                    result, networks=_end_to_end(directory, resources, networks, models, processes, stream)
                )
    return result


def check_file(path: Path, work: Path | None, resources: Resources) -> CheckResult:
    """Judge a file of records; with ``work``, whose workloads they are for, also by building and measuring.

    Raises WorkDirectoryError when ``path`` or ``work`` cannot be read, TuningError as :func:`check_work_directory`.
    """
    found, rejected = _read(path)
    records = [record for record in found if not isinstance(record, LadderRecord)]
    if work is None:
        return CheckResult(admitted=len(found), rejected=tuple(rejected), measured=False)
    of_sizes = [record for record in found if isinstance(record, LadderRecord)]
    reason = f"a ladder is judged with the trials that it is made of: tunehub check {work}"
    rejected += [Rejection(where=record.exact, name=record.op, reason=reason) for record in of_sizes]
    with WorkDirectory(work).locked() as directory:
        run = directory.existing_run()
        _check_versions(directory, run)
        entries, unknown = _entries(directory, run, records)
        with native_output_to(directory.log) as stream:
            _warn_if_busy(stream)
            verdicts = {verdict.exact: verdict for verdict in _measured(directory, run, entries, resources, stream)}
    result = _result(list(verdicts.values()))
    return replace(result, rejected=(*rejected, *unknown, *result.rejected))


def check_package(
    path: Path,
    resources: Resources,
    names: Sequence[str],
    models: Sequence[Path],
    stream: TextIO,
    *,
    processes: int = PROCESSES,
) -> CheckResult:
    """Judge networks with the records of a package for this machine, in so many ``processes`` with them and by rules
    each.

    Raises BuilderError for a package without records for current TVM, and as :func:`check_work_directory`;
    NoSuchTargetError and UnsuitableTargetError for a package of another machine, PackageError and FormatError for a
    damaged one.
    """
    show = shown_on(stream)
    verdicts: dict[str, NetworkVerdict] = {}
    with tempfile.TemporaryDirectory() as folder:
        with opened(path) as package:
            file = records_of(package, Path(folder))
            found = network_cases(package.manifest.networks, names, models, file)
        options = PoolOptions(workers=1, threads=resources.threads, log=str(Path(folder) / "native.log"))
        backend = RelaxNetworks.of(file, processes)

        def judge(some: Sequence[RelaxNetworkCase]) -> Iterator[list[NetworkVerdict]]:
            return all_settled(judge_networks(backend, some, options))

        for (judged,), position, count in until_undisturbed(found, backend.wanted, judge, unjudged_of):
            verdicts[judged.network] = judged
            show(judged, position, count)
    return CheckResult(admitted=0, rejected=(), measured=True, networks=network_results(verdicts.values()))


def _end_to_end(
    directory: WorkDirectory,
    resources: Resources,
    names: Sequence[str],
    models: Sequence[Path],
    processes: int,
    stream: TextIO,
) -> tuple[NetworkResult, ...]:
    """Judge the networks of a work directory with its admitted records; the caller holds it locked.

    Raises PackingError when nothing is admitted, BuilderError and NetworkError for a network that is not there,
    WorkDirectoryError and TuningError.
    """
    run = directory.existing_run()
    judged = judged_workloads(directory)
    if all(OPEN in network.source for network in run.networks):
        raise BuilderError(f"{directory.path}: networks with open dimensions are not judged: leave --end-to-end out")
    if not judged.records:
        raise nothing_admitted(directory, checked=True)
    with tempfile.TemporaryDirectory() as folder:
        path, evidence = (Path(folder) / name for name in ("records.jsonl", EVIDENCE))
        path.write_bytes(judged.lines)
        evidence.write_bytes(b"".join(map(encode_evidence, judged.evidence({}))))
        layout = "auto" if run.tuner == TEMPLATE else "keep"
        profile = directory.profile()
        file = RecordFile(path=path, target=run.target, layout=layout, evidence=evidence, profile=profile)
        found = network_cases(run.networks, names, models, file)
        options = PoolOptions(workers=1, threads=resources.threads, log=str(directory.log))
        backend, journal = RelaxNetworks.of(file, processes), network_journal(directory)
        return network_results(check_networks(backend, journal, found, options, shown_on(stream)))


def records_of(package: Package, folder: Path) -> RecordFile:
    """All records for current TVM, in one file; a file of the user's own records may hold those of either tuner."""
    path, evidence = folder / "records.jsonl", folder / EVIDENCE
    manifest: Manifest = package.manifest
    sets = [item for item in manifest.record_sets if item.tuner in (META_SCHEDULE, TEMPLATE)]
    if not sets:
        raise BuilderError(f"{manifest.name} {manifest.version}: has no records for TVM 0.25 and newer")
    with path.open("wb") as file:
        for item in sets:
            with package.open(item.file) as stream:
                file.write(stream.read())
    evidence.write_bytes(package.read(EVIDENCE) if EVIDENCE in package.names else b"")
    # As a client decides, see `tunehub.compiler.hub`.
    layout = "auto" if any(item.tuner == TEMPLATE for item in sets) else "keep"
    target = find_relax_target(manifest.name).config
    published = published_profile(package)
    profile = None if published is None else published.profile
    return RecordFile(path=path, target=target, layout=layout, evidence=evidence, profile=profile)


def _measured(
    directory: WorkDirectory, run: RunFile, entries: Sequence[Distilled], resources: Resources, stream: TextIO
) -> Iterator[Verdict]:
    show = shown_on(stream)
    backend = RelaxWorkloads(directory=directory, run=run, threads=resources.threads)
    with backend.workers(resources.workers) as workers:

        def judge(some: Sequence[Distilled]) -> Iterator[Verdict]:
            return map(settled, judge_on(backend.cases(some), workers, backend.limits))

        def unjudged(verdict: Verdict) -> Iterator[Hashable]:
            return unjudged_of([verdict])

        for verdict, position, count in until_undisturbed(entries, lambda entry: [entry.task.exact], judge, unjudged):
            show(verdict, position, count)
            yield verdict


def _read(path: Path) -> tuple[list[AnyRecord | LadderRecord], list[Rejection]]:
    """The records of a file whose format and trace or knobs are good, and the others."""
    good: list[AnyRecord | LadderRecord] = []
    bad: list[Rejection] = []
    try:
        with path.open("rb") as file:
            for number, record in enumerate(read_any_records(file, str(path)), 1):
                where = f"{path.name}:{number}"
                if isinstance(record, BadLine):
                    bad.append(Rejection(where=where, name=f"line {number}", reason=record.reason))
                elif reason := _reason(record):
                    bad.append(Rejection(where=where, name=record.op, reason=reason))
                else:
                    good.append(record)
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a work directory or a file of records") from error
    return good, bad


def _reason(record: AnyRecord | LadderRecord) -> str | None:
    """Why a record must not reach TVM."""
    return ladder_reason(record) if isinstance(record, LadderRecord) else static_reason(candidate_of(record))


def _entries(
    directory: WorkDirectory, run: RunFile, records: Sequence[AnyRecord]
) -> tuple[list[Distilled], list[Rejection]]:
    tasks = {task.exact: task for task in directory.tasks()}
    entries, unknown = [], []
    for record in records:
        if record.exact in tasks and isinstance(record, TemplateRecord) == (run.tuner == TEMPLATE):
            trial = as_trial(record)
            task, beside_rule = tasks[record.exact], is_beside_rule(run)
            entries.append(Distilled(task=task, best=(trial,), trials=1, beside_rule=beside_rule))
        else:
            reason = f"{directory.path} has no such workload"
            unknown.append(Rejection(where=record.exact, name=record.op, reason=reason))
    return entries, unknown


def _result(verdicts: Sequence[Verdict | LadderVerdict]) -> CheckResult:
    others = [
        Rejection(where=verdict.exact, name=verdict.name, reason=verdict.reason or "")
        for verdict in verdicts
        if not verdict.admitted
    ]
    rejected, unjudged = (tuple(item for item in others if (item.reason == UNJUDGED) == none) for none in (False, True))
    speedups = tuple(verdict.speedup for verdict in verdicts if verdict.admitted and verdict.speedup)
    return CheckResult(admitted=len(speedups), rejected=rejected, measured=True, speedups=speedups, unjudged=unjudged)


def _check_versions(directory: WorkDirectory, run: RunFile) -> None:
    """The default schedule is TVM's: another TVM may have a faster or a slower one."""
    found = tvm_versions()
    expected = (run.tvm_version, run.tvm_ffi_version)
    if found != expected:
        reason = f"was tuned with TVM {' and apache-tvm-ffi '.join(expected)}, this is {' and '.join(found)}"
        raise WorkDirectoryError(directory.path, reason, "check it with the same versions")


def _warn_if_busy(stream: TextIO) -> None:
    load = os.getloadavg()[0] if sys.platform != "win32" else 0.0
    if load > _BUSY:
        stream.write(f"warning: other programs are at work here (load {load:.1f}): times will be noisy\n")
