"""`tunehub list` and `tunehub show`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import plain_size, print_json, print_table, say
from tunehub.cli.writing import registry_errors
from tunehub.exceptions import HubError, PackageUnusableError, RegistryUnreadableError, RequirementError
from tunehub.options import Options, read_options
from tunehub.registries.attested import read_attestations
from tunehub.registries.blob_cache import BlobCache, HashMismatchError
from tunehub.registries.configured import configured_registries
from tunehub.registries.embedded import license_text
from tunehub.registries.ordered import Published, Registries
from tunehub.registries.requirement import parse_versions
from tunehub.registries.successors import successor_text
from tunehub.registries.trust_store import TrustStore, trust_store
from tunehub_registry.printable import plain

if TYPE_CHECKING:
    from tunehub_registry.package import Package

PACKAGE_SUFFIX = ".tunepkg"


@click.command("list")
@click.argument("target", required=False)
@registry_option
@json_option
def list_packages(target: str | None, registry: Sequence[str], as_json: bool) -> None:
    """List published packages; TARGET keeps those whose name begins with it (llvm, llvm-znver5)."""
    problems: list[HubError] = []
    registries = _registries(read_options(registry=registry or None), problems)
    found = [item for item in registries.published() if _begins_with(item.name, target)]
    _report(problems)
    if as_json:
        print_json({"packages": [_row(item) for item in found], "problems": [str(problem) for problem in problems]})
    else:
        where = f" for {target}" if target else ""
        empty = f"no packages{where} in {', '.join(item.address for item in registries.sources)}"
        headings = ("NAME", "VERSION", "TVM", "SIZE", "PUBLISHED", "REGISTRY", "")
        print_table(headings, (_cells(item) for item in found), empty=empty)
    sys.exit(1 if problems else 0)


@click.command()
@click.argument("package", metavar="NAME[==VERSION]|FILE.tunepkg")
@registry_option
@json_option
def show(package: str, registry: Sequence[str], as_json: bool) -> None:
    """Show what a package holds and how it was made (the newest version that is not yanked, by default)."""
    if package.endswith(PACKAGE_SUFFIX):
        with registry_errors():
            found = describe_file(Path(package))
        print_json(found) if as_json else _print_description(found)
        return
    require = parse_versions(package, "NAME[==VERSION]")
    if require.name is None:
        raise RequirementError(
            package, "names no package", place="NAME[==VERSION]", remedy="`tunehub list` shows the names"
        )
    options = read_options(registry=registry or None)
    problems: list[HubError] = []
    registries = _registries(options, problems)
    named = list(registries.published({require.name.lower()}))
    fitting = [item for item in named if require.allows(item.entry.version)]
    _report(problems)
    if not fitting:
        known = ", ".join(f"{item.name} {item.entry.version}" for item in named) or "no version of it"
        raise click.ClickException(f"{package}: there is {known} in the registries (`tunehub list` shows all)")
    # A yanked version is shown when it is the only one that fits.
    chosen = next((item for item in fitting if item.entry.yanked is None), fitting[0])
    cache = BlobCache(options.cache)
    with registry_errors():
        described = describe(chosen, cache)
        attested, problem = _attestations_or_problem(chosen, cache, options)
    description = {**described, "attestations": attested}
    if as_json:
        print_json(description)
    else:
        _print_description(description)
    if problem is not None:
        _report([problem])
        sys.exit(1)


def _attestations_or_problem(
    item: Published, cache: BlobCache, options: Options
) -> tuple[dict[str, Any] | None, RegistryUnreadableError | None]:
    """A document that cannot be had hides nothing of the package beside it."""
    try:
        return _attestations(item, cache, trust_store(options)), None
    except RegistryUnreadableError as error:
        return None, error


def _attestations(item: Published, cache: BlobCache, trust: TrustStore) -> dict[str, Any] | None:
    """What machines that the user trusts have measured; None when nobody attested the version."""
    found = read_attestations(item.name, item.entry, item.registry, cache, trust)
    if found is None:
        return None
    rows = [{"line": each.line, "keyid": each.keyid, "reason": each.reason} for each in found.judged]
    return {**found.to_json(), "judged": rows}


def describe(item: Published, cache: BlobCache) -> dict[str, Any]:
    """Everything that a package says of itself. Raises PackageUnusableError or RegistryUnreadableError."""
    from tunehub_registry.exceptions import RegistryError

    try:
        data = cache.kept_or(item.entry.sha256, lambda: item.registry.fetch_package(item.entry))
        contents = _contents(data, item.entry.file)
    except (RegistryError, HashMismatchError) as error:
        text = f"{item.name} {item.entry.version} from {item.registry.address}: {error}"
        raise PackageUnusableError(text, remedy="the registry has to publish it again") from error
    return {**_row(item), **contents}


def describe_file(path: Path) -> dict[str, Any]:
    """As `describe`, of a file that no registry has. Raises FormatError, and ClickException where none is."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise click.ClickException(
            f"{path}: {error.strerror or error}; give a file that `tunehub pack` wrote"
        ) from None
    contents = _contents(path, str(path))
    manifest = contents["manifest"]
    sets = manifest["record_sets"]
    return {
        "name": manifest["name"],
        "version": manifest["version"],
        "tvm": [item["tvm"] for item in sets],
        "tuners": [item["tuner"] for item in sets],
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        **dict.fromkeys(("published", "yanked", "successor", "attestations")),
        "documents": [],
        "license": manifest["license"] or None,
        "registry": str(path),
        **contents,
    }


