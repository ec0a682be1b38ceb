"""AutoTVM records of packages as TopHub's files, for an unmodified TVM 0.8 to 0.19 with `TOPHUB_LOCATION` set.

TVM asks for one file a backend, `{backend}_{version}.log`, with a version fixed in its source
(python/tvm/autotvm/tophub.py); that table and TVM's way from a target to a backend are repeated here. A file that ends
early breaks every build that reads it, and one that is missing stops templates which look for reference records, so
all files are always written, whole, and only with lines that TVM reads.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from tunehub.exceptions import HubError, PackageUnusableError, TunehubError, UnknownTargetError
from tunehub.records.whole_splits import with_whole_splits
from tunehub.registries.blob_cache import BlobCache, HashMismatchError
from tunehub.registries.ordered import Published, Registries
from tunehub.registries.port import OnProblem
from tunehub.registries.requirement import Requirement
from tunehub.registries.resolution import NameOffer, rank_names
from tunehub.target.descriptors import descriptor_of
from tunehub_registry.exceptions import FieldError, RegistryError
from tunehub_registry.legacy_target import LegacyTarget, descriptor_of_legacy, parse_target
from tunehub_registry.package import open_package
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_log import AUTOTVM, BadLine, LogRecord, read_log

# PACKAGE_VERSION of TVM 0.8 to 0.19; adreno came with 0.10, nothing else has changed.
FILE_VERSIONS: Mapping[str, str] = {
    "arm_cpu": "v0.08",
    "llvm": "v0.04",
    "cuda": "v0.10",
    "rocm": "v0.05",
    "opencl": "v0.04",
    "mali": "v0.06",
    "intel_graphics": "v0.02",
    "vta": "v0.10",
    "amd_apu": "v0.01",
    "adreno": "v0.01",
}
_ALIASES = {"vtacpu": "vta", "webgpu": "opencl", "vulkan": "opencl", "nvptx": "cuda"}
_FORMAT = "autotvm 0.2"
# The backend whose records TVM tells apart by nothing: it compares `-model`, never `-mcpu`.
_CPU = "llvm"


class ExportError(TunehubError):
    """The files cannot be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFile:
    """One file: its backend, path, number of records, and the packages that they come from."""

    backend: str
    path: Path
    records: int
    packages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Why a package, or some of its records, is in no file."""

    package: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What was written."""

    files: tuple[ExportedFile, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lines:
    """The records of one package by backend, and what of it no file can hold."""

    item: Published
    by_backend: Mapping[str, Sequence[bytes]]
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.item.name} {self.item.entry.version}"


def export_tophub(
    registries: Registries, folder: Path, *, targets: Sequence[str] = (), cache: BlobCache, on_problem: OnProblem
) -> Export:
    """Write TopHub's files into `folder`, from the newest version of every package with AutoTVM records.

    `targets` limits the packages to those that serve them. Of the packages for x86 CPUs only one can be in the file,
    the nearest to the target, or to this machine. Packages that cannot be read go to `on_problem`.
    Raises UnknownTargetError for a target that is none, ExportError when the folder cannot be written.
    """
    published, left_out = _newest(registries)
    if targets:
        published, others = _serving(published, targets)
        left_out += others
    sources = list(_read(published, cache, on_problem))
    cpu, others = _choose_cpu(sources, targets)
    left_out += [*others, *(LeftOut(package=source.label, reason=note) for source in sources for note in source.notes)]
    files = [_write(folder, backend, _parts(sources, backend, cpu)) for backend in FILE_VERSIONS]
    return Export(files=tuple(files), left_out=tuple(left_out))


def file_name(backend: str) -> str:
    """The file that TVM asks for."""
    return f"{backend}_{FILE_VERSIONS[backend]}.log"


def backend_of(target: LegacyTarget) -> str | None:
    """The backend whose file TVM reads for a target, or None: by its device, its keys, then its kind."""
    names = [target.device, *target.keys, target.kind]
    aliased = (_ALIASES.get(name, name) for name in names)
    return next((name for name in aliased if name in FILE_VERSIONS), None)


def _newest(registries: Registries) -> tuple[list[Published], list[LeftOut]]:
    """Of each name the newest version that is not yanked, from the first registry that has one; final before pre."""
    chosen: dict[str, Published] = {}
    without: dict[str, LeftOut] = {}
    for item in registries.published():
        if item.entry.yanked is not None:
            continue
        label = f"{item.name} {item.entry.version}"
        if AUTOTVM not in item.entry.tuners:
            reason = f"it has no AutoTVM records, only {', '.join(item.entry.tuners)}: TopHub's files hold no others"
            without.setdefault(item.name, LeftOut(package=label, reason=reason))
            continue
        known = chosen.get(item.name)
        same_place = known is not None and known.registry is item.registry
        if known is None or (same_place and _is_pre(known) and not _is_pre(item)):
            chosen[item.name] = item
    return list(chosen.values()), [note for name, note in without.items() if name not in chosen]


def _is_pre(item: Published) -> bool:
    return Version(item.entry.version).is_prerelease


