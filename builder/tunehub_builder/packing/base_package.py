"""Publishing on top of a package: what it holds goes into the next version of it, byte for byte.

That is how one package holds the records for several generations of TVM, which never run in one environment.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tunehub_builder.exceptions import PackingError
from tunehub_builder.packing.contents import Contents
from tunehub_registry.licenses import license_of_both
from tunehub_registry.manifest import Manifest, NetworkEntry, RecordSet
from tunehub_registry.package import EVIDENCE, MANIFEST, open_package
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import CURVES, curves_in


def with_base(contents: Contents, path: Path, *, base_license: str | None = None) -> Contents:
    """``contents`` and everything that the package ``path`` holds, under both licences.

    Each record set says how it was made; the package's own provenance is that of ``contents``. ``base_license`` is for
    a package that states none. Raises PackingError when the two do not go together or ``path`` cannot be read,
    PackageError and FormatError when it is damaged, LicenseError when the licences make too long an expression.
    """
    try:
        with open_package(path) as package:
            manifest = package.manifest
            files = {name: package.read(name) for name in package.names if name not in (MANIFEST, EVIDENCE, CURVES)}
            evidence = package.read(EVIDENCE) if EVIDENCE in package.names else b""
            curves = curves_in(package)
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; give the package to build upon") from error
    both = sorted(files.keys() & contents.files.keys())
    if both:
        reason = f"already holds {both[0]}, which this directory would replace"
        raise PackingError(f"{path}: {reason}; give a version from before that, or pack without it")
    known = tuple(with_provenance(manifest, entry) for entry in manifest.record_sets)
    new = tuple(with_provenance(contents, entry) for entry in contents.record_sets)
    return Contents(
        target=_merged_target(manifest.target, contents.target, path),
        record_sets=(*known, *new),
        networks=_merged_networks(manifest.networks, contents.networks, path),
        provenance=contents.provenance,
        files={**files, **contents.files},
        evidence=evidence + contents.evidence,
        curves=(*curves, *contents.curves),
        counts={**contents.counts, "taken_along": sum(entry.count for entry in manifest.record_sets)},
        license=license_of_both(_license_of(manifest, base_license, path), contents.license),
    )


def _license_of(base: Manifest, given: str | None, path: Path) -> str | None:
    if None not in (base.license, given) and base.license != given:
        raise PackingError(f"{path}: its licence is {base.license}, not {given}; leave --base-license out")
    return base.license or given


def with_provenance(whole: Manifest | Contents, entry: RecordSet) -> RecordSet:
    """A record set that says how it was made, as it is in a package with others."""
    return msgspec.structs.replace(entry, provenance=entry.provenance or whole.provenance)


def _merged_target(base: TargetDescriptor, own: TargetDescriptor, path: Path) -> TargetDescriptor:
    """The base's description of the device, needing what either set of records needs."""
    for field in ("kind", "model", "arch"):
        before, now = getattr(base, field), getattr(own, field)
        if before != now:
            raise PackingError(f"{path}: is for {field} {before}, this directory for {now}; give a package of the same")
    required = {*base.required_features, *own.required_features}
    return msgspec.structs.replace(base, required_features=tuple(sorted(required)))


def _merged_networks(
    base: tuple[NetworkEntry, ...], own: tuple[NetworkEntry, ...], path: Path
) -> tuple[NetworkEntry, ...]:
    known = {entry.name: entry for entry in base}
    for entry in own:
        before = known.setdefault(entry.name, entry)
        if before != entry:
            reason = f"has another network called {entry.name!r} (from {before.source})"
            raise PackingError(f"{path}: {reason}; rename the model file and tune it under that name")
    return tuple(sorted(known.values(), key=lambda entry: entry.name))
