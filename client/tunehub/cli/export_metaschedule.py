"""`tunehub export metaschedule`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunehub.cli.compile import ending_cleanly, started, step_display
from tunehub.cli.model_files import dim_option, imported, opened, require_relax_for, shape_option, target_option
from tunehub.cli.options import json_option, registry_option, require_option
from tunehub.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from tunehub.compiler.database_export import DatabaseExport, Prepare
    from tunehub.report.report import Report
    from tunehub.tir.types import IRModule

_PREPARE = ("tunehub", "tvm", "none")
_SHOWN = 10  # of what was left out; --json has all


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--model",
    required=True,
    metavar="MODEL",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Whose functions to write records for: .onnx, .pt2, or .json.",
)
@target_option
@shape_option
@dim_option
@click.option(
    "--prepare",
    type=click.Choice(_PREPARE),
    default=_PREPARE[0],
    show_default=True,
    help="Who makes the functions: tunehub, which writes module.json with them; TVM's pipeline "
    "static_shape_tuning; or nobody, they are in MODEL.",
)
@require_option
@click.option("--tvm", metavar="RELEASE", help="The TVM that is to read it, such as 0.26.  [the one installed here]")
@registry_option
@json_option
@click.pass_context
def metaschedule(
    ctx: click.Context,
    folder: Path,
    model: Path,
    target: str | None,
    shapes: Sequence[str],
    dims: Sequence[str],
    prepare: Prepare,
    require: str | None,
    tvm: str | None,
    registry: Sequence[str],
    as_json: bool,
) -> None:
    """Write a MetaSchedule database for MODEL into DIR, which a TVM without tunehub applies.

    DIR is a work directory of MetaSchedule (docs/import-export.md) for one release of TVM; for another than is
    installed here, the command runs in an environment with that, which it makes in the cache. Exits with 1, and
    writes nothing, when nothing could be exported.
    """
    from tunehub.compiler.database_export import check_folder

    check_folder(folder)
    if tvm is not None:
        _leave_for(tvm, ctx)
    require_relax_for("export metaschedule")
    with ending_cleanly(), step_display() as show:
        clock = started(show)
        read = imported(opened(model, shapes, dims))
        clock("registries")
        done, report = _exported(
            read.module, folder, target, prepare, clock, registry=registry or None, require=require
        )
    if as_json:
        print_json(_as_json(done, report))
    else:
        _print(done, report)
    sys.exit(0 if done.exported else 1)


def _exported(
    mod: IRModule, folder: Path, target: str | None, prepare: Prepare, on_step: Callable[[str], None], **options: Any
) -> tuple[DatabaseExport, Report]:
    """What is written for a module. Winograd's algorithm has kernels by rule and no records: it is left out."""
    from tunehub.compiler.database_export import export_database
    from tunehub.compiler.hub import open_hub
    from tunehub.target.descriptors import as_tvm_target

    tvm_target = as_tvm_target(target)
    hub = open_hub(tvm_target, winograd=False, **options)
    hub.on_step = on_step
    try:
        return export_database(mod, folder, tvm_target, hub, prepare=prepare), hub.report()
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror or error}; name a folder that you may write") from None
    finally:
        hub.close()


def _leave_for(tvm: str, ctx: click.Context) -> None:
    """Run this command where the release ``tvm`` is installed, and exit as it does; here, if that is this one."""
    from tunehub.options import read_options
    from tunehub.target.tvm_generation import find_tvm
    from tunehub_builder.cli.errors import errors
    from tunehub_builder.replay.environments import environment
    from tunehub_builder.replay.releases import parse_releases

    with errors():
        release, *more = parse_releases(tvm)
        if more or release.extra == "legacy":
            raise click.UsageError(f"--tvm {tvm}: give one release from 0.25 on, Relax is what has such databases")
        found = find_tvm()
        if found is not None and ".".join(map(str, found.release)) == release.version:
            return
        python = environment(release, read_options().cache)
    command = [
        str(python),
        "-c",
        "from tunehub.cli import main; main()",
        *ctx.command_path.split()[1:],
        *_arguments(ctx),
    ]
    sys.exit(subprocess.run(command).returncode)


def _arguments(ctx: click.Context) -> list[str]:
    """The arguments that this command was given, as it was given them."""
    found: list[str] = []
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        if isinstance(parameter, click.Argument):
            found.append(str(value))
        elif value is True:
            found.append(parameter.opts[0])
        elif value not in (None, False):
            given = value if isinstance(value, tuple) else (value,)
            found += [word for each in given for word in (parameter.opts[0], str(each))]
    return found


def _as_json(done: DatabaseExport, report: Report) -> dict[str, object]:
    import msgspec
    import tvm

    return {
        "folder": str(done.folder),
        "module": None if done.module is None else str(done.module),
        "tvm": str(tvm.__version__),
        "target": report.target,
        "package": report.package,
        "records": msgspec.to_builtins(done.exported),
        "left_out": msgspec.to_builtins(done.left_out),
    }


def _print(done: DatabaseExport, report: Report) -> None:
    import tvm

    counts = Counter((item.rung, item.package or "", item.template or "") for item in done.exported)
    rows = [(rung, package, template or "-", str(count)) for (rung, package, template), count in sorted(counts.items())]
    print_table(
        ("RUNG", "PACKAGE", "TEMPLATE", "FUNCTIONS"), rows, empty="nothing could be exported, and nothing was written"
    )
    for item in done.left_out[:_SHOWN]:
        say(f"left out: {item.name}: {item.reason}")
    if len(done.left_out) > _SHOWN:
        say(f"left out: {len(done.left_out) - _SHOWN} more, --json has them all")
    if not done.exported:
        return
    what = f"apply it to {done.module}" if done.module else "apply it"
    say(f"{what} with TVM {tvm.__version__}: relax.transform.MetaScheduleApplyDatabase('{done.folder}')")
