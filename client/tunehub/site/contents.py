"""What the catalogue reads of registries: the versions of every name, and the contents of its current package.

Each file is read once, through the client's port, checked by its hash, and kept in the cache as for a compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from tunehub.exceptions import PackageUnusableError
from tunehub.registries.blob_cache import BlobCache, HashMismatchError, fetch_verified
from tunehub.registries.ordered import Published, Registries
from tunehub.registries.port import Registry
from tunehub_registry.any_record import read_any_records
from tunehub_registry.evidence import BadLine, NetworkEvidence, RecordEvidence, evidence_in
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import ShardEntry
from tunehub_registry.manifest import Manifest, RecordSet
from tunehub_registry.package import Package, open_package
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import TuningCurve, curves_in

NAMING_TUNERS = frozenset({"meta_schedule", "template", "ladder"})  # their records say which networks they are from


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionLine:
    """One name of one registry, its versions newest first; `position` is the registry's, from 0."""

    registry: Registry
    position: int
    name: str
    target: TargetDescriptor
    versions: tuple[ShardEntry, ...]

    @property
    def current(self) -> ShardEntry:
        """The newest version that is not yanked; the newest one where all are."""
        return next((entry for entry in self.versions if entry.yanked is None), self.versions[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordName:
    """What a record is for: its operator's name, and the networks that it occurs in."""

    op: str
    networks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SetNetworks:
    """A record set, and the keys of its records by network; empty where its records do not say."""

    record_set: RecordSet
    networks: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageContents:
    """What a package says of itself. `names` are its records' by their exact keys, `bad_lines` those left out."""

    manifest: Manifest
    sets: tuple[SetNetworks, ...]
    names: Mapping[str, RecordName]
    records: tuple[RecordEvidence, ...]
    networks: tuple[NetworkEvidence, ...]
    curves: tuple[TuningCurve, ...]
    bad_lines: int


def version_lines(registries: Registries) -> Iterator[VersionLine]:
    """Every name of every registry that can be read, registry by registry; the others' problems are reported."""
    positions = {id(registry): number for number, registry in enumerate(registries.sources)}
    for (position, name), group in groupby(
        registries.published(), key=lambda item: (positions[id(item.registry)], item.name)
    ):
        items: list[Published] = list(group)
        yield VersionLine(
            registry=items[0].registry,
            position=position,
            name=name,
            target=items[0].target,
            versions=tuple(item.entry for item in items),
        )


def read_contents(line: VersionLine, cache: BlobCache) -> PackageContents:
    """The contents of the current version.

    Raises PackageUnusableError when the file is not the published one or is damaged, RegistryUnreadableError when it
    cannot be had.
    """
    entry = line.current
    try:
        with open_package(_file(line.registry, entry, cache), source=entry.file) as package:
            return _contents(package)
    except (RegistryError, HashMismatchError) as error:
        text = f"{line.name} {entry.version} from {line.registry.address}: {error}"
        raise PackageUnusableError(text, remedy="the registry has to publish it again") from error


def _file(registry: Registry, entry: ShardEntry, cache: BlobCache) -> Path | bytes:
    """The package in the cache; its bytes where the cache cannot be written."""

    def download(stream: BinaryIO, offset: int) -> None:
        registry.download_package(entry, stream, offset)

    try:
        with cache.lock(cache.blob_path(entry.sha256)):
            return cache.blob(entry.sha256, entry.size, download)
    except OSError:
        return fetch_verified(entry.sha256, lambda: registry.fetch_package(entry))


def _contents(package: Package) -> PackageContents:
    names: dict[str, RecordName] = {}
    sets: list[SetNetworks] = []
    bad = 0
    for record_set in package.manifest.record_sets:
        keys: dict[str, list[str]] = {}
        if record_set.tuner in NAMING_TUNERS:
            bad += _read_records(package, record_set, names, keys)
        sets.append(SetNetworks(record_set=record_set, networks=keys))
    records: list[RecordEvidence] = []
    networks: list[NetworkEvidence] = []
    bad += _read_evidence(package, records, networks)
    return PackageContents(
        manifest=package.manifest,
        sets=tuple(sets),
        names=names,
        records=tuple(records),
        networks=tuple(networks),
        curves=curves_in(package),
        bad_lines=bad,
    )


def _read_records(
    package: Package, record_set: RecordSet, names: dict[str, RecordName], keys: dict[str, list[str]]
) -> int:
    """Add the records of a set to `names` and `keys`; how many lines were no records."""
    bad = 0
    with package.open(record_set.file) as stream:
        for record in read_any_records(stream, record_set.file):
            if isinstance(record, BadLine):
                bad += 1
                continue
            names.setdefault(record.exact, RecordName(op=record.op, networks=record.networks))
            for network in set(record.networks):
                keys.setdefault(network, []).append(record.exact)
    return bad


def _read_evidence(package: Package, records: list[RecordEvidence], networks: list[NetworkEvidence]) -> int:
    """Add the lines to `records` and `networks`; how many were no evidence."""
    bad = 0
    for line in evidence_in(package):
        if isinstance(line, BadLine):
            bad += 1
        elif isinstance(line, RecordEvidence):
            records.append(line)
        else:
            networks.append(line)
    return bad
