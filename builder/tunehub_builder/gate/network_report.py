"""The end-to-end gate on a work directory and on a package: which records, which networks, and what came of it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tunehub.records.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub_builder.backends.relax.contents import judged_workloads
from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.networks import NetworkVerdict, RecordFile, cases, judge_due, judge_networks
from tunehub_builder.gate.report import NetworkResult, Outcome, network_line
from tunehub_builder.packing.contents import nothing_admitted
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.evidence import encode_evidence
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import EVIDENCE, Package, open_package


def check_networks(
    directory: WorkDirectory, resources: Resources, names: Sequence[str], models: Sequence[Path], stream: TextIO
) -> tuple[NetworkResult, ...]:
    """Judge the networks of a work directory with its admitted records; the caller holds it locked.

    Raises PackingError when nothing is admitted, BuilderError and NetworkError for a network that is not there,
    WorkDirectoryError and TuningError.
    """
    run = directory.existing_run()
    judged = judged_workloads(directory)
    if not judged.records:
        raise nothing_admitted(directory, checked=True)
    with tempfile.TemporaryDirectory() as folder:
        path, evidence = (Path(folder) / name for name in ("records.jsonl", EVIDENCE))
        path.write_bytes(judged.lines)
        evidence.write_bytes(b"".join(map(encode_evidence, judged.evidence({}))))
        layout = "auto" if run.tuner == TEMPLATE else "keep"
        file = RecordFile(path=path, target=run.target, layout=layout, evidence=evidence)
        found = cases(run.networks, names, models, file)
        verdicts = judge_due(directory, found, file, resources.threads, lambda verdict: _show(verdict, stream))
    return tuple(map(result_of, verdicts))


def check_package(
    path: Path, resources: Resources, names: Sequence[str], models: Sequence[Path], stream: TextIO
) -> Outcome:
    """Judge networks with the records of a package for this machine.

    Raises BuilderError for a package without records for current TVM, and as :func:`check_networks`; NoSuchTargetError
    and UnsuitableTargetError for a package of another machine, PackageError and FormatError for a damaged one.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            with open_package(path, source=str(path)) as package:
                file = _records_of(package, Path(folder))
                found = cases(package.manifest.networks, names, models, file)
        except OSError as error:
            raise BuilderError(f"{path}: {error.strerror}; give a package file (.tunepkg)") from error
        verdicts = []
        for verdict in judge_networks(found, file, threads=resources.threads, log=str(Path(folder) / "native.log")):
            _show(verdict, stream)
            verdicts.append(verdict)
    return Outcome(admitted=0, rejected=(), measured=True, networks=tuple(map(result_of, verdicts)))


def result_of(verdict: NetworkVerdict) -> NetworkResult:
    """What a check says of a network."""
    return NetworkResult(
        network=verdict.network,
        admitted=verdict.admitted,
        default_s=statistics.median(verdict.default_s) if verdict.default_s else None,
        tuned_s=statistics.median(verdict.tuned_s) if verdict.tuned_s else None,
        reason=verdict.reason,
    )


def _records_of(package: Package, folder: Path) -> RecordFile:
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
    # As a client decides, see `tunehub.hub`.
    layout = "auto" if any(item.tuner == TEMPLATE for item in sets) else "keep"
    target = find_relax_target(manifest.name).config
    return RecordFile(path=path, target=target, layout=layout, evidence=evidence)


def _show(verdict: NetworkVerdict, stream: TextIO) -> None:
    rungs = ", ".join(f"{rung} {count}" for rung, count in verdict.rungs.items())
    stream.write(f"{network_line(result_of(verdict))}{f' ({rungs})' if rungs else ''}\n")
    stream.flush()
