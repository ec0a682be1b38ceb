"""Tuning logs made elsewhere (TopHub's files, a colleague's) as packages: one a device model, in a folder registry.

AutoTVM 0.2 and auto-scheduler 0.6 lines go in byte for byte, AutoTVM 0.1 lines as `autotvm_v01` translates them. A line
that cannot be used is reported with its number and reason and the others go on. With a `prover` (`relay.prove`) TVM
itself loads every record: a translation that TVM refuses is left out, other lines stay as they are and the report
tells. The costs are those of the log: nothing is measured again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
from packaging.version import InvalidVersion, Version

from tunehub_builder.exceptions import BuilderError, PackingError
from tunehub_builder.logs.autotvm_v01 import UntranslatableError, translate
from tunehub_builder.packing.pack import BuiltPackage, publish_locally
from tunehub_builder.tuning.journal import write_atomically
from tunehub_registry.exceptions import FieldError
from tunehub_registry.index import INDEX_PATH, Index, encode_index
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import pack
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_log import (
    AUTO_SCHEDULER,
    AUTOTVM,
    MAX_LINE_BYTES,
    LogLineError,
    LogRecord,
    config_problem,
    parse_line,
)

IMPORTED_FROM = "import.jsonl"
DEFAULT_VERSION = "0.1.0"
TVM_VERSIONS = ">=0.8,<0.20"
_SETS = {
    AUTOTVM: ("records/autotvm.log", "autotvm-1"),
    AUTO_SCHEDULER: ("records/auto_scheduler.json", "auto-scheduler-1"),
}
_FILE_VERSION = re.compile(r"[_-]v(\d+(?:\.\d+)*)\.(?:log|json)$")
_OLD = "autotvm 0.1"
_LATEST = 4e9  # seconds since 1970: in the year 2096


class Outcome(Protocol):
    """What a prover says of one line: `relay.prove.Proof`."""

    @property
    def state(self) -> str:
        """`proved`, `refuted` or `unproved`."""

    @property
    def reason(self) -> str | None:
        """Why it is not proved."""


Prover = Callable[[Sequence[bytes]], Sequence[Outcome]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something about one line: its number (from 1) and what there is to say."""

    line: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A line that goes into the package of `target`. `original` is the SHA-256 of the line that it translates."""

    record: LogRecord
    target: TargetDescriptor
    file: str
    line: int
    original: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFile:
    """One file, read. `lines` counts records, good or bad: not blank lines and comments.

    What TVM says of the imported ones: `proved` is the number of those that it takes, `outside_space` those of them
    whose config is no longer in the template's search space, `refuted` those that it does not take, `unproved` those
    that it cannot decide on.
    """

    path: Path
    sha256: str
    version: str
    lines: int
    imported: tuple[Imported, ...]
    skipped: tuple[Remark, ...]
    proved: int = 0
    outside_space: tuple[Remark, ...] = ()
    unproved: tuple[Remark, ...] = ()
    refuted: tuple[Remark, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The file's part of the report."""
        return {
            "file": str(self.path),
            "sha256": self.sha256,
            "lines": self.lines,
            "imported": len(self.imported),
            "translated": sum(item.original is not None for item in self.imported),
            "skipped": [_as_json(remark) for remark in self.skipped],
            "proof": {
                "proved": self.proved,
                "outside_space": [_as_json(remark) for remark in self.outside_space],
                "refuted": [_as_json(remark) for remark in self.refuted],
                "unproved": [_as_json(remark) for remark in self.unproved],
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenPackage:
    """A package that was added to the folder; `file` is relative to it."""

    manifest: Manifest
    file: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        """The package's part of the report."""
        return {
            "name": self.manifest.name,
            "version": self.manifest.version,
            "file": self.file,
            "records": sum(entry.count for entry in self.manifest.record_sets),
            "tuners": {entry.tuner: entry.count for entry in self.manifest.record_sets},
            "bytes": self.size,
            "sha256": self.sha256,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """What became of every file, and the packages. `prover` says which TVM loaded the records, or why none did."""

    files: tuple[ReadFile, ...]
    packages: tuple[WrittenPackage, ...] = ()
    prover: str = field(default="not proved")

    def as_json(self) -> dict[str, Any]:
        """The report, for `--json`."""
        return {
            "files": [file.as_json() for file in self.files],
            "packages": [package.as_json() for package in self.packages],
            "prover": self.prover,
        }


def import_logs(
    paths: Sequence[Path], output: Path, *, version: str | None = None, prover: Prover | None = None, proof: str = ""
) -> ImportReport:
    """Add the records of all files to the folder registry `output`, which is made when it is not there.

    The version is that of the file's name (`cuda_v0.10.log`), unless given. `proof` describes the prover.
    Raises BuilderError (a file that cannot be read, a version that is none, a full disk) and VersionConflictError (the
    folder has this version of a package with other records).
    """
    files = [read_file(path, version) for path in paths]
    if prover is not None:
        files = _prove(files, prover)
    built = [_build(name, number, items, files) for (name, number), items in _by_package(files).items()]
    if built and not (output / INDEX_PATH).exists():
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(output / INDEX_PATH, [encode_index(Index())])
    packages = tuple(_publish(package, output) for package in built)
    return ImportReport(files=tuple(files), packages=packages, prover=proof)


def read_file(path: Path, version: str | None = None) -> ReadFile:
    """Read one log. Raises BuilderError when it cannot be read or `version` is none."""
    digest = hashlib.sha256()
    imported: list[Imported] = []
    skipped: list[Remark] = []
    try:
        with path.open("rb") as stream:
            for number, line in _numbered_lines(stream, digest.update):
                try:
                    imported.append(_import_line(line, path.name, number))
                except (LogLineError, UntranslatableError) as error:
                    skipped.append(Remark(line=number, reason=error.reason))
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a tuning log that can be read") from error
    return ReadFile(
        path=path,
        sha256=digest.hexdigest(),
        version=_version(path, version),
        lines=len(imported) + len(skipped),
        imported=tuple(imported),
        skipped=tuple(skipped),
    )


def _numbered_lines(stream: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[tuple[int, bytes]]:
    """The lines that should be records; of a line that is far too long only the beginning."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 2):
        number += 1
        seen(line)
        piece = line
        while piece and not piece.endswith(b"\n"):
            piece = stream.readline(MAX_LINE_BYTES)
            seen(piece)
        line = line.strip()
        if line and not line.startswith(b"#"):
            yield number, line


def _import_line(line: bytes, file: str, number: int) -> Imported:
    """Raises LogLineError or UntranslatableError with the reason why the line is left out."""
    record = parse_line(line)
    original = None
    if not record.is_measured:
        # A translation keeps the result, so this holds for all formats and says the true reason first.
        failed = f"a failed trial (error {record.error_no})" if record.error_no else "its cost is no possible time"
        raise LogLineError(f"{failed}: there is no measured time")
    if record.format == _OLD:
        original = hashlib.sha256(line).hexdigest()
        record = parse_line(translate(line))
    problem = config_problem(record.config) if record.tuner == AUTOTVM else None
    if record.tuner == AUTO_SCHEDULER:
        _ = record.config  # raises when the steps are not steps
    if problem is not None:
        raise LogLineError(f"its configuration is refused: {problem}")
    return Imported(record=record, target=_target(record.target), file=file, line=number, original=original)


@lru_cache(maxsize=1024)
def _target(text: str) -> TargetDescriptor:
    try:
        return descriptor_of_legacy(parse_target(text))
    except FieldError as error:
        raise LogLineError(f"the target cannot be read: {error.reason}") from None


def _prove(files: Sequence[ReadFile], prover: Prover) -> list[ReadFile]:
    """Let TVM load all records of all files at once: starting it is what takes time."""
    outcomes = iter(prover([item.record.line for file in files for item in file.imported]))
    return [_proved(file, [(item, next(outcomes)) for item in file.imported]) for file in files]


def _proved(file: ReadFile, found: Sequence[tuple[Imported, Outcome]]) -> ReadFile:
    """Leave refuted translations out; a refuted line that was v0.2 already stays, and the report tells."""
    kept: list[Imported] = []
    skipped = list(file.skipped)
    remarks: dict[str, list[Remark]] = {"proved": [], "refuted": [], "unproved": []}
    for item, proof in found:
        reason = proof.reason or ""
        if proof.state == "refuted" and item.original is not None:
            skipped.append(Remark(line=item.line, reason=f"translated to {item.record.task}: {reason}"))
            continue
        kept.append(item)
        remarks[proof.state].append(Remark(line=item.line, reason=reason))
    noted = tuple(remark for remark in remarks["proved"] if remark.reason)
    return replace(
        file,
        imported=tuple(kept),
        skipped=tuple(sorted(skipped, key=lambda remark: remark.line)),
        proved=len(remarks["proved"]),
        outside_space=noted,
        refuted=tuple(remarks["refuted"]),
        unproved=tuple(remarks["unproved"]),
    )


def _by_package(files: Iterable[ReadFile]) -> dict[tuple[str, str], list[Imported]]:
    groups: dict[tuple[str, str], list[Imported]] = {}
    for file in files:
        for item in file.imported:
            groups.setdefault((item.target.name, file.version), []).append(item)
    return dict(sorted(groups.items()))


def _build(name: str, version: str, items: Sequence[Imported], files: Sequence[ReadFile]) -> BuiltPackage:
    """Pack the lines of one model; its descriptor is that of most lines (`-mattr` differs between some)."""
    descriptors = Counter(item.target for item in items)
    sources = [file for file in files if any(item.target.name == name for item in file.imported)]
    sources = [file for file in sources if file.version == version]
    sets: list[RecordSet] = []
    members = {IMPORTED_FROM: b"".join(_origin(items, sources))}
    for tuner, (member, scheme) in _SETS.items():
        lines = [item.record.line for item in items if item.record.tuner == tuner]
        if lines:
            members[member] = b"".join(line + b"\n" for line in lines)
            sets.append(RecordSet(tuner=tuner, file=member, tvm=TVM_VERSIONS, key_scheme=scheme, count=len(lines)))
    target = descriptors.most_common(1)[0][0]
    manifest = Manifest(
        name=name, version=version, target=target, record_sets=tuple(sets), provenance=_provenance(items, sources)
    )
    return BuiltPackage(manifest=manifest, data=pack(manifest, members), counts={"records": len(items)})


def _origin(items: Iterable[Imported], sources: Iterable[ReadFile]) -> Iterator[bytes]:
    """Where the records come from: the files, and each line of them that was translated."""
    for file in sources:
        yield _json_line({"type": "file", "name": file.path.name, "sha256": file.sha256})
    for item in items:
        if item.original is not None:
            row = {"type": "translated", "file": item.file, "line": item.line, "sha256": item.original}
            yield _json_line({**row, "from": _OLD, "to": item.record.format})


def _provenance(items: Sequence[Imported], sources: Sequence[ReadFile]) -> Provenance:
    """Of the machine only the target is known; dates are those of the first and the last measurement."""
    times = [item.record.timestamp for item in items if 0 < item.record.timestamp < _LATEST] or [0.0]
    versions = sorted({_tvm_version(item) for item in items})
    names = ", ".join(file.path.name for file in sources)
    return Provenance(
        machine={"model": "unknown"},
        tvm_version=", ".join(versions)[:256],
        tvm_ffi_version="none",
        tuner_options={
            "imported_from": names[:1024],
            "sha256": ", ".join(file.sha256 for file in sources)[:1024],
            "translated": sum(item.original is not None for item in items),
            "gate": "not run: the costs are those of the log",
        },
        trials=len(items),
        seed=0,
        command=f"tunehub import {names}"[:65536],
        started=_date(min(times)),
        finished=_date(max(times)),
        threads=1,
    )


def _tvm_version(item: Imported) -> str:
    if item.original is not None:
        return "0.6 or older"
    return (item.record.tvm_version or "unknown")[:32] or "unknown"


def _date(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _publish(built: BuiltPackage, output: Path) -> WrittenPackage:
    path = publish_locally(built, output, output / INDEX_PATH)
    return WrittenPackage(
        manifest=built.manifest, file=path.relative_to(output).as_posix(), size=len(built.data), sha256=built.sha256
    )


def _version(path: Path, given: str | None) -> str:
    found = _FILE_VERSION.search(path.name)
    text = given or (found[1] if found else DEFAULT_VERSION)
    try:
        return str(Version(text))
    except InvalidVersion:
        raise PackingError(f"{text!r} is not a version; give one such as --version 0.10 (PEP 440)") from None


def _json_line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _as_json(remark: Remark) -> dict[str, Any]:
    return {"line": remark.line, "reason": remark.reason}
