"""`tunehub rows`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, print_table, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import EXISTING, FILE, POSITIVE

if TYPE_CHECKING:
    from tunehub_builder.gate.rows import PackageRows


@click.command()
@click.argument("packages", metavar="PACKAGE.tunepkg...", nargs=-1, required=True, type=FILE)
@click.option("--model", "models", multiple=True, type=EXISTING, help="A model that has workloads of the records.")
@click.option("--from-misses", "misses", multiple=True, type=EXISTING, help="A file of misses that has some.")
@click.option("--workers", type=POSITIVE, help="Processes that look.  [physical cores]")
@json_option
def rows(
    packages: Sequence[Path], models: Sequence[Path], misses: Sequence[Path], workers: int | None, as_json: bool
) -> None:
    """Look at every record of PACKAGEs for current TVM, before a release; nothing is measured.

    Exits with 1 where one is of use to no network known by name, cannot be used by this TVM or today's templates, or is
    slower than what rules had where both were measured, and where a table is empty. Also says which rows were judged
    beside other rules than today's (stale), or never: `tunehub check --again` judges these anew. Rows of networks that
    cannot be made by name, and that no file has, are not at hand.
    """
    from tunehub.target.host import physical_cores
    from tunehub_builder.gate.rows import rows_of, several
    from tunehub_builder.replay.workloads import WorkloadFiles

    files = WorkloadFiles(models=tuple(map(str, models)), misses=tuple(map(str, misses)))
    with errors(), several(workers or physical_cores()) as mapped:
        found = [rows_of(path, files, mapped) for path in packages]
    if as_json:
        print_json({"packages": [item.as_json() for item in found]})
    else:
        for item in found:
            _print(item)
    sys.exit(1 if any(item.failed for item in found) else 0)


def _print(found: PackageRows) -> None:
    say(found.package)
    by_network = found.by_network().items()
    print_table(["kind", "count"], [[name, str(count)] for name, count in found.counts().items()], empty="")
    over = {name: f"{times:.3g}" for name, times in found.over_rules.items()}
    networks = [[name, str(count), str(matched), over.get(name, "")] for name, (count, matched) in by_network]
    print_table(["network", "rows", "matched", "over rules"], networks, empty="its rows name no network")
    for text in (*found.problems, *found.unread):
        say(f"  {text}")
    for row in found.rows:
        if row.problem:
            say(f"  {row.problem}: {row.exact[:12]} {row.tuner} {row.op}: {row.reason}")
