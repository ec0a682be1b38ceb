"""A package of some networks alone, `tunehub pack --network`: what serves one model, to hand on with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO

import msgspec

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub_builder.exceptions import PackingError
from tunehub_builder.packing.base_package import Key, about_line
from tunehub_builder.packing.contents import Contents
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence, read_evidence
from tunehub_registry.package import EVIDENCE


def only_networks(contents: Contents, asked: Sequence[str]) -> Contents:
    """``contents`` with the records of these networks alone, in all their precisions (`llama-3-8b` is also
    `llama-3-8b_q4f16_1`), and the evidence on them. Raises PackingError for a network that ``contents`` has no record
    of."""
    held = [network.name for network in contents.networks]
    strange = next((name for name in asked if not any(_is_of(each, [name]) for each in held)), None)
    if strange is not None:
        known = ", ".join(held) or "no network"
        raise PackingError(f"--network {strange}: there are records of {known}; name one of these")
    files, sets = dict(contents.files), []
    kept: set[Key] = set()
    for entry in contents.record_sets:
        lines = list(_lines_of(files.pop(entry.file), asked))
        if lines:
            files[entry.file] = b"".join(line + b"\n" for line, _ in lines)
            sets.append(msgspec.structs.replace(entry, count=len(lines)))
            kept |= {(entry.tuner, exact) for _, exact in lines}
    if not sets:
        raise PackingError(f"--network {asked[0]}: no record names it; leave --network out")
    return replace(
        contents,
        networks=tuple(each for each in contents.networks if _is_of(each.name, asked)),
        record_sets=tuple(sets),
        files=files,
        evidence=b"".join(map(encode_evidence, _evidence(contents.evidence, kept, asked))),
        curves=tuple(each for each in contents.curves if (each.tuner, each.exact) in kept),
    )


def _is_of(network: str, asked: Iterable[str]) -> bool:
    return any(network == name or network.startswith(f"{name}_") for name in asked)


def _lines_of(data: bytes, asked: Sequence[str]) -> Iterator[tuple[bytes, str]]:
    """The lines of these networks, with their keys; lines of TVM up to 0.19 name no network."""
    for line in data.splitlines():
        about = about_line(line)
        if any(_is_of(name, asked) for name in about.networks):
            yield line, about.exact or ""


def _evidence(data: bytes, kept: set[Key], asked: Sequence[str]) -> Iterator[Evidence]:
    for line in read_evidence(BytesIO(data), EVIDENCE):
        if isinstance(line, RecordEvidence) and (line.tuner or META_SCHEDULE, line.exact) in kept:
            yield line
        if isinstance(line, NetworkEvidence) and _is_of(line.network.partition(" (")[0], asked):
            yield line
