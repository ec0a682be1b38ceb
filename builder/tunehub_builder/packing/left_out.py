"""Records of a package that its next version leaves out by the publisher's word: a network was slower with them, say.

What was measured of them stays as evidence, no longer admitted and with the reason, so that nobody tunes them in vain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

import msgspec

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub_builder import networks
from tunehub_builder.exceptions import PackingError
from tunehub_builder.packing.contents import Contents
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence, encode_evidence, read_evidence
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import EVIDENCE, open_package

BY_HAND = "left out by the publisher"
_LEAST = 6  # hexadecimal digits that name a record
_WAY = re.compile(r"(_fp16|_bf16|_int8|_open)+$")  # in which a network was tuned
_KEY = re.compile(rf"[0-9a-f]{{{_LEAST},32}}")


def read_left_out(arguments: Iterable[str]) -> dict[str, str]:
    """Reasons by the beginnings of keys, from ``KEY`` or ``KEY=REASON``. Raises PackingError."""
    found = {}
    for argument in arguments:
        key, _, reason = argument.partition("=")
        if not _KEY.fullmatch(key):
            raise PackingError(f"{argument!r}: give a record's key, or {_LEAST} digits of it or more, and =REASON")
        found[key] = reason.strip() or BY_HAND
    return found


def keys_left_out(wanted: Mapping[str, str], held: Iterable[str], path: Path) -> dict[str, str]:
    """Reasons by whole keys, of the keys ``held`` by the package ``path``.

    Raises PackingError for what begins none of them, or several.
    """
    known, found = sorted(set(held)), {}
    for start, reason in wanted.items():
        keys = [key for key in known if key.startswith(start)]
        if len(keys) != 1:
            many = f"{len(keys)} records whose keys begin" if keys else "no record whose key begins"
            raise PackingError(f"{path}: holds {many} with {start}; pages of `tunehub catalogue` have the keys")
        found[keys[0]] = reason
    return found


def rejected_lines(data: bytes, reasons: Mapping[tuple[str, str], str]) -> bytes:
    """The lines of evidence on records by tuner and key, no longer admitted for some ``reasons``. Raises FormatError
    for a reason that no evidence may hold."""
    found = []
    for line in read_evidence(BytesIO(data), EVIDENCE):
        if isinstance(line, RecordEvidence):
            reason = reasons.get((line.tuner or META_SCHEDULE, line.exact))
            if reason is not None:
                found.append(msgspec.structs.replace(line, admitted=False, reason=reason))
    return b"".join(map(encode_evidence, found))


def nothing_of_its_own(path: Path, base_license: str | None, measured: Iterable[NetworkEvidence] = ()) -> Contents:
    """Contents without a record, to be put on the package ``path``: for a version that only leaves records out, or says
    what was ``measured`` of its networks, in whatever precision these were tuned, or of others that are known by name
    and of language models, which rules serve.

    Raises PackingError for a network that nobody knows, and as PackageError and FormatError when it cannot be read.
    """
    try:
        with open_package(path) as package:
            manifest: Manifest = package.manifest
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; give the package to leave records out of") from error
    return Contents(
        target=manifest.target,
        record_sets=(),
        networks=(),
        provenance=manifest.provenance,
        files={},
        evidence=b"".join(map(encode_evidence, _of_its_networks(measured, manifest, path))),
        counts={"records": 0, "rejected": 0, "not_checked": 0},
        license=manifest.license or base_license,
    )


def _of_its_networks(measured: Iterable[NetworkEvidence], base: Manifest, path: Path) -> list[NetworkEvidence]:
    known = {_WAY.sub("", entry.name) for entry in base.networks}
    found = list(measured)
    others = [item.network for item in found if not item.is_of_language_model]
    plain = {name: _WAY.sub("", name.partition(" (")[0]) for name in others}
    strange = [name for name, own in plain.items() if own not in known and not networks.is_known(own)]
    if strange:
        reason = f"has no records of {', '.join(strange)}"
        raise PackingError(f"{path}: {reason}; measure networks that it has records of, or of `tunehub networks`")
    return found
