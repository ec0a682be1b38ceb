"""Packages as files, opened, and what of them the gate goes by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.exceptions import BuilderError
from tunehub_registry.evidence import RecordEvidence, evidence_in
from tunehub_registry.machine_profile import PROFILE, parse_profile, profile_in
from tunehub_registry.package import Package, open_package


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """The package in the file ``path``. Raises BuilderError where it cannot be read, then or while it is open,
    PackageError and FormatError where it is damaged."""
    try:
        with open_package(path, source=str(path)) as package:
            yield package
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a package file (.tunepkg)") from error


def evidence_of(package: Package) -> dict[tuple[str, str], RecordEvidence]:
    """The evidence on a package's records, by tuner and key."""
    lines = (line for line in evidence_in(package) if isinstance(line, RecordEvidence))
    return {(line.tuner or META_SCHEDULE, line.exact): line for line in lines}


def published_profile(package: Package) -> PublishedProfile | None:
    """The machine profile that a package has, as clients take it. Raises FormatError for a damaged one."""
    data, manifest = profile_in(package), package.manifest
    if data is None:
        return None
    return PublishedProfile(profile=parse_profile(data, PROFILE), package=f"{manifest.name} {manifest.version}")
