"""A package of some networks alone, `tunehub pack --network`: what serves one model, to hand on with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO

import msgspec

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub_builder.exceptions import PackingError
from tunehub_builder.packing.contents import Contents
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence, read_evidence
from tunehub_registry.manifest import RecordSet
from tunehub_registry.package import EVIDENCE

_About = tuple[str, str]  # tuner and key


class _NamedLine(msgspec.Struct, frozen=True):
    """What a record says of its workload; lines of TVM up to 0.19 name no network."""

    exact: str = ""
    networks: tuple[str, ...] = ()


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
    kept: set[_About] = set()
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
        files=_with_files_of(files, sets, contents.record_sets),
        evidence=b"".join(map(encode_evidence, _evidence(contents.evidence, kept, asked))),
        curves=tuple(each for each in contents.curves if (each.tuner, each.exact) in kept),
    )


def _is_of(network: str, asked: Iterable[str]) -> bool:
    return any(network == name or network.startswith(f"{name}_") for name in asked)


def _lines_of(data: bytes, asked: Sequence[str]) -> Iterator[tuple[bytes, str]]:
    """The lines of these networks, with their keys."""
    for line in data.splitlines():
        said = msgspec.json.decode(line, type=_NamedLine) if line.startswith(b"{") else _NamedLine()
        if any(_is_of(name, asked) for name in said.networks):
            yield line, said.exact


def _with_files_of(
    files: Mapping[str, bytes], sets: Sequence[RecordSet], before: Sequence[RecordSet]
) -> dict[str, bytes]:
    """The ``files`` but for those of record sets that are gone."""
    gone = {entry.file for entry in before} - {entry.file for entry in sets}
    return {name: data for name, data in files.items() if name not in gone}


def _evidence(data: bytes, kept: set[_About], asked: Sequence[str]) -> Iterator[Evidence]:
    for line in read_evidence(BytesIO(data), EVIDENCE):
        if isinstance(line, RecordEvidence) and (line.tuner or META_SCHEDULE, line.exact) in kept:
            yield line
        if isinstance(line, NetworkEvidence) and _is_of(line.network.partition(" (")[0], asked):
            yield line
