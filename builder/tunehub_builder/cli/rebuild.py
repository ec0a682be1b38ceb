"""`tunehub rebuild`."""

from __future__ import annotations

import hashlib
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import FILE, FOLDER
from tunehub_registry.licenses import DEFAULT_LICENSE

if TYPE_CHECKING:
    from tunehub_builder.packing.rebuild import MemberDifference


@click.command()
@click.argument("package", metavar="PACKAGE.tunepkg", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", metavar="[DIR]", type=FOLDER, required=False)
@click.option("--measured", type=FILE, help="As it was given to `pack`.")
@click.option("--with", "base", type=FILE, help="As it was given to `pack`.")
@click.option("--without", metavar="KEY[=REASON]", multiple=True, help="As it was given to `pack`.")
@click.option("--profile", type=FILE, help="As it was given to `pack`.")
@click.option("--license", metavar="SPDX", help=f"As it was given to `pack`.  [the package's; {DEFAULT_LICENSE} with "
              "--with]")  # fmt: skip
@click.option("--base-license", metavar="SPDX", help="As it was given to `pack`.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def rebuild(
    package: Path,
    directory: Path | None,
    measured: Path | None,
    base: Path | None,
    without: tuple[str, ...],
    profile: Path | None,
    license: str | None,
    base_license: str | None,
    as_json: bool,
) -> None:
    """Pack DIR again, and say whether that gives PACKAGE, or what differs. Nothing is written.

    Exits with 0 for the same bytes, or the same content compressed by another zlib, and with 1 for another content.
    """
    from tunehub_builder.packing.left_out import read_left_out
    from tunehub_builder.packing.network_evidence import read_network_evidence
    from tunehub_builder.packing.pack import pack_directory
    from tunehub_builder.packing.rebuild import compare_packages
    from tunehub_builder.tuning.work_directory import WorkDirectory
    from tunehub_registry.package import open_package

    data = package.read_bytes()
    with errors(), WorkDirectory(directory).locked() if directory else nullcontext() as work:
        with open_package(data, source=str(package)) as opened:
            manifest = opened.manifest
        built = pack_directory(
            work, manifest.version, measured=read_network_evidence(measured) if measured else (), base=base,
            profile=profile, license=license or (DEFAULT_LICENSE if base else manifest.license),
            base_license=base_license, without=read_left_out(without),
        )  # fmt: skip
        differences = compare_packages(data, built.data, str(package))
    same = data == built.data
    _report(package, differences, same=same, sha256=(hashlib.sha256(data).hexdigest(), built.sha256), as_json=as_json)
    sys.exit(1 if differences else 0)


def _report(
    package: Path, differences: tuple[MemberDifference, ...], *, same: bool, sha256: tuple[str, str], as_json: bool
) -> None:
    outcome = "same bytes" if same else "other content" if differences else "same content"
    if as_json:
        document = {"outcome": outcome, "published_sha256": sha256[0], "rebuilt_sha256": sha256[1]}
        print_json({**document, "differences": [asdict(item) for item in differences]})
        return
    why = "" if outcome != "same content" else ", compressed in another way"
    say(f"{package}: {outcome}{why} (sha256 {sha256[0]}, rebuilt {sha256[1]})")
    for item in differences:
        say(f"  {item}")
