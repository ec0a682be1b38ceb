"""`tunehub submit`: the package of a work directory, and what backs its evidence, as a folder of files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub import __version__
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub_builder.backends.relax.contents import judged_workloads
from tunehub_builder.backends.relax.ladder_gate import ladder_journal
from tunehub_builder.backends.relax.workload_gate import verdict_journal
from tunehub_builder.exceptions import SubmissionError
from tunehub_builder.gate.finalists import distill
from tunehub_builder.gate.journal import latest
from tunehub_builder.packing.pack import pack_directory
from tunehub_builder.packing.publish import BuiltPackage
from tunehub_builder.submission.base import read_base, records_in
from tunehub_builder.submission.candidates import candidate_digest
from tunehub_builder.submission.names import names_of_this_machine, told_names
from tunehub_builder.submission.session import ComputedOutputs, SubmissionSession, record_line, sizes_to_run
from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.trial_record import candidate_of
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.licenses import canonical_license
from tunehub_registry.package import open_package
from tunehub_registry.submission import (
    COMPARISONS,
    OUTPUTS,
    SUBMISSION,
    TRIALS,
    WORKLOADS,
    Comparison,
    NetworkTimes,
    OutputDigest,
    SizesComparison,
    Submission,
    SubmittedFile,
    SubmittedFinalist,
    SubmittedTrial,
    SubmittedWorkload,
    WorkloadComparison,
    encode_lines,
    encode_submission,
    sign_off_problem,
)
from tunehub_registry.template_record import BadLine

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike

_LIMIT_S = 240.0  # to build and run one workload


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenSubmission:
    """Where a submission lies, and what is in it: its package and bytes by file."""

    path: Path
    package: str
    sizes: Mapping[str, int]


def write_submission(
    directory: WorkDirectory,
    output: Path,
    *,
    version: str,
    license: str,
    sign_off: str,
    resources: Resources,
    base: Path | None = None,
) -> WrittenSubmission:
    """Write the submission of a checked work directory, which the caller holds locked, into the new folder ``output``.
    All that ``base`` holds, a published package of the same target, goes along.

    Outputs are computed here, by the records. Raises SubmissionError: the folder is there, a sign-off that is
    none, trials of TVM <= 0.19, a record that does not run, or a file that names this machine; PackingError,
    WorkDirectoryError, FormatError and LicenseError as packing does.
    """
    license = canonical_license(license)
    problem = sign_off_problem(sign_off)
    if problem is not None:
        raise SubmissionError(f"{problem}; it certifies https://developercertificate.org")
    if directory.existing_run().relay_target is not None:
        raise SubmissionError(f"{directory.path}: submissions are for TVM 0.25 and newer; publish its package")
    if output.exists():
        raise SubmissionError(f"{output}: exists; give a new folder")
    built = pack_directory(directory, version, license=license, base=base)
    known = None if base is None else read_base(base.read_bytes(), str(base))
    if known is not None and known.manifest.license is None:
        raise SubmissionError(f"{base}: states no licence; submit without it, or ask its publisher to state one")
    files = _files(directory, built, resources, known.files if known else ())
    submission = Submission(
        name=built.manifest.name, version=built.manifest.version, license=license, sign_off=sign_off,
        written_by=f"tunehub {__version__}", provenance=built.manifest.provenance, base=known.stated if known else None,
        files={name: SubmittedFile(sha256=hashlib.sha256(d).hexdigest(), size=len(d)) for name, d in files.items()},
    )  # fmt: skip
    _refuse_names(files, submission)
    _put(output, {SUBMISSION: encode_submission(submission), **files})
    sizes = {name: len(data) for name, data in files.items()}
    return WrittenSubmission(path=output, package=submission.package, sizes=sizes)


def _files(
    directory: WorkDirectory, built: BuiltPackage, resources: Resources, known: Container[str]
) -> dict[str, bytes]:
    """The files of a submission by name, without its manifest; ``known``: files of the package that others back."""
    found = records_in(built.data, "package", known)
    records = {record.exact: record for record in found if not isinstance(record, BadLine)}
    workloads = [
        SubmittedWorkload(exact=t.exact, name=t.name, counts=t.counts, function=t.module, points=t.points)
        for t in sorted(directory.tasks(), key=lambda task: task.exact)
        if t.exact in records
    ]
    trials = (
        SubmittedTrial(exact=t.task, source=t.source, candidate=candidate_digest(t.candidate), run_s=t.run_s)
        for t in Journal(directory.path).trials()
    )
    outputs = _outputs(workloads, records, directory.existing_run().target, resources)
    name = f"{built.manifest.name}-{built.manifest.version}.tunepkg"
    return {
        name: built.data,
        WORKLOADS: encode_lines(WORKLOADS, workloads),
        TRIALS: encode_lines(TRIALS, trials),
        COMPARISONS: encode_lines(COMPARISONS, _comparisons(directory)),
        OUTPUTS: encode_lines(OUTPUTS, outputs),
    }


def _comparisons(directory: WorkDirectory) -> Iterator[Comparison]:
    yield from _of_workloads(directory)
    for ladder in sorted(latest(ladder_journal(directory).entries()), key=lambda verdict: verdict.exact):
        yield SizesComparison(
            exact=ladder.exact, threads=ladder.threads, at=tuple(times.at for times in ladder.times),
            default_s=tuple(t.default_s for t in ladder.times), run_s=tuple(t.run_s for t in ladder.times),
        )  # fmt: skip
    for network in judged_workloads(directory).network_verdicts().values():
        yield NetworkTimes(
            network=network.name, threads=network.threads, default_s=network.default_s, plain_s=network.plain_s,
            tuned_s=network.tuned_s, difference=network.difference if network.difference != float("inf") else None,
        )  # fmt: skip


def _of_workloads(directory: WorkDirectory) -> Iterator[WorkloadComparison]:
    entries = {entry.task.exact: entry for entry in distill(directory)}
    for verdict in sorted(latest(verdict_journal(directory).entries()), key=lambda verdict: verdict.exact):
        entry = entries.get(verdict.exact)
        if entry is None or not verdict.default_s:
            continue
        known = enumerate(entry.best) if entry.digest == verdict.digest else ()
        digests = {at: candidate_digest(trial.candidate) for at, trial in known}
        if verdict.winner is not None:
            digests[verdict.winner] = candidate_digest(verdict.candidate)
        yield WorkloadComparison(
            exact=verdict.exact, threads=verdict.threads, default_s=verdict.default_s, winner=verdict.winner,
            finalists=tuple(
                SubmittedFinalist(
                    candidate=digests.get(at), run_s=each.run_s,
                    difference=each.difference if each.difference != float("inf") else None,
                )
                for at, each in enumerate(verdict.finalists)
            ),
        )  # fmt: skip


def _outputs(
    workloads: Sequence[SubmittedWorkload],
    records: Mapping[str, AnyRecord | LadderRecord],
    target: TargetLike,
    resources: Resources,
) -> list[OutputDigest]:
    """What the records compute here. Raises SubmissionError for one that does not run."""
    found: list[OutputDigest] = []
    worker = WorkerProcess(SubmissionSession, threads=resources.threads, log=os.devnull, without=SLOW_OPTIONAL_MODULES)
    try:
        for workload in workloads:
            record = records[workload.exact]
            digest = candidate_digest(record.ladder if isinstance(record, LadderRecord) else candidate_of(record))
            _said(worker, workload, "open", workload.function)
            for at in sizes_to_run(record):
                said: ComputedOutputs = _said(worker, workload, "outputs", target, record_line(record), at)
                found.append(
                    OutputDigest(
                        exact=workload.exact, at=at, candidate=digest, kind=said.kind, inputs=said.inputs,
                        outputs=said.outputs,
                    )
                )  # fmt: skip
    finally:
        worker.stop()
    return found


def _said(worker: WorkerProcess, workload: SubmittedWorkload, request: str, *arguments: Any) -> Any:
    kind, said = worker.ask((request, workload.exact, *arguments), _LIMIT_S)
    if kind != "ok":
        raise SubmissionError(f"{workload.name}: its record does not run here: {said}")
    return said


def _refuse_names(files: Mapping[str, bytes], submission: Submission) -> None:
    """Raise SubmissionError when a file tells what this machine or its user is called."""
    names = names_of_this_machine()
    shown = {**files, "provenance": repr(submission.provenance).encode()}
    for file, data in shown.items():
        parts = {file: data}
        if file.endswith(".tunepkg"):
            with open_package(data) as package:
                parts = {f"{file}!{name}": package.read(name) for name in package.names}
        for place, content in parts.items():
            told = told_names(content, names)
            if told:
                raise SubmissionError(f"{place} would tell {told[0]}; rename the network, the file or the folder")


def _put(output: Path, files: Mapping[str, bytes]) -> None:
    """Write a whole folder, or none."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
        try:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            folder.chmod(0o755)
            folder.rename(output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise SubmissionError(
            f"{output}: cannot be written: {error.strerror or error}; give another folder, or free space there"
        ) from error