def _serving(published: Sequence[Published], targets: Sequence[str]) -> tuple[list[Published], list[LeftOut]]:
    nearest = {_nearest(published, target) for target in targets}
    kept = [item for item in published if item.name in nearest]
    reason = f"it is not the nearest package for {', '.join(targets)}"
    others = [item for item in published if item.name not in nearest]
    return kept, [LeftOut(package=f"{item.name} {item.entry.version}", reason=reason) for item in others]


def _nearest(published: Sequence[Published], target: str | None) -> str | None:
    """The name of the package that serves a target (None: this machine's CPU) best, or None."""
    names = {item.name for item in published}
    if target is not None and target.lower() in names:
        return target.lower()
    descriptor = _describe(target)
    if descriptor.name in names:
        return descriptor.name
    offers = [
        NameOffer(name=item.name, target=item.target, registry=item.registry.address, position=0) for item in published
    ]
    ranked, _rejected = rank_names(offers, descriptor, Requirement())
    return ranked[0].offer.name if ranked else None


def _describe(target: str | None) -> TargetDescriptor:
    """Describe a package name, or a target as the logs of TVM <= 0.19 write it. Raises UnknownTargetError."""
    if target is not None and " " in target.strip():
        try:
            return descriptor_of_legacy(parse_target(target))
        except FieldError as error:
            raise UnknownTargetError(target, error.reason, remedy="write it as TVM does: 'cuda -model=v100'") from None
    return descriptor_of(target)


def _read(published: Iterable[Published], cache: BlobCache, on_problem: OnProblem) -> Iterator[_Lines]:
    for item in published:
        try:
            yield _lines_of(item, cache)
        except HubError as error:
            on_problem(error)


def _lines_of(item: Published, cache: BlobCache) -> _Lines:
    """The records of a package that TVM can read. Raises PackageUnusableError or RegistryUnreadableError."""
    by_backend: dict[str, list[bytes]] = {}
    lost: Counter[str] = Counter()
    for record in _records(item, cache):
        if isinstance(record, BadLine) or record.format != _FORMAT or not record.is_measured:
            lost["are no measured AutoTVM 0.2 records"] += 1
            continue
        backend = _backend(record.target)
        if backend is None:
            lost[f"are for {record.target.split()[0]}, which has no file in TopHub"] += 1
        else:
            # No template for x86 CPUs asks for references.
            line = record.line if backend == _CPU else with_whole_splits(record.line)
            by_backend.setdefault(backend, []).append(line)
    notes = tuple(f"{count} of its lines {reason}" for reason, count in lost.items())
    return _Lines(item=item, by_backend=by_backend, notes=notes)


def _records(item: Published, cache: BlobCache) -> Iterator[LogRecord | BadLine]:
    try:
        data = cache.kept_or(item.entry.sha256, lambda: item.registry.fetch_package(item.entry))
        with open_package(data, source=item.entry.file) as package:
            for name in [entry.file for entry in package.manifest.record_sets if entry.tuner == AUTOTVM]:
                with package.open(name) as stream:
                    yield from read_log(stream, name)
    except (RegistryError, HashMismatchError) as error:
        text = f"{item.name} {item.entry.version} from {item.registry.address}: {error}"
        raise PackageUnusableError(text, remedy="the registry has to publish it again") from error


def _backend(target: str) -> str | None:
    try:
        return backend_of(parse_target(target))
    except FieldError:
        return None


def _choose_cpu(sources: Sequence[_Lines], targets: Sequence[str]) -> tuple[str | None, list[LeftOut]]:
    """The one package whose records go into the file for x86 CPUs, and the others with the reason."""
    candidates = [source.item for source in sources if _CPU in source.by_backend]
    wanted: Sequence[str | None] = targets or [None]
    named = (_nearest(candidates, target) for target in wanted)
    chosen = next((name for name in named if name is not None), None) if candidates else None
    reason = f"TVM does not compare -mcpu, so its file for CPUs holds one package: {chosen or 'none serves this CPU'}"
    others = [item for item in candidates if item.name != chosen]
    return chosen, [LeftOut(package=f"{item.name} {item.entry.version}", reason=reason) for item in others]


def _parts(sources: Iterable[_Lines], backend: str, cpu: str | None) -> list[tuple[str, Sequence[bytes]]]:
    """What goes into a file: packages with their lines."""
    return [
        (source.label, source.by_backend[backend])
        for source in sources
        if backend in source.by_backend and (backend != _CPU or source.item.name == cpu)
    ]


def _write(folder: Path, backend: str, parts: Sequence[tuple[str, Sequence[bytes]]]) -> ExportedFile:
    path = folder / file_name(backend)
    header = f"# AutoTVM records for {backend}, exported by tunehub: {', '.join(name for name, _ in parts) or 'none'}\n"
    chunks = [header.encode(), *(line + b"\n" for _name, lines in parts for line in lines)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, chunks)
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}; give a folder that can be written") from error
    packages = tuple(name for name, _lines in parts)
    return ExportedFile(backend=backend, path=path, records=len(chunks) - 1, packages=packages)


def _replace(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file so that a web server serves the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(chunks)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)  # temporary files are private
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
