"""What a submission takes along of a published package, unchanged, and what in it is new."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass

from tunehub.registries.key_scheme import RECORD_TUNERS
from tunehub_builder.exceptions import SubmissionError
from tunehub_builder.packing.base_package import with_provenance
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import EVIDENCE, Package, open_package
from tunehub_registry.submission import SubmittedBase
from tunehub_registry.template_record import BadLine


@dataclass(frozen=True, kw_only=True)
class BasePackage:
    """A published package: its manifest, the files of its record sets, and its evidence as it is."""

    stated: SubmittedBase
    manifest: Manifest
    files: Mapping[str, bytes]
    evidence: bytes
    keys: frozenset[str]  # of its records for current TVM


def read_base(data: bytes, source: str) -> BasePackage:
    """Read a package that is to be taken along. Raises PackageError, FormatError."""
    with open_package(data, source=source) as package:
        return BasePackage(
            stated=SubmittedBase(version=package.manifest.version, sha256=hashlib.sha256(data).hexdigest()),
            manifest=package.manifest,
            files={entry.file: package.read(entry.file) for entry in package.manifest.record_sets},
            evidence=package.read(EVIDENCE) if EVIDENCE in package.names else b"",
            keys=frozenset(each.exact for each in records_in(data, source) if not isinstance(each, BadLine)),
        )


def check_taken_along(package: Package, base: BasePackage) -> None:
    """Raise SubmissionError unless all of ``base`` is in ``package`` as it is, before what is new."""
    label = f"{base.manifest.name} {base.manifest.version}"
    known = tuple(with_provenance(base.manifest, entry) for entry in base.manifest.record_sets)
    if package.manifest.record_sets[: len(known)] != known:
        raise SubmissionError(f"its first record sets are not those of {label}, which it takes along")
    for name, content in base.files.items():
        if package.read(name) != content:
            raise SubmissionError(f"{name} is not that of {label}, which it takes along")
    evidence = package.read(EVIDENCE) if EVIDENCE in package.names else b""
    if not evidence.startswith(base.evidence):
        raise SubmissionError(f"its evidence does not begin with that of {label}, which it takes along")
    if any(network not in package.manifest.networks for network in base.manifest.networks):
        raise SubmissionError(f"its networks are not those of {label} and more")


def records_in(data: bytes, source: str, known: Container[str] = ()) -> list[AnyRecord | LadderRecord | BadLine]:
    """The records for current TVM in a package, without those in ``known`` files. Raises PackageError, FormatError."""
    found: list[AnyRecord | LadderRecord | BadLine] = []
    with open_package(data, source=source) as package:
        for entry in package.manifest.record_sets:
            if entry.tuner in RECORD_TUNERS and entry.file not in known:
                with package.open(entry.file) as stream:
                    found += read_any_records(stream, f"{source}!{entry.file}")
    return found
