"""A submission as read: hostile files in, typed lines out. Nothing of TVM is imported here."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from tunehub_builder.exceptions import SubmissionError
from tunehub_builder.submission.base import BasePackage, check_taken_along, records_in
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.evidence import Evidence, read_evidence
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.machine_profile import PROFILE, MachineProfile, parse_profile, profile_in
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import EVIDENCE, MANIFEST, PackageLimits, open_package
from tunehub_registry.review import ReviewFinding
from tunehub_registry.submission import (
    COMPARISONS,
    LINES,
    MAX_FILE_BYTES,
    MAX_SUBMISSION_BYTES,
    OUTPUTS,
    SUBMISSION,
    TRIALS,
    WORKLOADS,
    Comparison,
    OutputDigest,
    Submission,
    SubmittedTrial,
    SubmittedWorkload,
    Values,
    parse_submission,
    parse_submitted_line,
)
from tunehub_registry.template_record import BadLine
from tunehub_registry.tuning_curves import CURVES, curves_in

_MOST_LINES = 1_000_000
K = TypeVar("K", bound=Hashable)
LIMITS = PackageLimits(max_package=MAX_FILE_BYTES, max_total=MAX_FILE_BYTES, max_member=256 << 20)


@dataclass(frozen=True, kw_only=True)
class SubmittedContents:
    """What a submission holds. ``records`` and ``evidence`` are new in the package, beside those of ``base``."""

    submission: Submission
    manifest: Manifest
    profile: MachineProfile | None
    package_sha256: str
    base: BasePackage | None
    records: tuple[AnyRecord | LadderRecord, ...]
    evidence: tuple[Evidence, ...]
    workloads: Mapping[str, SubmittedWorkload]
    trials: tuple[SubmittedTrial, ...]
    comparisons: tuple[Comparison, ...]
    outputs: Mapping[tuple[str, Values], OutputDigest]


def read_folder(path: Path) -> dict[str, bytes]:
    """The files of a submission by name, as far as it may have them. Raises SubmissionError: no folder, something that
    is no plain file (a link, a folder, a device), or a file that is too large."""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        raise SubmissionError(f"{path}: {error.strerror}; give the folder of a `tunehub submit`") from error
    if len(entries) > len(LINES) + 2:
        raise SubmissionError(f"{path}: has {len(entries)} files; a submission has {len(LINES) + 2}")
    return {entry.name: _read(Path(entry.path)) for entry in entries}


def parse_stated(files: Mapping[str, bytes]) -> Submission:
    """`submission.json`. Raises SubmissionError without one, FormatError."""
    if SUBMISSION not in files:
        raise SubmissionError(f"there is no {SUBMISSION}; give the folder of a `tunehub submit`")
    return parse_submission(files[SUBMISSION], SUBMISSION)


def file_findings(files: Mapping[str, bytes], submission: Submission) -> list[ReviewFinding]:
    """Files that are missing, too many, or not what `submission.json` says."""
    wanted = {SUBMISSION, *submission.files}
    found = [
        ReviewFinding(where=n[:200], reason="is not a file of the submission") for n in sorted(files.keys() - wanted)
    ]
    for name, stated in sorted(submission.files.items()):
        data = files.get(name)
        if data is None:
            found.append(ReviewFinding(where=name, reason="is missing"))
        elif hashlib.sha256(data).hexdigest() != stated.sha256 or len(data) != stated.size:
            found.append(ReviewFinding(where=name, reason="has other bytes than submission.json says"))
    return found


def parse_contents(
    files: Mapping[str, bytes], submission: Submission, base: BasePackage | None = None
) -> SubmittedContents:
    """All that the files hold; ``base`` is the published package that the submission names. Raises SubmissionError for
    a line or a package that is not right, naming it, and for a package with a file that no check reads."""
    data = files[submission.package]
    found = read_records(data, submission.package, base)
    if found.unread:
        raise SubmissionError(f"{submission.package}: has {found.unread[0][:200]!r}, which is no part of a package")
    _check_stated(found.manifest, submission, len(found.records), base.files if base else ())
    lines = {name: _lines(name, files[name]) for name in LINES}
    return SubmittedContents(
        submission=submission, manifest=found.manifest, profile=found.profile,
        package_sha256=hashlib.sha256(data).hexdigest(), base=base, records=found.records, evidence=found.evidence,
        workloads=_by_key(WORKLOADS, lines[WORKLOADS], lambda line: line.exact), trials=tuple(lines[TRIALS]),
        comparisons=tuple(lines[COMPARISONS]),
        outputs=_by_key(OUTPUTS, lines[OUTPUTS], lambda line: (line.exact, line.at)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PackageLines:
    """What a package holds, its lines read; ``unread``: files of it that are no part of a package."""

    manifest: Manifest
    profile: MachineProfile | None
    records: tuple[AnyRecord | LadderRecord, ...]
    evidence: tuple[Evidence, ...]
    unread: tuple[str, ...]


def read_records(data: bytes, source: str, base: BasePackage | None = None) -> PackageLines:
    """The lines of a package for current TVM, without those of ``base``. Raises SubmissionError for one that is
    damaged, not within limits, or lacks something of ``base``."""
    try:
        with open_package(data, source=source, limits=LIMITS) as package:
            if base is not None:
                check_taken_along(package, base)
            stated = profile_in(package)
            profile = None if stated is None else parse_profile(stated, source)
            curves_in(package)
            known = {MANIFEST, EVIDENCE, PROFILE, CURVES, *(entry.file for entry in package.manifest.record_sets)}
            unread = tuple(name for name in package.names if name not in known)
            evidence = []
            if EVIDENCE in package.names:
                own = package.read(EVIDENCE)[len(base.evidence) if base else 0 :]
                evidence = list(read_evidence(BytesIO(own), EVIDENCE))
        records = records_in(data, source, base.files if base else ())
    except RegistryError as error:
        raise SubmissionError(str(error)) from error
    bad = next((line for line in (*records, *evidence) if isinstance(line, BadLine)), None)
    if bad is not None:
        raise SubmissionError(f"{source}: line {bad.line}: {bad.reason}")
    return PackageLines(
        manifest=package.manifest, profile=profile,
        records=tuple(record for record in records if not isinstance(record, BadLine)),
        evidence=tuple(line for line in evidence if not isinstance(line, BadLine)), unread=unread,
    )  # fmt: skip


def _check_stated(manifest: Manifest, submission: Submission, records: int, known: Container[str]) -> None:
    if (manifest.name, manifest.version) != (submission.name, submission.version):
        raise SubmissionError(f"the package is {manifest.name} {manifest.version}, not what {SUBMISSION} says")
    if manifest.provenance != submission.provenance:
        raise SubmissionError(f"the package's provenance is not that of {SUBMISSION}")
    if not records or records != sum(entry.count for entry in manifest.record_sets if entry.file not in known):
        raise SubmissionError(f"the package has {records} records, its manifest says another number, or none")


def _lines(name: str, data: bytes) -> list[Any]:
    lines = data.split(b"\n")
    if len(lines) > _MOST_LINES or lines.pop():
        raise SubmissionError(f"{name}: has more than {_MOST_LINES} lines, or an unfinished one")
    try:
        return [parse_submitted_line(name, line, f"{name}:{number}") for number, line in enumerate(lines, 1)]
    except RegistryError as error:
        raise SubmissionError(str(error)) from error


def _by_key(name: str, lines: list[Any], key: Callable[[Any], K]) -> dict[K, Any]:
    found = {key(line): line for line in lines}
    if len(found) != len(lines):
        raise SubmissionError(f"{name}: a workload stands twice")
    return found


def _read(path: Path) -> bytes:
    """A plain file, whole; links are not followed."""
    most = MAX_SUBMISSION_BYTES if path.name == SUBMISSION else MAX_FILE_BYTES
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise SubmissionError(f"{path}: is no plain file")
            data = stream.read(min(found.st_size, most) + 1)  # the buffer is as large as what is asked for
    except OSError as error:
        raise SubmissionError(f"{path}: is no plain file that can be read: {error.strerror}") from error
    if len(data) > most:
        raise SubmissionError(f"{path}: has more than {most} bytes")
    return data
