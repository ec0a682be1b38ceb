"""`tunehub explain`: what a compile would do with a model, without generating code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from tunehub.cli.model_files import (
    dim_option,
    imported,
    layout_option,
    named_numbers,
    opened,
    require_relax_for,
    shape_option,
    specialize_option,
    target_option,
)
from tunehub.cli.options import json_option, registry_option, require_option
from tunehub.cli.output import print_json, say
from tunehub.options import Layout, Precision, Verify

if TYPE_CHECKING:
    from tunehub.report.report import Report


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(dir_okay=False, path_type=Path))
@target_option
@shape_option
@dim_option
@specialize_option
@require_option
@layout_option
@click.option("--verify", type=click.Choice(get_args(Verify)), help="Whose remembered verdicts count.  [auto]")
@click.option("--precision", type=click.Choice(get_args(Precision)), help="What products may round to.  [float32]")
@click.option("--no-winograd", is_flag=True, help="Convolutions of 3×3 are computed directly.")
@click.option(
    "--misses",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append what no record serves to this file, for `tunehub tune --from-misses`.",
)
@registry_option
@json_option
def explain(
    model: Path,
    target: str | None,
    shapes: Sequence[str],
    dims: Sequence[str],
    specialize: Sequence[str],
    require: str | None,
    layout: Layout | None,
    verify: Verify | None,
    precision: Precision | None,
    no_winograd: bool,
    misses: Path | None,
    registry: Sequence[str],
    as_json: bool,
) -> None:
    """Say for each workload of MODEL which record or template would serve it, and why no better one does.

    No code is generated and nothing is measured: times are those of records, on the machine they were tuned on.
    """
    from tunehub import api
    from tunehub.cli.compile import step_display

    sizes = named_numbers("--specialize", specialize, "NAME=1,8")
    require_relax_for("explain")
    file = opened(model, shapes, dims)
    with step_display() as show:
        show("import")
        mod = imported(file).module
        show("schedule")
        report = api.explain(
            mod, target, specialize=sizes or None, registry=registry or None, require=require, layout=layout,
            verify=verify, winograd=False if no_winograd else None, precision=precision,
        )  # fmt: skip
    if misses is not None:
        _save(report, misses)
    if as_json:
        print_json(report.to_json())
    else:
        report.print()


def _save(report: Report, misses: Path) -> None:
    try:
        count = report.save_misses(misses)
    except OSError as error:
        raise click.ClickException(f"--misses {misses}: {error.strerror}; give a file that you may write") from None
    say(f"{count} new misses in {misses}: tunehub tune --from-misses {misses} --work DIR", err=True)
