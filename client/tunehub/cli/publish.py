"""`tunehub publish`, `tunehub yank` and `tunehub unyank`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import plain_size, print_json
from tunehub.cli.transfer import TransferBar
from tunehub.cli.writing import (
    LedgerAccess,
    ledger_options,
    open_ledger,
    registry_errors,
    store_argument,
)

if TYPE_CHECKING:
    from tunehub_registry.index import ShardEntry

_OUTCOMES = {"published": "published", "present": "was there already, with the same bytes"}


@click.command()
@store_argument
@click.argument(
    "packages",
    nargs=-1,
    required=True,
    metavar="PACKAGE.tunepkg...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@ledger_options
@click.option("--role", metavar="NAME", help="Refuse names that do not belong to this publisher.")
@click.option("--review", "review_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Refuse what `tunehub review -o FILE` did not verify for this registry.")  # fmt: skip
@json_option
def publish(
    store: str,
    packages: Sequence[Path],
    access: LedgerAccess,
    role: str | None,
    review_file: Path | None,
    as_json: bool,
) -> None:
    """Publish packages in one step: readers see all of them, or none.

    A published version never changes: other bytes under it are refused, and the same bytes change nothing, so that a
    publish that was cut off is simply run again.
    """
    from tunehub_registry.publishing.packages import publish as publish_packages
    from tunehub_registry.publishing.packages import read_package

    with registry_errors():
        files = [read_package(path) for path in packages]
        if review_file is not None:
            _check_reviewed(review_file, [file.sha256 for file in files], store)
        ledger = open_ledger(store, access, role=role, reviewed=review_file is not None)
        with TransferBar("uploading", sum(file.size for file in files)) as bar:
            done = publish_packages(ledger, files, on_bytes=bar)
    if as_json:
        print_json({"registry": ledger.store.address, "packages": [
            {"name": item.name, "version": item.entry.version, "sha256": item.entry.sha256, "size": item.entry.size,
             "file": item.entry.file, "outcome": item.outcome} for item in done]})  # fmt: skip
        return
    for item in done:
        size = plain_size(item.entry.size)
        click.echo(f"{item.name} {item.entry.version} ({size}, sha256 {item.entry.sha256}): {_OUTCOMES[item.outcome]}")


@click.command()
@store_argument
@click.argument("package", metavar="NAME==VERSION")
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown to whoever still uses the version.")
@ledger_options
@json_option
def yank(store: str, package: str, reason: str, access: LedgerAccess, as_json: bool) -> None:
    """Hide a version from new resolutions. Locks that have it go on working."""
    from tunehub_registry.publishing.packages import yank as yank_version

    name, version = _name_and_version(package)
    if not reason.strip():
        raise click.UsageError("--reason: say why, for those who use the version")
    with registry_errors():
        ledger = open_ledger(store, access)
        _report(name, yank_version(ledger, name, version, reason.strip()), as_json)


@click.command()
@store_argument
@click.argument("package", metavar="NAME==VERSION")
@ledger_options
@json_option
def unyank(store: str, package: str, access: LedgerAccess, as_json: bool) -> None:
    """Take back a yank."""
    from tunehub_registry.publishing.packages import unyank as unyank_version

    name, version = _name_and_version(package)
    with registry_errors():
        ledger = open_ledger(store, access)
        _report(name, unyank_version(ledger, name, version), as_json)


def _check_reviewed(path: Path, packages: Sequence[str], store: str) -> None:
    """Raise ClickException unless the review verified these packages, by SHA-256, for this registry."""
    from tunehub_registry.review import parse_review, review_problem
    from tunehub_registry.stores.open import normalise_address

    review = parse_review(path.read_bytes(), str(path))
    for sha256 in packages:
        problem = review_problem(review, sha256, normalise_address(store))
        if problem is not None:
            raise click.ClickException(f"{path}: {problem}; review the submission with `tunehub review --registry`")


def _name_and_version(text: str) -> tuple[str, str]:
    name, separator, version = text.partition("==")
    if not separator or not name.strip() or not version.strip():
        raise click.UsageError(f"{text!r} is not NAME==VERSION, such as llvm-znver5==0.1.0")
    return name.strip().lower(), version.strip()


def _report(name: str, entry: ShardEntry, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "version": entry.version, "yanked": entry.yanked})
    else:
        click.echo(f"{name} {entry.version}: {'not yanked' if entry.yanked is None else f'yanked: {entry.yanked}'}")
