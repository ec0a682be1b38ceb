"""`tunehub publish`, `yank`, `unyank`, `deprecate` and `undeprecate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import plain_size, print_json, say
from tunehub.cli.transfer import TransferBar
from tunehub.cli.writing import (
    LedgerAccess,
    ledger_options,
    open_destination,
    open_ledger,
    proposes,
    registry_errors,
    store_argument,
)
from tunehub.registries.successors import successor_text

if TYPE_CHECKING:
    from tunehub_registry.index import ShardEntry, Successor
    from tunehub_registry.manifest import Manifest
    from tunehub_registry.publishing.ledger import Ledger

_OUTCOMES = {"published": "published", "proposed": "proposed", "present": "was there already, with the same bytes"}


@click.command()
@store_argument
@click.argument(
    "packages",
    nargs=-1,
    metavar="[PACKAGE.tunepkg]...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@ledger_options
@click.option("--role", metavar="NAME", help="Refuse names that do not belong to this publisher.")
@click.option("--review", "review_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Refuse what `tunehub review -o FILE` did not verify for this registry.")  # fmt: skip
@click.option("--catalogue", "with_catalogue", is_flag=True, help="Then write the catalogue of the registry as its "
              "front page; without packages do only that, which needs no key.")  # fmt: skip
@click.option("--url", metavar="URL", help="What the catalogue's pages and their commands call the registry (default: "
              "STORE).")  # fmt: skip
@json_option
def publish(
    store: str,
    packages: Sequence[Path],
    access: LedgerAccess,
    role: str | None,
    review_file: Path | None,
    with_catalogue: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Publish packages in one step: readers see all of them, or none.

    A published version never changes: other bytes under it are refused, and the same bytes change nothing, so that a
    publish that was cut off is simply run again. Without an online key, the packages wait for the registry's signing
    job, which publishes them.
    """
    from tunehub.cli.front_page import check_front_page, print_front_page, publish_front_page

    _check_usage(packages, role or review_file, with_catalogue, url)
    with registry_errors():
        if with_catalogue:
            check_front_page(store)
        published = _publish_packages(store, packages, access, role, review_file) if packages else []
        if not as_json:
            _print_published(published)
        page = publish_front_page(store, access, url) if with_catalogue else None
    for problem in page["problems"] if page else ():
        say(f"Error: {problem}", err=True)
    if as_json:
        extra = {} if page is None else {"catalogue": page}
        print_json({"registry": open_destination(store).address, "packages": published, **extra})
    elif page is not None:
        print_front_page(page)
    if page and page["problems"]:
        sys.exit(1)


def _check_usage(packages: Sequence[Path], of_packages: object, with_catalogue: bool, url: str | None) -> None:
    if url is not None and not with_catalogue:
        raise click.UsageError("--url is for the pages of --catalogue: give that, too")
    if not packages and not with_catalogue:
        raise click.UsageError("name packages, or give --catalogue to write the registry's front page anew")
    if not packages and of_packages:
        raise click.UsageError("--role and --review are about packages: name some, or leave them out")


def _publish_packages(
    store: str, packages: Sequence[Path], access: LedgerAccess, role: str | None, review_file: Path | None
) -> list[dict[str, Any]]:
    """Publish; returns what to report of each package. Raises RegistryError."""
    from tunehub_registry.publishing.packages import publish as publish_packages
    from tunehub_registry.publishing.packages import read_package

    files = [read_package(path) for path in packages]
    if review_file is not None:
        _check_reviewed(review_file, [file.sha256 for file in files], store)
    ledger = open_ledger(store, access, role=role, reviewed=review_file is not None)
    with TransferBar("uploading", sum(file.size for file in files)) as bar:
        done = publish_packages(ledger, files, on_bytes=bar)
    _warn_of_aliases(ledger, [file.manifest for file in files])
    new = "proposed" if proposes(access) else "published"
    return [
        {"name": item.name, "version": item.entry.version, "sha256": item.entry.sha256, "size": item.entry.size,
         "file": item.entry.file, "outcome": new if item.outcome == "published" else item.outcome}
        for item in done
    ]  # fmt: skip


def _warn_of_aliases(ledger: Ledger, manifests: Sequence[Manifest]) -> None:
    from tunehub_registry.publishing.signed import SignedLedger

    if not isinstance(ledger, SignedLedger):
        return
    for manifest in manifests:
        lost = ledger.aliases_of_others(manifest.target)
        if lost:
            kind, label = manifest.target.kind, f"{manifest.name} {manifest.version}"
            names = " --names ".join(f"{kind}-{alias.lower()}" for alias in lost)
            text = (
                f"Warning: {label} does not serve its aliases {', '.join(lost)}: such names belong to another publisher"
            )
            say(f"{text}, or nobody (`tunehub delegate STORE PUBLISHER --names {names} …` changes that)", err=True)


def _print_published(packages: Sequence[dict[str, Any]]) -> None:
    for item in packages:
        size = plain_size(item["size"])
        say(f"{item['name']} {item['version']} ({size}, sha256 {item['sha256']}): {_OUTCOMES[item['outcome']]}")


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


@click.command()
@store_argument
@click.argument("package", metavar="NAME[==VERSION]")
@click.option("--successor", required=True, metavar="NAME[>=VERSION]", help="The package to use instead.")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown to whoever uses the version.")
@ledger_options
@json_option
def deprecate(store: str, package: str, successor: str, reason: str, access: LedgerAccess, as_json: bool) -> None:
    """Name the successor of a version, or of all versions that are published now.

    It is still found and used; its users are told what to use instead.
    """
    from tunehub.registries.requirement import parse_versions
    from tunehub_registry.index import Successor

    name, version = _name_and_any_version(package)
    wanted = parse_versions(successor, "--successor")
    if wanted.name is None:
        raise click.UsageError(f"--successor: {successor!r} names no package; give NAME or NAME>=VERSION")
    other = wanted.name.lower()
    if other == name and (version is None or wanted.allows(version)):
        raise click.UsageError(f"--successor: {successor!r} is no other package than {package!r}; name newer versions")
    with registry_errors():
        found = Successor(name=other, versions=str(wanted.specifier) or None, reason=reason.strip())
        _set_successor(store, access, name, version, found, as_json)


@click.command()
@store_argument
@click.argument("package", metavar="NAME[==VERSION]")
@ledger_options
@json_option
def undeprecate(store: str, package: str, access: LedgerAccess, as_json: bool) -> None:
    """Take back what `tunehub deprecate` said."""
    name, version = _name_and_any_version(package)
    with registry_errors():
        _set_successor(store, access, name, version, None, as_json)


def _name_and_any_version(package: str) -> tuple[str, str | None]:
    return _name_and_version(package) if "==" in package else (package.strip().lower(), None)


def _set_successor(
    store: str, access: LedgerAccess, name: str, version: str | None, successor: Successor | None, as_json: bool
) -> None:
    """Change the registry and say what is there now. Raises RegistryError."""
    from tunehub_registry.publishing.packages import deprecate as deprecate_versions

    entries = deprecate_versions(open_ledger(store, access), name, version, successor)
    rows = [{"name": name, "version": entry.version, "successor": successor_text(entry)} for entry in entries]
    if as_json:
        print_json({"packages": rows})
        return
    for row in rows:
        text = row["successor"]
        say(f"{name} {row['version']}: {'not deprecated' if text is None else f'deprecated, use {text}'}")


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
        say(f"{name} {entry.version}: {'no longer yanked' if entry.yanked is None else f'yanked: {entry.yanked}'}")
