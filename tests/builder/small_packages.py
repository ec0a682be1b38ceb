"""Packages with some of the rows of a published one."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from tunehub_registry.package import MANIFEST, open_package, pack


def rows_of_network(package: Path, network: str, count: int, to: Path) -> tuple[Path, list[str]]:
    """A package at ``to`` with the first ``count`` rows of the template that name ``network`` alone, with all evidence;
    and their keys."""
    with open_package(package) as source:
        manifest = source.manifest
        files = {name: source.read(name) for name in source.names if name != MANIFEST}
    named = f'"networks":["{network}"]'.encode()
    sets = [entry for entry in manifest.record_sets if entry.tuner == "template"]
    lines = [line for entry in sets for line in files[entry.file].splitlines(keepends=True) if named in line][:count]
    kept = {name: data for name, data in files.items() if not name.startswith(("records/", "tuning_curves"))}
    own = structs.replace(sets[0], file="records/template.jsonl", count=len(lines))
    networks = tuple(entry for entry in manifest.networks if entry.name == network)
    data = pack(
        structs.replace(manifest, record_sets=(own,), networks=networks),
        {**kept, "records/template.jsonl": b"".join(lines)},
    )
    to.write_bytes(data)
    return to, [line.split(b'"exact":"')[1][:32].decode() for line in lines]