def _contents(data: Path | bytes, source: str) -> dict[str, Any]:
    """The manifest and a summary of the evidence. Raises FormatError."""
    import msgspec

    from tunehub_registry.package import EVIDENCE, open_package

    with open_package(data, source=source) as package:
        evidence = _evidence(package) if EVIDENCE in package.names else {"records": {}, "networks": []}
        return {"manifest": msgspec.to_builtins(package.manifest), "evidence": evidence}


def _evidence(package: Package) -> dict[str, Any]:
    """A summary of the evidence: records by count and speed-up, networks as they are."""
    from statistics import geometric_mean

    import msgspec

    from tunehub_registry.evidence import BadLine, RecordEvidence, evidence_in

    speedups: list[float] = []
    refused = bad = 0
    networks: list[dict[str, Any]] = []
    for line in evidence_in(package):
        if isinstance(line, BadLine):
            bad += 1
        elif not isinstance(line, RecordEvidence):
            networks.append(msgspec.to_builtins(line))
        elif line.admitted:
            speedups.append(line.speedup)
        else:
            refused += 1
    geomean = geometric_mean(speedups) if speedups else None
    records = {"admitted": len(speedups), "refused": refused, "bad_lines": bad, "geomean_speedup": geomean}
    return {"records": records, "networks": networks}


def _print_description(description: dict[str, Any]) -> None:
    for line in _description(description):
        say(line)
    _print_networks(description)


def _description(description: dict[str, Any]) -> Iterator[str]:
    """What is known of a package, as its publisher says it."""
    manifest, evidence = description["manifest"], description["evidence"]
    target, made = manifest["target"], manifest["provenance"]
    yield f"{manifest['name']} {manifest['version']} ({plain_size(description['size'])}, {description['registry']})"
    if description["yanked"] is not None:
        yield f"yanked: {description['yanked'] or 'no reason given'}"
    if description["successor"] is not None:
        yield f"deprecated, use {description['successor']}"
    yield f"licence: {license_text(manifest['license'], description['registry'])}"
    yield f"target: {target['arch']}, features {', '.join(target.get('features', ())) or 'none'}"
    for item in manifest["record_sets"]:
        yield f"records: {item['count']} of {item['tuner']}, for TVM {item['tvm']}, keys {item['key_scheme']}"
    yield (
        f"made: {made['started']} to {made['finished']}, TVM {made['tvm_version']}, {made['trials']} trials, "
        f"{made['threads']} threads, seed {made['seed']}"
    )
    yield from (f"      {command}" for command in made["command"].split("\n"))
    yield f"machine: {', '.join(f'{key} {value}' for key, value in made['machine'].items())}"
    if description["attestations"] is not None:
        yield f"attested: {description['attestations']['text']}"
        for row in description["attestations"]["judged"]:
            if row["reason"] is not None:
                yield f"  line {row['line']}, key {row['keyid'] or 'none'}: {row['reason']}, not counted"
    records = evidence["records"]
    if records.get("admitted"):
        yield (
            f"evidence: {records['admitted']} records admitted, {records['refused']} refused, "
            f"{records['geomean_speedup']:.3g}× the default schedules in the geometric mean"
        )


