"""Publishing on top of a package: what it holds goes into the next version of it.

That is how one package holds the records for several generations of TVM, which never run in one environment, and those
of several work directories: records of the same tuner stand in two files, and where both have a workload, the record
that is on top is the one that stays.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.judged import Judged, network_of
from tunehub_builder.packing.contents import Contents
from tunehub_builder.packing.left_out import keys_left_out, rejected_lines
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence, parse_evidence
from tunehub_registry.licenses import license_of_both
from tunehub_registry.manifest import Manifest, NetworkEntry, RecordSet
from tunehub_registry.package import EVIDENCE, MANIFEST, open_package
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import CURVES, TuningCurve, curves_in

Key = tuple[str, str]  # tuner and key


def with_base(
    contents: Contents,
    path: Path,
    *,
    base_license: str | None = None,
    without: Mapping[str, str] | None = None,
    again: Judged | None = None,
) -> Contents:
    """``contents`` and everything that the package ``path`` holds, under both licences.

    Each record set says how it was made; the package's own provenance is that of ``contents``. Of workloads that
    ``contents`` has evidence on, the package's records of the same tuner stay behind, and those that come in their
    place name its networks, too. ``without``: reasons to leave records of the package out, by how their keys begin.
    ``again``: what `tunehub check --again` found of the package: records that lost are left out, too, and so are those
    that only networks call which are slower with the records, and the times of these.
    ``base_license`` is for a package that states none. Raises PackingError when the two do not go together or ``path``
    cannot be read, PackageError and FormatError when it is damaged, LicenseError when the licences make too long an
    expression.
    """
    base = _opened(path)
    manifest, again = base.manifest, again or Judged()
    _check_files(contents, manifest, base.files, path)
    held = _held(manifest.record_sets, base.files)
    own_lines = list(map(about_line, contents.evidence.splitlines()))
    judged = {(about.tuner, about.exact) for about in own_lines if about.exact}
    timed = {about.network for about in own_lines if about.network}
    others = {about: names for about, names in held.items() if about not in judged}
    found = _judged_again(others, without or {}, again, path)
    judged |= found.gone
    sets, files = _without(judged, manifest.record_sets, base.files)
    own = _with_free_names(_with_known_networks(contents, held), files)
    known = tuple(with_provenance(manifest, entry) for entry in sets)
    new = tuple(with_provenance(own, entry) for entry in own.record_sets)
    evidence = _not_timed(base.evidence, timed | {*again.slower_networks})
    evidence = _over_rules(evidence, again.networks, {entry.name for entry in manifest.networks} - timed)
    return Contents(
        target=_merged_target(manifest.target, contents.target, path),
        record_sets=(*known, *new),
        networks=_merged_networks(manifest.networks, contents.networks, path),
        provenance=contents.provenance,
        files={**files, **own.files},
        evidence=_not_judged(evidence, judged | found.anew.keys())
        + rejected_lines(evidence, found.left_out)
        + b"".join(map(encode_evidence, found.anew.values()))
        + own.evidence,
        curves=(*(each for each in base.curves if (each.tuner, each.exact) not in judged), *own.curves),
        counts={**own.counts, "left_out": len(found.gone), **_counts(manifest.record_sets, sets)},
        license=license_of_both(_license_of(manifest, base_license, path), contents.license),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _BasePackage:
    """What is read of a package that another one is built upon; `files` without its manifest, `evidence` and
    `curves`."""

    manifest: Manifest
    files: Mapping[str, bytes]
    evidence: bytes
    curves: tuple[TuningCurve, ...]


def _opened(path: Path) -> _BasePackage:
    try:
        with open_package(path) as package:
            names = [name for name in package.names if name not in (MANIFEST, EVIDENCE, CURVES)]
            return _BasePackage(
                manifest=package.manifest,
                files={name: package.read(name) for name in names},
                evidence=package.read(EVIDENCE) if EVIDENCE in package.names else b"",
                curves=curves_in(package),
            )
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; give the package to build upon") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _JudgedAgain:
    """Of records that a package has: those `left_out`, with the reasons, and what was judged `anew` of others."""

    left_out: Mapping[Key, str]
    anew: Mapping[Key, RecordEvidence]

    @property
    def gone(self) -> frozenset[Key]:
        """The records left out, and those that lost."""
        return frozenset({*self.left_out, *(about for about, line in self.anew.items() if not line.admitted)})


def _judged_again(
    held: Mapping[Key, tuple[str, ...]], without: Mapping[str, str], again: Judged, path: Path
) -> _JudgedAgain:
    reasons = keys_left_out(without, (about[1] for about in held), path)
    left_out = _of_slower_networks(again, held)
    left_out |= {about: reasons[about[1]] for about in held if about[1] in reasons}
    anew = {about: line for about, line in again.rows.items() if about in held.keys() - left_out.keys()}
    return _JudgedAgain(left_out=left_out, anew=anew)


def _of_slower_networks(again: Judged, held: Mapping[Key, tuple[str, ...]]) -> dict[Key, str]:
    """Of records by their networks those that only such call that are slower with the records, with the reasons."""
    slower = again.slower_networks
    found = {}
    for about, names in held.items():
        if names and slower.keys() >= {*names}:
            line = slower[names[0]]
            found[about] = f"{line.network} is {line.over_rules:.3g} times as fast with the records as by rules alone"
    return found


def _over_rules(data: bytes, networks: Mapping[str, NetworkEvidence], known: Set[str]) -> bytes:
    """Evidence whose times of ``networks`` say how these are beside rules alone; those ``known`` without times get
    these."""
    lines, left = [], {name: line for name, line in networks.items() if not line.is_slower}
    for line in _lines(data):
        found = networks.get(network_of(about_line(line).network))
        if found is None:
            lines.append(line)
            continue
        left.pop(found.network, None)
        lines.append(encode_evidence(_stated(parse_evidence(line[:-1], EVIDENCE), found)))
    return b"".join([*lines, *(encode_evidence(line) for name, line in left.items() if name in known)])


def _stated(line: Evidence, found: NetworkEvidence) -> Evidence:
    if isinstance(line, NetworkEvidence):
        return msgspec.structs.replace(line, over_rules=found.over_rules)
    return line


class AboutLine(msgspec.Struct, frozen=True):
    """What a line of records or of evidence is about; evidence that names no tuner is MetaSchedule's."""

    exact: str | None = None
    tuner: str = META_SCHEDULE
    networks: tuple[str, ...] = ()
    network: str = ""


