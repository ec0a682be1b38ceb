"""`tunehub explain`: what a compile would do with a model, without generating code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import print_json
from tunehub.options import Layout, Verify

if TYPE_CHECKING:
    from tunehub.report.report import Report

_REMEDY = "install what reads models: pip install 'tunehub[builder]'"


@click.command()
@click.argument("model", metavar="MODEL.onnx", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--target", metavar="TARGET", help="A package name (llvm-znver5), or JSON in TVM's form.  [this CPU]")
@click.option("--input-shape", "shapes", multiple=True, metavar="INPUT=1,3,224,224", help="Fixes an open input.")
@click.option("--specialize", multiple=True, metavar="SYMBOL=1,8", help="Functions for sizes of an open dimension.")
@click.option("--require", metavar="SPECIFIER", help="Restrict packages: 'llvm-znver5>=0.1,<1' or '>=0.1'.")
@click.option("--layout", type=click.Choice(get_args(Layout)), help="Keep layouts, or choose them.  [as the records]")
@click.option("--verify", type=click.Choice(get_args(Verify)), help="Whose remembered verdicts count.  [auto]")
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
    specialize: Sequence[str],
    require: str | None,
    layout: Layout | None,
    verify: Verify | None,
    no_winograd: bool,
    misses: Path | None,
    registry: Sequence[str],
    as_json: bool,
) -> None:
    """Say for each workload of MODEL which record or template would serve it, and why no better one does.

    No code is generated and nothing is measured: times are those of records, on the machine they were tuned on.
    """
    from tunehub import api

    sizes, mod = _read("--specialize", specialize, "SYMBOL=1,8"), _module(model, shapes)
    report = api.explain(
        mod, target, specialize=sizes or None, registry=registry or None, require=require, layout=layout, verify=verify,
        winograd=False if no_winograd else None,
    )  # fmt: skip
    if misses is not None:
        _save(report, misses)
    if as_json:
        print_json(report.to_json())
    else:
        report.print()


def _module(model: Path, shapes: Sequence[str]) -> Any:
    """The model as a Relax module. Exit code 1 for a file that is no model, 2 for a wrong shape."""
    fixed = _read("--input-shape", shapes, "INPUT=1,3,224,224")
    try:
        from tunehub_builder import networks
        from tunehub_builder.networks import NetworkError
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    from tunehub.target.tvm_generation import require_relax

    require_relax()
    try:
        return networks.open_onnx_file(model, shapes=fixed).relax_module()
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _read(option: str, given: Sequence[str], form: str) -> dict[str, tuple[int, ...]]:
    """Numbers by name. Exit code 1 without the builder, 2 for another form."""
    try:
        from tunehub_builder.tuning.recipe import parse_shape
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    try:
        return dict(map(parse_shape, given))
    except ValueError as error:
        raise click.UsageError(f"{option}: expected {form}, got {error}") from None


def _missing(error: ModuleNotFoundError) -> click.ClickException:
    return click.ClickException(f"reading models needs the module {error.name}: {_REMEDY}")


def _save(report: Report, misses: Path) -> None:
    try:
        count = report.save_misses(misses)
    except OSError as error:
        raise click.ClickException(f"--misses {misses}: {error.strerror}; give a file that you may write") from None
    click.echo(f"{count} new misses in {misses}: tunehub tune --from-misses {misses} --work DIR", err=True)