def _print_networks(description: dict[str, Any]) -> None:
    manifest, evidence = description["manifest"], description["evidence"]
    times = {item["network"]: item for item in evidence["networks"]}
    types = {item["name"]: item["dtype"] for item in manifest["networks"]}
    # Evidence may say which of the package's sets was used: "resnet-18 (graph)".
    measured = {label: label.partition(" (")[0] for label in times}
    on_gpu = manifest["target"]["kind"] == "cuda"
    columns = _ON_GPU if on_gpu else _ON_CPU
    if any(_LLAMA_CPP in item for item in times.values()):
        columns = {**columns, "LLAMA.CPP": _LLAMA_CPP}
    over = any("over_rules" in item for item in times.values())
    rows = [
        (label, _type(types.get(name), times[label], on_gpu), *_times(times[label], columns),
         *([_over_rules(times[label])] if over else []))
        for label, name in sorted(measured.items())
    ]  # fmt: skip
    others = [plain(name) for name in types if name not in measured.values()]
    if rows or not others:
        title = ("NETWORK", "TYPE", *(f"{title} ms" for title in columns), *(["OVER RULES"] if over else []))
        print_table(title, rows, empty="networks: none")
    if others:
        say(f"records of these networks, too, which were not timed as a whole: {', '.join(others)}")


_LLAMA_CPP = "llama_cpp_s"
_NONE = "–"
_ON_CPU = {"DEFAULT": "default_s", "TUNED": "tuned_s", "ONNXRUNTIME": "onnxruntime_s", "OPENVINO": "openvino_s"}
_ON_GPU = {
    "DEFAULT": "default_s",
    "TUNED": "tuned_s",
    "TUNED, CUDA GRAPHS": "tuned_graphs_s",
    "PYTORCH": "torch_s",
    "PYTORCH, CUDA GRAPHS": "torch_graphs_s",
}


def _type(stated: str | None, evidence: dict[str, Any], on_gpu: bool) -> str:
    """As the manifest states it, else as the evidence does, else the usual one."""
    return stated or evidence.get("precision") or ("" if on_gpu else "float32")


def _times(evidence: dict[str, Any], columns: dict[str, str]) -> tuple[str, ...]:
    """Milliseconds; a dash where a time was not measured."""
    found = (evidence.get(field) for field in columns.values())
    return tuple(_NONE if seconds is None else f"{seconds * 1e3:.4g}" for seconds in found)


def _over_rules(evidence: dict[str, Any]) -> str:
    """How many times as fast a network is with the records as by rules alone; a dash where that was not measured."""
    found = evidence.get("over_rules")
    return _NONE if found is None else f"{found:.3g}"


def _registries(options: Options, problems: list[HubError]) -> Registries:
    def note(problem: HubError) -> None:
        if str(problem) not in {str(known) for known in problems}:
            problems.append(problem)

    return configured_registries(options, on_problem=note)


def _report(problems: Sequence[HubError]) -> None:
    for problem in problems:
        say(f"Error: {problem}", err=True)


def _begins_with(name: str, target: str | None) -> bool:
    return target is None or name == target.lower() or name.startswith(target.lower())


def _row(item: Published) -> dict[str, Any]:
    return {
        "name": item.name,
        "version": item.entry.version,
        "tvm": list(item.entry.tvm),
        "tuners": list(item.entry.tuners),
        "size": item.entry.size,
        "sha256": item.entry.sha256,
        "published": item.entry.published,
        "yanked": item.entry.yanked,
        "successor": successor_text(item.entry),
        "documents": [document.kind for document in item.entry.documents or ()],
        "license": item.entry.license or None,
        "registry": item.registry.address,
    }


def _cells(item: Published) -> tuple[str, ...]:
    entry = item.entry
    successor = successor_text(entry)
    remarks = [] if entry.yanked is None else [f"yanked: {entry.yanked}"]
    remarks += [] if successor is None else [f"deprecated, use {successor}"]
    tvm = " or ".join(dict.fromkeys(entry.tvm))
    return (item.name, entry.version, tvm, plain_size(entry.size), entry.published[:10], item.registry.address,
            "; ".join(remarks))  # fmt: skip