def about_line(line: bytes) -> AboutLine:
    """What a line says of itself: nothing, where it is one of a tuning log."""
    try:
        return msgspec.json.decode(line, type=AboutLine)
    except msgspec.DecodeError:
        return AboutLine()


def _held(sets: Sequence[RecordSet], files: Mapping[str, bytes]) -> dict[Key, tuple[str, ...]]:
    """The networks that a package's records name, by tuner and key."""
    lines = ((entry.tuner, about_line(line)) for entry in sets for line in files[entry.file].splitlines())
    return {(tuner, about.exact): about.networks for tuner, about in lines if about.exact}


def _with_known_networks(contents: Contents, held: Mapping[Key, tuple[str, ...]]) -> Contents:
    """Records that name, beside their own networks, those of the records that they come in place of."""
    tuners = {entry.file: entry.tuner for entry in contents.record_sets}
    files = {
        name: data if name not in tuners else b"".join(_renamed(line, tuners[name], held) for line in _lines(data))
        for name, data in contents.files.items()
    }
    return replace(contents, files=files)


def _renamed(line: bytes, tuner: str, held: Mapping[Key, tuple[str, ...]]) -> bytes:
    about = about_line(line)
    networks = {*about.networks, *held.get((tuner, about.exact or ""), ())}
    if networks == set(about.networks):
        return line
    record = {**msgspec.json.decode(line), "networks": sorted(networks)}
    return msgspec.json.encode(record, order="sorted") + b"\n"


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def _not_judged(data: bytes, judged: Container[Key], tuner: str | None = None) -> bytes:
    """The lines that were not judged anew: records of ``tuner``, or evidence, which names its own."""
    lines = ((line, about_line(line)) for line in _lines(data))
    return b"".join(line for line, about in lines if (tuner or about.tuner, about.exact or "") not in judged)


def _not_timed(data: bytes, networks: Set[str]) -> bytes:
    """Evidence without the times of ``networks``, with whatever set of records."""
    lines = ((line, about_line(line).network) for line in _lines(data))
    return b"".join(line for line, name in lines if not {name, name.partition(" (")[0]} & networks)


def _check_files(contents: Contents, base: Manifest, files: Mapping[str, bytes], path: Path) -> None:
    """Raise PackingError for a file of both that has no records with keys for the same versions of TVM."""
    held = {entry.file: (entry.tuner, entry.tvm, entry.key_scheme) for entry in base.record_sets}
    sets = contents.record_sets
    same = {each.file for each in sets if held.get(each.file) == (each.tuner, each.tvm, each.key_scheme)}
    for file in sorted(files.keys() & contents.files.keys()):
        if file not in same or not all(about_line(line).exact for line in contents.files[file].splitlines()):
            reason = f"already holds {file}, which this directory would replace"
            raise PackingError(f"{path}: {reason}; give a version from before that, or pack without it")


def _without(
    judged: Container[Key], sets: Sequence[RecordSet], files: Mapping[str, bytes]
) -> tuple[list[RecordSet], dict[str, bytes]]:
    """Record sets and files without the records that were judged anew; a set of which none is left goes, too."""
    left, kept = dict(files), []
    for entry in sets:
        left[entry.file] = _not_judged(files[entry.file], judged, entry.tuner)
        gone = len(files[entry.file].splitlines()) - len(left[entry.file].splitlines())
        if number := entry.count - gone:
            kept.append(msgspec.structs.replace(entry, count=number))
        else:
            del left[entry.file]
    return kept, left


def _counts(before: Sequence[RecordSet], kept: Sequence[RecordSet]) -> dict[str, int]:
    held, along = (sum(entry.count for entry in sets) for sets in (before, kept))
    return {"taken_along": along, "left_behind": held - along}


def _with_free_names(contents: Contents, taken: Container[str]) -> Contents:
    """Record sets in files that nothing else has: ``records/template-2.jsonl`` beside ``records/template.jsonl``."""
    names = {entry.file: _free_name(entry.file, taken) for entry in contents.record_sets}
    sets = tuple(msgspec.structs.replace(entry, file=names[entry.file]) for entry in contents.record_sets)
    files = {names.get(name, name): data for name, data in contents.files.items()}
    return replace(contents, record_sets=sets, files=files)


def _free_name(file: str, taken: Container[str]) -> str:
    stem, suffix = file.rsplit(".", 1)
    names = (file, *(f"{stem}-{number}.{suffix}" for number in range(2, 100)))
    return next(name for name in names if name not in taken)


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
