"""`tunehub review`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import FILE, FOLDER, resources_of, threads_option, writable

if TYPE_CHECKING:
    from tunehub.target.tvm_releases import TVMRelease
    from tunehub_builder.review.releases import OtherReleases
    from tunehub_builder.review.review import ReviewedFor
    from tunehub_registry.review import ReviewCheck

_SHOWN = 50  # findings of a check


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--registry", metavar="STORE", help="Compare with what is published there, and with its delegations.")
@click.option("--root", "root_file", type=FILE, metavar="FILE", help="STORE: a trusted root.  [its own first one]")
@click.option("--role", metavar="NAME", help="STORE: the publisher who is to publish it.")
@click.option("--tvm", metavar="RELEASES", default="installed", show_default=True,
              help="Replay on other releases, too, in environments of their own: all, or 0.26,0.25.")  # fmt: skip
@click.option("-o", "--output", type=FILE, callback=writable,
              help="Write the review here, as `tunehub publish --review` takes it.")  # fmt: skip
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print the review as JSON.")
def review(
    folder: Path,
    registry: str | None,
    root_file: Path | None,
    role: str | None,
    tvm: str,
    output: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check a submission that somebody else sent; exit code 1 unless it is verified.

    Its code is run: use a machine without secrets. The checks are those of files, formats, sign-off, licence, the
    allow-list, raw times against evidence, workloads, times against the roofline, replay on this TVM, outputs, the
    version and the name's publisher.
    """
    with errors():
        from tunehub._files.atomic import write_file
        from tunehub_builder.review.review import review_submission
        from tunehub_registry.review import encode_review

        place = None if registry is None else _place(registry, root_file, role)
        others = None if tvm == "installed" else _others(tvm)
        cores = resources_of(threads, 1).threads
        found = review_submission(folder, place, threads=cores, show=_show, others=others)
        data = encode_review(found)
        if output is not None:
            write_file(output, data)
    if as_json:
        print_json(json.loads(data))
    else:
        for check in found.checks:
            for line in check_lines(check):
                say(line)
        say(f"{folder}: {found.state}")
    if found.state != "verified":
        raise SystemExit(1)


def check_lines(check: ReviewCheck) -> Iterator[str]:
    """A check for people: its verdict and reason, and where it found several things, each on a line of its own."""
    yield f"{check.verdict:8} {check.name}: {check.reason}"
    if len(check.findings) > 1:
        yield from (f"         {item.where}: {item.reason}" for item in check.findings[:_SHOWN])
    if len(check.findings) > _SHOWN:
        yield f"         and {len(check.findings) - _SHOWN} more, which --json prints"


def _place(address: str, root_file: Path | None, role: str | None) -> ReviewedFor:
    from tunehub_builder.review.review import ReviewedFor
    from tunehub_registry.publishing.source import open_source
    from tunehub_registry.stores.open import open_store

    source = open_source(open_store(address), None if root_file is None else root_file.read_bytes())
    return ReviewedFor(source=source, role=role)


def _others(text: str) -> OtherReleases:
    from functools import partial

    from tunehub.options import read_options
    from tunehub_builder.replay.environments import environment
    from tunehub_builder.replay.releases import parse_releases
    from tunehub_builder.review.releases import OtherReleases

    def said(release: TVMRelease) -> None:
        say(f"TVM {release.version} …", err=True)

    made = partial(environment, cache=read_options().cache)
    return OtherReleases(releases=parse_releases(text), environment=made, on_release=said)


def _show(position: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{position}/{total} records", nl=position == total, err=True)
