"""`tunehub export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.export_metaschedule import metaschedule
from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from tunehub.exceptions import HubError
    from tunehub.records.tophub_export import Export


@click.group()
def export() -> None:
    """Write records in the form that other software reads."""


export.add_command(metaschedule)


@export.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@registry_option
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="Only records for this target; may be repeated. Without it, the CPU's records are those for this machine.",
)
@json_option
def tophub(folder: Path, registry: Sequence[str], targets: Sequence[str], as_json: bool) -> None:
    """Write TopHub's files into DIR, for an unmodified TVM 0.8-0.19 with TOPHUB_LOCATION=file:///DIR or https://…

    Exits with 1 when no record could be exported, or a registry or package could not be read.
    """
    from tunehub.options import read_options
    from tunehub.records.tophub_export import export_tophub
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.configured import configured_registries

    options = read_options(registry=registry or None)
    problems: dict[str, HubError] = {}

    def note(problem: HubError) -> None:
        problems.setdefault(str(problem), problem)

    registries = configured_registries(options, on_problem=note)
    done = export_tophub(registries, folder, targets=targets, cache=BlobCache(options.cache), on_problem=note)
    for problem in problems:
        say(f"Error: {problem}", err=True)
    if as_json:
        print_json(_as_json(done, folder, list(problems)))
    else:
        _print(done, folder)
    sys.exit(1 if problems or not any(file.records for file in done.files) else 0)


def _as_json(done: Export, folder: Path, problems: list[str]) -> dict[str, object]:
    return {
        "location": folder.resolve().as_uri(),
        "files": [
            {"backend": f.backend, "file": str(f.path), "records": f.records, "packages": list(f.packages)}
            for f in done.files
        ],
        "left_out": [{"package": item.package, "reason": item.reason} for item in done.left_out],
        "problems": problems,
    }


def _print(done: Export, folder: Path) -> None:
    rows = [(file.path.name, str(file.records), ", ".join(file.packages)) for file in done.files]
    print_table(("FILE", "RECORDS", "PACKAGES"), rows, empty="")
    for item in done.left_out:
        say(f"left out: {item.package}: {item.reason}")
    say(
        f"use it: TOPHUB_LOCATION={folder.resolve().as_uri()}, or serve the folder over https. TVM keeps what it has "
        "read in ~/.tvm/tophub and never asks again: remove the files there after a new export."
    )
