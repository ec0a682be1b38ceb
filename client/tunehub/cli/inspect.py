"""`tunehub inspect`: what a library says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, print_table, say
from tunehub.deploy.interface import Interface
from tunehub.exceptions import LibraryError
from tunehub.report.origin import Origin
from tunehub_registry.package import sha256_of


@click.command()
@click.argument("library", metavar="MODEL.so", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--sbom", type=click.Path(path_type=Path), metavar="FILE.json", help="Write a bill of materials: CycloneDX."
)
@json_option
def inspect(library: Path, sbom: Path | None, as_json: bool) -> None:
    """Say what a library was made of: the model, packages by SHA-256 and registry, the lock's hash, TVM and tunehub.

    Nothing of the library runs: it may be for any machine, or a stranger's. Who could change the file could change what
    it says of itself.
    """
    from tunehub.deploy.bill_of_materials import bill_of_materials
    from tunehub.deploy.library import stated_interface

    try:
        found, sha256 = stated_interface(library), sha256_of(library)
    except OSError as error:
        remedy = "give a library that `tunehub compile` wrote"
        raise LibraryError(library, error.strerror or str(error), place="library", remedy=remedy) from None
    if found is None:
        remedy = "`tunehub compile` writes libraries that say what they are, of models in files"
        raise LibraryError(library, "does not say what it is", place="library", remedy=remedy)
    if sbom is not None:
        _write(sbom, bill_of_materials(library.name, sha256, found))
    if as_json:
        print_json(_as_plain(library, sha256, found))
    else:
        _print(library, sha256, found)


def _as_plain(library: Path, sha256: str, interface: Interface) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(interface)
    return {"library": str(library), "sha256": sha256, **plain}


def _print(library: Path, sha256: str, interface: Interface) -> None:
    origin = interface.origin
    say(f"{library.name}: sha256 {sha256}")
    source = interface.source and f"{interface.source}, sha256 {interface.source_sha256}"
    say(f"model: {source or 'not stated'}")
    say(f"target: {interface.target}")
    say(f"made by: tunehub {interface.tunehub}, TVM {interface.tvm}")
    if origin is None:
        say("packages: not stated, as it was made by tunehub 0.2 or older")
        return
    _print_origin(origin)
    for title, specs in (("takes", interface.inputs), ("gives", interface.outputs)):
        say(f"{title} {', '.join(map(str, specs))}")


def _print_origin(origin: Origin) -> None:
    say(f"lock file: {f'sha256 {origin.lock_sha256}' if origin.lock_sha256 else 'none'}")
    say(f"rules: sha256 {origin.rules_sha256} of tunehub's programs" if origin.rules_sha256 else "rules: not stated")
    rows = [(each.label, each.registry, each.sha256) for each in origin.packages]
    say("packages whose records were looked through, nearest first:" if rows else "packages: none")
    if rows:
        print_table(("PACKAGE", "REGISTRY", "SHA-256"), rows, empty="")


def _write(path: Path, bill: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--sbom {path}: {error.strerror}; give a file that you may write") from None
