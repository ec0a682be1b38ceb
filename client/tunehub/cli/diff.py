"""`tunehub diff`: what another version of a package, or another lock, makes faster, slower, or loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import print_json, print_table, say
from tunehub.cli.writing import registry_errors
from tunehub.exceptions import RequirementError
from tunehub.options import Options, read_options
from tunehub.records.evidence_changes import ORDER, EvidenceChange, network_changes, workload_changes
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.configured import configured_registries
from tunehub.registries.requirement import parse_versions

if TYPE_CHECKING:
    from tunehub_registry.evidence import Evidence
    from tunehub_registry.lock import LockedPackage

_PACKAGE, _LOCK = ".tunepkg", (".lock", ".toml")
_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedPackage:
    """What is compared of a package: its evidence, and the operators of its records by key."""

    label: str
    evidence: tuple[Evidence, ...] = ()
    ops: Mapping[str, str] = field(default_factory=dict)


class _RecordLine(msgspec.Struct):
    exact: str = ""
    op: str = ""


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--all", "every", is_flag=True, help="Show all workloads, also those that stay the same.")
@registry_option
@json_option
def diff(old: str, new: str, every: bool, registry: Sequence[str], as_json: bool) -> None:
    """Say what an upgrade makes faster, slower, or loses, by network and workload.

    OLD and NEW are packages (llvm-znver5==0.3.0, a .tunepkg file), or lock files. The times are those of the packages'
    evidence: of the publisher's machine, on the days when they were measured.
    """
    options = read_options(registry=registry or None)
    with registry_errors():
        pairs = list(_pairs(old, new, options))
    found = [_compared(one, other) for one, other in pairs]
    if as_json:
        print_json({"packages": found})
        return
    for each in found:
        _print(each, every=every)
    if not found:
        say("the same packages")


def _pairs(old: str, new: str, options: Options) -> Iterator[tuple[ComparedPackage, ComparedPackage]]:
    """What is compared with what."""
    if old.endswith(_LOCK) != new.endswith(_LOCK):
        raise click.UsageError("OLD and NEW are two packages, or two lock files")
    if not old.endswith(_LOCK):
        yield _package(old, options), _package(new, options)
        return
    pins = [_pins(Path(each)) for each in (old, new)]
    for name in sorted({*pins[0], *pins[1]}):
        one, other = (each.get(name) for each in pins)
        if one is None or other is None or one.sha256 != other.sha256:
            yield _pinned(one, options), _pinned(other, options)


def _pins(path: Path) -> dict[str, LockedPackage]:
    """The newest pin of each name."""
    from tunehub.registries.locked import read_lock

    lock = read_lock(path, "OLD or NEW")
    return {name: lock.pins(name)[-1] for name in lock.names}


def _pinned(pin: LockedPackage | None, options: Options) -> ComparedPackage:
    from tunehub.registries.locked import LockedRegistry
    from tunehub_registry.lock import Lock

    if pin is None:
        return ComparedPackage(label="nothing")
    lock = Lock(created_by="tunehub", packages=(pin,))
    source = LockedRegistry(lock, "the lock file", registries=options.registries, offline=options.offline)
    data = BlobCache(options.cache).kept_or(pin.sha256, lambda: source.fetch_package(pin.entry()))
    return _contents(data, pin.label)


def _package(text: str, options: Options) -> ComparedPackage:
    if text.endswith(_PACKAGE):
        return _contents(Path(text), Path(text).name)
    require = parse_versions(text, "OLD or NEW")
    if require.name is None:
        raise RequirementError(text, "names no package", place="OLD or NEW", remedy="`tunehub list` shows the names")
    registries = configured_registries(options, on_problem=lambda error: say(f"Error: {error}", err=True))
    fitting = [each for each in registries.published({require.name.lower()}) if require.allows(each.entry.version)]
    chosen = next((each for each in fitting if each.entry.yanked is None), next(iter(fitting), None))
    if chosen is None:
        raise click.ClickException(f"{text}: no registry has such a version (`tunehub list` shows all)")
    entry, source = chosen.entry, chosen.registry
    data = BlobCache(options.cache).kept_or(entry.sha256, lambda: source.fetch_package(entry))
    return _contents(data, f"{chosen.name} {entry.version}")


def _contents(data: Path | bytes, label: str) -> ComparedPackage:
    from tunehub_registry.evidence import BadLine, evidence_in
    from tunehub_registry.package import open_package

    decoder = msgspec.json.Decoder(_RecordLine)
    ops: dict[str, str] = {}
    with open_package(data, source=label) as package:
        evidence = tuple(each for each in evidence_in(package) if not isinstance(each, BadLine))
        for name in package.names:
            if name.startswith("records/") and name.endswith(".jsonl"):
                with package.open(name) as stream:
                    ops |= _ops(stream.read().splitlines(), decoder)
    return ComparedPackage(label=label, evidence=evidence, ops=ops)


def _ops(lines: Sequence[bytes], decoder: msgspec.json.Decoder[_RecordLine]) -> dict[str, str]:
    found = {}
    for line in lines:
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError:
            continue
        found[record.exact] = record.op
    return found


def _compared(old: ComparedPackage, new: ComparedPackage) -> dict[str, Any]:
    """Both kinds of changes, in JSON's types."""
    changes = {
        "networks": network_changes(old.evidence, new.evidence),
        "workloads": workload_changes(old.evidence, new.evidence, {**old.ops, **new.ops}),
    }
    rows = {kind: [_row(each) for each in found] for kind, found in changes.items()}
    return {"old": old.label, "new": new.label, **rows}


def _row(change: EvidenceChange) -> dict[str, Any]:
    return {**asdict(change), "change": change.change, "ratio": change.ratio}


def _print(found: dict[str, Any], *, every: bool) -> None:
    say(f"{found['old']} -> {found['new']}")
    for kind in ("networks", "workloads"):
        counts = Counter(row["change"] for row in found[kind])
        said = ", ".join(f"{counts[change]} {change}" for change in ORDER if counts[change])
        say("", f"{kind}: {said or 'none'}")
        rows = [row for row in found[kind] if every or kind == "networks" or row["change"] != "same"]
        shown = rows if every or kind == "networks" else rows[:_SHOWN]
        if shown:
            headings = ("CHANGE", "NETWORK" if kind == "networks" else "WORKLOAD", "OLD ms", "NEW ms", "NEW / OLD", "")
            print_table(headings, map(_cells, shown), empty="")
        if len(rows) > len(shown):
            say(f"and {len(rows) - len(shown)} more: --all shows them")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{row['op']} {row['name'][:12]}".strip() if row["op"] else row["name"]
    remark = row["reason"] or row["conditions"] or ""
    if row["change"] == "lost" and row["without_s"]:
        remark = "; ".join(filter(None, (remark, f"without it {_ms(row['without_s'])} ms")))
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    return (row["change"], name, _ms(row["before_s"]), _ms(row["after_s"]), ratio, remark)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.4g}"
