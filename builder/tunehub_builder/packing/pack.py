"""From a checked work directory to a package file. The same directory gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tunehub_builder.backends.relax.contents import relax_contents
from tunehub_builder.backends.relay.contents import relay_contents
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.judged import Judged
from tunehub_builder.packing.base_package import with_base
from tunehub_builder.packing.bundle import only_networks
from tunehub_builder.packing.contents import Contents, nothing_admitted
from tunehub_builder.packing.evidence_alone import without_records
from tunehub_builder.packing.left_out import nothing_of_its_own
from tunehub_builder.packing.publish import BuiltPackage
from tunehub_builder.tuning.profile import profile_to_pack
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.evidence import NetworkEvidence
from tunehub_registry.licenses import DEFAULT_LICENSE, canonical_license
from tunehub_registry.machine_profile import PROFILE, MachineProfile, encode_profile
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import EVIDENCE, pack
from tunehub_registry.tuning_curves import CURVES, encode_curves


def pack_directory(
    directory: WorkDirectory | None,
    version: str,
    *,
    name: str | None = None,
    measured: Sequence[NetworkEvidence] = (),
    base: Path | None = None,
    profile: Path | None = None,
    license: str | None = DEFAULT_LICENSE,
    base_license: str | None = None,
    without: Mapping[str, str] | None = None,
    again: Judged | None = None,
    networks: Sequence[str] = (),
    evidence_alone: bool = False,
) -> BuiltPackage:
    """Pack the admitted records of ``directory``, with the evidence on them and on the rejected ones.

    ``measured`` are end-to-end times with these records, for networks that were tuned; others are left out. They take
    the place of those that ``base`` has of the same networks; without a ``directory`` all are of networks of it, or
    known by name. With ``base``, a package of the same target, all that it holds goes into the new one too, unchanged,
    but for workloads that were judged anew; then none need be admitted. The machine's profile is that in the file
    ``profile``, else that of ``directory``, else that of ``base``. ``license`` is an SPDX expression for what comes of
    ``directory``, None for not stated; ``base_license`` one for a ``base`` that states none: without it the new package
    states none either. ``without``: reasons to leave records of ``base`` out, by how their keys begin, and ``again``,
    what was judged of its records anew, of which losers are left out; with either there need be no ``directory``, nor
    with ``networks``: then the package has what is of these alone. ``evidence_alone``: what was measured goes into it,
    and none of the records, nor the profile of ``directory``.

    Raises PackingError: nothing is admitted or left out, a wrong ``name`` or ``version``, a ``base`` or ``profile``
    that does not go with it; WorkDirectoryError: a damaged file; PackageError, FormatError: a damaged ``base``;
    LicenseError: not an SPDX expression.
    """
    other = None if base_license is None else canonical_license(base_license)
    if directory is not None:
        contents = _own(directory, measured, license, evidence_alone)
    elif base is not None and (without or again or measured or networks or evidence_alone):
        contents = nothing_of_its_own(base, other, measured)
    else:
        reason = "what to leave out of it (--without, --judged, --network), or times of its networks (--measured)"
        raise PackingError(f"without a work directory, give a package (--with) and {reason}")
    if name is not None and name != contents.target.name:
        raise PackingError(f"the package of this target is called {contents.target.name}, not {name}")
    if base is not None:
        contents = with_base(contents, base, base_license=other, without=without, again=again)
    if evidence_alone:
        contents = without_records(contents)
    elif directory is not None and not (contents.counts["records"] or contents.counts.get("left_behind")):
        raise nothing_admitted(directory, checked=contents.counts["rejected"] > 0)
    if (without or again) and base is None:
        raise PackingError("--without and --judged are about records of a package: give it, too (--with)")
    contents = only_networks(contents, networks) if networks else contents
    own = profile_to_pack(None if evidence_alone else directory, profile, contents.target)
    return _packed(contents, _version(version), own)


def _packed(contents: Contents, version: str, profile: MachineProfile | None) -> BuiltPackage:
    """The package of ``contents``, with the machine's ``profile`` if there is one."""
    manifest = Manifest(
        name=contents.target.name,
        version=version,
        target=contents.target,
        record_sets=contents.record_sets,
        networks=contents.networks,
        provenance=contents.provenance,
        license=contents.license,
    )
    profiles = {} if profile is None else {PROFILE: encode_profile(profile)}
    curves = {CURVES: encode_curves(contents.curves)} if contents.curves else {}
    data = pack(manifest, {**contents.files, EVIDENCE: contents.evidence, **profiles, **curves})
    return BuiltPackage(manifest=manifest, data=data, counts=contents.counts)


def _own(
    directory: WorkDirectory, measured: Sequence[NetworkEvidence], license: str | None, evidence_alone: bool
) -> Contents:
    run, stated = directory.existing_run(), license and canonical_license(license)
    if run.relay_target is not None:
        return replace(relay_contents(directory, run, measured), license=stated)
    return replace(relax_contents(directory, run, measured, rejected_too=evidence_alone), license=stated)


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise PackingError(f"{text!r} is not a version; give one such as 0.1.0 (PEP 440)") from error
