"""`tunehub fetch`: one package into the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import click
from packaging.version import Version

from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import plain_size, print_json, say
from tunehub.cli.transfer import TransferBar
from tunehub.exceptions import HubError, PackageUnusableError, RequirementError
from tunehub.options import Options, read_options
from tunehub.registries.blob_cache import BlobCache, HashMismatchError
from tunehub.registries.configured import configured_registries
from tunehub.registries.documents import fetch_documents
from tunehub.registries.ordered import Published
from tunehub.registries.requirement import Requirement, parse_versions

_PLACE = "NAME[==VERSION]"


@click.command()
@click.argument("package", metavar=_PLACE)
@registry_option
@json_option
def fetch(package: str, registry: Sequence[str], as_json: bool) -> None:
    """Download a package into the cache (the newest version that fits and is not yanked), so that it is there offline.

    Compiling fetches by itself what it needs; this is for preparing a machine. Exits with 1 when it cannot be had.
    """
    require = parse_versions(package, _PLACE)
    if require.name is None:
        raise RequirementError(package, "names no package", place=_PLACE, remedy="`tunehub list` shows the names")
    options = read_options(registry=registry or None)
    item = _choose(require, options)
    path = _into_cache(item, BlobCache(options.cache))
    entry = item.entry
    if as_json:
        print_json({
            "name": item.name, "version": entry.version, "registry": item.registry.address, "sha256": entry.sha256,
            "size": entry.size, "path": path,
        })  # fmt: skip
    else:
        say(f"{item.name} {entry.version}: {plain_size(entry.size)} from {item.registry.address} in {path}")


def _choose(require: Requirement, options: Options) -> Published:
    """The first registry's newest version that fits. Raises ClickException when there is none."""
    problems: list[HubError] = []
    registries = configured_registries(options, on_problem=problems.append)
    named = list(registries.published({str(require.name).lower()}))
    fitting = [item for item in named if item.entry.yanked is None and require.allows(item.entry.version)]
    for problem in problems:
        say(f"Error: {problem}", err=True)
    if not fitting:
        known = ", ".join(
            f"{item.entry.version}{' (yanked)' if item.entry.yanked is not None else ''}" for item in named
        )
        message = f"{require}: the registries have {known or 'no version of it'} (`tunehub list` shows all)"
        raise click.ClickException(message)
    return next((item for item in fitting if not Version(item.entry.version).is_prerelease), fitting[0])


def _into_cache(item: Published, cache: BlobCache) -> str:
    """Put the package into the cache. Raises HubError, and ClickException when the cache cannot be written."""
    label = f"{item.name} {item.entry.version}"
    path = cache.blob_path(item.entry.sha256)
    try:
        with TransferBar(label, item.entry.size) as bar, cache.lock(path):

            def download(stream: BinaryIO, offset: int) -> None:
                bar(offset)
                item.registry.download_package(item.entry, bar.counting(stream), offset)

            blob = cache.blob(item.entry.sha256, item.entry.size, download)
        fetch_documents(item.entry, item.registry, cache)
        return str(blob)
    except HashMismatchError as error:
        text = f"{label} from {item.registry.address}: {error}"
        raise PackageUnusableError(text, remedy="the registry has to publish it again") from error
    except OSError as error:
        message = f"the cache {cache.root} cannot be used: {error} (set TUNEHUB_CACHE to a folder that can be written)"
        raise click.ClickException(message) from None
