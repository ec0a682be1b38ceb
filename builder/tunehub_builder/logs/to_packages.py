"""Tuning logs made elsewhere as packages: one a device model, in a folder registry.

With a `prover` (`relay.prove`) TVM itself loads every record: a translation that TVM refuses is left out, other lines
stay as they are and the report tells. The costs are those of the log: nothing is measured again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from tunehub.registries.key_scheme import KEY_SCHEMES
from tunehub_builder.backends.relay.prove import Proof
from tunehub_builder.backends.relay.record_files import RECORD_FILES, TVM_VERSIONS
from tunehub_builder.logs.read import TRANSLATED_FROM, Imported, ReadFile, Remark, read_file
from tunehub_builder.packing.publish import BuiltPackage, publish_locally
from tunehub_builder.tuning.journal import write_atomically
from tunehub_registry.index import INDEX_PATH, Index, encode_index
from tunehub_registry.licenses import canonical_license
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import pack

IMPORTED_FROM = "import.jsonl"
_LATEST = 4e9  # seconds since 1970: in the year 2096

Prover = Callable[[Sequence[bytes]], Sequence[Proof]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenPackage:
    """A package that was added to the folder; `file` is relative to it."""

    manifest: Manifest
    file: str
    size: int
    sha256: str

    @property
    def records(self) -> int:
        """How many there are in it."""
        return sum(entry.count for entry in self.manifest.record_sets)

    @property
    def tuners(self) -> dict[str, int]:
        """How many records there are of each tuner."""
        return {entry.tuner: entry.count for entry in self.manifest.record_sets}

    def as_json(self) -> dict[str, object]:
        """The package's part of the report."""
        return {
            "name": self.manifest.name,
            "version": self.manifest.version,
            "file": self.file,
            "records": self.records,
            "tuners": self.tuners,
            "bytes": self.size,
            "sha256": self.sha256,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """What became of every file, and the packages. `prover` says which TVM loaded the records, or why none did."""

    files: tuple[ReadFile, ...]
    packages: tuple[WrittenPackage, ...] = ()
    prover: str = field(default="not proved")

    def as_json(self) -> dict[str, object]:
        """The report, for `--json`."""
        return {
            "files": [file.as_json() for file in self.files],
            "packages": [package.as_json() for package in self.packages],
            "prover": self.prover,
        }


def import_as_packages(
    paths: Sequence[Path],
    output: Path,
    *,
    version: str | None = None,
    license: str | None = None,
    prover: Prover | None = None,
    proof: str = "",
    origin: str | None = None,
) -> ImportReport:
    """Add the records of all files to the folder registry `output`, which is made when it is not there.

    The version is that of the file's name (`cuda_v0.10.log`), unless given. `proof` describes the prover. `license` is
    an SPDX expression, None for not stated; `origin` is where the files were fetched from. Raises LicenseError for
    another text.
    Raises BuilderError (a file that cannot be read, a version that is none, a full disk) and VersionConflictError (the
    folder has this version of a package with other records).
    """
    stated = None if license is None else canonical_license(license)
    files = [read_file(path, version) for path in paths]
    if prover is not None:
        files = _prove(files, prover)
    built = [_build(name, number, items, files, stated, origin) for (name, number), items in _by_package(files).items()]
    if built and not (output / INDEX_PATH).exists():
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(output / INDEX_PATH, [encode_index(Index())])
    packages = tuple(_publish(package, output) for package in built)
    return ImportReport(files=tuple(files), packages=packages, prover=proof)


def _prove(files: Sequence[ReadFile], prover: Prover) -> list[ReadFile]:
    """Let TVM load all records of all files at once: starting it is what takes time."""
    outcomes = iter(prover([item.record.line for file in files for item in file.imported]))
    return [_proved(file, [(item, next(outcomes)) for item in file.imported]) for file in files]


def _proved(file: ReadFile, found: Sequence[tuple[Imported, Proof]]) -> ReadFile:
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


def _build(
    name: str,
    version: str,
    items: Sequence[Imported],
    files: Sequence[ReadFile],
    stated: str | None,
    origin: str | None,
) -> BuiltPackage:
    """Pack the lines of one model; its descriptor is that of most lines (`-mattr` differs between some)."""
    descriptors = Counter(item.target for item in items)
    sources = [file for file in files if any(item.target.name == name for item in file.imported)]
    sources = [file for file in sources if file.version == version]
    sets: list[RecordSet] = []
    members = {IMPORTED_FROM: b"".join(_origin(items, sources))}
    for tuner, member in RECORD_FILES.items():
        lines = [item.record.line for item in items if item.record.tuner == tuner]
        if lines:
            members[member] = b"".join(line + b"\n" for line in lines)
            scheme = KEY_SCHEMES[tuner]
            sets.append(RecordSet(tuner=tuner, file=member, tvm=TVM_VERSIONS, key_scheme=scheme, count=len(lines)))
    target = descriptors.most_common(1)[0][0]
    provenance = _provenance(items, sources, origin)
    manifest = Manifest(
        name=name, version=version, target=target, record_sets=tuple(sets), provenance=provenance, license=stated
    )
    return BuiltPackage(manifest=manifest, data=pack(manifest, members), counts={"records": len(items)})


def _origin(items: Iterable[Imported], sources: Iterable[ReadFile]) -> Iterator[bytes]:
    """Where the records come from: the files, and each line of them that was translated."""
    for file in sources:
        yield _json_line({"type": "file", "name": file.path.name, "sha256": file.sha256})
    for item in items:
        if item.original is not None:
            row = {"type": "translated", "file": item.file, "line": item.line, "sha256": item.original}
            yield _json_line({**row, "from": TRANSLATED_FROM, "to": item.record.format})


def _provenance(items: Sequence[Imported], sources: Sequence[ReadFile], origin: str | None) -> Provenance:
    """Of the machine only the target is known; dates are those of the first and the last measurement."""
    times = [item.record.timestamp for item in items if 0 < item.record.timestamp < _LATEST] or [0.0]
    versions = sorted({_tvm_version(item) for item in items})
    names = ", ".join(file.path.name for file in sources)
    return Provenance(
        machine={"model": "unknown"},
        tvm_version=", ".join(versions)[:256],
        tvm_ffi_version="none",
        tuner_options={
            "imported_from": (names if origin is None else f"{origin}: {names}")[:1024],
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


def _json_line(value: dict[str, object]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
