"""`tunehub catalogue`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import plain_size, print_json, say
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub.exceptions import HubError
    from tunehub.site.catalogue import CatalogueReport


@click.command()
@click.argument("places", metavar="[REGISTRY]...", nargs=-1)
@click.option("-o", "--output", metavar="DIR", required=True, type=click.Path(path_type=Path), help="The folder to "
              "write; an older catalogue there is replaced as a whole.")  # fmt: skip
@click.option("--metadata-only/--packages", default=None, help="Read only indexes, and no package (no evidence, no "
              "pictures); by default so from 1 GB of packages on.")  # fmt: skip
@json_option
def catalogue(places: Sequence[str], output: Path, metadata_only: bool | None, as_json: bool) -> None:
    """Write a static site of what registries hold: packages, networks, targets, evidence and trust.

    Its pages work from a file system and from any web server. REGISTRY are read before the embedded one (default:
    TUNEHUB_REGISTRY). Exits with 1 when something could not be read; its page says so.
    """
    problems: dict[str, HubError] = {}
    done = _write(places, output, metadata_only, problems)
    for problem in problems:
        say(f"Error: {problem}", err=True)
    if as_json:
        print_json({"folder": str(output), **asdict(done), "problems": list(problems)})
    else:
        _print(done, output)
    sys.exit(1 if problems else 0)


def _write(
    places: Sequence[str], output: Path, metadata_only: bool | None, problems: dict[str, HubError]
) -> CatalogueReport:
    from tunehub.options import read_options
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.configured import configured_registries
    from tunehub.registries.trust_store import trust_store
    from tunehub.report.delayed_bar import DelayedBar

    check_installed("tunehub catalogue")
    from tunehub.site.catalogue import write_catalogue
    from tunehub.site.folder import replaced_folder

    def note(problem: HubError) -> None:
        problems.setdefault(str(problem), problem)

    options = read_options(registry=places or None)
    registries = configured_registries(options, on_problem=note)
    try:
        with DelayedBar("packages") as bar, replaced_folder(output) as new:
            return write_catalogue(
                registries,
                new,
                cache=BlobCache(options.cache),
                trust=trust_store(options),
                metadata_only=metadata_only,
                on_problem=note,
                on_package=lambda _: bar(1),
            )
    except RegistryError as error:  # a damaged key of an attester
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(
            f"-o {output}: {error.strerror or error}; give a folder that you may write"
        ) from None


def check_installed(command: str) -> None:
    """Raise ClickException when a library of the extra is missing."""
    from importlib.util import find_spec

    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"`{command}` needs {' and '.join(missing)}: {pip_install('catalogue')}")


def _print(done: CatalogueReport, output: Path) -> None:
    say(
        f"{output / 'index.html'}: {done.packages} packages, {done.networks} networks, {done.files} files, "
        f"{plain_size(done.size)}"
    )
    if done.metadata_only:
        say("No package was read: the pages have neither networks nor evidence (`--packages` reads them).")
